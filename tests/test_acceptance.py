"""What any port of XLNet must pass, also with optimised code; what is expected is written out here,
not called.

Of the same kind and elsewhere: distances and leaks (`model/test_transformer`), the query stream
over all T rows as other code has it (`oracle/test_oracle`), the released parameters
(`convert/test_names`), a step by hand (`train/test_optimizer`), a resumed run
(`train/test_resume`).

One small model in float64 serves most of them. Its parameters are drawn large, so that attention is
far from uniform and no term is hidden behind a bias of 0 or a scale of 1.
"""

import dataclasses
import functools

import flax.linen as nn
import jax
import numpy as np
import pytest
from special_ids import CLS, SEP

from xlnet_jax.batch import Batch, Memory
from xlnet_jax.config import Config, DataConfig, ModelConfig
from xlnet_jax.data.batches import examples
from xlnet_jax.data.tokenizer import XLNET
from xlnet_jax.model.transformer import XLNet
from xlnet_jax.train.loss import LanguageModel
from xlnet_jax.train.recipe import make_recipe

pytestmark = pytest.mark.production
B, T, R, P, M, V = 6, 14, 7, 5, 9, 60
CONFIG = ModelConfig(
    vocab_size=V,
    layers=2,
    d_model=16,
    heads=2,
    head_dim=8,
    d_ff=24,
    memory_len=M,
    dropout=0.0,
    attention_dropout=0.0,
    compute_dtype="float64",
)
TARGETS = np.array([1, 2, 5, 8, 11])


def parameters(config, seed=0):
    recipe = make_recipe(Config(model=config, data=DataConfig(segment_len=16, reuse_len=8)))
    shapes = nn.meta.unbox(recipe.abstract_params)
    rng = np.random.default_rng(seed)

    def draw(path, x):
        return (path[-1].key == "scale") + 0.4 * rng.standard_normal(x.shape)

    return jax.tree_util.tree_map_with_path(draw, shapes)


def memory_of(config, rows, seed=1):
    """A full memory, the same in every row."""
    hidden = np.random.default_rng(seed).standard_normal(
        (config.layers, 1, config.memory_len, config.d_model)
    )
    return Memory(hidden.repeat(rows, axis=1), np.full(rows, config.memory_len, np.int32))


def rows_of_one_example(rows=B) -> Batch:
    """reuse, A, SEP, B, SEP, CLS with a token of its own at every place; the same in every row."""
    rng = np.random.default_rng(0)
    tokens = rng.permutation(np.arange(9, V))[:T]
    tokens[[9, 12, 13]] = SEP, SEP, CLS
    target = np.isin(np.arange(T), TARGETS)
    rank = examples.ranks(tokens[None], target[None], R, rng.random((1, T)), XLNET)[0]

    def repeat(x, kind=np.int32):
        return np.repeat(np.asarray(x, kind)[None], rows, axis=0)

    return Batch(
        tokens=repeat(tokens),
        segments=repeat(np.repeat([0, 1, 2], [10, 3, 1])),
        rank=repeat(rank),
        direction=np.ones(rows, np.int32),
        continues=np.ones(rows, bool),
        target_positions=repeat(TARGETS),
        target_tokens=repeat(tokens[TARGETS]),
        target_weights=repeat(np.ones(P), np.float32),
        summary_position=repeat(T - 1),
        label=repeat(0),
        label_weight=repeat(0, np.float32),
    )


@jax.jit
def run(params, batch, memory):
    """Output, logits at the targets [B, P, V], and the outputs of every layer (`content_stream`,
    `query_stream`).
    """
    out, seen = XLNet(CONFIG, R).apply(
        {"params": params},
        batch,
        memory,
        deterministic=True,
        mutable=["intermediates", "layer_outputs"],
    )
    sown = {**seen["intermediates"]["layers"], **seen["layer_outputs"]["layers"]}
    layers = {name: x[0] for name, x in sown.items() if name.endswith("_stream")}
    return out, LanguageModel(XLNet(CONFIG, R)).logits(params, out.target_vectors_BPD), layers


def original_masks(functional, masked, z):
    """1 where i may not see j, in one half: `_local_perm` of the original, which knows keys,
    queries and a block.
    """
    target = masked & ~functional
    context = ~masked & ~functional
    key = np.where(context, -1, z)
    query = np.where(context, 0, np.where(target, z, z + 1))
    return (query[:, None] <= key[None, :]) & ~context[None, :]


def test_ranks_give_the_masks_of_the_original():
    """Closed-form ranks equal the block mask, on 1,000 random cases: as the attention of the model
    itself uses it.

    Halves are joined as in the original: the first sees nothing of the second, the second all of
    the first; memory is always seen; in the content stream every position sees itself.
    """
    cases, first, slots = 1000, 6, 2
    rng = np.random.default_rng(1)
    kind = rng.choice(4, (cases, T), p=[0.5, 0.35, 0.1, 0.05])
    tokens = np.choose(kind, [9, 10, SEP, CLS])
    masked = (kind == 1) | ((kind > 1) & (rng.random((cases, T)) < 0.5))
    draws = rng.random((cases, T))
    batch = dataclasses.replace(
        rows_of_one_example(cases),
        tokens=tokens.astype(np.int32),
        segments=np.zeros((cases, T), np.int32),
        rank=examples.ranks(tokens, masked, first, draws, XLNET),
        # A query at every position; those at targets are compared.
        target_positions=np.arange(T, dtype=np.int32)[None].repeat(cases, 0),
    )
    sizes = dict(
        layers=1, d_model=4, heads=1, head_dim=4, d_ff=4, memory_len=slots, compute_dtype="float32"
    )
    config = dataclasses.replace(CONFIG, **sizes)
    params = jax.tree.map(np.float32, parameters(config))
    memory = Memory(np.zeros((1, cases, slots, 4), np.float32), np.full(cases, slots, np.int32))
    apply = functools.partial(
        XLNet(config, first).apply, deterministic=True, mutable=["intermediates"]
    )
    _, seen = jax.jit(apply)({"params": params}, batch, memory)
    attention = seen["intermediates"]["layers"]["attention"]
    ours = {
        name: np.asarray(attention[f"probability_{name}"][0])[0, :, 0] > 0
        for name in ("content", "query")
    }

    compared = 0
    for case in range(cases):
        hidden = np.zeros((T, T), bool)
        hidden[:first, first:] = True
        for half in (slice(0, first), slice(first, T)):
            z = np.argsort(np.argsort(draws[case, half]))
            hidden[half, half] = original_masks(tokens[case, half] < 9, masked[case, half], z)
        targets = masked[case] & (tokens[case] >= 9)
        compared += targets.sum()
        assert ours["content"][case, :, :slots].all() and ours["query"][case, targets, :slots].all()
        np.testing.assert_array_equal(ours["query"][case, targets, slots:], ~hidden[targets])
        np.testing.assert_array_equal(
            ours["content"][case, :, slots:], ~hidden | np.eye(T, dtype=bool)
        )
    assert compared > 4000
