"""The scripts of launch/ against stubs of gcloud, kubectl and xpk that know the real flags and refuse all others."""

import copy
import fcntl
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time

import jsonschema
import pytest
import yaml
from jax._src.clusters import cloud_tpu_cluster

ROOT = pathlib.Path(__file__).resolve().parent.parent
LAUNCH = ROOT / "launch"
STUBS = ROOT / "tests" / "launch_stubs"
COMMANDS = ("tpu_vm.sh", "queued_resource.sh", "gke.sh", "xpk.sh", "startup.sh")
TRAIN = [
    "train",
    "--config=configs/xlnet_base.py",
    "--workdir=/mnt/xlnet/run",
    "--config.data.corpus=/mnt/xlnet/it's a",
]
BUCKET = ["train", "--config=configs/xlnet_base.py", "--workdir=gs://bucket/run"]
WHERE = ["--name=xlnet", "--zone=us-east5-b"]
CODE = ["--repo=https://example.org/it.git", "--commit=abcdef1"]
TPU = [*WHERE, "--accelerator=v6e-8", *CODE, "--poll=0"]
GKE = [
    "--name=xlnet", "--image=eu-docker.pkg.dev/p/r/xlnet_jax:abcdef1", "--accelerator=tpu-v6e-slice", "--topology=2x4",
    "--chips=8", "--claim=xlnet-work",
]  # fmt: skip
XPK = ["--cluster=tpus", "--name=xlnet", "--tpu-type=v6e-8", "--image=eu-docker.pkg.dev/p/r/xlnet_jax:abcdef1"]
COMPLETE = {"tpu_vm.sh": TPU, "queued_resource.sh": TPU, "gke.sh": GKE, "xpk.sh": XPK, "startup.sh": CODE}


class Cloud:
    """A place to run a script in, with the stubs first on PATH."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir()
        path = f"{STUBS}:{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = os.environ | {
            "PATH": path, "STUB_DIR": str(folder), "HOME": str(self.home), "TMPDIR": str(folder),
            "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip

    def answers(self, states: list[str], codes: list[int]) -> None:
        (self.folder / "states.json").write_text(json.dumps(states))
        (self.folder / "codes.json").write_text(json.dumps(codes))

    def run(self, script: str, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [LAUNCH / script, *words], env=self.environment, capture_output=True, text=True, timeout=60
        )

    def stub(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(argv, env=self.environment, capture_output=True, text=True, input="", timeout=60)

    def calls(self) -> list[dict]:
        path = self.folder / "calls.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def verbs(self) -> list[str]:
        return [call["argv"][4] for call in self.calls()]

    def trainer(self, home: pathlib.Path, code: str) -> None:
        """Puts a trainer where startup.sh would have installed one; its body is Python."""
        bin = home / "xlnet_jax" / ".venv" / "bin"
        bin.mkdir(parents=True)
        (bin.parent / "installed-abcdef1").touch()
        header = (
            f"#!{sys.executable}\nimport os, pathlib, signal, sys, time\nhere = pathlib.Path({str(self.folder)!r})\n"
        )
        (bin / "xlnet-jax").write_text(header + code)
        (bin / "xlnet-jax").chmod(0o755)

    def heard(self) -> list[str]:
        path = self.folder / "heard"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def cloud(tmp_path: pathlib.Path) -> Cloud:
    return Cloud(tmp_path)


# Says how it was called and ends with the next of these codes.
CODES = """
with open(here / "heard", "a") as file:
    file.write(repr(sys.argv[1:]) + os.linesep)
codes = {codes}
sys.exit(codes[len((here / "heard").read_text().splitlines()) - 1])
"""

# Runs until SIGTERM, then takes a while to save. Every signal is written down; a second one ends it at once.
SAVES = """
def hear(number, frame):
    again = (here / "heard").exists()
    with open(here / "heard", "a") as file:
        file.write(signal.Signals(number).name + os.linesep)
    if again:
        os._exit(130)
signal.signal(signal.SIGTERM, hear)
signal.signal(signal.SIGINT, hear)
(here / "up").touch()
while not (here / "heard").exists():
    time.sleep(0.02)
until = time.monotonic() + 0.7
while time.monotonic() < until:
    time.sleep(0.02)
with open(here / "heard", "a") as file:
    file.write("saved" + os.linesep)
sys.exit(42)
"""


def lines(text: str) -> list[list[str]]:
    return [shlex.split(line) for line in text.splitlines()]


def test_shellcheck_finds_nothing():
    shellcheck = pathlib.Path(sys.executable).with_name("shellcheck")
    done = subprocess.run([shellcheck, *sorted(LAUNCH.glob("*.sh"))], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("script", COMMANDS)
def test_help_is_the_comment_at_the_top_and_begins_with_the_command(cloud, script):
    done = cloud.run(script, "--help")
    assert done.returncode == 0 and not cloud.calls()
    assert re.match(rf"(launch/|bash ){re.escape(script)} ", done.stdout)
    assert "Requires" in done.stdout and "--dry-run" in done.stdout and "shellcheck" not in done.stdout
    text = (LAUNCH / script).read_text()
    # Every option that it takes is told.
    shared = (LAUNCH / "lib.sh").read_text() if "parse_tpu_options" in text else ""
    for option in re.findall(r"^ +(?:\| )?(--[a-z-]+)=?\*?\)", text + shared, re.MULTILINE):
        assert option in done.stdout or option in ("--help", "--"), option


@pytest.mark.parametrize("script", COMMANDS)
@pytest.mark.parametrize(
    "words, said",
    [
        ([], ""),
        (["--nmae=x"], "--nmae=x"),
        (["{complete}"], "after --"),
        (["{complete}", "--", "evaluate", "--workdir=/w"], "train"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(cloud, script, words, said):
    complete = [word for one in words for word in (COMPLETE[script] if one == "{complete}" else [one])]
    if script == "startup.sh" and not words:
        said = "--repo"
    done = cloud.run(script, *complete)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"{script}: ") and said in done.stderr
    assert not cloud.calls()


@pytest.mark.parametrize("script", COMMANDS[:4])
@pytest.mark.parametrize("workdir", ["run", "s3://bucket/run", "gs://bucket", "gs://"])
def test_a_work_directory_that_the_trainer_would_refuse_costs_nothing(cloud, script, workdir):
    done = cloud.run(script, *COMPLETE[script], "--", "train", "--config=c", f"--workdir={workdir}")
    assert done.returncode == 2 and f"--workdir={workdir}" in done.stderr and not cloud.calls()


SEVERAL = [
    ("tpu_vm.sh", ["--accelerator=v6e-16"], 4),
    ("tpu_vm.sh", ["--accelerator=v3-1024"], 128),
    ("queued_resource.sh", ["--accelerator=v5litepod-256"], 64),
    ("queued_resource.sh", ["--slices=2"], 2),
    ("queued_resource.sh", ["--accelerator=v5p-128", "--slices=3"], 48),
    ("gke.sh", ["--chips=4", "--topology=4x4"], 4),
    ("gke.sh", ["--chips=4", "--topology=2x2x4", "--slices=2"], 8),
    ("xpk.sh", ["--tpu-type=v4-16"], 2),
    ("xpk.sh", ["--tpu-type=tpu7x-128"], 16),
    ("xpk.sh", ["--tpu-type=tpu7x-4x4x4"], 16),
    ("xpk.sh", ["--tpu-type=v6e-4x4", "--slices=2"], 8),
]


@pytest.mark.parametrize("script, words, hosts", SEVERAL)
def test_a_folder_of_several_hosts_is_refused_unless_it_is_shared_and_a_bucket_is_not(cloud, script, words, hosts):
    words = [*COMPLETE[script], *words]
    done = cloud.run(script, *words, "--dry-run", "--", *TRAIN)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and done.stdout == ""
    assert f"of the {hosts} hosts" in done.stderr and "--shared-workdir" in done.stderr and "gs://" in done.stderr
    assert cloud.run(script, *words, "--shared-workdir", "--dry-run", "--", *TRAIN).returncode == 0
    assert cloud.run(script, *words, "--dry-run", "--", *BUCKET).returncode == 0
    # One host needs none of that.
    assert cloud.run(script, *COMPLETE[script], "--dry-run", "--", *TRAIN).returncode == 0
    assert not cloud.calls()


@pytest.mark.parametrize(
    "script, words, said",
    [
        ("tpu_vm.sh", ["--accelerator=v6e-16", "--disk=projects/p/zones/z/disks/d"], "only one host may write"),
        ("tpu_vm.sh", ["--accelerator=tpu7x-8"], "GKE"),
        ("queued_resource.sh", ["--accelerator=v3-32", "--slices=2"], "v4 and later"),
        ("gke.sh", ["--topology=2x4", "--slices=2"], "slices of several hosts only"),
        ("gke.sh", ["--topology=2x2", "--chips=8"], "4 chips"),
        ("xpk.sh", ["--tpu-type=h100-8"], "--tpu-type=h100-8"),
        *((script, ["--flags=v9"], "launch/flags/v9.txt") for script in COMMANDS[:4]),
        *((script, ["--flags=../v4"], "--flags=../v4") for script in COMMANDS[:4]),
    ],
)
def test_what_the_cloud_cannot_do_is_refused_in_one_line(cloud, script, words, said):
    done = cloud.run(script, *COMPLETE[script], *words, "--", *BUCKET)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert said in done.stderr and not cloud.calls()


def test_gke_wants_a_claim_only_for_a_folder(cloud):
    words = [word for word in GKE if "--claim" not in word]
    done = cloud.run("gke.sh", *words, "--", *TRAIN)
    assert done.returncode == 2 and "--claim" in done.stderr and not cloud.calls()
    assert cloud.run("gke.sh", *words, "--", *BUCKET).returncode == 0
    pod = pod_of(yaml.safe_load(cloud.calls()[-1]["stdin"]))
    assert [volume["name"] for volume in pod["volumes"]] == ["shm"]
    assert [mount["name"] for mount in pod["containers"][0]["volumeMounts"]] == ["shm"]


VARIANTS = [
    ("tpu_vm.sh", ["--spot", "--project=p", "--internal-ips", "--service-account=a@p.iam.gserviceaccount.com"]),
    ("tpu_vm.sh", ["--disk=projects/p/zones/z/disks/d", "--mount=/data", "--network=n", "--subnetwork=s"]),
    ("tpu_vm.sh", ["--delete"]),
    ("queued_resource.sh", ["--reserved", "--valid-until=6h"]),
    ("tpu_vm.sh", ["--accelerator=v6e-64", "--shared-workdir", "--flags=v6e"]),
    ("queued_resource.sh", ["--slices=2", "--shared-workdir", "--spot", "--flags=v6e,slices"]),
    ("queued_resource.sh", ["--delete"]),
    ("gke.sh", ["--spot", "--grace=300"]),
    ("gke.sh", ["--topology=4x4", "--chips=4", "--slices=2", "--shared-workdir", "--flags=v6e"]),
    ("gke.sh", ["--delete"]),
    ("xpk.sh", ["--storage=a", "--storage=b", "--spot", "--zone=us-east5-b", "--project=p"]),
    ("xpk.sh", ["--tpu-type=v6e-256", "--slices=2", "--shared-workdir", "--flags=v6e"]),
    ("xpk.sh", ["--delete"]),
]


@pytest.mark.parametrize("script, words", VARIANTS)
def test_dry_run_prints_every_command_and_runs_none(cloud, script, words):
    words = [*COMPLETE[script], *words]
    shown = cloud.run(script, *words, "--dry-run", "--", *TRAIN)
    assert (shown.returncode, shown.stderr) == (0, "") and not cloud.calls()
    # The same without --dry-run: the stubs accept these very commands. Looks at the state may be more.
    states = ["absent", "READY" if script == "tpu_vm.sh" else "ACTIVE"]
    cloud.answers(states, [0])
    done = cloud.run(script, *words, "--", *TRAIN)
    assert done.returncode == 0, done.stderr

    def changing(calls):
        return [call for call in calls if "describe" not in call]

    assert changing(lines(shown.stdout)) == changing([call["argv"] for call in cloud.calls()])
    assert lines(shown.stdout)


def test_the_stubs_refuse_a_misspelt_flag_a_missing_one_and_a_false_field(cloud):
    create = ["gcloud", "compute", "tpus", "tpu-vm", "create", "x", "--zone=z", "--version=v", "--quiet"]
    assert cloud.stub(*create).returncode == 0
    for wrong in (
        [*create, "--acelerator-type=v6e-8"],
        [*create, "--runtime-version=v"],
        [word for word in create if "version" not in word],
        [*create, "y"],
        ["gcloud", "compute", "tpus", "queued-resource", "list"],
        ["gcloud", "compute", "tpus", "queued-resources", "describe", "x", "--zone=z", "--format=value(state)"],
        ["kubectl", "apply", "--fielname=-"],
        ["xpk", "workload", "create", "--cluster=c", "--workload=w", "--tpu-type=v6e-8"],
        ["xpk", "workload", "create", "--cluster=c", "--workload=w", "--tpu-type=v", "--command=c", "--restart-on=42"],
    ):
        done = cloud.stub(*wrong)
        assert done.returncode == 2 and done.stderr, wrong
    assert len(cloud.calls()) == 1


def test_a_flag_that_gcloud_would_refuse_ends_the_script_with_its_code(cloud):
    broken = cloud.folder / "launch"
    broken.mkdir()
    for script in LAUNCH.glob("*.sh"):
        text = script.read_text().replace("--accelerator-type=", "--accelerator-tpye=")
        (broken / script.name).write_text(text)
        (broken / script.name).chmod(0o755)
    done = subprocess.run(
        [broken / "tpu_vm.sh", *TPU, "--", *TRAIN], env=cloud.environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2 and "--accelerator-tpye=v6e-8" in done.stderr
    assert cloud.verbs() == ["describe"]


@pytest.mark.parametrize("script, ready", [("tpu_vm.sh", "READY"), ("queued_resource.sh", "ACTIVE")])
@pytest.mark.parametrize("codes, end", [([0], 0), ([42, 42, 0], 0), ([3], 3), ([42, 2], 2), ([255], 255)])
def test_42_runs_the_same_command_again_and_everything_else_ends(cloud, script, ready, codes, end):
    cloud.answers([ready], codes)
    done = cloud.run(script, *TPU, "--", *TRAIN)
    assert done.returncode == end
    commands = [call["argv"] for call in cloud.calls() if call["argv"][4] == "ssh"]
    assert len(commands) == len(codes) and all(command == commands[0] for command in commands)
    assert "create" not in cloud.verbs() and "delete" not in cloud.verbs()


def test_a_machine_that_is_there_is_used_and_a_preempted_one_only_replaced_when_asked(cloud):
    cloud.answers(["PREEMPTED"], [])
    done = cloud.run("tpu_vm.sh", *TPU, "--", *TRAIN)
    assert done.returncode == 1 and "--recreate" in done.stderr and cloud.verbs() == ["describe"]
    cloud.answers(["CREATING", "READY", "PREEMPTED", "PREEMPTED", "absent", "READY"], [255, 0])
    assert cloud.run("tpu_vm.sh", *TPU, "--recreate", "--", *TRAIN).returncode == 0
    assert [verb for verb in cloud.verbs() if verb != "describe"] == ["scp", "ssh", "delete", "create", "scp", "ssh"]


def test_a_queued_resource_is_waited_for_through_all_states(cloud):
    waiting = ["absent", "CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "WAITING_FOR_RESOURCES", "PROVISIONING"]
    cloud.answers([*waiting, "ACTIVE"], [0])
    done = cloud.run("queued_resource.sh", *TPU, "--", *TRAIN)
    assert done.returncode == 0
    assert cloud.verbs() == ["describe", "create", *["describe"] * 6, "scp", "ssh"]
    # Each state is told once.
    assert done.stderr.count("WAITING_FOR_RESOURCES") == 1


@pytest.mark.parametrize("state", ["FAILED", "SUSPENDED", "SUSPENDING", "DELETING", "MELTED"])
def test_a_queued_resource_that_will_not_come_ends_the_script(cloud, state):
    cloud.answers(["PROVISIONING", state], [])
    done = cloud.run("queued_resource.sh", *TPU, "--", *TRAIN)
    assert done.returncode == 1 and state in done.stderr.splitlines()[-1]
    assert set(cloud.verbs()) == {"describe"}


def test_a_suspended_queued_resource_is_made_again_when_asked(cloud):
    # Suspended during the training: the connection breaks.
    cloud.answers(["ACTIVE", "SUSPENDING", "SUSPENDING", "SUSPENDED", "DELETING", "absent", "ACTIVE"], [255, 0])
    assert cloud.run("queued_resource.sh", *TPU, "--recreate", "--", *TRAIN).returncode == 0
    did = [verb for verb in cloud.verbs() if verb != "describe"]
    assert did == ["scp", "ssh", "delete", "create", "scp", "ssh"]


@pytest.mark.parametrize("script", ["tpu_vm.sh", "queued_resource.sh"])
def test_another_failure_of_gcloud_does_not_create_anything(cloud, script):
    cloud.answers(["denied"], [])
    done = cloud.run(script, *TPU, "--", *TRAIN)
    assert done.returncode == 1 and "PERMISSION_DENIED" in done.stderr and done.stderr.count("\n") == 1
    assert cloud.verbs() == ["describe"]


def test_from_gcloud_to_the_trainer_every_word_arrives_whole(cloud):
    host = cloud.folder / "host"
    host.mkdir()
    cloud.trainer(host, CODES.format(codes=[0]))
    cloud.answers(["READY"], [])
    done = cloud.run("tpu_vm.sh", *TPU, "--", *TRAIN, "--config.a=$HOME;\"x\" & 'y'")
    assert done.returncode == 0, done.stderr
    assert cloud.heard() == [repr([*TRAIN, "--config.a=$HOME;\"x\" & 'y'"])]
    assert cloud.verbs() == ["describe", "scp", "ssh"]
    assert "xlnet-jax ended with 0" in (host / "xlnet_jax.log").read_text()


def homes(cloud: Cloud, *names: str) -> list[pathlib.Path]:
    made = [cloud.folder / name for name in names]
    for home in made:
        home.mkdir()
    return made


# Writes down who it is and ends with the next of its own codes; -9 is the kernel's doing.
EACH = """
with open(here / "heard", "a") as file:
    file.write("{host}" + os.linesep)
code = {codes}[(here / "heard").read_text().split().count("{host}") - 1]
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


@pytest.mark.parametrize(
    "codes, rounds, end",
    [
        ([[0], [0]], 1, 0),
        # Lost its peer; the other one was killed. In both orders: gcloud tells the code of the first only.
        ([[42, 0], [-9, 0]], 2, 0),
        ([[-9, 0], [42, 0]], 2, 0),
        ([[42, 0], [42, 0]], 2, 0),
        # One has a reason that will not go away, the others only know that it is gone.
        ([[42], [2]], 1, 2),
        ([[42], [130]], 1, 130),
        ([[-9], [1]], 1, 1),
        ([[3], [3]], 1, 3),
    ],
)
@pytest.mark.parametrize("script", ["tpu_vm.sh", "queued_resource.sh"])
def test_several_hosts_end_or_go_on_together(cloud, script, codes, rounds, end):
    one_slice = script == "tpu_vm.sh"
    names = ["host0-0", "host0-1"] if one_slice else ["host0-0", "host1-0"]
    for home, each in zip(homes(cloud, *names), codes, strict=True):
        cloud.trainer(home, EACH.format(host=home.name, codes=each))
    cloud.answers(["READY" if one_slice else "ACTIVE"], [])
    several = ["--accelerator=v4-16"] if one_slice else ["--slices=2"]
    done = cloud.run(script, *TPU, *several, "--", *BUCKET)
    assert done.returncode == end, done.stderr
    assert sorted(cloud.heard()) == sorted(names * rounds)
    for call in cloud.calls():
        if call["argv"][4] in ("ssh", "scp"):
            assert "--worker=all" in call["argv"]
            assert one_slice or {"--node=all", "--batch-size=all"} < set(call["argv"])


def test_a_host_that_does_not_start_ends_the_others_wait(cloud):
    # It runs another command already: startup.sh refuses, and what it wrote in an earlier round does not count.
    first, second = homes(cloud, "host0-0", "host0-1")
    cloud.trainer(first, EACH.format(host="first", codes=[42, 42]))
    (second / "xlnet_jax.pid").write_text("1\n")
    (second / "xlnet_jax.pid.command").write_text("another \n")
    (second / "xlnet_code").write_text("42\n")
    with open(second / "xlnet_jax.pid") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        cloud.answers(["READY"], [])
        done = cloud.run("tpu_vm.sh", *TPU, "--accelerator=v4-16", "--", *BUCKET)
    assert done.returncode == 2 and "runs another command here" in done.stderr + done.stdout
    assert cloud.heard() == ["first"]


def test_the_stub_reaches_one_host_unless_all_are_named(cloud):
    for home in homes(cloud, "host0-0", "host0-1", "host1-0"):
        (home / "name").write_text(home.name + "\n")
    ssh = ["gcloud", "compute", "tpus", "queued-resources", "ssh", "x", "--zone=z", "--quiet", "--command=cat name"]
    assert cloud.stub(*ssh).stdout == "host0-0\n"
    assert sorted(cloud.stub(*ssh, "--worker=all", "--batch-size=all").stdout.split()) == ["host0-0", "host0-1"]
    everywhere = [*ssh, "--worker=all", "--node=all"]
    assert len(cloud.stub(*everywhere, "--batch-size=all").stdout.split()) == 3
    refused = cloud.stub(*everywhere)
    assert refused.returncode == 2 and "--batch-size" in refused.stderr


@pytest.mark.parametrize("words, once", [([], True), (["--boot"], False)])
def test_several_hosts_start_as_one_or_each_again(cloud, words, once):
    shown = cloud.run("tpu_vm.sh", *TPU, "--accelerator=v4-16", *words, "--dry-run", "--", *BUCKET)
    assert shown.returncode == 0, shown.stderr
    assert ("--once" in shown.stdout) == once and "--peers" not in shown.stdout
    cloud.answers(["absent", "READY"], [])
    if not once:
        assert cloud.run("tpu_vm.sh", *TPU, "--accelerator=v4-16", *words, "--", *BUCKET).returncode == 0
        assert " --peers -- train" in cloud.calls()[1]["metadata"]["startup-script"]
    one = cloud.run("tpu_vm.sh", *TPU, "--dry-run", "--", *BUCKET).stdout
    assert "--once" not in one and "xlnet_code" not in one


def test_one_host_among_several_runs_a_killed_trainer_again(cloud):
    cloud.trainer(cloud.home, EACH.format(host="me", codes=[-9, 42, -6, 1]))
    assert cloud.run("startup.sh", *CODE, "--peers", "--pause=0", "--", *BUCKET).returncode == 1
    assert cloud.heard() == ["me"] * 4
    (cloud.folder / "heard").unlink()
    assert cloud.run("startup.sh", *CODE, "--pause=0", "--", *BUCKET).returncode == 137
    (cloud.folder / "heard").write_text("me\n")
    assert cloud.run("startup.sh", *CODE, "--once", "--pause=0", "--", *BUCKET).returncode == 42
    assert cloud.heard() == ["me"] * 2


FLAG_FILES = sorted((LAUNCH / "flags").glob("*.txt"))


def flags_in(path: pathlib.Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line.startswith("--")]


@pytest.mark.parametrize("path", FLAG_FILES, ids=lambda path: path.stem)
def test_every_flag_of_a_chip_says_what_it_is_for_and_whose_it_is(path):
    blocks = path.read_text().strip().split("\n\n")[1:]
    assert blocks and sum(block.count("\n--") for block in blocks) == len(flags_in(path)) > 0
    for block in blocks:
        comment, _, flags = block.partition("\n--")
        if comment.startswith("# Left out"):
            assert not flags
            continue
        assert re.match(r"# [A-Zb].+\n# Source: \S", comment) and flags, block
        assert all(re.fullmatch(r"--xla_[a-z0-9_]+=[A-Za-z0-9_]+", line) for line in ("--" + flags).splitlines())


def test_flags_reach_libtpu_only_when_asked_for(cloud):
    wanted = " ".join(flags_in(LAUNCH / "flags" / "v6e.txt") + flags_in(LAUNCH / "flags" / "slices.txt"))
    host = cloud.folder / "host"
    host.mkdir()
    cloud.trainer(host, '(here / "heard").write_text(os.environ.get("LIBTPU_INIT_ARGS", "none"))')
    cloud.answers(["READY"], [])
    for words, said in (["--flags=v6e,slices"], wanted), ([], "none"):
        assert cloud.run("tpu_vm.sh", *TPU, *words, "--", *BUCKET).returncode == 0
        assert cloud.heard() == [said]
    for words, said in (["--flags=v6e,slices"], {"LIBTPU_INIT_ARGS": wanted}), ([], {}):
        env = pod_of(manifest(cloud, *words))["containers"][0]["env"]
        assert {one["name"]: one["value"] for one in env} == {"PYTHONUNBUFFERED": "1"} | said
        cloud.run("xpk.sh", *XPK, *words, "--", *TRAIN)
        assert [word for word in cloud.calls()[-1]["argv"] if "LIBTPU" in word] == [
            f"--env={name}={value}" for name, value in said.items()
        ]


def test_the_boot_script_brings_its_own_arguments_and_becomes_a_service(cloud):
    cloud.answers(["absent", "READY"], [])
    assert cloud.run("tpu_vm.sh", *TPU, "--boot", "--", *TRAIN).returncode == 0
    assert cloud.verbs() == ["describe", "create", "describe"]
    script = cloud.calls()[1]["metadata"]["startup-script"]
    assert not list(cloud.folder.glob("xlnet_boot.*"))
    # Run as the metadata server's agent does, with stubs of what needs root; then as systemd would run the copy.
    bin = cloud.folder / "bin"
    bin.mkdir()
    for name in ("install", "systemd-run"):
        (bin / name).write_text(f'#!/bin/bash\nprintf "%s\\n" {name} "$@" >>{cloud.folder}/heard\n')
        (bin / name).chmod(0o755)
    boot = cloud.folder / "boot.sh"
    boot.write_text(script)
    environment = cloud.environment | {"PATH": f"{bin}:{os.environ['PATH']}"}
    assert subprocess.run(["bash", boot], env=environment, timeout=60).returncode == 0
    heard = cloud.heard()
    assert heard[heard.index("systemd-run") :][3] == "--property=KillMode=mixed"
    service = heard[heard.index("/opt/xlnet_jax/startup.sh", heard.index("bash")) + 1 :]
    assert service == [*CODE, "--", *TRAIN]
    (cloud.folder / "heard").unlink()
    cloud.trainer(cloud.home, CODES.format(codes=[0]))
    assert subprocess.run(["bash", boot, *service], env=environment, capture_output=True, timeout=60).returncode == 0
    assert cloud.heard() == [repr(TRAIN)]


@pytest.mark.parametrize("codes, end", [([0], 0), ([42, 42, 0], 0), ([3], 3), ([42, 1], 1), ([130], 130)])
def test_startup_runs_again_on_42_and_ends_with_any_other_code(cloud, codes, end):
    cloud.trainer(cloud.home, CODES.format(codes=codes))
    done = cloud.run("startup.sh", *CODE, "--pause=0", "--", *TRAIN)
    assert done.returncode == end
    assert cloud.heard() == [repr(TRAIN)] * len(codes)
    assert (cloud.home / "xlnet_jax.log").read_text() == done.stdout
    assert (cloud.home / "xlnet_jax.pid.code").read_text() == f"{end}\n"


def wait_for(path: pathlib.Path) -> None:
    until = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < until, f"{path} did not appear"
        time.sleep(0.02)


@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGTERM, signal.SIGTERM, signal.SIGINT]])
def test_startup_forwards_sigterm_once_and_waits_for_the_save(cloud, signals):
    cloud.trainer(cloud.home, SAVES)
    words = [LAUNCH / "startup.sh", *CODE, "--pause=0", "--", *TRAIN]
    with subprocess.Popen(words, env=cloud.environment, stdout=subprocess.PIPE, text=True) as process:
        wait_for(cloud.folder / "up")
        assert int((cloud.home / "xlnet_jax.pid").read_text()) == process.pid
        for number in signals:
            process.send_signal(number)
            time.sleep(0.1)
        out, _ = process.communicate(timeout=30)
    assert process.returncode == 42 and "ended with 42" in out
    assert cloud.heard() == ["SIGTERM", "saved"]


def test_a_stop_before_the_trainer_listens_or_between_two_runs_is_42(cloud):
    cloud.trainer(cloud.home, '(here / "up").touch()\ntime.sleep(30)')
    words = [LAUNCH / "startup.sh", *CODE, "--pause=30", "--", *TRAIN]
    with subprocess.Popen(words, env=cloud.environment, stdout=subprocess.DEVNULL) as process:
        wait_for(cloud.folder / "up")
        process.terminate()
        assert process.wait(30) == 42
    (cloud.home / "xlnet_jax" / ".venv" / "bin" / "xlnet-jax").write_text("#!/bin/bash\nexit 42\n")
    with subprocess.Popen(words, env=cloud.environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while "ended with 42" not in process.stdout.readline():
            pass
        process.terminate()
        assert process.wait(30) == 42


def test_a_broken_connection_does_not_stop_the_trainer(cloud):
    cloud.trainer(
        cloud.home,
        'for i in range(20):\n    print("x" * 9999, flush=True)\n    time.sleep(0.02)\n(here / "up").touch()',
    )
    words = [LAUNCH / "startup.sh", *CODE, "--pause=0", "--", *TRAIN]
    with subprocess.Popen(words, env=cloud.environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.wait(30) == 0
    wait_for(cloud.folder / "up")


def test_a_second_startup_follows_the_first_and_ends_as_it_does(cloud):
    cloud.trainer(cloud.home, '(here / "up").touch()\ntime.sleep(3)\nprint("the last line", flush=True)\nsys.exit(3)')
    words = [LAUNCH / "startup.sh", *CODE, "--", *TRAIN]
    with subprocess.Popen(words, env=cloud.environment, stdout=subprocess.DEVNULL) as first:
        wait_for(cloud.folder / "up")
        (cloud.folder / "up").unlink()
        other = cloud.run("startup.sh", *CODE, "--", *TRAIN, "--config.train.steps=1")
        assert other.returncode == 2 and f"kill -TERM {first.pid}" in other.stderr
        second = cloud.run("startup.sh", *CODE, "--", *TRAIN)
        assert (second.returncode, first.wait(30)) == (3, 3)
    assert "the last line" in second.stdout and not (cloud.folder / "up").exists()


def test_startup_installs_the_commit_once_with_constraints_and_tpu(cloud):
    shown = cloud.run("startup.sh", *CODE, "--device=/dev/sdb", "--mount=/mnt/no such", "--dry-run", "--", *TRAIN)
    assert shown.returncode == 0 and not list(cloud.home.iterdir())
    commands = lines(shown.stdout)
    home = cloud.home / "xlnet_jax"
    assert commands[0] == ["sudo", "mkdir", "-p", "/mnt/no such"]
    assert ["git", "-C", str(home), "checkout", "--quiet", "--force", "abcdef1"] in commands
    install = next(command for command in commands if f"--editable={home}[tpu]" in command)
    assert f"--constraint={home}/constraints.txt" in install
    assert commands[-1] == [str(home / ".venv/bin/xlnet-jax"), *TRAIN]
    # For true, with stubs that write down what they are asked.
    bin = cloud.folder / "bin"
    bin.mkdir()
    for name in ("git", "python3", "sudo"):
        (bin / name).write_text(f'#!/bin/bash\necho {name} "$@" >>{cloud.folder}/asked\n')
        (bin / name).chmod(0o755)
    cloud.trainer(cloud.home, CODES.format(codes=[0, 0]))
    (home / ".venv" / "installed-abcdef1").unlink()
    cloud.environment["PATH"] = f"{bin}:{os.environ['PATH']}"
    for _ in range(2):
        assert cloud.run("startup.sh", *CODE, "--", *TRAIN).returncode == 0
    asked = (cloud.folder / "asked").read_text().splitlines()
    assert [line.split()[0] for line in asked] == ["git"] * 3 + ["python3"] * 3
    assert asked[0] == f"git clone --quiet https://example.org/it.git {home}"


def validator() -> jsonschema.Draft202012Validator:
    schema = json.loads((STUBS / "jobset.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def manifest(cloud: Cloud, *words: str) -> dict:
    cloud.run("gke.sh", *GKE, *words, "--", *TRAIN)
    return yaml.safe_load(cloud.calls()[-1]["stdin"])


def pod_of(found: dict) -> dict:
    return found["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]


def test_the_jobset_is_valid_and_filled_in(cloud):
    several = ["--topology=4x4", "--chips=4", "--slices=2", "--shared-workdir"]
    found = manifest(cloud, "--spot", *several, "--max-restarts=7", "--flags=v6e")
    validator().validate(found)
    assert not re.search(r"@[A-Z_]+@", json.dumps(found))
    assert found["spec"]["failurePolicy"]["maxRestarts"] == 7
    job = found["spec"]["replicatedJobs"][0]
    assert job["replicas"] == 2
    assert job["template"]["spec"]["parallelism"] == job["template"]["spec"]["completions"] == 4
    assert found["spec"]["network"] == {"enableDNSHostnames": True, "publishNotReadyAddresses": True}
    pod = pod_of(found)
    assert pod["containers"][0]["args"] == TRAIN
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice", "cloud.google.com/gke-tpu-topology": "4x4",
        "cloud.google.com/gke-spot": "true",
    }  # fmt: skip
    assert pod["terminationGracePeriodSeconds"] >= 300
    # The rendezvous has the port after JAX's.
    ports = [port["containerPort"] for port in pod["containers"][0]["ports"]]
    assert int(cloud_tpu_cluster.coordinator_port) in ports and int(cloud_tpu_cluster.coordinator_port) + 1 in ports
    plain = manifest(cloud)
    assert "cloud.google.com/gke-spot" not in pod_of(plain)["nodeSelector"]
    # --print shows what kubectl gets.
    printed = cloud.run("gke.sh", *GKE, "--print", "--", *TRAIN)
    assert yaml.safe_load(printed.stdout) == plain


def test_a_misspelt_field_of_the_manifest_fails(cloud):
    found = manifest(cloud)
    checker = validator()
    assert checker.is_valid(found)
    names = []

    def misspell(node, path):
        """Renames every field that the API names, one at a time."""
        if isinstance(node, dict):
            for key in node:
                names.append((*path, key))
                misspell(node[key], (*path, key))
        elif isinstance(node, list):
            for i, each in enumerate(node):
                misspell(each, (*path, i))

    misspell(found, ())
    free = {"annotations", "nodeSelector", "limits"}
    tried = 0
    for path in names:
        if free & set(path[:-1]):
            continue
        wrong = copy.deepcopy(found)
        place = wrong
        for step in path[:-1]:
            place = place[step]
        place[path[-1] + "s"] = place.pop(path[-1])
        assert not checker.is_valid(wrong), path
        tried += 1
    assert tried > 50


def ends(rules: list[dict], code: int, disrupted: bool) -> str:
    """What the Job controller does with a failed pod: the action of the first rule that it meets, else Count."""
    for rule in rules:
        if "onPodConditions" in rule:
            if disrupted and any(one["type"] == "DisruptionTarget" for one in rule["onPodConditions"]):
                return rule["action"]
        else:
            of = rule["onExitCodes"]
            if (code in of["values"]) == (of["operator"] == "In"):
                return rule["action"]
    return "Count"


def test_42_restarts_the_jobset_and_other_codes_end_it(cloud):
    spec = manifest(cloud)["spec"]
    job = spec["replicatedJobs"][0]["template"]["spec"]
    assert job["backoffLimit"] == 0 and job["template"]["spec"]["restartPolicy"] == "Never"
    container = job["template"]["spec"]["containers"][0]
    assert {
        rule["onExitCodes"]["containerName"] for rule in job["podFailurePolicy"]["rules"] if "onExitCodes" in rule
    } == {container["name"]}
    rules = job["podFailurePolicy"]["rules"]
    did = {code: ends(rules, code, False) for code in (1, 2, 3, 42, 130, 134, 137, 139, 143)}
    assert {code for code, action in did.items() if action == "FailJob"} == {1, 2, 3, 130}
    assert {code for code, action in did.items() if action == "Count"} == {42, 134, 137, 139, 143}
    assert ends(rules, 1, True) == "Count"
    # FailJob ends the Job for the reason PodFailurePolicy; Count, with no try left, for BackoffLimitExceeded.
    (rule,) = spec["failurePolicy"]["rules"]
    assert (rule["action"], rule["onJobFailureReasons"]) == ("FailJobSet", ["PodFailurePolicy"])
    assert spec["failurePolicy"]["maxRestarts"] > 0
    # All slices, and none before all old ones are gone.
    assert spec["failurePolicy"]["restartStrategy"] == "BlockingRecreate" and "targetReplicatedJobs" not in rule


def test_xpk_gets_the_restart_code_and_puts_the_trainer_in_the_place_of_the_shell(cloud):
    assert cloud.run("xpk.sh", *XPK, "--max-restarts=9", "--", *TRAIN).returncode == 0
    (call,) = cloud.calls()
    flags = dict(word.split("=", 1) for word in call["argv"] if word.startswith("--"))
    assert flags["--restart-on-exit-codes"] == "42" and flags["--max-restarts"] == "9"
    assert int(flags["--termination-grace-period-seconds"]) >= 300
    assert shlex.split(flags["--command"]) == ["exec", "xlnet-jax", *TRAIN]


def test_the_image_copies_what_is_there_and_runs_the_trainer_without_a_shell():
    text = (LAUNCH / "Dockerfile").read_text()
    steps = re.findall(r"^([A-Z]+) (.*)$", text, re.MULTILINE)
    assert json.loads(dict(steps)["ENTRYPOINT"]) == ["xlnet-jax"]
    assert "--constraint=constraints.txt" in dict(steps)["RUN"] and ".[tpu]" in dict(steps)["RUN"]
    kept = {line[1:] for line in (LAUNCH / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {word for name, words in steps if name == "COPY" for word in words.split()[:-1]}
    assert copied == kept and all((ROOT / word).exists() for word in copied)


# As srun does: the command once on every node; the highest code.
SRUN = """#!/bin/bash
highest=0
for SLURM_NODEID in 0 1; do
  export SLURM_NODEID
  "$@" || { code=$?; ((code > highest)) && highest=$code; }
done
exit $highest
"""


@pytest.mark.parametrize(
    "codes, end, again", [([0, 0], 0, 0), ([42, 42], 42, 1), ([42, 137], 137, 1), ([2, 2], 2, 0), ([3, 3], 3, 0)]
)
def test_the_slurm_script_names_every_process_and_goes_back_into_the_queue_on_42(cloud, codes, end, again):
    page = (ROOT / "docs" / "pods.md").read_text()
    (script,) = re.findall(r"```bash\n(#!/bin/bash\n.*?)```", page, re.DOTALL)
    bin = cloud.folder / "bin"
    bin.mkdir()
    heard = cloud.folder / "heard"
    ours = "$JAX_COORDINATOR_ADDRESS $JAX_NUM_PROCESSES $JAX_PROCESS_ID $*"
    for name, text in (
        ("srun", SRUN),
        ("scontrol", f'#!/bin/bash\ncase $1 in show) printf "node0\\nnode1\\n" ;; *) echo "$@" >>{heard} ;; esac\n'),
        (
            "xlnet-jax",
            f'#!/bin/bash\necho "{ours}" >>{heard}\ncodes=({codes[0]} {codes[1]})\nexit ${{codes[$JAX_PROCESS_ID]}}\n',
        ),
    ):
        (bin / name).write_text(text)
        (bin / name).chmod(0o755)
    (cloud.folder / ".venv" / "bin").mkdir(parents=True)
    (cloud.folder / ".venv" / "bin" / "activate").touch()
    environment = cloud.environment | {
        "PATH": f"{bin}:/usr/bin:/bin", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "node[0-1]", "SLURM_JOB_ID": "7",
    }  # fmt: skip
    done = subprocess.run(["bash", "-c", script], cwd=cloud.folder, env=environment, timeout=60)
    assert done.returncode == end
    lines = cloud.heard()
    command = "train --config=configs/xlnet_large.py --config.data.corpus=/shared/corpus --workdir=/shared/run"
    assert lines[:2] == [f"node0:29400 2 {process} {command}" for process in (0, 1)]
    assert lines[2:] == ["requeue 7"] * again
    shellcheck = pathlib.Path(sys.executable).with_name("shellcheck")
    checked = subprocess.run([shellcheck, "--exclude=SC1091,SC2016", "-"], input=script, capture_output=True, text=True)
    assert (checked.returncode, checked.stdout) == (0, "")


def test_the_commands_of_the_page_are_ones_that_the_scripts_take(cloud):
    page = (ROOT / "docs" / "pods.md").read_text()
    values = {"ZONE": "us-east5-b", "BUCKET": "bucket", "MAIL": "m@p.iam.gserviceaccount.com", "IMAGE": "eu/p/x:1"}
    commands = []
    for block in re.findall(r"```bash\n(.*?)```", page, re.DOTALL):
        for command in re.findall(r"^launch/(?:[^\n]*\\\n)*[^\n]*", block, re.MULTILINE):
            commands.append(command.replace("$(git rev-parse HEAD)", "abcdef1"))
    assert {command.split()[0] for command in commands} == {"launch/tpu_vm.sh", "launch/gke.sh", "launch/xpk.sh"}
    for command in commands:
        # As the page says, by itself; then for true, against the stubs.
        cloud.answers(["absent", "READY"], [0])
        for words in ("", " --dry-run"):
            line = re.sub(r"( -- |$)", words + r"\1", command.replace("\\\n", " "), count=1)
            done = subprocess.run(
                ["bash", "-c", line],
                cwd=ROOT,
                env=cloud.environment | values,
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert done.returncode == 0, done.stderr
    assert len(cloud.calls()) > len(commands)
