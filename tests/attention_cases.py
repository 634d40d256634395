"""Arguments of `attend`, drawn at random: what every test of an implementation of attention starts
from.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from xlnet_jax.batch import MEMORY_RANK, NEVER
from xlnet_jax.kernels import tpu
from xlnet_jax.kernels.xla import Arguments, NearKeys, PackedKeys

GATHERED = functools.partial(
    tpu.attend,
    interpret=True,
    blocks=tpu.TpuBlocks(
        queries=16,
        keys=128,
        chosen=16,
        window=128,
        strided=False,
        packed=(16, 128),
        near=(16, 128),
    ),
)
"""The kernel with several blocks and windows at lengths of a few hundred; shifts by gathers, as on
v4. No TPU takes 16 queries, but interpret mode does.
"""
BIASES = ("content_bias", "position_bias", "segment_bias")


def draw(T, M, B=2, tables=1, chosen=None, seed=0, H=2, E=3):
    """With padding, empty memory slots, ties and both directions; without dropout and a bound.

    `chosen`: the number of queries at chosen positions; None: all positions in order.
    """
    rng = np.random.default_rng(seed)
    K = M + T
    Q = T if chosen is None else chosen
    rank_BT = rng.integers(-1, T, (B, T))
    rank_BT[0, rng.integers(T)] = NEVER if T > 1 else 0
    rank_BM = np.where(np.arange(M) < rng.integers(0, M + 1, (B, 1)), NEVER, MEMORY_RANK)
    segment_BT = rng.integers(0, 2, (B, T))
    at_BQ = np.broadcast_to(np.arange(T), (B, T)) if chosen is None else rng.integers(0, T, (B, Q))
    limit_BQ = np.take_along_axis(rank_BT, at_BQ, 1)
    limit_BQ = np.minimum(limit_BQ + 1, NEVER) if chosen is None else limit_BQ
    normal = rng.standard_normal
    return Arguments(
        q_BQHE=normal((B, Q, H, E)),
        k_BKHE=normal((B, K, H, E)),
        v_BKHE=normal((B, K, H, E)),
        position=(*normal((2, tables, K + T - 1, H, E)), np.where(np.arange(B) % 2, -1, 1)),
        biases={name: normal((H, E)) for name in BIASES},
        segment_2HE=normal((2, H, E)),
        limit_BQ=limit_BQ,
        rank_BK=np.concatenate([rank_BM, rank_BT], 1),
        segment_BQ=np.take_along_axis(segment_BT, at_BQ, 1),
        segment_BK=np.concatenate([np.zeros((B, M), int), segment_BT], 1),
        query_position_BQ=None if chosen is None else at_BQ,
        rows_B=np.arange(B),
    )


def draw_documents(T, lengths, chosen=None, seed=0, **sizes):
    """As `draw` without memory, for rows of documents of these lengths, in order, then padding; a
    negative length is padding, too.

    `chosen`: the number of targets, which lie in any document, or their positions; the last tenth
    is unused.
    """
    Q = len(chosen) if np.ndim(chosen) else chosen
    arguments, rng = draw(T, 0, len(lengths), 1, Q, seed, **sizes), np.random.default_rng(seed)
    rank_BT, floor_BT = np.full((2, len(lengths), T), NEVER)
    document_BT, place_BT = np.zeros((2, len(lengths), T), int)
    for b, row in enumerate(lengths):
        for base, length in zip(np.cumsum([0, *np.abs(row)]), row, strict=False):
            if length <= 0:
                continue
            here = b, slice(base, base + length)
            # Some have the same rank, as the context of a document has.
            rank_BT[here] = base + rng.integers(0, length, length)
            floor_BT[here], document_BT[here] = base, rng.integers(99)
            place_BT[here] = range(length)
    queries = (floor_BT, document_BT, place_BT)
    if chosen is None:
        limit_BQ = np.minimum(rank_BT + 1, NEVER)
    else:
        texts = [max(sum(map(abs, row)), 1) for row in lengths]
        at_BQ = np.sort([rng.integers(0, text, Q) for text in texts], axis=1)
        at_BQ = np.tile(chosen, (len(lengths), 1)) if np.ndim(chosen) else at_BQ
        at_BQ[:, Q - Q // 10 :] = 0
        limit_BQ, *queries = (np.take_along_axis(x, at_BQ, 1) for x in (rank_BT, *queries))
        queries[0][:, Q - Q // 10 :] = NEVER
        arguments = dataclasses.replace(arguments, query_position_BQ=at_BQ)
    return dataclasses.replace(
        arguments, rank_BK=rank_BT, limit_BQ=limit_BQ, packed=PackedKeys(*queries, place_BT)
    )


def without_positions(arguments, size=None):
    """The same without relative positions and segments, with a window of `size`, whose positions
    fall in every other row, as with reversed text.
    """
    near, M, K = None, arguments.memory_len, arguments.rank_BK.shape[1]
    if size is not None:
        packed = arguments.packed
        at_BQ, at_BK = arguments.position_BQ, np.tile(np.arange(K) - M, (len(arguments.rank_BK), 1))
        if packed:
            at_BQ, at_BK = packed.position_BQ, packed.position_BK
        sign_B1 = np.where(np.arange(len(at_BK)) % 2, -1, 1)[:, None]
        near = NearKeys(np.array(size), sign_B1 * at_BQ, sign_B1 * at_BK)
    return dataclasses.replace(arguments, position=None, biases={}, segment_2HE=None, near=near)


def cast(arguments, dtype):
    """The same as arrays of JAX: the numbers in `dtype`, the integers in int32."""
    return jax.tree.map(
        lambda x: jnp.asarray(x, dtype if x.dtype == float else jnp.int32), arguments
    )
