"""One step and one dispatch: updates, the guard, cuts of the scan."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
import tiny
from compiling import OPTIMISED

from xlnet_jax.batch import Batch, stack
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.train.recipe import make_recipe
from xlnet_jax.train.step import build_step, create_state

pytestmark = pytest.mark.production
CONFIG = tiny.config(optimizer={"average": 0.9})


def batches(start, stop):
    return stack([tiny.batch(CONFIG, step) for step in range(start, stop)])


@functools.cache
def built():
    grid = meshes.make_mesh(CONFIG.mesh, jax.devices()[:1])
    return grid, build_step(make_recipe(CONFIG), grid)


@functools.cache
def initial():
    """The first state, on the host: it is donated to every run."""
    grid, step = built()
    with jax.set_mesh(grid):
        return jax.device_get(create_state(make_recipe(CONFIG), step))


def run(cuts, edit=lambda batch: batch, execute=None):
    """The state and all metrics after the given dispatch lengths; `execute` runs one in place of the jitted step."""
    grid, step = built()
    with jax.set_mesh(grid):
        state = jax.device_put(initial(), jax.tree.map(lambda x: x.sharding, step.abstract_state))
        at, metrics = 0, []
        for length in cuts:
            state, values = (execute or step.jitted)(state, meshes.place(edit(batches(at, at + length)), grid))
            metrics.append(jax.device_get(values))
            at += length
        return jax.device_get(state), {name: np.concatenate([m[name] for m in metrics]) for name in metrics[0]}


def assert_same_bits(a, b):
    for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(a), jax.tree.leaves(b), strict=True):
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes(), jax.tree_util.keystr(path)


@pytest.mark.slow
@pytest.mark.parametrize("cuts", [[1, 1, 1], [1, 2], [2, 1]])
def test_a_scan_cut_anywhere_gives_the_same_bits(cuts):
    """Without optimisation a bias may differ in its last bit; so the dispatches are as production compiles them."""
    programs = {}

    def execute(state, batch):
        length = len(batch.tokens)
        if length not in programs:
            programs[length] = built()[1].jitted.lower(state, batch).compile(compiler_options=OPTIMISED)
        return programs[length](state, batch)

    whole, metrics = run([3], execute=execute)
    state, other = run(cuts, execute=execute)
    assert_same_bits(whole, state)
    assert_same_bits(metrics, other)
    assert whole.step == 3 and len(set(metrics["loss"].tolist())) == 3


def test_training_lowers_the_loss_of_a_batch_it_sees_again_and_again():
    repeated = jax.tree.map(lambda x: np.repeat(x, 2, axis=0), batches(0, 1))
    _, metrics = run([2] * 16, edit=lambda _: repeated)
    assert metrics["loss"][-1] < 0.7 * metrics["loss"][0]
    assert metrics["targets"].tolist() == [8 * 6] * 32


def test_a_non_finite_step_changes_nothing_but_counters_and_memory():
    def poison(batch: Batch) -> Batch:
        if len(batch.tokens) == 2:
            return batch
        return dataclasses.replace(batch, target_weights=np.full_like(batch.target_weights, np.nan))

    before, _ = run([2])
    bad, metrics = run([2, 1], edit=poison)
    assert_same_bits(bad.params, before.params)
    assert_same_bits(bad.opt_state, before.opt_state)
    assert (bad.step, bad.skipped, bad.consecutive_bad) == (3, 1, 1)
    assert not np.any(bad.memory.hidden_LBMD) and not np.any(bad.memory.valid_B)
    assert np.any(before.memory.hidden_LBMD) and np.all(before.memory.valid_B)
    assert not np.isfinite(metrics["loss"][2])
    after, metrics = run([2, 1, 2], edit=poison)
    assert (after.step, after.skipped, after.consecutive_bad) == (5, 1, 0)
    assert np.isfinite(metrics["loss"][3:]).all()
    # The schedule does not count the skipped step.
    assert metrics["learning_rate"][3] == metrics["learning_rate"][2] != metrics["learning_rate"][4]


def test_the_average_is_that_of_the_parameters_after_each_good_step():
    """In float64 from the parameters themselves. The fault: those before the update, or with weight for the first."""
    states = [run([1] * steps)[0] for steps in (1, 2, 3, 4)]

    def same(path, average, *w):
        wanted = np.average(np.float64(w), axis=0, weights=[0.9**3, 0.9**2, 0.9, 1])
        np.testing.assert_allclose(average, wanted, rtol=1e-6, atol=1e-8, err_msg=str(path))
        assert np.abs(wanted - w[-1]).max() > 1e-4

    found = states[-1].opt_state[-1]
    assert found.updates == 4
    jax.tree_util.tree_map_with_path(same, found.average, *(state.params for state in states))


def test_unused_target_slots_change_nothing():
    def fewer(batch: Batch, token: int) -> Batch:
        weights, tokens = batch.target_weights.copy(), batch.target_tokens.copy()
        weights[:, 1, 3:] = 0
        tokens[:, 1, 3:] = token
        return dataclasses.replace(batch, target_weights=weights, target_tokens=tokens)

    a, metrics = run([1], edit=lambda batch: fewer(batch, 9))
    b, _ = run([1], edit=lambda batch: fewer(batch, 11))
    assert_same_bits(a, b)
    assert metrics["targets"][0] == 8 * 6 - 3


def test_the_loss_is_divided_once_by_all_targets():
    """Not a mean of the rows' means: rows with fewer targets weigh less."""

    def only(rows):
        def edit(batch):
            weights = batch.target_weights.copy()
            weights[:, [r for r in range(8) if r not in rows]] = 0
            weights[:, 0, 2:] = 0
            return dataclasses.replace(batch, target_weights=weights)

        return edit

    both = run([1], edit=only([0, 1]))[1]["loss"][0]
    first, second = (run([1], edit=only([row]))[1]["loss"][0] for row in (0, 1))
    assert both == pytest.approx((2 * first + 6 * second) / 8, rel=1e-5)
    assert abs(both - (first + second) / 2) > 1e-4, "the rows do not differ"
