"""One step and one dispatch: updates, the guard, cuts of the scan."""

import dataclasses
import functools
import math

import flax.linen as nn
import jax
import numpy as np
import pytest
import tiny
from compiling import OPTIMISED

from xlnet_jax.batch import Batch, stack
from xlnet_jax.data.batches.stream import extend_plan
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.messages import progress_bar
from xlnet_jax.model.layers import declared
from xlnet_jax.run.progress import Reporter
from xlnet_jax.train.loss import RowLosses
from xlnet_jax.train.recipe import Recipe, make_recipe
from xlnet_jax.train.state import init_state
from xlnet_jax.train.step import build_step, create_state, train_step

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
        return jax.device_get(create_state(step))


def run(cuts, edit=lambda batch: batch, execute=None):
    """The state and all metrics after the given dispatch lengths; `execute` runs one in place of
    the jitted step.
    """
    grid, step = built()
    with jax.set_mesh(grid):
        state = jax.device_put(initial(), jax.tree.map(lambda x: x.sharding, step.abstract_state))
        at, metrics = 0, []
        for length in cuts:
            state, values = (execute or step.jitted)(
                state, meshes.place(edit(batches(at, at + length)), grid), step.dropout_seed
            )
            metrics.append(jax.device_get(values))
            at += length
        return jax.device_get(state), {
            name: np.concatenate([m[name] for m in metrics]) for name in metrics[0]
        }


def assert_same_bits(a, b):
    for (path, x), y in zip(
        jax.tree_util.tree_leaves_with_path(a), jax.tree.leaves(b), strict=True
    ):
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes(), jax.tree_util.keystr(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "cuts", [[1, 1, 1], *(pytest.param(cuts, marks=pytest.mark.prove) for cuts in ([1, 2], [2, 1]))]
)
def test_a_scan_cut_anywhere_gives_the_same_bits(cuts):
    """Without optimisation a bias may differ in its last bit; so the dispatches are as production
    compiles them.
    """
    programs = {}

    def execute(state, batch, seed):
        length = len(batch.tokens)
        if length not in programs:
            programs[length] = (
                built()[1].jitted.lower(state, batch, seed).compile(compiler_options=OPTIMISED)
            )
        return programs[length](state, batch, seed)

    whole, metrics = run([3], execute=execute)
    state, other = run(cuts, execute=execute)
    assert_same_bits(whole, state)
    assert_same_bits(metrics, other)
    assert whole.step == 3 and len(set(metrics["loss"].tolist())) == 3


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


class Straight:
    """In place of a model: two losses that are straight lines of its parameters."""

    coefficients = {"tokens": 1.0, "sentences": 0.5}

    def init(self, key, batch):
        return {
            "embedding": declared(
                lambda: np.cos(np.arange(256, dtype=np.float32)), (None,), "vector", 0
            )()
        }

    def carried(self, rows):
        return ()

    def divisors(self, batch):
        return {name: batch[f"{name}_weight_B"].sum() for name in self.coefficients}

    def row_losses(self, params, batch, memory, dropout_key=None, rows_B=None):
        weights = {name: batch[f"{name}_weight_B"] for name in self.coefficients}
        return RowLosses(
            {name: (batch[name] @ params["embedding"], w) for name, w in weights.items()}, memory
        )


def test_every_metric_is_what_its_line_in_the_documentation_says():
    """By hand. The fault: the norm of the gradient after the clip, a mean of means, the rate of
    another step.
    """
    B, w = 4, np.cos(np.arange(256))
    config = tiny.config(
        data={"corpus": "one,two"},
        train={"batch_size": B},
        optimizer={"clip": 0.25, "min_lr_ratio": 0.1},
    )
    recipe = Recipe(config, Straight(), 1, lambda rows: None)
    tokens_BD, sentences_BD = np.random.default_rng(0).normal(size=(2, B, 256)) / 5
    tokens_B, sentences_B = np.float32([6, 4, 0, 1]), np.float32([1, 0, 1, 1])
    batch = {"tokens": tokens_BD, "sentences": sentences_BD}
    batch |= {"tokens_weight_B": tokens_B, "sentences_weight_B": sentences_B}
    grid = meshes.make_mesh(config.mesh, jax.devices()[:1])
    step = jax.jit(functools.partial(train_step, recipe, config.seeds.dropout))

    with jax.set_mesh(grid):
        began = nn.meta.unbox(init_state(recipe, recipe.init_params()))
        counts = {"step": 7, "skipped": 2, "consecutive_bad": 1}
        began = dataclasses.replace(
            began, **{name: np.int32(count) for name, count in counts.items()}
        )
        found = jax.device_get(step(began, jax.tree.map(np.float32, batch))[1])
        bad = jax.device_get(
            step(began, jax.tree.map(np.float32, batch | {"tokens": tokens_BD * np.inf}))[1]
        )

    of_rows = found.pop("rows_B")
    gradient = tokens_BD.sum(axis=0) / 11 + 0.5 * sentences_BD.sum(axis=0) / 3
    assert np.linalg.norm(gradient) > 2 * config.optimizer.clip
    tokens, sentences = (tokens_BD @ w).sum() / 11, (sentences_BD @ w).sum() / 3
    # Five good steps before this one, two of them of the warm-up; 38 of the decay from 1 to 0.1.
    rate = config.optimizer.learning_rate * (1 - 0.9 * 3 / 38)
    expected = {
        "loss": tokens,
        "loss_sentences": sentences,
        "total_loss": tokens + 0.5 * sentences,
        "grad_norm": np.linalg.norm(gradient),
        "learning_rate": rate,
        "targets": 11,
        "skipped": 2,
        "consecutive_bad": 0,
    }
    assert {name: float(value) for name, value in found.items()} == pytest.approx(
        expected, rel=1e-5
    )
    assert not np.isfinite(bad["loss"]) and not np.isfinite(bad["grad_norm"])
    assert (bad["skipped"], bad["consecutive_bad"], bad["targets"]) == (3, 2, 11)
    assert bad["learning_rate"] == found["learning_rate"]

    lines, mixture = [], tiny.mixture(tiny.Words(), tiny.Words(3000))
    plan, stream = extend_plan((), 0, B, config.data.windows_per_block), mixture.stream(config)

    class Lines:
        write = staticmethod(lambda name, line: lines.append(line))

    class Clock:
        training = staticmethod(lambda: 4.0)

    report = Reporter(config, mixture, stream, plan, 0.25, Lines(), Clock(), progress_bar("", 40))
    twice = jax.tree.map(lambda x: np.stack([x, x]), found | {"rows_B": of_rows})
    report(range(5, 7), twice)
    for at, line in enumerate(lines, 6):
        corpus_B, _ = stream.deal(at - 1, np.arange(B), plan)
        assert set(corpus_B) == {0, 1}
        host = {
            "step": at,
            "perplexity": math.exp(expected["loss"]),
            "tokens_per_second": 2 * B * 32 / 4.0,
            "mfu": 2 * 0.25 / 4.0,
        }
        for index, name in enumerate(("text0", "text1")):
            of_it = corpus_B == index
            host[f"loss/{name}"] = (tokens_BD[of_it] @ w).sum() / tokens_B[of_it].sum()
            # By its share of all tokens, of the blocks of four windows of 16 tokens that the steps
            # have read.
            tokens = (5000, 3000)[index]
            host[f"epoch/{name}"] = at * B / 4 * tokens / 8000 / (tokens // 64)
        assert line == pytest.approx(expected | host, rel=1e-5)


def test_one_program_serves_all_seeds():
    """Of dropout, which the step draws; and the numbers that a seed draws are still its own."""
    texts, words = set(), []
    for seed in (1, 2**32 - 1):
        config = tiny.config(model={"dropout": 0.1}, seeds={"init": seed, "dropout": seed})
        grid = meshes.make_mesh(config.mesh, jax.devices()[:1])
        recipe = make_recipe(config)
        with jax.set_mesh(grid):
            step = build_step(recipe, grid)
            arguments = step.abstract_state, step.abstract_batch, step.dropout_seed
            texts.add(step.jitted.lower(*arguments).as_text())
            drawn = jax.device_get(create_state(step).params)["word_embedding"]
        own = jax.jit(lambda made=recipe: nn.meta.unbox(made.init_params())["word_embedding"])()
        assert np.array_equal(drawn, own)
        words.append(drawn)
    assert len(texts) == 1 and not np.array_equal(*words)
