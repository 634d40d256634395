"""Texts of any length in arrays of few shapes, so that few programs are compiled, and how these are
compiled.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from xlnet_jax.batch import NEVER, Batch, forward_text
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.infer.orders import Segment

SHORTEST_SEGMENT = 32
"""Tokens of the shortest segment that is compiled."""


def program(**options: Any) -> Callable[..., Any]:
    """`jax.jit` with the rules of sharding, which the model's own constraints need."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        ruled = jax.jit(meshes.RULES.applied()(function), **options)
        return functools.wraps(ruled)(lambda *arguments: meshes.settled(ruled(*arguments)))

    return decorate


def read_by_host(arrays: Any) -> Any:
    """The same, whole on every device: every process reads them."""
    return jax.tree.map(lambda x: nn.with_logical_constraint(x, (None,) * x.ndim), arrays)


def power_of_two(number: int, smallest: int) -> int:
    """The first power of two from both on."""
    return max(smallest, 1 << (max(number, 1) - 1).bit_length())


def bucket(number: int, smallest: int) -> int:
    """The first power of two, or one and a half times one, from both on."""
    power = power_of_two(number, smallest)
    return power * 3 // 4 if number <= power * 3 // 4 and power > smallest else power


def batches(sizes: Sequence[int], batch_size: int) -> tuple[int, list[list[int]]]:
    """Texts that are computed together: rows B of each batch, and the numbers of its texts, which
    have similar sizes.

    B is at most `batch_size`, of a few sizes only, but a multiple of the devices that share the
    rows.
    """
    devices = math.prod(
        dict(jax.sharding.get_abstract_mesh().shape).get(axis, 1) for axis in meshes.RULES.batch
    )
    B = -(-min(batch_size, power_of_two(len(sizes), 1)) // devices) * devices
    by_size = sorted(range(len(sizes)), key=lambda number: sizes[number])
    return B, [by_size[first : first + B] for first in range(0, len(sizes), B)]


def padded(
    segments: Sequence[Segment | None],
    B: int,
    T: int,
    P: int,
    continues: bool = False,
    unused: int = 0,
) -> Batch:
    """One segment of each row; positions without a token are seen by none, slots without a target
    are at `unused`.
    """
    tokens_BT, rank_BT = np.zeros((B, T), np.int32), np.full((B, T), NEVER, np.int32)
    kind_BT, target_BP = np.zeros((B, T), np.int32), np.zeros((B, P), np.int32)
    position_BP = np.full((B, P), unused, np.int32)
    for b, segment in enumerate(segments):
        if segment is not None:
            N, U = len(segment.token_N), len(segment.position_U)
            tokens_BT[b, :N], rank_BT[b, :N], kind_BT[b, :N] = (
                segment.token_N,
                segment.rank_N,
                segment.kind_N,
            )
            position_BP[b, :U], target_BP[b, :U] = segment.position_U, segment.target_U
    return forward_text(tokens_BT, rank_BT, kind_BT, position_BP, target_BP, continues)
