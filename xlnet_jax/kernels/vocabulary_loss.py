"""-log p(target) under the softmax over the vocabulary, without the array of all logits, and its
gradient.

    z_nv = x_n . W_v + b_v        nll_n = log sum_v exp z_nv - z_n,target(n)
    dz_nv = g_n (p_nv - [v = target(n)])        p_nv = exp z_nv / sum_v exp z_nv
    dx_n = sum_v dz_nv W_v        dW_v = sum_n dz_nv x_n        db_v = sum_n dz_nv

where g_n is the gradient of nll_n.

With label smoothing e the target is q_nv = (1 - e) [v = target(n)] + e / V in place of
[v = target(n)], and the loss is log sum_v exp z_nv - sum_v q_nv z_nv (Szegedy et al. 2016, arXiv
1512.00567, section 7).

Each device takes its own rows n (batch x targets) in chunks of at most `CHUNK`. The backward pass
computes z again, so there are four products of the size of z in place of three. The vocabulary is
split over `tensor`: maximum, sum and chosen logit of all rows are combined after the last chunk.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from xlnet_jax.distributed.mesh import RULES, free_axes

CHUNK = 1024
"""Rows of a chunk. A chunk of C rows reads and writes the float32 gradient of the table: 8 bytes
per element of the table, for 6 C operations. With far fewer rows a v5e, which does 240 operations
per byte, would wait for its memory.
"""


def pays(B: int, P: int) -> bool:
    """Returns whether [B, P] targets are more than one chunk on a device; else chunks save no
    memory and cost one more product.
    """
    free, rows = free_axes()
    ways = math.prod(free[axis] for axis in rows)
    return B % ways == 0 and B // ways * P > CHUNK


class Loss(NamedTuple):
    """Settings of the loss: its dtype, its smoothing, and the mesh axes that split it."""

    free: dict[str, int]
    """Sizes of the mesh axes that the compiler controls."""
    rows: tuple[str, ...]
    """The axes that split the rows."""
    vocab: str | None
    """The axis that splits the vocabulary."""
    smoothing: float
    uniform: float
    """Smoothing divided by the number of words of all devices."""
    high: jnp.dtype
    """The dtype of logits, sums and losses."""

    def on_devices(self, local: Callable[..., Any], arrays: int, out_specs: Any) -> Any:
        """Makes `local` run on each device's part of table, bias and `arrays` row arrays."""
        if not self.free:
            return local
        by_word = PartitionSpec(self.vocab)
        return jax.shard_map(
            local,
            in_specs=(by_word, by_word, *[PartitionSpec(self.rows)] * arrays),
            out_specs=out_specs,
            axis_names=set(self.free),
            check_vma=False,
        )

    def over_vocabulary(
        self, x: jax.Array, combine: Callable[..., jax.Array] = jax.lax.psum
    ) -> jax.Array:
        """Combines x over the devices that split the vocabulary."""
        return combine(x, (self.vocab,)) if self.vocab and self.free[self.vocab] > 1 else x

    def over_rows(self, x: jax.Array) -> jax.Array:
        """Sums x over the devices that split the rows."""
        split = tuple(axis for axis in self.rows if self.free[axis] > 1)
        return jax.lax.psum(x, split) if split else x

    def logits(self, table_VD: jax.Array, bias_V: jax.Array, x_CD: jax.Array) -> jax.Array:
        """Returns the logits, [C, V]."""
        return (
            jnp.einsum("cd,vd->cv", x_CD, table_VD, preferred_element_type=self.high) + bias_V[None]
        )

    def is_target(self, V: int, target_C: jax.Array) -> jax.Array:
        """Returns whether each of the device's V words is the target, bool [C, V]."""
        first = jax.lax.axis_index(self.vocab) * V if self.vocab else 0
        # A comparison, because the gradient of a gather is a scatter.
        return (first + jnp.arange(V))[None] == target_C[:, None]

    def row_losses(
        self, table_VD: jax.Array, bias_V: jax.Array, x_BPD: jax.Array, target_BP: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Returns the losses and log sum_v exp z_nv, [B, P]."""

        def chunk(inputs: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            x_CD, target_C = inputs
            z_CV = self.logits(table_VD, bias_V, x_CD)
            # Finite even if a device holds only pieces of probability 0.
            top_C = jnp.maximum(z_CV.max(axis=1), jnp.finfo(self.high).min)
            chosen_C = jnp.where(self.is_target(len(bias_V), target_C), z_CV, 0).sum(axis=1)
            if self.smoothing:
                chosen_C = (1 - self.smoothing) * chosen_C + self.uniform * z_CV.sum(axis=1)
            return top_C, jnp.exp(z_CV - top_C[:, None]).sum(axis=1), chosen_C

        top_BP, sum_BP, chosen_BP = (
            unchunked(x, target_BP.shape)
            for x in jax.lax.map(chunk, (chunked(x_BPD), chunked(target_BP)))
        )
        highest_BP = self.over_vocabulary(top_BP, jax.lax.pmax)
        log_sum_BP = highest_BP + jnp.log(
            self.over_vocabulary(sum_BP * jnp.exp(top_BP - highest_BP))
        )
        return log_sum_BP - self.over_vocabulary(chosen_BP), log_sum_BP

    def gradient(
        self, table_VD: jax.Array, bias_V: jax.Array, *arrays: jax.Array
    ) -> tuple[jax.Array, ...]:
        """Returns the gradients of table, bias and vectors; `arrays` are vectors, targets,
        logarithms of sums, and gradients of the losses.
        """

        def chunk(
            sums: tuple[jax.Array, ...], inputs: tuple[jax.Array, ...]
        ) -> tuple[Any, jax.Array]:
            x_CD, target_C, log_sum_C, g_C = inputs
            p_CV = jnp.exp(self.logits(table_VD, bias_V, x_CD) - log_sum_C[:, None])
            wanted_CV = self.is_target(len(bias_V), target_C)
            if self.smoothing:
                wanted_CV = jnp.where(wanted_CV, 1 - self.smoothing, 0) + self.uniform
            dz_CV = g_C[:, None] * (p_CV - wanted_CV)
            # Exactly 0 for unused slots and for the rows that fill the last chunk, even if p is not
            # finite.
            dz_CV = jnp.where(g_C[:, None] != 0, dz_CV, 0)
            rounded_CV = dz_CV.astype(x_CD.dtype)
            einsum = functools.partial(jnp.einsum, preferred_element_type=self.high)
            d_table_VD = einsum("cd,cv->vd", x_CD, rounded_CV)
            dx_CD = self.over_vocabulary(einsum("cv,vd->cd", rounded_CV, table_VD))
            return (sums[0] + d_table_VD, sums[1] + dz_CV.sum(axis=0)), dx_CD.astype(x_CD.dtype)

        zeros = jnp.zeros(table_VD.shape, self.high), jnp.zeros(bias_V.shape, self.high)
        sums, dx_ACD = jax.lax.scan(chunk, zeros, tuple(map(chunked, arrays)))
        return *map(self.over_rows, sums), unchunked(dx_ACD, arrays[0].shape)


def nll(
    table_VD: jax.Array,
    bias_V: jax.Array,
    vectors_BPD: jax.Array,
    target_BP: jax.Array,
    smoothing: float = 0.0,
) -> jax.Array:
    """Returns the loss in nats, [B, P], in at least float32; products use the table rounded to the
    dtype of the vectors.

    The gradients of table and bias are accumulated in at least float32, and summed over the free
    axes that split rows. The number of rows must be a multiple of the devices that split them, see
    `pays`.
    """
    free, rows = free_axes()
    # If the table does not divide over `tensor`, the devices of this axis have the whole table and
    # compute the same.
    vocab = RULES.vocab if RULES.vocab in free and len(table_VD) % free[RULES.vocab] == 0 else None
    dtype = vectors_BPD.dtype
    high = jnp.promote_types(dtype, jnp.float32)
    loss, by_row = (
        Loss(free, rows, vocab, smoothing, smoothing / len(bias_V), high),
        PartitionSpec(rows),
    )

    def rounded(
        table_VD: jax.Array, bias_V: jax.Array, *arrays: jax.Array
    ) -> tuple[jax.Array, ...]:
        return table_VD.astype(dtype), bias_V.astype(high), *arrays

    def forward(*arguments: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        nll_BP, log_sum_BP = loss.on_devices(loss.row_losses, 2, by_row)(*rounded(*arguments))
        return nll_BP, (*arguments, log_sum_BP)

    def backward(saved: tuple[jax.Array, ...], g_BP: jax.Array) -> tuple[jax.Array | None, ...]:
        specs = PartitionSpec(vocab), PartitionSpec(vocab), by_row
        grads = loss.on_devices(loss.gradient, 4, specs)(*rounded(*saved), g_BP)
        return *(d.astype(x.dtype) for d, x in zip(grads, saved, strict=False)), None

    run = jax.custom_vjp(lambda *arguments: forward(*arguments)[0])
    run.defvjp(forward, backward)
    return run(table_VD, bias_V, vectors_BPD, target_BP)


def chunked(x_BP: jax.Array) -> jax.Array:
    """Splits [B, P, ..] into equal chunks [chunks, rows of a chunk, ..]; zeros fill the last."""
    x_N = x_BP.reshape(-1, *x_BP.shape[2:])
    chunks = -(-len(x_N) // CHUNK)
    size = -(-len(x_N) // chunks)
    filled = jnp.pad(x_N, [(0, chunks * size - len(x_N)), *[(0, 0)] * (x_N.ndim - 1)])
    return filled.reshape(chunks, size, *x_N.shape[1:])


def unchunked(x_AC: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Inverts `chunked`."""
    return x_AC.reshape(-1, *x_AC.shape[2:])[: math.prod(shape[:2])].reshape(shape)
