"""Spikes, and the running loss that they are compared with. Non-finite steps: see
`tests/train/test_step.py`.
"""

import dataclasses

import jax
import numpy as np
import pytest
import tiny

from xlnet_jax.batch import stack
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.train.recipe import make_recipe
from xlnet_jax.train.step import build_step, create_state


@pytest.fixture(scope="module")
def stepper():
    """(state or None, first step, number of steps, edit of each Batch) -> state, metrics."""
    made = {}

    def steps(state, at, count, edit=lambda step, batch: batch, **train):
        config = tiny.config(train=train)
        grid = meshes.make_mesh(config.mesh, jax.devices()[:1])
        with jax.set_mesh(grid):
            key = tuple(sorted(train.items()))
            if key not in made:
                made[key] = build_step(make_recipe(config), grid)
            built = made[key]
            state = jax.device_put(
                jax.device_get(create_state(built)) if state is None else state,
                jax.tree.map(lambda x: x.sharding, built.abstract_state),
            )
            metrics = []
            for step in range(at, at + count):
                batch = edit(step, stack([tiny.batch(config, step)]))
                state, values = built.jitted(state, meshes.place(batch, grid), built.dropout_seed)
                metrics.append({name: value[0] for name, value in jax.device_get(values).items()})
            return jax.device_get(state), metrics

    return steps


def equal(a, b):
    return jax.tree.all(jax.tree.map(np.array_equal, a, b))


def harder(step, batch):
    """Rare targets: the loss of the bad step is far above those before, and finite."""
    return dataclasses.replace(batch, target_tokens=np.full_like(batch.target_tokens, 3))


@pytest.mark.slow
def test_a_spike_is_skipped_like_a_non_finite_step_and_only_if_asked_for(stepper):
    earlier, usual = stepper(None, 0, 7)
    before, last = stepper(earlier, 7, 1)
    usual += last
    losses = np.array([m["loss"] for m in usual])
    np.testing.assert_allclose(before.loss_mean, losses.mean(), rtol=1e-5)
    np.testing.assert_allclose(before.loss_variance, losses.var(), rtol=1e-3)
    taken, (plain,) = stepper(before, 8, 1, harder)
    zscore = (plain["loss"] - losses.mean()) / losses.std()
    assert zscore > 4 and plain["skipped"] == 0, "the planted step is no spike"
    skipped, (metrics,) = stepper(before, 8, 1, harder, spike_zscore=4.0, spike_window=8)
    assert metrics["loss"] == plain["loss"]
    assert metrics["skipped"] == metrics["consecutive_bad"] == 1
    assert equal(skipped.params, before.params) and not equal(taken.params, before.params)
    assert not np.any(skipped.memory.valid_B) and skipped.loss_mean == before.loss_mean
    # Not before a window of good steps is full, and not what lies below the bound.
    _, (too_early,) = stepper(earlier, 7, 1, harder, spike_zscore=4.0, spike_window=8)
    assert too_early["loss"] > losses.mean() + 4 * losses.std() and too_early["skipped"] == 0
    _, (below,) = stepper(before, 8, 1, harder, spike_zscore=float(zscore + 1), spike_window=8)
    assert below["skipped"] == 0


@pytest.mark.slow
def test_the_running_loss_forgets_what_is_older_than_the_window(stepper):
    state, metrics = stepper(None, 0, 9, spike_window=4)
    mean, variance = 0.0, 0.0
    for index, values in enumerate(metrics):
        share = 1 / min(index + 1, 4)
        off = values["loss"] - mean
        mean, variance = mean + share * off, (1 - share) * (variance + share * off * off)
    np.testing.assert_allclose([state.loss_mean, state.loss_variance], [mean, variance], rtol=1e-4)
