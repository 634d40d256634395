"""The model of a task: the rate of its head, and documents of several segments."""

import data_fixtures
import flax.linen as nn
import jax
import numpy as np
import pytest
import tiny
from special_ids import CLS, SEP

from xlnet_jax.finetune.classification import Classification
from xlnet_jax.finetune.recipe import task_recipe
from xlnet_jax.finetune.task import Row
from xlnet_jax.train.loss import mean_loss

T = 8
TASK = {"task": "classification", "labels": "no,yes", "train": "none.tsv"}


def row(*pieces):
    """Pieces, SEP and CLS, with label 1."""
    tokens = np.array([*pieces, SEP, CLS], np.int32)
    segments = np.array([0] * (len(tokens) - 1) + [2], np.int32)
    return Row((tokens,), (segments,), {"label": np.int32(1)}, 0)


def recipe_of(**changes):
    sections = {"finetune": TASK, "data": {"segment_len": T}} | changes
    config = tiny.config(**sections)
    return task_recipe(Classification(config, data_fixtures.tokenizer()), row(20), config)


def test_the_head_learns_at_the_full_rate_under_layer_decay():
    """By the size of the first update of each part of the model, as a share of the learning
    rate.
    """
    recipe = recipe_of(
        optimizer={
            "layer_decay": 0.5,
            "warmup_steps": 0,
            "weight_decay": 0.0,
            "clip": 0.0,
            "learning_rate": 1.0,
            "adam_epsilon": 1e-12,
        }
    )
    ones = jax.tree.map(
        lambda x: np.ones(x.shape, np.float32), nn.meta.unbox(recipe.abstract_params)
    )
    optimizer = recipe.optimizer
    updates, _ = jax.jit(lambda x: optimizer.update(x, optimizer.init(x), x))(ones)
    assert set(updates["head"]) == {"summary", "logits"}
    for x in jax.tree.leaves(updates["head"]):
        np.testing.assert_allclose(x, -1, rtol=1e-5)
    layer_L = updates["layers"]["attention"]["query"][:, 0, 0, 0]
    np.testing.assert_allclose(layer_L, [-0.5, -1], rtol=1e-5)
    np.testing.assert_allclose(updates["word_embedding"], -0.25, rtol=1e-5)


# 13 pieces with SEP and CLS: 5 in the first segment of 8.
LONG = [30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40]
OTHER = [29, *LONG[1:]]
SHORT = LONG[-5:]


@pytest.fixture(scope="module")
def params():
    return jax.jit(lambda: nn.meta.unbox(recipe_of().init_params()))()


def hidden(recipe, params, rows):
    batch = recipe.model.task.batch([row(*pieces) for pieces in rows], len(rows))
    run = jax.jit(lambda params, batch: recipe.model.hidden(params, batch).h_BCTD[:, 0, -1])
    return np.asarray(run(params, batch))


def test_earlier_segments_are_read_through_the_memory_and_their_padding_is_not(params):
    recipe = recipe_of(finetune=TASK | {"segments": 2})
    long, other, short = hidden(recipe, params, (LONG, OTHER, SHORT))
    assert np.abs(long - other).max() > 1e-4, "the first piece is in the first segment"
    (alone,) = hidden(recipe_of(), params, (SHORT,))
    np.testing.assert_allclose(short, alone, atol=1e-6)
    off = recipe_of(finetune=TASK | {"segments": 2}, model={"memory_len": 0})
    long_off, other_off, _ = hidden(off, params, (LONG, OTHER, SHORT))
    np.testing.assert_array_equal(long_off, other_off)
    assert np.abs(long - long_off).max() > 1e-4


def test_earlier_segments_get_no_gradient(params):
    recipe = recipe_of(finetune=TASK | {"segments": 2})
    batch = recipe.model.task.batch([row(*LONG)], 1)
    gradient = jax.jit(jax.grad(lambda params: mean_loss(params, recipe.model, batch, ())[0]))(
        params
    )
    table_V = np.abs(gradient["word_embedding"]).max(axis=1)
    assert (table_V[LONG[:5]] == 0).all() and (table_V[LONG[5:]] > 0).all()
    # The vector of the query stream is kept for the export, and does not change.
    assert not np.any(gradient["mask_embedding"])
    assert float(recipe.model.divisors(batch)["task"]) == 1
