"""Learning: a task that only a right permutation language model can solve, learned down to its
known entropy.

A row is a shuffled sequence of units; x, y, z are drawn uniformly from V values:

    [left_x  x]      the target x is fixed by its left neighbour, which is context
    [y  right_y]     the target y is fixed by its right neighbour, which is context
    [z  copy  z]     each z is fixed by the other one, if that comes earlier in the order

All other tokens are independent of a target, so its entropy is 0 where what fixes it has a lower
rank and log V where not: the floor of a batch is exact, from its ranks alone. Half of the rows are
reversed text, with direction -1.
"""

import functools

import flax.linen as nn
import jax
import numpy as np
import optax
from compiling import OPTIMISED

from xlnet_jax.batch import Batch
from xlnet_jax.config import ModelConfig
from xlnet_jax.data.batches import examples
from xlnet_jax.data.tokenizer import XLNET
from xlnet_jax.model.transformer import XLNet, empty_memory
from xlnet_jax.train.loss import LanguageModel, mean_loss

VALUES = 8
VALUE, LEFT, RIGHT, COPY = 9, 9 + VALUES, 9 + 2 * VALUES, 9 + 3 * VALUES
UNIT_OF_COLUMN = np.repeat(np.arange(6), [2, 2, 2, 2, 3, 3])
KIND_OF_COLUMN = np.array([LEFT, VALUE] * 2 + [VALUE, RIGHT] * 2 + [VALUE, COPY, VALUE] * 2)
FIXED_BY_COLUMN = np.array([0, 0, 2, 2, 5, 5, 7, 7, 10, 9, 8, 13, 12, 11])
"""Which column tells what a column holds."""
T, P, R = len(UNIT_OF_COLUMN), 8, 7
STEPS, FRESH_STEPS, ROWS = 300, 50, 48
"""Rows are never used twice. In the last steps the learning rate is 0: they measure."""

MODEL = LanguageModel(
    XLNet(
        ModelConfig(
            vocab_size=COPY + 1,
            layers=2,
            d_model=32,
            heads=4,
            head_dim=8,
            d_ff=64,
            memory_len=0,
            dropout=0.0,
            attention_dropout=0.0,
            init_std=0.2,
            compute_dtype="float32",
        ),
        R,
    )
)

ABOVE, BELOW = 0.1, 0.03
"""How far the loss of a right model may lie above its floor, and (by chance, on fresh rows) below
it, in nats. A query that sees itself goes 0.25 below.
"""


def make_rows(rows: int, seed: int) -> tuple[Batch, float]:
    """Rows of the task, and the mean entropy of their targets in nats."""
    rng = np.random.default_rng(seed)
    values = rng.integers(0, VALUES, (rows, 6))[:, UNIT_OF_COLUMN]
    token_of_column = np.where(KIND_OF_COLUMN == COPY, COPY, KIND_OF_COLUMN + values)
    target_of_column = np.broadcast_to(KIND_OF_COLUMN == VALUE, (rows, T)).copy()
    # One copy of a pair is sometimes plain context; such rows leave target slots unused.
    target_of_column[:, [8, 13]] &= rng.random((rows, 2)) < 0.75
    column_BT = np.argsort(rng.random((rows, 6))[:, UNIT_OF_COLUMN], axis=1, kind="stable")
    direction = np.where(np.arange(rows) % 2, -1, 1)
    column_BT = np.where(direction[:, None] < 0, column_BT[:, ::-1], column_BT)

    tokens = np.take_along_axis(token_of_column, column_BT, 1)
    target = np.take_along_axis(target_of_column, column_BT, 1)
    rank = examples.ranks(tokens, target, R, rng.random((rows, T)), XLNET)
    fixed_by_BT = np.take_along_axis(np.argsort(column_BT, axis=1), FIXED_BY_COLUMN[column_BT], 1)
    free = target & (np.take_along_axis(rank, fixed_by_BT, 1) >= rank)
    at = np.argsort(~target, axis=1, kind="stable")[:, :P]
    used = np.take_along_axis(target, at, 1)
    zeros = np.zeros(rows, np.int32)
    batch = Batch(
        tokens=tokens.astype(np.int32),
        segments=np.zeros((rows, T), np.int32),
        rank=rank.astype(np.int32),
        direction=direction.astype(np.int32),
        continues=zeros > 0,
        target_positions=np.where(used, at, 0).astype(np.int32),
        target_tokens=np.where(used, np.take_along_axis(tokens, at, 1), 0).astype(np.int32),
        target_weights=used.astype(np.float32),
        summary_position=zeros,
        label=zeros,
        label_weight=np.zeros(rows, np.float32),
    )
    return batch, np.log(VALUES) * free.sum() / target.sum()


def test_the_task_is_learned_to_its_entropy():
    optimizer = optax.adam(optax.cosine_decay_schedule(7e-3, STEPS))
    memory = empty_memory(MODEL.transformer.config, ROWS)
    gradient = jax.value_and_grad(
        functools.partial(mean_loss, model=MODEL, memory=memory), has_aux=True
    )

    def step(carry, batch):
        params, state = carry
        (_, aux), grads = gradient(params, batch=batch)
        updates, state = optimizer.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), jax.tree.map(
            lambda x: x.sum(), aux.sums["tokens"]
        )

    # It runs for long enough to be worth some optimisation.
    @functools.partial(jax.jit, compiler_options=OPTIMISED)
    def run(batches):
        first = jax.tree.map(lambda x: x[0], batches)
        params = nn.meta.unbox(MODEL.init(jax.random.key(0), first))
        _, (loss_S, weight_S) = jax.lax.scan(step, (params, optimizer.init(params)), batches)
        return loss_S[STEPS:].sum() / weight_S[STEPS:].sum()

    train, _ = make_rows(STEPS * ROWS, 1)
    fresh, floor = make_rows(FRESH_STEPS * ROWS, 2)
    loss = run(
        jax.tree.map(lambda *x: np.concatenate(x).reshape(-1, ROWS, *x[0].shape[1:]), train, fresh)
    )
    assert floor - BELOW < loss < floor + ABOVE
