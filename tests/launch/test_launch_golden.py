"""What the scripts for TPU VMs show with --dry-run, as committed in tests/launch/golden."""

import os
import re
import subprocess

import pytest
from launch_cloud import LAUNCH, ROOT

GOLDEN = ROOT / "tests" / "launch" / "golden"
RUN = ["--name=xlnet", "--zone=us-east5-b", "--accelerator=v6e-64", "--spot", "--recreate", "--autodelete"]
RUN += ["--service-account=xlnet@my-project.iam.gserviceaccount.com", "--logs=gs://my-bucket/logs"]
CODE = ["--repo=https://example.org/xlnet_jax.git", "--commit=" + 40 * "a"]
EXAMPLES = {
    "tpu_vm.sh": [*RUN, *CODE, "--env=HF_TOKEN", "--internal-ips", "--tunnel-through-iap"],
    "queued_resource.sh": [*RUN, *CODE, "--slices=2", "--flags=v6e,slices", "--valid-until=6h"],
    "startup.sh": [*CODE, "--device=/dev/sdb", "--mount=/mnt/xlnet", "--dir=/home/me/xlnet_jax"],
    "image.sh": ["--repository=us-east5-docker.pkg.dev/my-project/xlnet", "--commit=HEAD"],
}


@pytest.mark.parametrize("script", EXAMPLES)
def test_dry_run_prints_what_the_golden_file_has(cloud, script):
    """Rewritten by: GOLDEN=write pytest tests/launch/test_launch_golden.py"""
    train = ["train", "--config=configs/xlnet_large.py", "--workdir=gs://my-bucket/run"]
    cloud.environment |= {"TMPDIR": "/tmp", "HF_TOKEN": "a secret"}
    words = [*EXAMPLES[script], "--dry-run", *([] if script == "image.sh" else ["--", *train])]
    shown = cloud.run(script, *words)
    assert (shown.returncode, shown.stderr) == (0, "")
    head = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout
    text = shown.stdout.replace(str(ROOT), "CHECKOUT").replace(head.strip(), "COMMIT")
    text = text.replace(f"chown {os.getuid()} ", "chown USER ")
    path = GOLDEN / f"{script.removesuffix('.sh')}.txt"
    if os.environ.get("GOLDEN") == "write":
        path.write_text(text)
    assert text == path.read_text()


def test_the_image_is_built_of_the_commit_alone_and_pushed(cloud):
    done = cloud.run("image.sh", *EXAMPLES["image.sh"])
    assert done.returncode == 0, done.stderr
    login, build = cloud.calls()
    assert login["argv"][:3] == ["gcloud", "auth", "configure-docker"]
    assert {"--push", "--platform=linux/amd64", f"--tag={done.stdout.strip()}"} < set(build["argv"])
    assert {"launch/Dockerfile", "constraints.txt", "xlnet_jax/cli.py"} < set(build["context"])
    # A digest is one image for ever; a tag is another one from day to day.
    (base,) = re.findall("^FROM (.*)$", (LAUNCH / "Dockerfile").read_text(), re.MULTILINE)
    assert re.fullmatch(r"python:3\.12-slim@sha256:[0-9a-f]{64}", base)
    assert "--file=launch/Dockerfile" in build["argv"] and not any(".git/" in name for name in build["context"])
    for words, said in ((["--repository=docker.io/me"], "docker.io"), ([*EXAMPLES["image.sh"], "--commit=nix"], "nix")):
        refused = cloud.run("image.sh", *words)
        assert refused.returncode == 2 and refused.stderr.count("\n") == 1 and said in refused.stderr
