"""The undisturbed run on one device, made once for all workers of pytest-xdist, and the programs it
compiled.

Whoever is stopped, killed or hangs and starts again must end with the same bits as this run.
"""

from __future__ import annotations

import dataclasses
import fcntl
import functools
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import data_fixtures
import jax
import numpy as np
import pytest
import tiny

from xlnet_jax.checkpoint.store import Checkpoints
from xlnet_jax.config import Config
from xlnet_jax.distributed.mesh import make_mesh
from xlnet_jax.run.metrics import read_jsonl
from xlnet_jax.train.recipe import make_recipe
from xlnet_jax.train.step import build_step

STEPS = 40
EVALUATE = ("--config.evaluation.every=4", "--config.evaluation.blocks=24")
OF_A_STEP = ("step", "loss", "grad_norm", "learning_rate", "skipped", "targets")


def start(workdir: Any, *options: str, faults: str | None = None) -> subprocess.Popen[str]:
    """`xlnet-jax train` in a process of its own, on one device; `faults` are planted in it, see
    `planted.py`.
    """
    program = ["-m", "xlnet_jax"] if faults is None else [str(tiny.TESTS / "planted.py"), faults]
    words = [sys.executable, *program, *train_words(workdir, *options)]
    return subprocess.Popen(
        words, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def train_words(workdir: Any, *options: str) -> list[str]:
    """The command line of a small run."""
    return [
        "train",
        f"--config={tiny.TESTS}/tiny_config.py",
        f"--workdir={workdir}",
        f"--config.data.corpus={data_fixtures.corpus_path()}",
        "--json",
        *options,
    ]


def environment() -> dict[str, str]:
    """The environment of a process on one device."""
    return {**os.environ, "PYTHONPATH": str(tiny.ROOT), "JAX_PLATFORMS": "cpu"}


def settings(pytestconfig: Any, **changes: Any) -> Config:
    """The tiny configuration with the corpus and the compilation cache of all tests."""
    data = {"corpus": data_fixtures.corpus_path()} | changes.pop("data", {})
    log = {"compilation_cache": str(pytestconfig.cache.mkdir("xla"))} | changes.pop("log", {})
    return tiny.config(data=data, log=log, **changes)


def finish(process: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
    """What it has printed on stdout and stderr; asserts how it has ended."""
    out, err = process.communicate(timeout=300)
    assert process.returncode == code, err
    assert "Traceback" not in err, err
    return out, err


def wait_until(
    condition: Callable[[], Any], *processes: subprocess.Popen[str], seconds: float = 120
) -> None:
    """Fails if the condition does not come true, or if a process ends before."""
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "it hangs"
        assert all(process.poll() is None for process in processes), "a process has ended"
        time.sleep(0.02)


@functools.cache
def abstract() -> dict[str, Any]:
    """The whole state, on one device."""
    config = tiny.config(mesh={"data": 1})
    return build_step(
        make_recipe(config), make_mesh(config.mesh, jax.devices()[:1])
    ).abstract_state.split()


def arrays(workdir: Any, step: int) -> tuple[dict[str, str], Any]:
    """Hashes of every saved array by its path, and the data plan."""
    with Checkpoints(str(workdir)) as checkpoints:
        record = checkpoints.record(step)
        saved = {name.split("/")[0] for name in record["checksums"]}  # all, or all but the memory
        trees = tiny.restored(
            checkpoints, step, {name: tree for name, tree in abstract().items() if name in saved}
        )
    # The names of NamedTuple fields inside the optimizer's state belong to the path.
    hashes = {
        jax.tree_util.keystr(path): hashlib.sha256(np.asarray(array).tobytes()).hexdigest()
        for path, array in jax.tree_util.tree_leaves_with_path(trees)
    }
    return hashes, record["plan"]


def steps(workdir: Any) -> list[dict[str, float]]:
    """What every step has measured, without the speed."""
    lines = read_jsonl(os.path.join(workdir, "metrics.jsonl"))
    return [{name: line[name] for name in OF_A_STEP} for line in lines]


def scores(workdir: Any) -> list[tuple[int, float]]:
    """(step, held-out loss) of every evaluation."""
    return [
        (line["step"], line["heldout_loss"])
        for line in read_jsonl(os.path.join(workdir, "evaluations.jsonl"))
    ]


@dataclasses.dataclass(frozen=True)
class Undisturbed:
    """The run of `STEPS` steps, with a checkpoint and an evaluation every four."""

    workdir: str
    cache: str
    """The option with the compilation cache that holds its programs."""

    def steps(self, stop: int = STEPS) -> list[dict[str, float]]:
        """Of the first `stop` steps."""
        return steps(self.workdir)[:stop]

    def scores(self, stop: int = STEPS) -> list[tuple[int, float]]:
        """Up to step `stop`."""
        return [(step, loss) for step, loss in scores(self.workdir) if step <= stop]

    def arrays(self) -> tuple[dict[str, str], Any]:
        """At the end."""
        return arrays(self.workdir, STEPS)


def once(
    factory: pytest.TempPathFactory, name: str, make: Callable[[pathlib.Path], None]
) -> pathlib.Path:
    """A folder that `make` fills: in the worker that asks first, while the others wait for it."""
    base = factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, done = base / name, base / f"{name}.done"
    with open(base / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            make(folder)
            done.touch()
    return folder


def undisturbed(factory: pytest.TempPathFactory) -> Undisturbed:
    """Trains it, or finds it trained."""

    def make(folder: pathlib.Path) -> None:
        cache = f"--config.log.compilation_cache={folder}/cache"
        out, err = finish(start(folder / "run", *EVALUATE, cache))
        assert json.loads(out)["step"] == STEPS and "compilation cache: miss" in err
        lines = steps(folder / "run")
        assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
        assert len({line["loss"] for line in lines}) == STEPS
        assert [step for step, _ in scores(folder / "run")] == list(range(4, STEPS + 1, 4))

    folder = once(factory, "undisturbed", make)
    return Undisturbed(str(folder / "run"), f"--config.log.compilation_cache={folder}/cache")
