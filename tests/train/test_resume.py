"""Separate processes: a run stopped and started again ends bit for bit as if never touched."""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time

import data_fixtures
import jax
import numpy as np
import pytest
import tiny

from xlnet_jax.checkpoint.store import Checkpoints
from xlnet_jax.parallel.mesh import make_mesh
from xlnet_jax.run.metrics import read_jsonl
from xlnet_jax.train.recipe import make_recipe
from xlnet_jax.train.step import build_step

HERE = str(tiny.TESTS)
STEPS = 40


def command(workdir, *options):
    return [
        sys.executable, "-m", "xlnet_jax", "train", f"--config={HERE}/tiny_config.py", f"--workdir={workdir}",
        f"--config.data.corpus={data_fixtures.corpus_path()}", "--json", *options,
    ]  # fmt: skip


def start(workdir, *options):
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(HERE), "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(
        command(workdir, *options), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process, code=0):
    out, err = process.communicate(timeout=300)
    assert process.returncode == code, err
    return out, err


def fingerprint(workdir, step):
    """Hashes of every saved array, the plan, and what every step measured."""
    config = tiny.config(mesh={"data": 1})
    built = build_step(make_recipe(config), make_mesh(config.mesh, jax.devices()[:1]))
    with Checkpoints(str(workdir)) as checkpoints:
        trees = checkpoints.restore(step, built.abstract_state.split())
        plan = checkpoints.record(step)["plan"]
    # The names of NamedTuple fields inside the optimizer's state belong to the path.
    hashes = {
        jax.tree_util.keystr(path): hashlib.sha256(np.asarray(array).tobytes()).hexdigest()
        for path, array in jax.tree_util.tree_leaves_with_path(trees)
    }
    kept = ("step", "loss", "grad_norm", "learning_rate", "skipped", "targets")
    lines = [{name: line[name] for name in kept} for line in read_jsonl(os.path.join(workdir, "metrics.jsonl"))]
    return hashes, plan, lines


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("whole")
    out, err = finish(start(workdir))
    assert json.loads(out)["step"] == STEPS and "compilation cache: miss" in err
    return fingerprint(workdir, STEPS)


@pytest.mark.slow
def test_stopped_at_an_odd_step_and_resumed_without_the_compilation_cache(tmp_path, undisturbed):
    off = "--config.log.compilation_cache=none"
    finish(start(tmp_path, "--stop_at=3", off))
    _, err = finish(start(tmp_path, off))
    assert "resuming at step 3" in err and "compilation cache: off" in err
    hashes, plan, lines = fingerprint(tmp_path, STEPS)
    assert len(lines) == STEPS and len(hashes) > 40
    assert {name.split("'")[1] for name in hashes} == {"params", "optimizer", "memory", "counters"}
    assert (hashes, plan, lines) == undisturbed
    before, *_ = fingerprint(tmp_path, STEPS - 4)
    same = {name for name, digest in hashes.items() if before[name] == digest}
    assert same <= {"['counters']['skipped']", "['counters']['consecutive_bad']", "['memory']['valid']"}


def test_sigterm_saves_exits_42_and_the_run_goes_on_exactly(tmp_path, undisturbed):
    process = start(tmp_path, "--config.checkpoint.every=2")
    first = tmp_path / "checkpoints" / "2"
    while process.poll() is None and not first.exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 42, err
    # After a dispatch, or while the batches of the next one are read.
    assert re.search(r"SIGTERM (while waiting for data )?at step \d+: saved; run the same command to go on", err), err
    assert "Traceback" not in err
    finish(start(tmp_path, "--config.checkpoint.every=2"))
    assert fingerprint(tmp_path, STEPS) == undisturbed
