"""The scripts of launch/ against stubs of gcloud and kubectl that know the real flags and refuse
all others.
"""

import re
import subprocess

import pytest
from launch_cloud import (
    BUCKET,
    COMMANDS,
    COMPLETE,
    LAUNCH,
    LAUNCHES,
    READY,
    TRAIN,
    check_refused,
    lines,
)

from xlnet_jax.aot.topology import slice_shapes


@pytest.mark.parametrize("script", COMMANDS)
def test_help_is_the_comment_at_the_top_and_begins_with_the_command(cloud, script):
    done = cloud.run(script, "--help")
    assert done.returncode == 0 and not cloud.calls()
    assert re.match(rf"(launch/|bash ){re.escape(script)} ", done.stdout)
    assert (
        "Requires" in done.stdout and "--dry-run" in done.stdout and "shellcheck" not in done.stdout
    )
    text = (LAUNCH / script).read_text()
    # Every option that it takes is told.
    text += (LAUNCH / "tpu.sh").read_text() if "parse_tpu_options" in text else ""
    text += (LAUNCH / "lib.sh").read_text() if "common_option" in text else ""
    options = re.findall(r"^ +(?:\| )?(--[a-z-]+)=?\*?\)", text, re.MULTILINE)
    assert {"--help", "--dry-run"} <= set(options)
    for option in options:
        assert option in done.stdout or option in ("--help", "--"), option


@pytest.mark.parametrize("script", COMMANDS)
def test_bad_usage_is_one_line_and_exit_code_2(cloud, script):
    for words, said in (
        ([], "see --help"),
        (["--nmae=x"], "--nmae=x"),
        (COMPLETE[script], "after --"),
        ([*COMPLETE[script], "--", "evaluate", "--workdir=/w"], "after --"),
    ):
        done = cloud.run(script, *words)
        check_refused(done, said)
        assert done.stderr.startswith(f"{script}: ")
    assert not cloud.calls()


SEVERAL = [
    ("tpu_vm.sh", ["--accelerator=v3-1024"], 128),
    ("queued_resource.sh", ["--accelerator=v5p-128", "--slices=3"], 48),
    ("mig.sh", ["--accelerator=tpu7x-4x4x8"], 32),
    ("gke.sh", ["--accelerator=tpu-v5p-slice", "--chips=4", "--topology=2x2x4", "--slices=2"], 8),
]


@pytest.mark.parametrize("script, words, hosts", SEVERAL)
def test_a_folder_of_several_hosts_is_refused_unless_it_is_shared_and_a_bucket_is_not(
    cloud, script, words, hosts
):
    words = [*COMPLETE[script], *words]
    done = cloud.run(script, *words, "--dry-run", "--", *TRAIN)
    check_refused(
        done, f"of the {hosts} hosts: give --workdir=gs://BUCKET/DIR, or --shared-workdir"
    )
    assert cloud.run(script, *words, "--shared-workdir", "--dry-run", "--", *TRAIN).returncode == 0
    assert cloud.run(script, *words, "--dry-run", "--", *BUCKET).returncode == 0
    # One host needs none of that.
    assert cloud.run(script, *COMPLETE[script], "--dry-run", "--", *TRAIN).returncode == 0
    assert not cloud.calls()


@pytest.mark.parametrize(
    "script, words, said",
    [
        (
            "tpu_vm.sh",
            ["--accelerator=v6e-16", "--disk=projects/p/zones/z/disks/d"],
            "only one host may write",
        ),
        ("tpu_vm.sh", ["--accelerator=tpu7x-8"], "launch/mig.sh"),
        ("tpu_vm.sh", ["--accelerator=v6e-4x4"], "not a type"),
        ("mig.sh", ["--accelerator=v5litepod-16"], "v5p, v6e and tpu7x"),
        ("mig.sh", ["--capacity=flex-start", "--max-run-duration=1w"], "--max-run-duration=1w"),
        ("queued_resource.sh", ["--accelerator=v3-32", "--slices=2"], "v4 and later"),
        ("gke.sh", ["--topology=2x4", "--slices=2"], "slices of several hosts only"),
        ("gke.sh", ["--topology=2x2", "--chips=8"], "4 chips"),
        ("gke.sh", ["--topology=4x4", "--chips=8"], "16 chips"),
        ("gke.sh", ["--topology=5x7", "--chips=1"], "up to 256 chips"),
        (
            "gke.sh",
            ["--accelerator=tpu-v5p-slice", "--topology=8x4x4", "--chips=4"],
            "multiples of 4",
        ),
        ("gke.sh", ["--accelerator=tpu-v6-slice"], "tpu-v6e-slice"),
        (
            "gke.sh",
            ["--accelerator=tpu-v3-slice", "--topology=4x4", "--chips=4", "--slices=2"],
            "v4 and later",
        ),
        ("tpu_vm.sh", ["--accelerator=v6e-512"], "up to 256 chips"),
        ("tpu_vm.sh", ["--accelerator=v5p-130"], "a chip counts for 2"),
        ("queued_resource.sh", ["--accelerator=v5p-12544", "--slices=2"], "up to 6144 chips"),
        ("mig.sh", ["--accelerator=v3-8"], "v5p, v6e and tpu7x"),
        # What a forgotten `export` leaves, and numbers that bash reads as octal.
        ("gke.sh", ["--claim="], "--claim= has no value"),
        ("gke.sh", ["--capacity=reservation="], "has no value"),
        ("tpu_vm.sh", ["--logs=gs:///logs"], "--logs=gs:///logs"),
        ("tpu_vm.sh", ["--repo=no/such"], "--repo=no/such"),
        ("tpu_vm.sh", ["--poll=09"], "--poll=09"),
        ("tpu_vm.sh", ["--give-up-after=08m"], "--give-up-after=08m"),
        *((script, ["--name=" + 64 * "x"], "--name=xxx") for script in LAUNCHES),
        # On the host network pods have the identity of the node, and otherwise their own.
        ("gke.sh", ["--service-account=xlnet"], "--network=pod"),
        ("gke.sh", ["--network=pod"], "--service-account"),
        ("gke.sh", ["--network=bridge"], "host|pod"),
        # What the tool or the TPU does not have.
        ("tpu_vm.sh", ["--capacity=flex-start"], "has on-demand, spot\n"),
        ("mig.sh", ["--capacity=calendar=r"], "has on-demand, spot, flex-start, reservation\n"),
        ("gke.sh", ["--capacity=calendar=r"], "has on-demand, spot, flex-start, reservation\n"),
        ("queued_resource.sh", ["--accelerator=v4-8", "--capacity=flex-start"], "v5e and later"),
        ("queued_resource.sh", ["--capacity=cheap"], "--capacity=cheap"),
        (
            "queued_resource.sh",
            ["--capacity=flex-start", "--max-run-duration=1w"],
            "--max-run-duration=1w",
        ),
        ("gke.sh", ["--capacity=spot", "--grace=300"], "launch/gke/spot_nodes.yaml"),
        # What the trainer would refuse.
        ("gke.sh", ["--", *BUCKET, "--config.data.corpus=gs:///c"], "no bucket"),
        *(
            ("gke.sh", ["--", "train", "--config=c", f"--workdir={place}"], f"--workdir={place}")
            for place in ("run", "s3://bucket/run", "gs://bucket")
        ),
    ],
)
def test_what_the_cloud_cannot_do_is_refused_in_one_line(cloud, script, words, said):
    train = [] if "--" in words else ["--", *BUCKET]
    check_refused(cloud.run(script, *COMPLETE[script], *words, *train), said)
    assert not cloud.calls()


def test_the_scripts_and_compile_read_the_same_table():
    """Catches a slice that compiles and cannot be rented, or that is rented and does not
    compile.
    """
    shapes = [
        "1x1",
        "2x4",
        "4x2",
        "16x16",
        "16x32",
        "5x7",
        "2x2x1",
        "4x4x4",
        "4x4x12",
        "2x4x6",
        "16x16x24",
        "16x24x28",
    ]
    asked = {
        f"{kind} {shape}": row.has([int(side) for side in shape.split("x")])
        for kind, row in slice_shapes().items()
        for shape in shapes
        if shape.count("x") == row.shapes[0].count("x")
    }
    # Only `compile` accepts a slice that is turned.
    expected = {name for name, has in asked.items() if has and not name.endswith(" 4x2")}
    script = f"""source {LAUNCH}/lib.sh
while read -r kind shape; do
  read -r _ _ _ _ _ _ largest _ _ shapes < <(rows_of 1 $kind)
  rented $shape $largest $shapes && echo $kind $shape || true
done"""
    done = subprocess.run(
        ["bash", "-c", script],
        input="\n".join(asked) + "\n",
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(done.stdout.splitlines()) == expected and 15 < len(expected) < len(asked)


VARIANTS = [
    (
        "tpu_vm.sh",
        [
            "--autodelete",
            "--logs=gs://bucket/logs",
            "--recreate",
            "--tunnel-through-iap",
            "--internal-ips",
            "--network=n",
            "--subnetwork=s",
            "--service-account=a@p.iam.gserviceaccount.com",
            "--mount=/data",
            "--disk=projects/p/zones/z/disks/d",
        ],
    ),
    ("queued_resource.sh", ["--slices=2", "--shared-workdir", "--capacity=spot"]),
    ("queued_resource.sh", ["--capacity=flex-start", "--max-run-duration=3d"]),
    ("mig.sh", ["--capacity=spot", "--autodelete", "--disk=projects/p/zones/z/disks/d"]),
    ("gke.sh", ["--topology=4x4", "--chips=4", "--slices=2", "--shared-workdir"]),
    ("queued_resource.sh", ["--capacity=calendar=r", "--valid-until=6h"]),
    ("mig.sh", ["--capacity=reservation=r", "--network=n", "--subnetwork=s"]),
    *((script, ["--delete"]) for script in LAUNCHES),
]


@pytest.mark.parametrize("script, words", VARIANTS)
def test_dry_run_prints_every_command_and_runs_none(cloud, script, words):
    words = [*COMPLETE[script], *words]
    shown = cloud.run(script, *words, "--dry-run", "--", *TRAIN)
    assert (shown.returncode, shown.stderr) == (0, "") and not cloud.calls()
    # The same without --dry-run: the stubs accept these very commands. Looks at the state may be
    # more.
    cloud.answers(["absent", READY.get(script, "")], [0])
    done = cloud.run(script, *words, "--", *TRAIN)
    assert done.returncode == 0, done.stderr

    def changing(calls):
        return [call for call in calls if not {"describe", "list-instances"} & set(call)]

    # Only the folder of the files for the hosts has another name each time, and a host of a group
    # gets its name late.
    called = [
        [
            re.sub(r"xlnet_launch\.\w+", "xlnet_launch", word).replace("xlnet-0000", "xlnet-HOST")
            for word in call["argv"]
        ]
        for call in cloud.calls()
    ]
    assert changing(lines(shown.stdout)) == changing(called)
    assert lines(shown.stdout)
