"""What the 2019 code did differently: every switch alone changes what it says, and 2019 turns all of them on."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

from xlnet_jax import config as configs
from xlnet_jax.batch import Memory
from xlnet_jax.config import COMPAT_SWITCHES, CompatConfig
from xlnet_jax.data.batches import loader
from xlnet_jax.data.batches.stream import PlanEntry, extend_plan
from xlnet_jax.data.tokenizer import CLS, SEP
from xlnet_jax.model import heads
from xlnet_jax.model.transformer import XLNet, empty_memory
from xlnet_jax.parallel.mesh import make_mesh
from xlnet_jax.train import state as states
from xlnet_jax.train.gradients import core_clipped_gradient
from xlnet_jax.train.loss import mean_loss
from xlnet_jax.train.optimizer import make_optimizer
from xlnet_jax.train.recipe import make_recipe
from xlnet_jax.train.step import train_step

ROWS = np.arange(8)


def with_switches(switches="", cores=1, **changes):
    return tiny.config(compat={"switches": switches, "cores": cores}, **changes)


def params_of(config):
    """Fresh parameters, compiled rather than op by op: that is several seconds faster."""
    return jax.jit(lambda: nn.meta.unbox(states.init_params(make_recipe(config))))()


def batch_of(config, step, plan=None):
    plan = plan or extend_plan((), 0, 8, config.data.windows_per_block)
    return loader.TrainDispatches(tiny.mixture(), config, plan, ROWS, 0, 1).batch(step)


def test_2019_is_all_switches_and_every_one_is_documented():
    assert all(CompatConfig("2019").on(name) for name in COMPAT_SWITCHES)
    assert not any(CompatConfig("").on(name) for name in COMPAT_SWITCHES)
    for name in COMPAT_SWITCHES:
        alone = CompatConfig(name)
        assert [other for other in COMPAT_SWITCHES if alone.on(other)] == [name]
    with open(tiny.ROOT / "docs" / "compat.md", encoding="utf-8") as file:
        page = file.read()
    for name, what in COMPAT_SWITCHES.items():
        assert f"| `{name}` | {what} |" in page, f"docs/compat.md lacks the row of {name}"


def test_all_together_take_a_step():
    config = with_switches("2019", cores=4)
    recipe = make_recipe(config)
    state = jax.jit(lambda: nn.meta.unbox(states.init_state(recipe)))()
    new, metrics = jax.jit(functools.partial(train_step, recipe))(state, batch_of(config, 0))
    assert np.isfinite(metrics["loss"]) and metrics["grad_norm"] > 0 and new.step == 1


def test_piece_spans_are_the_data_key_spans_pieces():
    words, pieces = batch_of(with_switches(), 1), batch_of(with_switches("piece_spans"), 1)
    by_key = batch_of(with_switches(data={"spans": "pieces"}), 1)
    assert (words.target_positions != pieces.target_positions).any()
    np.testing.assert_array_equal(pieces.target_positions, by_key.target_positions)


def test_fill_functional_leaves_slots_unused():
    counts = {"": [], "fill_functional": []}
    for switches, found in counts.items():
        for step in range(30):
            batch = batch_of(with_switches(switches), step)
            found.extend(batch.target_weights.sum(axis=1))
            used = batch.target_tokens[batch.target_weights > 0]
            assert not np.isin(used, [SEP, CLS]).any()
    assert set(counts[""]) == {6}
    assert min(counts["fill_functional"]) < 6 == max(counts["fill_functional"])


def test_static_targets_come_again_in_every_epoch():
    text = tiny.Words(tokens=32 * 16 * 4)  # no tail, so that the second epoch's blocks are the first's
    blocks = 32

    def epoch(switches, number):
        config = with_switches(switches, data={"bidirectional": False})
        rows = np.arange(blocks)
        plan = (PlanEntry(0, number * blocks, blocks),)
        dispatches = loader.TrainDispatches(tiny.mixture(text), config, plan, rows, 0, 1)
        where = tiny.mixture(text).stream(config).locate(1, rows, dispatches.plan)
        batch = dispatches.batch(1)
        order = np.argsort(where.block_B)
        return batch.target_positions[order], batch.tokens[order], batch.rank[order]

    for switches, same in (("static_targets", True), ("", False)):
        first, second = epoch(switches, 0), epoch(switches, 1)
        assert np.array_equal(first[0], second[0]) == same
        assert np.array_equal(first[1], second[1]) == same, "segments A and B"
        assert not np.array_equal(first[2], second[2]), "the factorisation order is always new"


def test_both_directions_of_a_text_are_read_in_the_same_step():
    config = with_switches("both_directions")
    windows = [batch_of(config, step) for step in range(4)]
    text = np.concatenate([batch.tokens[:, :16] for batch in windows], axis=1)
    np.testing.assert_array_equal(text[:4], text[4:, ::-1])
    assert windows[0].direction.tolist() == [1] * 4 + [-1] * 4
    assert not np.array_equal(windows[0].target_positions[:4], windows[0].target_positions[4:])
    stream = tiny.mixture().stream(config)
    plan = extend_plan(extend_plan((), 0, 8, 4), 8, 16, 4, stream.rows_per_block)
    assert plan[-1] == PlanEntry(8, 8, 16), "two rounds of four blocks are read"
    assert batch_of(with_switches(), 0).direction.tolist() != [1] * 4 + [-1] * 4


@pytest.mark.slow
def test_zero_memory_attends_to_zeros_and_is_emptied_every_1000_steps():
    config = with_switches("zero_memory", model={"dropout": 0.0, "attention_dropout": 0.0})
    batch = batch_of(config, 0)
    assert not batch.continues.any()
    params = params_of(config)
    rng = np.random.default_rng(0)
    junk = Memory(jnp.asarray(rng.standard_normal((2, 8, 24, 16)), jnp.float32), jnp.full(8, 24))
    model, plain = (XLNet(config.model, 16, compat) for compat in (config.compat, CompatConfig()))

    @functools.partial(jax.jit, static_argnums=0)
    def run(model, memory, batch):
        return model.apply({"params": params}, batch, memory, deterministic=True).hidden_BTD

    zeros = dataclasses.replace(junk, hidden_LBMD=jnp.zeros_like(junk.hidden_LBMD))
    goes_on = dataclasses.replace(batch, continues=np.ones(8, bool))
    np.testing.assert_allclose(run(model, junk, batch), run(plain, zeros, goes_on), atol=1e-6)
    assert np.abs(run(model, junk, batch) - run(plain, junk, batch)).max() > 1e-4

    recipe = make_recipe(config)
    state = jax.jit(lambda: nn.meta.unbox(states.init_state(recipe)))()
    step = jax.jit(functools.partial(train_step, recipe))
    losses = {}
    for at in (999, 1000):
        for name, memory in (("junk", junk), ("empty", empty_memory(config.model, 8))):
            begun = dataclasses.replace(state, step=jnp.int32(at), memory=memory)
            with jax.set_mesh(make_mesh(config.mesh, jax.devices()[:1])):
                losses[at, name] = float(step(begun, goes_on)[1]["loss"])
    assert losses[1000, "junk"] == losses[1000, "empty"] and losses[999, "junk"] != losses[999, "empty"]


def test_position_dropout_per_row_draws_a_mask_for_every_row():
    def masks(switches):
        config = with_switches(switches)
        params = params_of(config)
        batch, memory = batch_of(config, 0), empty_memory(config.model, 8)

        def run(params, key):
            model = make_recipe(config).model.transformer
            return model.apply({"params": params}, batch, memory, deterministic=False, rngs={"dropout": key})

        text = str(jax.make_jaxpr(run)(params, jax.random.key(0)))
        rows = 24 + 2 * 32 - 1
        return [f"bool[{n},{rows},16]" in text for n in (1, 8)]

    assert masks("") == [True, False]
    assert masks("position_dropout_per_row") == [False, True]


def test_glorot_mask_embedding_fills_its_bound():
    wide = {"d_model": 128}
    bound = (6 / 129) ** 0.5
    for switches, glorot in (("glorot_mask_embedding", True), ("", False)):
        vector = params_of(with_switches(switches, model=wide))["mask_embedding"]
        assert (bound * 0.9 < np.abs(vector).max() <= bound) == glorot
        assert abs(np.std(vector) - (bound / 3**0.5 if glorot else 0.1)) < 0.02


@pytest.mark.slow
def test_core_clip_averages_and_clips_each_cores_rows_by_themselves():
    config = with_switches(
        "core_clip", cores=4, model={"dropout": 0.0, "attention_dropout": 0.0}, optimizer={"clip": 0.2}
    )  # fmt: skip
    batch = batch_of(config, 0)
    weights = batch.target_weights.copy()
    weights[1, 2:] = 0
    batch = dataclasses.replace(batch, target_weights=weights)
    params, memory = params_of(config), empty_memory(config.model, 8)
    key = jax.random.key(0)
    recipe = make_recipe(config)
    (loss, aux), grads = jax.jit(functools.partial(core_clipped_gradient, recipe))(params, batch, memory, key)

    model = recipe.model
    gradient = jax.jit(jax.value_and_grad(lambda p, b, m: mean_loss(p, model, b, m)[0]))
    expected, losses, clipped = jax.tree.map(jnp.zeros_like, params), [], 0
    for first in range(0, 8, 2):
        rows = slice(first, first + 2)
        part = jax.tree.map(lambda x, rows=rows: x[rows], batch)
        value, own = gradient(params, part, Memory(memory.hidden_LBMD[:, rows], memory.valid_B[rows]))
        own = jax.tree.map(lambda g: g / 4, own)
        norm = optax.tree.norm(own)
        clipped += norm > 0.2
        expected = jax.tree.map(lambda e, g, n=norm: e + g * min(1.0, 0.2 / n), expected, own)
        losses.append(value)
    assert clipped > 0, "the bound does not act"
    assert float(loss) == pytest.approx(np.mean(losses), rel=1e-6)
    for a, b in zip(jax.tree.leaves(grads), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    whole, aux_whole = mean_loss(params, model, batch, memory)
    assert abs(float(whole) - float(loss)) > 1e-4, "the mean of the cores' means is the mean"
    np.testing.assert_allclose(aux.memory.hidden_LBMD, aux_whole.memory.hidden_LBMD, atol=1e-6)
    np.testing.assert_array_equal(aux.memory.valid_B, aux_whole.memory.valid_B)


OPTIMIZER = configs.OptimizerConfig(
    learning_rate=0.1, warmup_steps=0, min_lr_ratio=1.0, weight_decay=0.0, clip=0.0, adam_epsilon=1e-12
)


DEPTHS = {"word_embedding": 0, "layers": (1, 2, 3), "lm_head": heads.DEPTH}


def first_update(config, compat=""):
    params = {"word_embedding": jnp.ones(2), "lm_head": jnp.ones(2), "layers": {"query": jnp.ones((3, 2))}}
    grads = jax.tree.map(lambda x: jnp.full_like(x, 0.3), params)
    optimizer = make_optimizer(config, 10, DEPTHS, CompatConfig(compat))
    updates, _ = optimizer.update(grads, optimizer.init(params), params)
    return jax.tree.map(lambda x: np.asarray(x).reshape(-1, 2)[:, 0], updates)


def test_no_bias_correction_by_hand():
    corrected, raw = first_update(OPTIMIZER), first_update(OPTIMIZER, "no_bias_correction")
    np.testing.assert_allclose(corrected["lm_head"], -0.1, rtol=1e-5)
    np.testing.assert_allclose(raw["lm_head"], -0.1 * (0.1 * 0.3) / np.sqrt(0.001 * 0.09), rtol=1e-5)


def test_layer_decay_is_a_learning_rate_and_under_compat_only_a_gradient_scale():
    decayed = dataclasses.replace(OPTIMIZER, layer_decay=0.5)
    rates = first_update(decayed)
    np.testing.assert_allclose(rates["layers"]["query"], [-0.025, -0.05, -0.1], rtol=1e-5)
    np.testing.assert_allclose(rates["word_embedding"], [-0.0125], rtol=1e-5)
    np.testing.assert_allclose(rates["lm_head"], [-0.1], rtol=1e-5)
    # Adam undoes the scale of a gradient, but for epsilon: the original's rule acts through that alone.
    scaled = first_update(decayed, "layer_decay_on_gradients")
    np.testing.assert_allclose(scaled["layers"]["query"], [-0.1] * 3, rtol=1e-5)
    large = dataclasses.replace(decayed, adam_epsilon=0.3)
    through_epsilon = first_update(large, "layer_decay_on_gradients")
    expected = [-0.1 * g / (g + 0.3) for g in (0.075, 0.15, 0.3)]
    np.testing.assert_allclose(through_epsilon["layers"]["query"], expected, rtol=1e-5)
    np.testing.assert_allclose(through_epsilon["word_embedding"], [-0.05], rtol=1e-5)
