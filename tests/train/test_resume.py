"""A run stopped and started again ends bit for bit as if never touched; without its memory, as its record says."""

import os
import re
import shutil
import signal
import time

import data_fixtures
import jax
import numpy as np
import pytest
import shared
import tiny
from shared import STEPS, finish, start

from xlnet_jax.checkpoint.store import Checkpoints
from xlnet_jax.commands.train import train
from xlnet_jax.config import CheckpointConfig
from xlnet_jax.data.batches import loader
from xlnet_jax.data.batches.mixture import open_mixture
from xlnet_jax.data.batches.stream import PlanEntry
from xlnet_jax.model.transformer import empty_memory
from xlnet_jax.parallel import mesh as meshes
from xlnet_jax.parallel.processes import Session
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.run.metrics import read_jsonl
from xlnet_jax.train.recipe import make_recipe
from xlnet_jax.train.resume import restore_or_init
from xlnet_jax.train.step import build_step, create_state


def assert_ended_as(undisturbed, workdir):
    hashes, plan = shared.arrays(workdir, STEPS)
    assert len(hashes) > 40
    assert {name.split("'")[1] for name in hashes} == {"params", "optimizer", "memory", "counters"}
    assert (hashes, plan) == undisturbed.arrays()
    assert shared.steps(workdir) == undisturbed.steps()


# Stopped at step 3, the scan is cut elsewhere: equal bits only with production flags.
@pytest.mark.slow
@pytest.mark.production
def test_stopped_at_an_odd_step_and_resumed_without_the_compilation_cache(tmp_path, undisturbed):
    off = "--config.log.compilation_cache=none"
    finish(start(tmp_path, "--stop_at=3", off))
    _, err = finish(start(tmp_path, off))
    assert "resuming at step 3" in err and "compilation cache: off" in err
    assert_ended_as(undisturbed, tmp_path)
    hashes, _ = shared.arrays(tmp_path, STEPS)
    before, _ = shared.arrays(tmp_path, STEPS - 4)
    same = {name for name, digest in hashes.items() if before[name] == digest}
    assert same <= {"['counters']['skipped']", "['counters']['consecutive_bad']", "['memory']['valid']"}


def test_sigterm_saves_exits_42_and_the_run_goes_on_exactly(tmp_path, undisturbed):
    # So slow that the signal comes in the middle.
    process = start(tmp_path, "--config.checkpoint.every=2", "--config.data.workers=0", undisturbed.cache,
                    faults="data_slow=0.1")  # fmt: skip
    first = tmp_path / "checkpoints" / "2"
    while process.poll() is None and not first.exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, err = finish(process, 42)
    # After a dispatch, or while the batches of the next one are read.
    assert re.search(r"SIGTERM (while waiting for data )?at step \d+: saved; rerun the same command", err), err
    finish(start(tmp_path, "--config.checkpoint.every=2", undisturbed.cache))
    assert_ended_as(undisturbed, tmp_path)


def config(pytestconfig, memory="rebuild", mesh=-1, switches=""):
    """Blocks of eight windows: a memory of two layers depends on the four segments before it at most."""
    return tiny.config(
        data={"corpus": data_fixtures.corpus_path(), "windows_per_block": 8},
        mesh={"data": mesh},
        checkpoint={"memory": memory},
        compat={"switches": switches},
        log={"compilation_cache": str(pytestconfig.cache.mkdir("xla"))},
    )


def record(workdir, step):
    with Checkpoints(str(workdir)) as checkpoints:
        return checkpoints.record(step)


def test_without_its_memory_a_killed_run_ends_as_one_that_stops_at_the_steps_of_its_record(tmp_path, pytestconfig):
    """Would fail if the memory were saved, or depended on anything but the checkpoint and its step."""

    def run(name, *stops, memory="rebuild"):
        for stop in stops:
            train(config(pytestconfig, memory), str(tmp_path / name), stop_at=stop)
        return record(tmp_path / name, stops[-1])

    run("killed", 6)
    # As a kill leaves it that came before the save: with lines of steps that are done again.
    shutil.rmtree(tmp_path / "killed" / "checkpoints" / "6")
    killed = run("killed", 10, 12)
    assert killed["rebuilt"] == [4, 10] and not any(name.startswith("memory/") for name in killed["checksums"])
    starts = read_jsonl(os.path.join(tmp_path, "killed", "runs.jsonl"))
    assert [(line["step"], line["rebuilt"]) for line in starts] == [(0, []), (4, [4]), (10, [4, 10])]
    clean, whole = run("clean", *killed["rebuilt"], 12), run("whole", 12, memory="all")
    assert clean["checksums"] == killed["checksums"]
    assert shared.steps(tmp_path / "clean") == shared.steps(tmp_path / "killed")
    # The comparison is of two runs that really differ from one that was left alone.
    assert whole["rebuilt"] == [] and "memory/hidden" in whole["checksums"]
    losses = [[line["loss"] for line in shared.steps(tmp_path / name)] for name in ("clean", "whole")]
    assert [a == b for a, b in zip(*losses, strict=True)] == [True] * 4 + [False] * 8
    # At the start of a block there is nothing to rebuild: such a stop changes no bit.
    assert run("block", 8, 12)["rebuilt"] == []
    assert shared.steps(tmp_path / "block") == shared.steps(tmp_path / "whole")


@pytest.mark.parametrize(
    ("plan", "step", "steps", "switches"),
    [
        ([[0, 0, 8]], 6, "3 to 6", ""),
        ([[0, 0, 8]], 10, "9 to 10", ""),
        ([[0, 0, 4], [6, 4, 8]], 9, "7 to 9", ""),
        # Its memory is emptied before step 1000, counted from 0.
        pytest.param([[0, 0, 4], [998, 500, 8]], 1001, "999 to 1001", "zero_memory", marks=pytest.mark.slow),
    ],
)
def test_a_rebuilt_memory_is_the_one_that_constant_parameters_would_have_carried(
    tmp_path, pytestconfig, caplog, plan, step, steps, switches
):
    """Would fail for a segment too few, another dropout mask, another batch, or a memory left empty."""
    caplog.set_level("INFO", "xlnet_jax")
    settings = config(pytestconfig, mesh=1, switches=switches)
    recipe, mixture = make_recipe(settings), open_mixture(settings)
    mesh = meshes.make_mesh(settings.mesh, jax.devices()[:1])
    with jax.set_mesh(mesh), Checkpoints(str(tmp_path), CheckpointConfig(keep=1)) as checkpoints:
        built = build_step(recipe, mesh)
        trees = create_state(recipe, built).split()
        del trees["memory"]
        checkpoints.save(step, trees, {**workdirs.identity(settings, mixture), "plan": plan, "rebuilt": [2]})
        checkpoints.wait()
        state, *_, origin = restore_or_init(recipe, mixture, built, checkpoints, Session())
    assert origin == {"rebuilt": [2, step]}
    assert f"memory rebuilt from steps {steps} in" in caplog.text
    memory, after = empty_memory(settings.model, 8), jax.jit(recipe.model.row_losses)
    entries = tuple(PlanEntry(*entry) for entry in plan)
    for at in range(entries[-1].step, step):
        batch = loader.TrainDispatches(mixture, settings, entries, np.arange(8), at, at + 1).batch(at)
        if at == 1000:
            memory = jax.tree.map(np.zeros_like, memory)
        dropout_key = jax.random.fold_in(jax.random.key(settings.seeds.dropout), at)
        memory = after(state.params, batch, memory, dropout_key).memory
    assert np.abs(memory.hidden_LBMD).mean() > 0.01 and memory.valid_B.min() >= 16
    np.testing.assert_array_equal(state.memory.valid_B, memory.valid_B)
    np.testing.assert_allclose(state.memory.hidden_LBMD, memory.hidden_LBMD, atol=1e-6)
