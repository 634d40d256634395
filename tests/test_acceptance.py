"""Whom the ranks let see whom is what the block mask of the original says, also with optimised
code.

Of the same kind and elsewhere: distances, leaks, memory and reversed rows
(`model/test_transformer`), the query stream over all T rows as other code has it
(`oracle/test_oracle`), the released parameters (`convert/test_names`), a step by hand
(`train/test_optimizer`), a resumed run (`train/test_resume`).
"""

import functools

import jax
import numpy as np
import pytest
import tiny
from special_ids import CLS, SEP

from xlnet_jax.batch import Batch, Memory
from xlnet_jax.data.batches import examples
from xlnet_jax.data.tokenizer import XLNET
from xlnet_jax.model.transformer import XLNet

pytestmark = pytest.mark.production
T = 14


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
    tokens = np.choose(kind, [9, 10, SEP, CLS]).astype(np.int32)
    masked = (kind == 1) | ((kind > 1) & (rng.random((cases, T)) < 0.5))
    draws = rng.random((cases, T))
    zeros_C = np.zeros(cases, np.int32)
    batch = Batch(
        tokens=tokens,
        segments=0 * tokens,
        rank=examples.ranks(tokens, masked, first, draws, XLNET),
        direction=zeros_C + 1,
        continues=zeros_C == 0,
        # A query at every position; those at targets are compared.
        target_positions=np.arange(T, dtype=np.int32)[None].repeat(cases, 0),
        target_tokens=tokens,
        target_weights=np.ones((cases, T), np.float32),
        summary_position=zeros_C + T - 1,
        label=zeros_C,
        label_weight=zeros_C.astype(np.float32),
    )
    sizes = dict(layers=1, d_model=4, heads=1, head_dim=4, d_ff=4, memory_len=slots)
    config = tiny.config(model=sizes)
    params = tiny.random_params(config, 0.4)
    memory = Memory(np.zeros((1, cases, slots, 4), np.float32), zeros_C + slots)
    apply = functools.partial(XLNet(config.model, first).apply, mutable=["intermediates"])
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
