"""Texts of any length in arrays of few shapes, so that few programs are compiled, and how these are compiled."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax

from xlnet_jax.distributed import mesh as meshes

SHORTEST_SEGMENT = 32
"""Tokens of the shortest segment that is compiled."""


def program(**options: Any) -> Callable[..., Any]:
    """`jax.jit` with the rules of sharding, which the model's own constraints need."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def ruled(*arguments: Any) -> Any:
            with nn.logical_axis_rules(meshes.RULES.pairs()):
                return function(*arguments)

        return jax.jit(ruled, **options)

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
    """Texts that are computed together: rows B of each batch, and the numbers of its texts, which have similar sizes.

    B is at most `batch_size`, of a few sizes only, but a multiple of the devices that share the rows.
    """
    devices = math.prod(dict(jax.sharding.get_abstract_mesh().shape).get(axis, 1) for axis in meshes.RULES.batch)
    B = -(-min(batch_size, power_of_two(len(sizes), 1)) // devices) * devices
    by_size = sorted(range(len(sizes)), key=lambda number: sizes[number])
    return B, [by_size[first : first + B] for first in range(0, len(sizes), B)]
