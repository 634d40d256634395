"""A place to run the launch scripts in, with stubs of gcloud, kubectl and gcluster, and trainers
that only pretend.
"""

import json
import os
import pathlib
import shlex
import subprocess
import sys
import time

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAUNCH = ROOT / "launch"
STUBS = ROOT / "tests" / "launch" / "stubs"
LAUNCHES = ("tpu_vm.sh", "queued_resource.sh", "mig.sh", "gke.sh")
COMMANDS = (*LAUNCHES, "startup.sh")
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
MIG = [*TPU, "--project=p"]
GKE = [
    "--name=xlnet",
    "--image=eu-docker.pkg.dev/p/r/xlnet_jax:abcdef1",
    "--accelerator=tpu-v6e-slice",
    "--topology=2x4",
    "--chips=8",
    "--claim=xlnet-work",
]
COMPLETE = {
    "tpu_vm.sh": TPU,
    "queued_resource.sh": TPU,
    "mig.sh": MIG,
    "gke.sh": GKE,
    "startup.sh": CODE,
}
READY = {"tpu_vm.sh": "READY", "queued_resource.sh": "ACTIVE", "mig.sh": "RUNNING"}

# Says how it was called and ends with the next of these codes.

CODES = """
with open(here / "heard", "a") as file:
    file.write(repr(sys.argv[1:]) + os.linesep)
codes = {codes}
sys.exit(codes[len((here / "heard").read_text().splitlines()) - 1])
"""
# Runs until SIGTERM, then takes a while to save. Every signal is written down; a second one ends it
# at once.
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
# Writes down who it is and ends with the next of its own codes; -9 is the kernel's doing.
EACH = """
with open(here / "heard", "a") as file:
    file.write("{host}" + os.linesep)
code = {codes}[(here / "heard").read_text().split().count("{host}") - 1]
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


class Cloud:
    """A place to run a script in, with the stubs first on PATH."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir()
        path = f"{STUBS}:{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = os.environ | {
            "PATH": path,
            "STUB_DIR": str(folder),
            "HOME": str(self.home),
            "TMPDIR": str(folder),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def answers(self, states: list[str], codes: list[int]) -> None:
        (self.folder / "states.json").write_text(json.dumps(states))
        (self.folder / "codes.json").write_text(json.dumps(codes))

    def fails(self, **errors: list[str | None]) -> None:
        """Names of `tables.ERRORS` for the next calls of a command."""
        for command, names in errors.items():
            (self.folder / f"{command}.json").write_text(json.dumps(names))

    def run(
        self, script: str, *words: str, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [LAUNCH / script, *words],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def start(self, *words: str) -> subprocess.Popen[str]:
        """startup.sh, which goes on beside the test."""
        return subprocess.Popen(
            [LAUNCH / "startup.sh", *CODE, *words, "--", *TRAIN],
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
        )

    def calls(self) -> list[dict]:
        path = self.folder / "calls.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def commands(self) -> list[str]:
        """Of gcloud. Where mig.sh looks at a group, it lists its hosts."""
        commands = ("describe", "list-instances", "create", "delete", "scp", "ssh")
        found = [next(word for word in call["argv"] if word in commands) for call in self.calls()]
        return ["describe" if command == "list-instances" else command for command in found]

    def trainer(self, home: pathlib.Path, code: str) -> None:
        """Puts a trainer where startup.sh would have installed one; its body is Python."""
        bin = home / "xlnet_jax" / ".venv" / "bin"
        bin.mkdir(parents=True)
        (bin.parent / "installed-abcdef1").touch()
        header = (
            f"#!{sys.executable}\n"
            "import os, pathlib, signal, sys, time\n"
            f"here = pathlib.Path({str(self.folder)!r})\n"
            "if sys.argv[1] == 'doctor':\n"
            "    ill = (here / 'ill').read_text() if (here / 'ill').exists() else ''\n"
            "    (here / 'ill').write_text(ill[1:])\n"
            "    sys.exit(2 if ill else 0)\n"
        )
        (bin / "xlnet-jax").write_text(header + code)
        (bin / "xlnet-jax").chmod(0o755)

    def tools(self, programs: dict[str, str]) -> None:
        """Puts programs of bash before those of this machine on PATH, in place of the stubs."""
        bin = self.folder / "bin"
        bin.mkdir(exist_ok=True)
        for name, text in programs.items():
            (bin / name).write_text(f"#!/bin/bash\n{text}\n")
            (bin / name).chmod(0o755)
        self.environment["PATH"] = f"{bin}:{os.environ['PATH']}"

    def heard(self) -> list[str]:
        path = self.folder / "heard"
        return path.read_text().splitlines() if path.exists() else []


def check_refused(done: subprocess.CompletedProcess[str], said: str) -> None:
    """It has ended with 2 and one line."""
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert said in done.stderr


def lines(text: str) -> list[list[str]]:
    return [shlex.split(line) for line in text.splitlines()]


def wait_for(path: pathlib.Path) -> None:
    until = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < until, f"{path} did not appear"
        time.sleep(0.02)


def manifest(cloud: Cloud, *words: str) -> dict:
    cloud.run("gke.sh", *GKE, *words, "--", *TRAIN)
    return yaml.safe_load(cloud.calls()[-1]["stdin"])


def pod_of(found: dict) -> dict:
    return found["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
