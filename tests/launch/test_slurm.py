"""launch/slurm.sbatch on a real SLURM: a controller and two nodes on loopback, started and stopped
here.

Requires Debian's `slurm-wlm`, 22.05 or later. Nodes have loopback addresses as names, so that each
can find the others.
"""

import contextlib
import functools
import getpass
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys

import pytest
import shared
import tiny
from hosts import free_port

from xlnet_jax.run.metrics import read_jsonl

pytestmark = [
    pytest.mark.prove,
    pytest.mark.skipif(
        not shutil.which("slurmctld", path="/usr/sbin:" + os.environ["PATH"]), reason="slurm-wlm"
    ),
]
NODES = ("127.0.0.1", "127.0.0.2")
CONF = """\
ClusterName=loopback
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/none
CredType=cred/none
# A job that is requeued waits until its old credentials have expired.
AuthInfo=cred_expire=5
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd%n.pid
SlurmdTimeout=10
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
ReturnToService=2
MpiDefault=none
"""


wait_for = functools.partial(shared.wait_until, seconds=600)


class Slurm:
    """Two nodes of one CPU. Jobs train the tiny configuration."""

    def __init__(self, folder: pathlib.Path):
        self.folder, self.log = folder, folder / "log"
        host, port = socket.gethostname().split(".")[0], free_port()
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        conf = CONF.format(host=host, port=port, user=getpass.getuser(), folder=folder)
        for node in NODES:
            conf += (
                f"NodeName={node} NodeHostname={host} NodeAddr={node} "
                f"Port={free_port()} CPUs=1 RealMemory=1000\n"
            )
        (folder / "state").mkdir()
        (folder / "slurm.conf").write_text(
            conf + "PartitionName=main Nodes=ALL Default=YES State=UP\n"
        )
        self.environment = shared.environment() | {
            "PATH": f"/usr/sbin:{os.environ['PATH']}",
            "SLURM_CONF": str(folder / "slurm.conf"),
            "XLNET_JAX": f"{sys.executable} -m xlnet_jax",
        }
        self.daemon("slurmctld", "-D")
        for node in NODES:
            self.daemon(f"slurmd{node}", "-D", "-N", node)
        wait_for(lambda: self.ask("sinfo", "--noheader", "--format=%T %D").strip() == "idle 2")

    def daemon(self, name: str, *words: str) -> None:
        with open(self.folder / f"{name}.log", "ab") as log:
            self.daemons[name] = subprocess.Popen(
                [name.rstrip("0123456789."), *words], env=self.environment, stdout=log, stderr=log
            )

    def stop(self) -> None:
        # Ends every process of every job.
        self.ask("scancel", "--full", "--signal=KILL", f"--user={getpass.getuser()}")
        wait_for(lambda: "R" not in self.ask("squeue", "--noheader", "--format=%t"))
        for daemon in reversed(self.daemons.values()):
            daemon.terminate()
            daemon.wait(30)

    def ask(self, *words: str) -> str:
        return subprocess.run(
            words, env=self.environment, capture_output=True, text=True, timeout=60
        ).stdout

    def submit(
        self, workdir: pathlib.Path, *words: str, options: tuple[str, ...] = ("--nodes=2",)
    ) -> str:
        """The number of the job."""
        words = (
            *shared.train_words(workdir, *words),
            f"--config.log.compilation_cache={self.folder}/cache",
        )
        batch = [f"--chdir={tiny.ROOT}", f"--output={self.log}", *options]
        program = f"{tiny.ROOT}/launch/slurm.sbatch"
        job = self.ask("sbatch", "--parsable", *batch, program, *words).strip()
        assert job, "sbatch refuses"
        return job

    def state(self, job: str) -> str:
        """Such as `COMPLETED 0:0`, the exit code and the signal."""
        shown = self.ask("scontrol", "show", "job", job)
        return " ".join(re.findall(r"\b(?:JobState|ExitCode)=(\S+)", shown))

    def on_node(self, node: str, job: str) -> list[int]:
        """The processes of a job there."""
        wanted = {
            f"SLURM_CONF={self.environment['SLURM_CONF']}",
            f"SLURM_JOB_ID={job}",
            f"SLURMD_NODENAME={node}",
        }
        found = []
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if wanted <= {*(folder / "environ").read_text(errors="replace").split("\0")}:
                    found.append(int(folder.name))
        return found

    def finish(self, job: str, end: str = "COMPLETED 0:0") -> None:
        wait_for(lambda: self.state(job).split()[0] not in ("PENDING", "RUNNING", "COMPLETING"))
        assert self.state(job) == end, self.log.read_text()


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    slurm = Slurm(tmp_path_factory.mktemp("slurm"))
    yield slurm
    slurm.stop()


def stop_by_signal(slurm: Slurm, job: str) -> None:
    """As `--signal` does before the time limit: to the trainers, not to the batch file."""
    assert slurm.ask("scancel", "--signal=TERM", job) == ""


def kill_a_trainer(slurm: Slurm, job: str) -> None:
    for pid in slurm.on_node(NODES[1], job):
        os.kill(pid, signal.SIGKILL)


def kill_a_node(slurm: Slurm, job: str) -> None:
    """Everything on the node dies at once; it comes back as another machine."""
    name = f"slurmd{NODES[1]}"
    trainers = slurm.on_node(NODES[1], job)
    parents = {int(pathlib.Path(f"/proc/{pid}/stat").read_text().split()[3]) for pid in trainers}
    slurm.daemons[name].kill()
    slurm.daemons[name].wait()
    for pid in [*(parents - set(trainers)), *trainers]:
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: "down" in slurm.ask("sinfo", "--noheader", "--format=%T"))
    slurm.daemon(name, "-D", "-N", NODES[1])


OFTEN = (
    "--config.checkpoint.every=2",
    "--config.evaluation.every=0",
    "--config.distributed.heartbeat_seconds=10",
)


def test_a_harmed_job_goes_back_into_the_queue_and_ends_with_the_same_bits(slurm, tmp_path):
    slurm.finish(slurm.submit(tmp_path / "undisturbed", *OFTEN))
    job = slurm.submit(tmp_path / "run", *OFTEN)
    for step, harm in ((6, stop_by_signal), (16, kill_a_trainer), (26, kill_a_node)):
        wait_for((tmp_path / "run" / "checkpoints" / str(step)).exists)
        harm(slurm, job)
    slurm.finish(job)
    run, wanted = tmp_path / "run", tmp_path / "undisturbed"
    assert shared.steps(run) == shared.steps(wanted)
    assert shared.arrays(run, shared.STEPS) == shared.arrays(wanted, shared.STEPS)
    first, *starts = [run["step"] for run in read_jsonl(str(tmp_path / "run" / "runs.jsonl"))]
    assert first == 0
    for start, before in zip(starts, (6, 16, 26), strict=True):
        assert before <= start < before + 10
    assert "Restarts=3" in slurm.ask("scontrol", "show", "job", job)


def test_a_job_that_is_cancelled_saves_and_stays_cancelled(slurm, tmp_path):
    job = slurm.submit(tmp_path / "run", *OFTEN, options=("--nodes=1",))
    wait_for((tmp_path / "run" / "checkpoints" / "6").exists)
    slurm.ask("scancel", job)
    slurm.finish(job, "CANCELLED 0:15")
    assert "SIGTERM" in slurm.log.read_text() and "Restarts=0" in slurm.ask(
        "scontrol", "show", "job", job
    )


def test_an_array_is_one_run_for_each_seed_and_only_the_harmed_one_comes_back(slurm, tmp_path):
    # Without the number of the task, `scontrol requeue` would start the whole array again.
    job = slurm.submit(tmp_path, *OFTEN, options=("--nodes=1", "--array=0,3"))
    wait_for((tmp_path / "3" / "checkpoints" / "6").exists)
    slurm.ask("scancel", "--signal=TERM", f"{job}_3")
    for task in (0, 3):
        slurm.finish(f"{job}_{task}")
        assert f"Restarts={task // 3}" in slurm.ask("scontrol", "show", "job", f"{job}_{task}")
    for task in (0, 3):
        config = json.loads((tmp_path / str(task) / "config.json").read_text())["config"]
        seeds = [config[f"seeds.{name}"] for name in ("init", "data", "dropout")]
        assert seeds == [3 * task, 3 * task + 1, 3 * task + 2]
