"""What the scripts show with --dry-run, as committed in tests/launch/golden; and the image that is
pushed.
"""

import difflib
import os
import re
import subprocess

import pytest
from launch_cloud import LAUNCH, ROOT, check_refused

TRAIN = (
    "train --config=configs/xlnet_large.py --workdir=gs://my-bucket/run "
    "--config.data.corpus=gs://my-bucket/corpus"
)
CODE = f"--repo=https://example.org/xlnet_jax.git --commit={40 * 'a'}"
RUN = (
    "--name=xlnet --zone=us-east5-b --accelerator=v6e-64 --capacity=spot --recreate --autodelete "
    f"{CODE} --service-account=xlnet@my-project.iam.gserviceaccount.com --logs=gs://my-bucket/logs"
)
REPOSITORY = "us-east5-docker.pkg.dev/my-project/xlnet"
IMAGE = f"--name=xlnet --image={REPOSITORY}/xlnet_jax:abcdef1"
POOL = f"{IMAGE} --accelerator=tpu-v6e-slice --topology=8x8 --chips=4"
TPUS = f"--name=xlnet --zone=us-east5-b {CODE}"
# Words that all rows of a table have, the slices, and the kinds of capacity for the first slice.
FOUR = ["on-demand", "spot", "flex-start", "reservation=mine"]
TABLES = {
    "tpu_vm.sh": (
        f"{TPUS} --dry-run",
        ["--accelerator=v5litepod-256", "--accelerator=v6e-256", "--accelerator=v5p-1024"],
        ["on-demand", "spot"],
    ),
    "queued_resource.sh": (
        f"{TPUS} --dry-run",
        ["--accelerator=v5litepod-256", "--accelerator=v6e-256 --slices=4"],
        [*FOUR, "calendar=mine"],
    ),
    "mig.sh": (
        f"{TPUS} --project=my-project --dry-run",
        # One host, the most compact shape of cubes, and another shape.
        [
            "--accelerator=v6e-256",
            "--accelerator=v6e-8",
            "--accelerator=v5p-1536",
            "--accelerator=v5p-4x4x32",
            "--accelerator=tpu7x-128",
        ],
        FOUR,
    ),
    "gke.sh": (
        f"{IMAGE} --chips=4 --print",
        [
            "--accelerator=tpu-v5-lite-podslice --topology=16x16",
            "--accelerator=tpu-v6e-slice --topology=16x16 --slices=4",
            "--accelerator=tpu7x --topology=4x4x4",
        ],
        FOUR,
    ),
}
SHOWN = {
    "tpu_vm.sh": [
        f"{RUN} --env=HF_TOKEN --internal-ips --tunnel-through-iap --dry-run -- {TRAIN}",
        f"{RUN} --boot --dry-run -- {TRAIN}",
        f"--name=xlnet --zone=us-east5-b --accelerator=v6e-8 {CODE} --dry-run -- {TRAIN}",
    ],
    "queued_resource.sh": [
        f"{RUN} --slices=2 --valid-until=6h --tunnel-through-iap --dry-run -- {TRAIN}"
    ],
    "mig.sh": [
        (
            f"{RUN} --project=my-project --env=HF_TOKEN --internal-ips "
            f"--tunnel-through-iap --dry-run -- {TRAIN}"
        ),
        f"{RUN} --project=my-project --boot --dry-run -- {TRAIN}",
        "--name=xlnet --project=my-project --zone=us-east5-b --delete --dry-run",
    ],
    "startup.sh": [
        f"{CODE} --device=/dev/sdb --mount=/mnt/xlnet --dir=/home/me/xlnet_jax --dry-run -- {TRAIN}"
    ],
    "image.sh": [f"--repository={REPOSITORY} --commit=HEAD --dry-run"],
    "gke.sh": [
        f"{POOL} --slices=2 --capacity=spot --dry-run -- {TRAIN}",
        (
            f"{POOL} --network=pod --service-account=xlnet --claim=w --queue=xlnet --capacity=spot "
            f"--grace=105 --print -- {TRAIN}"
        ),
        "--name=xlnet --delete --dry-run",
    ],
    "slurm.sbatch": [f"--dry-run {TRAIN}"],
}


def shown_by(cloud, script: str, words: str) -> str:
    done = cloud.run(script, *words.split())
    assert (done.returncode, done.stderr) == (0, "") and not cloud.calls()
    return done.stdout


def differences(first: str, other: str) -> str:
    """The flags and the lines that are not in both."""
    both = (
        re.sub(r"(?<!\\) (?=--)", "\n", text).splitlines(keepends=True) for text in (first, other)
    )
    return "".join(line for line in difflib.ndiff(*both) if line[0] in "-+")


@pytest.mark.parametrize("script", SHOWN)
def test_what_a_script_shows_before_it_does_it_is_what_the_file_has(cloud, script):
    """Rewritten by: GOLDEN=write pytest tests/launch/test_launch_golden.py

    Of the rows of a table after the first one, the file has what differs from the first.
    """
    cloud.environment |= {"TMPDIR": "/tmp", "HF_TOKEN": "a secret"}
    head = subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout
    shown = "".join(
        f"$ launch/{script} {words}\n{shown_by(cloud, script, words)}\n" for words in SHOWN[script]
    )
    same, slices, capacities = TABLES.get(script, ("", [], []))
    first = ""
    rows = [f"{slices[0]} --capacity={capacity}" for capacity in capacities]
    for row in rows + slices[1:]:
        output = shown_by(cloud, script, f"{same} {row} -- {TRAIN}")
        if first:
            shown += f"$ ... {row}\n{differences(first, output)}\n"
        else:
            first = output
            shown += f"$ launch/{script} {same} {row} -- {TRAIN}\n{output}\n"
    for text, name in {
        str(ROOT): "CHECKOUT",
        head.strip(): "COMMIT",
        f"chown {os.getuid()} ": "chown USER ",
    }.items():
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
    assert f"--tag={done.stdout.strip()}" in build["argv"]
    assert {"launch/Dockerfile", "constraints.txt", "xlnet_jax/cli.py"} < set(build["context"])
    assert not any(".git/" in name for name in build["context"])
    # A digest is one image for ever; a tag is another one from day to day.
    (base,) = re.findall("^FROM (.*)$", (LAUNCH / "Dockerfile").read_text(), re.MULTILINE)
    assert re.fullmatch(r"python:3\.12-slim@sha256:[0-9a-f]{64}", base)
    for wrong, said in (
        (["--repository=docker.io/me"], "docker.io"),
        ([*words, "--commit=nix"], "nix"),
    ):
        check_refused(cloud.run("image.sh", *wrong), said)
