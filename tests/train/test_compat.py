"""What the 2019 code did differently: every switch alone changes what it says, and 2019 turns all
of them on.
"""

import dataclasses
import functools
import math
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny
from special_ids import CLS, SEP

from xlnet_jax import config as configs
from xlnet_jax.batch import Memory
from xlnet_jax.compat import SETS, SWITCHES, CompatConfig, hooks
from xlnet_jax.convert import names
from xlnet_jax.data.batches import examples, loader, spans
from xlnet_jax.data.batches.stream import PlanEntry, Windows, extend_plan
from xlnet_jax.distributed.mesh import make_mesh
from xlnet_jax.errors import BadInput
from xlnet_jax.members import MEMBERS
from xlnet_jax.members.parts import Parts
from xlnet_jax.members.xlnet import TENSORFLOW
from xlnet_jax.model.embeddings import Embedding, RelativePositions
from xlnet_jax.model.transformer import XLNet, empty_memory, places
from xlnet_jax.train import gradients
from xlnet_jax.train import state as states
from xlnet_jax.train.loss import mean_loss
from xlnet_jax.train.optimizer import make_optimizer
from xlnet_jax.train.recipe import example_batch, make_recipe
from xlnet_jax.train.step import train_step


def with_switches(switches="", cores=1, **changes):
    return tiny.config(compat={"switches": switches, "cores": cores}, **changes)


def test_2019_is_all_switches_of_its_code_and_every_one_is_documented():
    assert [name for name in SWITCHES if not CompatConfig("2019").on(name)] == ["static_copies"]
    assert [name for name in SWITCHES if CompatConfig("bert").on(name)] == sorted(SETS["bert"])
    assert not any(CompatConfig("").on(name) for name in SWITCHES)
    for name in SWITCHES:
        alone = CompatConfig(name)
        assert [other for other in SWITCHES if alone.on(other)] == [name]
    with open(tiny.ROOT / "docs" / "compat.md", encoding="utf-8") as file:
        page = file.read()
    for name, what in SWITCHES.items():
        assert f"| `{name}` | {what} |" in page, f"docs/compat.md lacks the row of {name}"


def test_all_together_take_a_step():
    config = with_switches("2019", cores=4)
    recipe = make_recipe(config)
    state = jax.jit(lambda: nn.meta.unbox(states.init_state(recipe, recipe.init_params())))()
    new, metrics = jax.jit(functools.partial(train_step, recipe, config.seeds.dropout))(
        state, tiny.batch(config, 0)
    )
    assert np.isfinite(metrics["loss"]) and metrics["grad_norm"] > 0 and new.step == 1


@pytest.mark.parametrize(
    ("architecture", "switches", "in_vain"),
    [
        ("modern", "2019", "position_dropout_per_row"),
        ("modernbert", "static_copies,core_clip,glorot_mask_embedding", "glorot_mask_embedding"),
        ("gpt2", "zero_memory,static_copies", "zero_memory, static_copies"),
        ("transformer_xl", "piece_spans,static_targets", "piece_spans"),
    ],
)
def test_a_switch_that_changes_nothing_is_refused(architecture, switches, in_vain):
    changes = {"compat": {"switches": switches}}
    with pytest.raises(BadInput, match=f"must leave out {in_vain} with model.architecture="):
        if architecture == "modern":
            tiny.config(model=MEMBERS["modern"].required | {"architecture": "modern"}, **changes)
        tiny.family(architecture, **changes)


def test_piece_spans_are_the_data_key_spans_pieces():
    words, pieces = tiny.batch(with_switches(), 1), tiny.batch(with_switches("piece_spans"), 1)
    by_key = tiny.batch(with_switches(data={"spans": "pieces"}), 1)
    assert (words.target_positions != pieces.target_positions).any()
    np.testing.assert_array_equal(pieces.target_positions, by_key.target_positions)


def sampled_in_2019(start, goal, lengths, places, fill):
    """The original's `_sample_mask` for a row in its own order, with the draws given; SEP and CLS
    are pieces like any.

    A span is n pieces from a word start on, put at a uniform place in 6 n pieces of context.
    """
    N, mask, done, cursor = len(start), np.zeros(len(start), bool), 0, 0
    for n, place in zip(lengths, places, strict=True):
        if cursor >= N or done >= goal:
            break
        n = min(n, goal - done)
        lead = int(place * 6 * n)
        begin = cursor + lead
        while begin < N and not start[begin]:
            begin += 1
        end = begin + n
        if end >= N:
            break
        mask[begin:end] = True
        done, cursor = done + n, end + 6 * n - lead
    for position in np.argsort(fill):
        if mask.sum() < goal:
            mask[position] = True
    return mask


def test_fill_functional_picks_as_the_original_and_drops_sep_and_cls_after():
    rng = np.random.default_rng(0)
    B, N, goal = 60, 128, 21
    word_start = tiny.words().tokenizer.word_start.copy()
    word_start[[SEP, CLS]] = True
    tokens, direction = rng.integers(9, tiny.VOCAB, (B, N)), np.where(np.arange(B) % 2, -1, 1)
    tokens[np.arange(B), rng.integers(1, N - 2, B)] = SEP
    tokens[:, -2:] = SEP, CLS
    draws = rng.random((B, spans.draws_needed(N, configs.DataConfig())))
    lengths, places, fill = np.split(draws, [(draws.shape[1] - N) // 2, draws.shape[1] - N], axis=1)
    shares = np.cumsum(1 / np.arange(1, 6)) / np.sum(1 / np.arange(1, 6))
    lengths = 1 + np.searchsorted(shares, lengths, side="right")

    config = with_switches("piece_spans,fill_functional")
    where = Windows(**dict.fromkeys(Windows._fields, None))._replace(direction_B=direction)
    vocabulary = tiny.Vocabulary(word_start)
    builder = examples.ExampleBuilder(tiny.words(), vocabulary, config, where, "train", 0, where)
    mask = builder.targets(tokens, goal, draws)
    counts = mask.sum(axis=1)
    for row in range(B):
        natural = tokens[row][:: direction[row]]
        picked = sampled_in_2019(word_start[natural], goal, lengths[row], places[row], fill[row])
        assert picked.sum() == goal
        np.testing.assert_array_equal(
            mask[row][:: direction[row]], picked & (natural != SEP) & (natural != CLS)
        )
    assert counts.min() < goal == counts.max()
    without = builder._replace(config=with_switches("piece_spans"))
    assert (without.targets(tokens, goal, draws).sum(axis=1) == goal).all()


def test_static_targets_come_again_in_every_epoch():
    """Whatever is left over of the text: the original cut it once. Epoch 2 reads in the direction
    of epoch 0.
    """
    text, blocks = tiny.Words(tokens=32 * 16 * 4 + 37), 32

    def epoch(switches, number):
        config = with_switches(switches)
        rows = np.arange(blocks)
        plan = (PlanEntry(0, number * blocks, blocks),)
        dispatches = loader.TrainDispatches(tiny.mixture(text), config, plan, rows, 0, 1)
        where = tiny.mixture(text).stream(config).locate(1, rows, dispatches.plan)
        batch = dispatches.batch(1)
        order = np.argsort(where.block_B)
        return batch.target_positions[order], batch.tokens[order], batch.rank[order]

    for switches, same in (("static_targets", True), ("", False)):
        first, second = epoch(switches, 0), epoch(switches, 2)
        assert np.array_equal(first[0], second[0]) == same
        assert np.array_equal(first[1], second[1]) == same, "the window and texts A and B"
        assert not np.array_equal(first[2], second[2]), "the factorisation order is always new"


def test_both_directions_of_a_text_are_read_in_the_same_step():
    config = with_switches("both_directions")
    windows = [tiny.batch(config, step) for step in range(4)]
    text = np.concatenate([batch.tokens[:, :16] for batch in windows], axis=1)
    np.testing.assert_array_equal(text[:4], text[4:, ::-1])
    assert windows[0].direction.tolist() == [1] * 4 + [-1] * 4
    assert not np.array_equal(windows[0].target_positions[:4], windows[0].target_positions[4:])
    stream = tiny.mixture().stream(config)
    plan = extend_plan(extend_plan((), 0, 8, 4), 8, 16, 4, stream.rows_per_block)
    assert plan[-1] == PlanEntry(8, 8, 16), "two rounds of four blocks are read"
    assert tiny.batch(with_switches(), 0).direction.tolist() != [1] * 4 + [-1] * 4


@pytest.mark.slow
def test_zero_memory_attends_to_zeros_and_is_emptied_every_1000_steps():
    config = with_switches("zero_memory", model={"dropout": 0.0, "attention_dropout": 0.0})
    batch = tiny.batch(config, 0)
    assert not batch.continues.any()
    params = tiny.params(config)
    rng = np.random.default_rng(0)
    junk = Memory(jnp.asarray(rng.standard_normal((2, 8, 24, 16)), jnp.float32), jnp.full(8, 24))
    model, plain = (XLNet(config.model, 16, compat) for compat in (config.compat, CompatConfig()))

    @functools.partial(jax.jit, static_argnums=0)
    def run(model, memory, batch):
        return model.apply({"params": params}, batch, memory).hidden_BTD

    zeros = dataclasses.replace(junk, hidden_LBMD=jnp.zeros_like(junk.hidden_LBMD))
    goes_on = dataclasses.replace(batch, continues=np.ones(8, bool))
    np.testing.assert_allclose(run(model, junk, batch), run(plain, zeros, goes_on), atol=1e-6)
    assert np.abs(run(model, junk, batch) - run(plain, junk, batch)).max() > 1e-4

    recipe = make_recipe(config)
    state = jax.jit(lambda: nn.meta.unbox(states.init_state(recipe, recipe.init_params())))()
    step = jax.jit(functools.partial(train_step, recipe, config.seeds.dropout))
    losses = {}
    for at in (999, 1000):
        for name, memory in (("junk", junk), ("empty", empty_memory(config.model, 8))):
            begun = dataclasses.replace(state, step=jnp.int32(at), memory=memory)
            with jax.set_mesh(make_mesh(config.mesh, jax.devices()[:1])):
                losses[at, name] = float(step(begun, goes_on)[1]["loss"])
    assert (
        losses[1000, "junk"] == losses[1000, "empty"]
        and losses[999, "junk"] != losses[999, "empty"]
    )


@pytest.mark.slow
def test_position_dropout_per_row_draws_a_mask_for_every_row_once_for_all_layers():
    """The original copied the table for each row before its dropout, and gave the result to all
    layers.
    """
    config = dataclasses.replace(tiny.config().model, dropout=0.3)
    N, D, rows = 24 + 2 * 32 - 1, config.d_model, jnp.array([5, 0, 3])
    distance_N, frequency = 24 + 32 - 1 - np.arange(N), 10000.0 ** (-2 * np.arange(D // 2) / D)
    angle = distance_N[:, None] * frequency
    table = np.concatenate([np.sin(angle), np.cos(angle)], axis=1) / 0.7

    def drawn(switches, rows_B):
        keys, rngs = (
            hooks.position_masks(CompatConfig(switches), rows_B),
            {"dropout": jax.random.key(0)},
        )
        return np.asarray(RelativePositions(config).apply({}, 32, 24, keys, rngs=rngs))

    each, one = drawn("position_dropout_per_row", rows), drawn("", rows)
    assert each.shape == (3, N, D) and one.shape == (1, N, D)
    for x in (*each, *one):
        np.testing.assert_allclose(x, np.where(x == 0, 0, table), atol=1e-4)
        assert abs(np.mean(x == 0) - 0.3) < 5 * np.sqrt(0.21 / x.size) + np.mean(table == 0)
    # Of a row by itself the same, and of two rows different ones.
    np.testing.assert_array_equal(drawn("position_dropout_per_row", rows[1:2])[0], each[1])
    for other in (0, 2):
        assert abs(np.mean((each[1] == 0) & (each[other] == 0)) - 0.09) < 0.03

    def count(switches):
        """Masks of the table in one step of the model."""
        recipe = make_recipe(with_switches(switches))
        batch, memory = tiny.batch(recipe.config, 0), empty_memory(recipe.config.model, 8)
        run = recipe.model.transformer.init_with_output
        text = str(
            jax.make_jaxpr(run)(
                {"params": jax.random.key(0), "dropout": jax.random.key(1)}, batch, memory
            )
        )
        return [len(re.findall(rf"bool\[{n},{N},16\] = lt", text)) for n in (1, 8)]

    assert count("") == [1, 0] and count("position_dropout_per_row") == [0, 1]


def test_glorot_mask_embedding_is_uniform_within_the_bound_of_the_released_models():
    """TensorFlow's default for a variable [1, 1, d]: +-sqrt(6 / (1 + d)), here of XLNet-Large."""
    width, bound = 1024, 0.0765

    def vector(switches):
        config = dataclasses.replace(tiny.config().model, d_model=width, init_std=0.02)
        run = Embedding(config, CompatConfig(switches), Parts()).init
        batch = example_batch(tiny.config(), 1)
        params = run(jax.random.key(0), batch, *places(batch, jnp.arange(1)))["params"]
        return np.sort(nn.meta.unbox(params)["mask_embedding"])

    drawn, even = vector("glorot_mask_embedding"), np.linspace(-bound, bound, width)
    assert np.abs(drawn).max() <= bound * 1.001
    # Kolmogorov's bound at 0.1 %.
    assert np.abs(drawn - even).max() < 0.06 * 2 * bound, "not uniform"
    assert abs(np.std(vector("")) - 0.02) < 0.002


@pytest.mark.slow
def test_core_clip_averages_and_clips_each_cores_rows_by_themselves():
    config = with_switches(
        "core_clip",
        cores=4,
        model={"dropout": 0.0, "attention_dropout": 0.0},
        optimizer={"clip": 0.2},
    )
    batch = tiny.batch(config, 0)
    weights = batch.target_weights.copy()
    weights[1, 2:] = 0
    batch = dataclasses.replace(batch, target_weights=weights)
    params, memory = tiny.params(config), empty_memory(config.model, 8)
    key = jax.random.key(0)
    recipe = make_recipe(config)
    (loss, aux), grads = jax.jit(functools.partial(gradients.of_step, recipe))(
        params, batch, memory, key
    )

    model = recipe.model
    gradient = jax.jit(jax.value_and_grad(lambda p, b, m: mean_loss(p, model, b, m)[0]))
    expected, losses, clipped = jax.tree.map(jnp.zeros_like, params), [], 0
    for first in range(0, 8, 2):
        rows = slice(first, first + 2)
        part = jax.tree.map(lambda x, rows=rows: x[rows], batch)
        value, own = gradient(
            params, part, Memory(memory.hidden_LBMD[:, rows], memory.valid_B[rows])
        )
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
    learning_rate=0.1,
    warmup_steps=0,
    min_lr_ratio=1.0,
    weight_decay=0.0,
    clip=0.0,
    adam_epsilon=1e-12,
)


@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_no_bias_correction_by_hand(weight_decay):
    """The original had two: TensorFlow's Adam, which is corrected, and for weight decay its own,
    which is not.
    """
    config = dataclasses.replace(OPTIMIZER, weight_decay=weight_decay, adam_epsilon=0.01)
    optimizer = make_optimizer(
        config, 10, {"kernel": tiny.box()}, CompatConfig("no_bias_correction")
    )
    params = {"kernel": jnp.ones(1)}
    state, value, m, v = optimizer.init(params), 1.0, 0.0, 0.0
    for t, g in ((1, 0.3), (2, -0.1), (3, 0.2)):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        moved = m / (math.sqrt(v) + 0.01)
        if weight_decay:
            value -= 0.1 * (moved + weight_decay * value)
        else:
            value -= 0.1 * math.sqrt(1 - 0.999**t) / (1 - 0.9**t) * moved
        updates, state = optimizer.update({"kernel": jnp.array([g])}, state, params)
        params = optax.apply_updates(params, updates)
        assert float(params["kernel"][0]) == pytest.approx(value, rel=2e-5)


@pytest.mark.parametrize("untie", [True, False], ids=["untied", "tied"])
def test_layer_decay_on_gradients_scales_what_has_a_layer_in_its_name(untie):
    """By the names of the original's variables, as it did: rate^(layers - 1 - l) after
    `layer_{l}/`, and no others.
    """
    boxed = make_recipe(tiny.config(model={"biases_per_layer": untie, "layers": 3})).abstract_params
    params = jax.tree.map(lambda x: jnp.zeros(x.shape), nn.meta.unbox(boxed))
    config = dataclasses.replace(OPTIMIZER, layer_decay=0.5, adam_epsilon=0.3)
    optimizer = make_optimizer(config, 10, boxed, CompatConfig("layer_decay_on_gradients"))
    updates, _ = optimizer.update(
        jax.tree.map(lambda x: x + 0.3, params), optimizer.init(params), params
    )
    scales = set()
    for name, update in names.to_foreign(TENSORFLOW, updates).items():
        layer = re.search(r"model/transformer/layer_(\d+)/", name)
        scale = 0.5 ** (3 - 1 - int(layer[1])) if layer else 1.0
        expected = -0.1 * 0.3 * scale / (0.3 * scale + 0.3)
        np.testing.assert_allclose(update, expected, rtol=1e-4, err_msg=name)
        scales.add(scale)
    assert scales == {1.0, 0.5, 0.25}
