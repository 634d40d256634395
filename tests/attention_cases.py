"""Arguments of `attend`, drawn at random: what every test of an implementation of attention starts
from.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from xlnet_jax.batch import MEMORY_RANK, NEVER
from xlnet_jax.kernels import tpu
from xlnet_jax.kernels.xla import Arguments

GATHERED = functools.partial(
    tpu.attend,
    interpret=True,
    blocks=tpu.TpuBlocks(queries=16, keys=128, chosen=16, window=128, strided=False),
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


def cast(arguments, dtype):
    """The same as arrays of JAX: the numbers in `dtype`, the integers in int32."""
    return jax.tree.map(
        lambda x: jnp.asarray(x, dtype if x.dtype == float else jnp.int32), arguments
    )
