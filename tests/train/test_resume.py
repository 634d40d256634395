"""A run stopped and started again ends bit for bit as if never touched; without its memory, as its
record says.
"""

import os
import shutil

import jax
import numpy as np
import pytest
import shared
from shared import STEPS, finish, start

from xlnet_jax.checkpoint.store import Checkpoints
from xlnet_jax.commands.train import train
from xlnet_jax.config import CheckpointConfig
from xlnet_jax.data.batches import loader
from xlnet_jax.data.batches.mixture import open_mixture
from xlnet_jax.data.batches.stream import PlanEntry
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.distributed.processes import Session
from xlnet_jax.model.transformer import empty_memory
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.run.metrics import read_jsonl
from xlnet_jax.train.launch import restore_or_init
from xlnet_jax.train.loop import Job
from xlnet_jax.train.recipe import make_recipe
from xlnet_jax.train.step import build_step, create_state


# Stopped at step 3, the scan is cut elsewhere: equal bits only with production flags.
@pytest.mark.slow
@pytest.mark.production
def test_stopped_at_an_odd_step_and_resumed_without_the_compilation_cache(tmp_path, undisturbed):
    off = "--config.log.compilation_cache=none"
    finish(start(tmp_path, "--stop_at=3", off))
    _, err = finish(start(tmp_path, off))
    assert "resuming at step 3" in err and "compilation cache: off" in err
    hashes, plan = shared.arrays(tmp_path, STEPS)
    assert len(hashes) > 40
    assert {name.split("'")[1] for name in hashes} == {"params", "optimizer", "memory", "counters"}
    assert (hashes, plan) == undisturbed.arrays()
    assert shared.steps(tmp_path) == undisturbed.steps()


@pytest.mark.slow
@pytest.mark.production
def test_without_its_memory_a_run_resumed_at_the_start_of_a_block_also_ends_as_undisturbed(
    tmp_path, undisturbed
):
    rebuild = "--config.checkpoint.memory=rebuild"
    finish(start(tmp_path, "--stop_at=8", rebuild, undisturbed.cache))
    _, err = finish(start(tmp_path, "--stop_at=12", rebuild, undisturbed.cache))
    assert "resuming at step 8" in err and "memory rebuilt" not in err
    assert record(tmp_path, 12)["rebuilt"] == [] and shared.steps(tmp_path) == undisturbed.steps(12)


def config(pytestconfig, **changes):
    """Blocks of eight windows: a memory of two layers depends on the four segments before it at
    most.
    """
    return shared.settings(
        pytestconfig, data={"windows_per_block": 8}, checkpoint={"memory": "rebuild"}, **changes
    )


def record(workdir, step):
    with Checkpoints(str(workdir)) as checkpoints:
        return checkpoints.record(step)


@pytest.mark.slow
def test_without_its_memory_a_killed_run_ends_as_one_that_stops_at_the_steps_of_its_record(
    tmp_path, pytestconfig
):
    """Would fail if the memory were saved, or depended on anything but the checkpoint and its
    step.
    """
    killed, clean = tmp_path / "killed", tmp_path / "clean"

    def run(workdir, stop):
        train(config(pytestconfig), str(workdir), stop_at=stop)
        return shared.steps(workdir)

    carried = run(killed, 6)
    # As left by a kill before the save: the lines of two steps are there, which the next start
    # repeats.
    shutil.rmtree(killed / "checkpoints" / "6")
    lines = run(killed, 8)
    assert lines[:4] == carried[:4] and lines[4] != carried[4], "the memory was not rebuilt"
    found = record(killed, 8)
    assert found["rebuilt"] == [4] and not any(
        name.startswith("memory/") for name in found["checksums"]
    )
    assert [line["rebuilt"] for line in read_jsonl(os.path.join(killed, "runs.jsonl"))] == [[], [4]]
    run(clean, 4)
    assert run(clean, 8) == lines
    again = record(clean, 8)
    assert (again["rebuilt"], again["checksums"]) == (found["rebuilt"], found["checksums"])


LATER = [[0, 0, 4], [6, 4, 8]]
"""The plan of a run whose batch size has changed at step 6."""


@pytest.mark.parametrize(
    ("plan", "step", "steps", "changes"),
    [
        ([[0, 0, 8]], 6, "3 to 6", {}),
        (LATER, 17, "15 to 17", {}),
        (LATER, 14, None, {}),
        # Its memory is emptied before step 1000, counted from 0.
        pytest.param(
            [[0, 0, 4], [998, 500, 8]],
            1001,
            "999 to 1001",
            {"compat": {"switches": "zero_memory"}},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_rebuilt_memory_is_the_one_that_constant_parameters_would_have_carried(
    tmp_path, pytestconfig, caplog, plan, step, steps, changes
):
    """Would fail for a segment too few, another dropout mask, another batch, or a memory left
    empty.
    """
    caplog.set_level("INFO", "xlnet_jax")
    settings = config(pytestconfig, mesh={"data": 1}, **changes)
    recipe, mixture = make_recipe(settings), open_mixture(settings)
    job = Job(settings, str(tmp_path), mixture, make_recipe, None, settings.train.steps)
    mesh = meshes.make_mesh(settings.mesh, jax.devices()[:1])
    with jax.set_mesh(mesh), Checkpoints(str(tmp_path), CheckpointConfig(keep=1)) as checkpoints:
        built = build_step(recipe, mesh)
        trees = create_state(built).split(memory=False)
        identity = workdirs.identity(settings, mixture.sha256, mixture.tokenizer.sha256)
        checkpoints.save(step, trees, {**identity, "plan": plan, "rebuilt": [2]})
        checkpoints.wait()
        state, *_, origin = restore_or_init(job, [built], checkpoints, Session())
    assert origin == {"rebuilt": [2, step] if steps else [2]}
    if steps is None:
        assert "memory rebuilt" not in caplog.text and not np.any(state.memory.hidden_LBMD)
    else:
        assert f"memory rebuilt from steps {steps} in" in caplog.text
        memory = carried_memory(
            recipe, mixture, tuple(PlanEntry(*entry) for entry in plan), step, state.params
        )
        np.testing.assert_array_equal(state.memory.valid_B, memory.valid_B)
        np.testing.assert_allclose(state.memory.hidden_LBMD, memory.hidden_LBMD, atol=1e-6)
        assert np.abs(memory.hidden_LBMD).mean() > 0.01


def carried_memory(recipe, mixture, plan, step, params):
    """The memory after all segments since the newest entry of the plan."""
    settings, after = recipe.config, jax.jit(recipe.model.row_losses)
    memory = empty_memory(settings.model, 8)
    for at in range(plan[-1].step, step):
        batch = loader.TrainDispatches(mixture, settings, plan, np.arange(8), at, at + 1).batch(at)
        if at == 1000:
            memory = jax.tree.map(np.zeros_like, memory)
        dropout_key = jax.random.fold_in(jax.random.key(settings.seeds.dropout), at)
        memory = after(params, batch, memory, dropout_key).memory
    return memory
