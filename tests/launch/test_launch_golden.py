"""What the scripts show with --dry-run, as committed in tests/launch/golden; and the image that is pushed."""

import os
import re
import subprocess

import pytest
from launch_cloud import LAUNCH, ROOT

TRAIN = "train --config=configs/xlnet_large.py --workdir=gs://my-bucket/run --config.data.corpus=gs://my-bucket/corpus"
CODE = f"--repo=https://example.org/xlnet_jax.git --commit={40 * 'a'}"
RUN = (
    f"--name=xlnet --zone=us-east5-b --accelerator=v6e-64 --capacity=spot --recreate --autodelete {CODE} "
    "--service-account=xlnet@my-project.iam.gserviceaccount.com --logs=gs://my-bucket/logs"
)
REPOSITORY = "us-east5-docker.pkg.dev/my-project/xlnet"
IMAGE = f"--name=xlnet --image={REPOSITORY}/xlnet_jax:abcdef1"
POOL = f"{IMAGE} --accelerator=tpu-v6e-slice --topology=8x8 --chips=4"
IRONWOOD = f"{IMAGE} --accelerator=tpu7x --topology=4x4x4 --chips=4"
SHOWN = {
    "tpu_vm.sh": [
        f"{RUN} --env=HF_TOKEN --internal-ips --tunnel-through-iap --dry-run -- {TRAIN}",
        f"{RUN} --boot --dry-run -- {TRAIN}",
        f"--name=xlnet --zone=us-east5-b --accelerator=v6e-8 {CODE} --dry-run -- {TRAIN}",
    ],
    "queued_resource.sh": [
        *(
            f"--name=xlnet --zone=us-east5-b {kind} --capacity={capacity} {CODE} --dry-run -- {TRAIN}"
            for kind, capacities in {
                "--accelerator=v5litepod-256": ["on-demand", "flex-start --max-run-duration=3d"],
                "--accelerator=v6e-256": ["spot", "calendar=mine"],
                "--accelerator=v6e-256 --slices=4": ["reservation=mine"],
                "--accelerator=v5p-1024": ["on-demand", "reservation=mine"],
            }.items()
            for capacity in capacities
        ),
        f"{RUN} --slices=2 --valid-until=6h --tunnel-through-iap --dry-run -- {TRAIN}",
    ],
    "startup.sh": [f"{CODE} --device=/dev/sdb --mount=/mnt/xlnet --dir=/home/me/xlnet_jax --dry-run -- {TRAIN}"],
    "image.sh": [f"--repository={REPOSITORY} --commit=HEAD --dry-run"],
    "gke.sh": [
        f"{POOL} --slices=2 --capacity=spot --dry-run -- {TRAIN}",
        f"{POOL} --slices=2 --capacity=spot --print -- {TRAIN}",
        f"{POOL} --network=pod --service-account=xlnet --claim=w --print -- {TRAIN}",
        f"{POOL} --queue=xlnet --capacity=reservation=mine --print -- {TRAIN}",
        f"{IRONWOOD} --capacity=spot --grace=105 --print -- {TRAIN}",
        "--name=xlnet --delete --dry-run",
    ],
    "xpk.sh": [
        f"{IMAGE} --cluster=tpus --tpu-type=v6e-64 --slices=2 --capacity=spot --dry-run -- {TRAIN}",
        f"{IMAGE} --cluster=tpus --zone=us-east5-b --tpu-type=v6e-64 --dry-run -- {TRAIN}",
        f"{IMAGE} --cluster=tpus --tpu-type=tpu7x-128 --capacity=flex-start --dry-run -- {TRAIN}",
        f"{IMAGE} --cluster=tpus --tpu-type=v5p-1024 --capacity=reservation=mine --dry-run -- {TRAIN}",
        "--cluster=tpus --name=xlnet --delete --dry-run",
    ],
    "slurm.sbatch": [f"--dry-run {TRAIN}"],
}


@pytest.mark.parametrize("script", SHOWN)
def test_what_a_script_shows_before_it_does_it_is_what_the_file_has(cloud, script):
    """Rewritten by: GOLDEN=write pytest tests/launch/test_launch_golden.py"""
    cloud.environment |= {"TMPDIR": "/tmp", "HF_TOKEN": "a secret"}
    head = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout
    shown = ""
    for words in SHOWN[script]:
        done = cloud.run(script, *words.split())
        assert (done.returncode, done.stderr) == (0, "") and not cloud.calls()
        shown += f"$ launch/{script} {words}\n{done.stdout}\n"
    for text, name in {str(ROOT): "CHECKOUT", head.strip(): "COMMIT", f"chown {os.getuid()} ": "chown USER "}.items():
        shown = shown.replace(text, name)
    path = ROOT / "tests" / "launch" / "golden" / f"{script.partition('.')[0]}.txt"
    if os.environ.get("GOLDEN") == "write":
        path.write_text(shown)
    assert shown == path.read_text()


def test_the_image_is_built_of_the_commit_alone_and_pushed(cloud):
    words = [f"--repository={REPOSITORY}", "--commit=HEAD"]
    done = cloud.run("image.sh", *words)
    assert done.returncode == 0, done.stderr
    login, build = cloud.calls()
    assert login["argv"][:3] == ["gcloud", "auth", "configure-docker"]
    assert {"--push", "--platform=linux/amd64", f"--tag={done.stdout.strip()}"} < set(build["argv"])
    assert {"launch/Dockerfile", "constraints.txt", "xlnet_jax/cli.py"} < set(build["context"])
    # A digest is one image for ever; a tag is another one from day to day.
    (base,) = re.findall("^FROM (.*)$", (LAUNCH / "Dockerfile").read_text(), re.MULTILINE)
    assert re.fullmatch(r"python:3\.12-slim@sha256:[0-9a-f]{64}", base)
    assert "--file=launch/Dockerfile" in build["argv"] and not any(".git/" in name for name in build["context"])
    for wrong, said in ((["--repository=docker.io/me"], "docker.io"), ([*words, "--commit=nix"], "nix")):
        refused = cloud.run("image.sh", *wrong)
        assert refused.returncode == 2 and refused.stderr.count("\n") == 1 and said in refused.stderr
