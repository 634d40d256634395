"""A small run is killed at random moments and started again until it is done; it must end as if never touched.

    python tests/chaos.py --runs 30 --json
    python tests/chaos.py --runs 10 --processes 2 --json     one of two is killed, the other must end by itself with 42
    python tests/chaos.py --runs 10 --memory=rebuild --json  checkpoints without the memory

Compared bit for bit with an undisturbed run: parameters, optimizer, memory and plan of the last checkpoint; loss,
gradient norm, learning rate and counters of every step. With `--memory=rebuild` that run stops, and is started again,
at the steps at which the killed one has rebuilt its memory, by the record of its last checkpoint; it is never killed.
Prints runs, how many were identical, kills, how often a memory was rebuilt, and seconds.
"""

# ruff: noqa: E402

from __future__ import annotations

import argparse
import collections
import json
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE), str(HERE / "multiprocess")]

import jax
import shared
from hosts import Hosts

from xlnet_jax.checkpoint.store import Checkpoints
from xlnet_jax.run.metrics import read_jsonl

STEPS, EVERY = 40, 4
OPTIONS = (f"--config.checkpoint.every={EVERY}", "--config.evaluation.every=8", "--config.evaluation.blocks=8",
           "--config.data.workers=0",
           # One killed before they have met leaves the other waiting.
           "--config.distributed.rendezvous_seconds=30")  # fmt: skip
OF_A_STEP = ("step", "loss", "grad_norm", "learning_rate", "targets", "skipped", "consecutive_bad", "epoch")
OF_AN_EVALUATION = ("step", "heldout_loss", "loss_without_memory", "targets")


class Chaos:
    """Runs in `folder` with `processes` processes each; `memory` is `checkpoint.memory`."""

    def __init__(self, folder: pathlib.Path, processes: int, seed: int, memory: str) -> None:
        self.folder, self.processes = folder, processes
        # Blocks so long that most checkpoints are not at the start of one, where no memory is needed.
        blocks = ("--config.data.windows_per_block=16",) if memory == "rebuild" else ()
        self.options = (*OPTIONS, f"--config.checkpoint.memory={memory}", *blocks)
        self.random = random.Random(seed)
        self.landed: collections.Counter[str] = collections.Counter()
        """Kills by where they hit."""
        self.rebuilt = 0
        """How often the memory was."""
        self.expected: dict[tuple[int, ...], dict] = {}
        """By the steps at which it is rebuilt, how a run ends that is never killed."""
        self._undisturbed(())
        # With the programs compiled, from the start of the process to its end: moments are drawn from this.
        began = time.monotonic()
        self._finish(self._start(folder / "warm"))
        self.seconds = time.monotonic() - began

    def _undisturbed(self, rebuilt: tuple[int, ...]) -> dict:
        if rebuilt not in self.expected:
            workdir = self.folder / f"undisturbed{len(self.expected)}"
            for stop in (*rebuilt, STEPS):
                self._finish(self._start(workdir, f"--stop_at={stop}"))
            self.expected[rebuilt] = fingerprint(workdir)
            assert len(self.expected[rebuilt]["steps"]) == STEPS and len(self.expected[rebuilt]["arrays"]) > 40
        return self.expected[rebuilt]

    def _start(self, workdir: pathlib.Path, *options: str) -> Hosts:
        cache = self.folder / "cache"
        return Hosts("train", workdir, *self.options, *options, count=self.processes, cache=cache)

    @staticmethod
    def _finish(hosts: Hosts) -> None:
        hosts.finish(0)
        assert all(process.returncode == 0 for process in hosts.processes.values())

    def run(self, number: int) -> list[str]:
        """One run with up to three kills; what differs in the end."""
        workdir = self.folder / f"run{number}"
        wanted, killed = self.random.randint(1, 3), 0
        while True:
            hosts = self._start(workdir)
            victim = hosts.processes[self.random.randrange(self.processes)]
            hit = killed < wanted and self._kill(victim, workdir)
            self._check_end(hosts, victim if hit else None)
            if hit:
                killed += 1
            elif killed:
                break
            else:
                shutil.rmtree(workdir)  # it was faster than the kill
        found = fingerprint(workdir)
        self.rebuilt += len(found["rebuilt"])
        wrong = [name for name, value in self._undisturbed(tuple(found["rebuilt"])).items() if found[name] != value]
        wrong += ["quarantine"] * (workdir / "quarantine").exists()
        shutil.rmtree(workdir)
        return wrong

    def _kill(self, victim, workdir: pathlib.Path) -> bool:
        """Waits for a moment and kills; False if the process has ended before."""
        kind = self.random.choice(("save", "save", "training", "any", "any"))
        at = self.random.randrange(EVERY, STEPS + 1, EVERY)
        deadline = time.monotonic() + (self.random.uniform(0, self.seconds) if kind == "any" else 120)
        while victim.poll() is None and time.monotonic() < deadline:
            names = _names(workdir / "checkpoints")
            if kind == "save" and any(name.startswith(f"{at}.") for name in names):
                time.sleep(self.random.uniform(0, 0.05))
                break
            if kind == "training" and str(at) in names:
                time.sleep(self.random.uniform(0, 0.1))
                break
            time.sleep(0.001)
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        hit = victim.returncode == -signal.SIGKILL
        if hit:
            names = _names(workdir / "checkpoints")
            saving = any("tmp" in name for name in names)
            self.landed["save" if saving else "later" if names else "before the first save"] += 1
        return hit

    def _check_end(self, hosts: Hosts, victim) -> None:
        for number, process in hosts.processes.items():
            _, err = process.communicate(timeout=120)
            allowed = (0,) if victim is None else (-signal.SIGKILL,) if process is victim else (42, 0)
            if process.returncode not in allowed:
                raise AssertionError(f"process {number} ended with {process.returncode}:\n{err}")


def fingerprint(workdir: pathlib.Path) -> dict:
    """Hashes of every saved array, the plan, when the memory was rebuilt, what every step and evaluation measured."""
    arrays, plan = shared.arrays(workdir, STEPS)
    with Checkpoints(str(workdir)) as checkpoints:
        rebuilt = checkpoints.record(STEPS)["rebuilt"]
    steps = read_jsonl(os.path.join(workdir, "metrics.jsonl"))
    evaluations = read_jsonl(os.path.join(workdir, "evaluations.jsonl"))
    return {
        "arrays": arrays,
        "plan": plan,
        "rebuilt": rebuilt,
        "steps": [[line[name] for name in OF_A_STEP] for line in steps],
        "evaluations": [[line[name] for name in OF_AN_EVALUATION] for line in evaluations],
    }


def _names(folder: pathlib.Path) -> list[str]:
    return os.listdir(folder) if folder.exists() else []


def chaos(runs: int, processes: int = 1, seed: int | None = None, memory: str = "all") -> dict[str, float]:
    """`runs`, `identical`, `kills`, `rebuilt`, `seconds`; what differs is told on stderr."""
    seed = random.randrange(2**32) if seed is None else seed
    began, identical = time.monotonic(), 0
    with tempfile.TemporaryDirectory(prefix="xlnet_jax_chaos_") as folder:
        here = Chaos(pathlib.Path(folder), processes, seed, memory)
        for number in range(runs):
            wrong = here.run(number)
            identical += not wrong
            print(f"seed {seed}, run {number}: {'differs in ' + ', '.join(wrong) if wrong else 'identical'}; "
                  f"kills so far {dict(here.landed)}", file=sys.stderr)  # fmt: skip
    seconds = round(time.monotonic() - began, 1)
    kills = here.landed.total()
    return {"runs": runs, "identical": identical, "kills": kills, "rebuilt": here.rebuilt, "seconds": seconds}


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--memory", choices=("all", "rebuild"), default="all", help="checkpoint.memory of the runs")
    parser.add_argument("--seed", type=int, help="of the moments; the machine's own timing stays random")
    parser.add_argument("--json", action="store_true", help="the result as one JSON object")
    given = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    result = chaos(given.runs, given.processes, given.seed, given.memory)
    print(json.dumps(result) if given.json else ", ".join(f"{name} {value}" for name, value in result.items()))
    return 0 if result["identical"] == result["runs"] else 1


if __name__ == "__main__":
    sys.exit(main())
