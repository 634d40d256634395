"""Compiles inference programs, and pads texts of any length to few shapes, so that few programs are
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
    """Returns a decorator: `jax.jit` under the sharding rules that the model's constraints need."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        ruled = jax.jit(meshes.RULES.applied()(function), **options)
        return functools.wraps(ruled)(lambda *arguments: meshes.settled(ruled(*arguments)))

    return decorate


def read_by_host(arrays: Any) -> Any:
    """Replicates the arrays on every device, so that every process can read them."""
    return jax.tree.map(lambda x: nn.with_logical_constraint(x, (None,) * x.ndim), arrays)


def power_of_two(number: int, smallest: int) -> int:
    """Returns the smallest power of two >= `number`, or `smallest` if that is larger."""
    return max(smallest, 1 << (max(number, 1) - 1).bit_length())


def bucket(number: int, smallest: int) -> int:
    """Returns `power_of_two`, or three quarters of it if `number` fits and the power is above
    `smallest`.
    """
    power = power_of_two(number, smallest)
    less = power * 3 // 4
    return less if number <= less and power > smallest else power


def batches(sizes: Sequence[int], batch_size: int) -> tuple[int, list[list[int]]]:
    """Groups texts of similar sizes into batches.

    Returns:
      The number B of rows per batch, and the numbers of the texts in each batch. B is `batch_size`,
      or a smaller power of two for few texts, rounded up to a multiple of the number of devices
      that share the rows.
    """
    mesh = jax.sharding.get_abstract_mesh()
    devices = math.prod(mesh.shape.get(axis, 1) for axis in meshes.RULES.batch)
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
    """Returns a batch of one segment per row. No token sees padding; slots without a target are at
    position `unused`.
    """
    tokens_BT, target_BP = np.zeros((B, T), np.int32), np.zeros((B, P), np.int32)
    kind_BT, rank_BT = np.zeros_like(tokens_BT), np.full_like(tokens_BT, NEVER)
    position_BP = np.full_like(target_BP, unused)
    for b, segment in enumerate(segments):
        if segment is not None:
            N, U = len(segment.token_N), len(segment.position_U)
            tokens_BT[b, :N] = segment.token_N
            rank_BT[b, :N] = segment.rank_N
            kind_BT[b, :N] = segment.kind_N
            position_BP[b, :U] = segment.position_U
            target_BP[b, :U] = segment.target_U
    return forward_text(tokens_BT, rank_BT, kind_BT, position_BP, target_BP, continues)
