"""A small run is killed at random moments and started again until it is done; it must end as if
never touched.

Compared bit for bit with an undisturbed run: parameters, optimizer, memory and plan of the last
checkpoint; loss, gradient norm, learning rate and counters of every step. With
`checkpoint.memory=rebuild` that run stops, and is started again, at the steps at which the killed
one has rebuilt its memory, by the record of its last checkpoint; it is never killed.
"""

import os
import random
import shutil
import signal
import sys
import time

import pytest
import shared
from hosts import Hosts

from xlnet_jax.checkpoint.store import Checkpoints
from xlnet_jax.run.metrics import read_jsonl

EVERY = 4
OPTIONS = (
    f"--config.checkpoint.every={EVERY}",
    "--config.evaluation.every=8",
    "--config.evaluation.blocks=8",
    "--config.data.workers=0",
    # One killed before they have met leaves the other waiting.
    "--config.distributed.rendezvous_seconds=60",
)
OF_A_STEP = (*shared.OF_A_STEP, "consecutive_bad", "epoch")
OF_AN_EVALUATION = ("step", "heldout_loss", "loss_without_memory", "targets")


class Chaos:
    """Runs in `folder` with `processes` processes each; `memory` is `checkpoint.memory`."""

    def __init__(self, folder, processes, memory, seed):
        self.folder, self.processes, self.random = folder, processes, random.Random(seed)
        # Blocks so long that most checkpoints are not at the start of one, where no memory is
        # needed.
        blocks = ("--config.data.windows_per_block=16",) if memory == "rebuild" else ()
        self.options = (*OPTIONS, f"--config.checkpoint.memory={memory}", *blocks)
        self.kills = 0
        self.expected = {}
        """By the steps at which its memory is rebuilt, how a run ends that is never killed."""
        self.undisturbed(())
        # With the programs compiled, from the start of the process to its end: moments are drawn
        # from this.
        began = time.monotonic()
        self.finish(self.start(folder / "warm"))
        self.seconds = time.monotonic() - began

    def undisturbed(self, rebuilt):
        if rebuilt not in self.expected:
            workdir = self.folder / f"undisturbed{len(self.expected)}"
            for stop in (*rebuilt, shared.STEPS):
                self.finish(self.start(workdir, f"--stop_at={stop}"))
            self.expected[rebuilt] = fingerprint(workdir)
            assert len(self.expected[rebuilt]["steps"]) == shared.STEPS
            assert len(self.expected[rebuilt]["arrays"]) > 40
        return self.expected[rebuilt]

    def start(self, workdir, *options):
        cache = self.folder / "cache"
        return Hosts("train", workdir, *self.options, *options, count=self.processes, cache=cache)

    @staticmethod
    def finish(hosts):
        hosts.finish(0)
        assert all(process.returncode == 0 for process in hosts.processes.values())

    def run(self, number):
        """One run with up to three kills; what differs in the end."""
        workdir = self.folder / f"run{number}"
        wanted, killed = self.random.randint(1, 3), 0
        while True:
            hosts = self.start(workdir)
            victim = hosts.processes[self.random.randrange(self.processes)]
            hit = killed < wanted and self.kill(victim, workdir)
            self.check_end(hosts, victim if hit else None)
            if hit:
                killed += 1
                self.kills += 1
            elif killed:
                break
            else:
                shutil.rmtree(workdir)  # it was faster than the kill
        found = fingerprint(workdir)
        wrong = [
            name
            for name, value in self.undisturbed(tuple(found["rebuilt"])).items()
            if found[name] != value
        ]
        wrong += ["quarantine"] * (workdir / "quarantine").exists()
        shutil.rmtree(workdir)
        return wrong

    def kill(self, victim, workdir):
        """Waits for a moment and kills; False if the process has ended before."""
        kind = self.random.choice(("save", "save", "training", "any", "any"))
        at = self.random.randrange(EVERY, shared.STEPS + 1, EVERY)
        deadline = time.monotonic() + (
            self.random.uniform(0, self.seconds) if kind == "any" else 120
        )
        folder = workdir / "checkpoints"
        while victim.poll() is None and time.monotonic() < deadline:
            names = os.listdir(folder) if folder.exists() else []
            if kind == "save" and any(name.startswith(f"{at}.") for name in names):
                time.sleep(self.random.uniform(0, 0.05))
                break
            if kind == "training" and str(at) in names:
                time.sleep(self.random.uniform(0, 0.1))
                break
            time.sleep(0.001)
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        return victim.returncode == -signal.SIGKILL

    @staticmethod
    def check_end(hosts, victim):
        allowed = (0,) if victim is None else (42, 0)
        for number, process in hosts.processes.items():
            _, err = process.communicate(timeout=120)
            assert process is victim or process.returncode in allowed, (
                f"process {number} ended with {process.returncode}:\n{err}"
            )


def fingerprint(workdir):
    """Hashes of every saved array, the plan, when the memory was rebuilt, what every step and
    evaluation measured.
    """
    arrays, plan = shared.arrays(workdir, shared.STEPS)
    with Checkpoints(str(workdir)) as checkpoints:
        rebuilt = checkpoints.record(shared.STEPS)["rebuilt"]
    steps = read_jsonl(os.path.join(workdir, "metrics.jsonl"))
    evaluations = read_jsonl(os.path.join(workdir, "evaluations.jsonl"))
    return {
        "arrays": arrays,
        "plan": plan,
        "rebuilt": rebuilt,
        "steps": [[line[name] for name in OF_A_STEP] for line in steps],
        "evaluations": [[line[name] for name in OF_AN_EVALUATION] for line in evaluations],
    }


@pytest.mark.production
@pytest.mark.parametrize(
    ("runs", "processes", "memory"),
    [
        pytest.param(2, 1, "all", marks=pytest.mark.slow),
        *(
            pytest.param(*each, marks=pytest.mark.prove)
            for each in ((30, 1, "all"), (10, 2, "all"), (10, 1, "rebuild"))
        ),
    ],
)
def test_killed_at_random_moments_it_ends_with_the_same_bits(tmp_path, runs, processes, memory):
    seed = random.randrange(2**32)
    chaos = Chaos(tmp_path, processes, memory, seed)
    for number in range(runs):
        wrong = chaos.run(number)
        print(f"seed {seed}, run {number}: kills so far {chaos.kills}", file=sys.stderr)
        assert not wrong, "not as the undisturbed run"
