"""-log p(target) under the softmax over the vocabulary, without the array of all logits, and its
gradient.

    z_nv = x_n . W_v + b_v        nll_n = log sum_v exp z_nv - z_n,target(n)
    dz_nv = g_n (p_nv - [v = target(n)])        p_nv = exp z_nv / sum_v exp z_nv
    dx_n = sum_v dz_nv W_v        dW_v = sum_n dz_nv x_n        db_v = sum_n dz_nv

where g_n is the gradient of nll_n.

With label smoothing e the target is q_nv = (1 - e) [v = target(n)] + e / V in place of
[v = target(n)], and the loss is log sum_v exp z_nv - sum_v q_nv z_nv (Szegedy et al. 2016, arXiv
1512.00567, section 7).

Each device takes its own rows n (batch x targets) in chunks of at most `CHUNK`, and the backward
pass computes z again: four products of the size of z in place of three. The vocabulary is split
over `tensor`: maximum, sum and chosen logit of all rows are combined after the last chunk.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from xlnet_jax.distributed.mesh import RULES, free_axes

CHUNK = 1024
"""Rows of a chunk. Every chunk reads and writes the float32 gradient of the table: 8 bytes an
element for 6 C operations with C rows. With much fewer than 1024 a v5e, 240 operations a byte,
would wait for its memory.
"""


def pays(B: int, P: int) -> bool:
    """Whether [B, P] targets are more than one chunk on a device; else chunks save no memory and
    cost a product.
    """
    free, rows = free_axes()
    ways = math.prod(free[axis] for axis in rows)
    return B % ways == 0 and B // ways * P > CHUNK


def nll(
    table_VD: jax.Array,
    bias_V: jax.Array,
    vectors_BPD: jax.Array,
    target_BP: jax.Array,
    smoothing: float = 0.0,
) -> jax.Array:
    """Nats, [B, P], in at least float32; products take the table rounded to the dtype of the
    vectors.

    The gradients of table and bias are accumulated in at least float32. They cross axes that split
    rows if those are the compiler's. Rows must divide over the devices, see `pays`.
    """
    free, rows = free_axes()
    # A table that does not divide over an axis is whole on its devices; those of `tensor` then
    # compute the same.
    vocab = RULES.vocab if RULES.vocab in free and len(table_VD) % free[RULES.vocab] == 0 else None
    high, size = jnp.promote_types(vectors_BPD.dtype, jnp.float32), len(bias_V)

    def everywhere(local: Callable[..., Any], arrays: int, out_specs: Any) -> Callable[..., Any]:
        if not free:
            return local
        in_specs = (PartitionSpec(vocab), PartitionSpec(vocab), *[PartitionSpec(rows)] * arrays)
        return jax.shard_map(
            local, in_specs=in_specs, out_specs=out_specs, axis_names=set(free), check_vma=False
        )

    def over(
        axes: tuple[str | None, ...], x: jax.Array, combine: Callable[..., jax.Array] = jax.lax.psum
    ) -> jax.Array:
        split = tuple(axis for axis in axes if axis and free[axis] > 1)
        return combine(x, split) if split else x

    def logits(table_VD: jax.Array, bias_V: jax.Array, x_CD: jax.Array) -> jax.Array:
        return jnp.einsum("cd,vd->cv", x_CD, table_VD, preferred_element_type=high) + bias_V[None]

    def is_target(V: int, target_C: jax.Array) -> jax.Array:
        first = jax.lax.axis_index(vocab) * V if vocab else 0
        # A comparison, not a gather, whose gradient would be a scatter.
        return (first + jnp.arange(V))[None] == target_C[:, None]

    def local_nll(
        table_VD: jax.Array, bias_V: jax.Array, *arrays: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        def chunk(inputs: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            x_CD, target_C = inputs
            z_CV = logits(table_VD, bias_V, x_CD)
            # Finite, also where a device holds only pieces of probability 0.
            top_C = jnp.maximum(z_CV.max(axis=1), jnp.finfo(high).min)
            chosen_C = jnp.where(is_target(len(bias_V), target_C), z_CV, 0).sum(axis=1)
            if smoothing:
                chosen_C = (1 - smoothing) * chosen_C + smoothing / size * z_CV.sum(axis=1)
            return top_C, jnp.exp(z_CV - top_C[:, None]).sum(axis=1), chosen_C

        shape = arrays[1].shape
        top_BP, sum_BP, chosen_BP = (
            joined(x, shape) for x in jax.lax.map(chunk, tuple(map(chunked, arrays)))
        )
        highest_BP = over((vocab,), top_BP, jax.lax.pmax)
        log_sum_BP = highest_BP + jnp.log(over((vocab,), sum_BP * jnp.exp(top_BP - highest_BP)))
        return log_sum_BP - over((vocab,), chosen_BP), log_sum_BP

    def local_gradient(
        table_VD: jax.Array, bias_V: jax.Array, *arrays: jax.Array
    ) -> tuple[jax.Array, ...]:
        def chunk(
            sums: tuple[jax.Array, ...], inputs: tuple[jax.Array, ...]
        ) -> tuple[Any, jax.Array]:
            x_CD, target_C, log_sum_C, g_C = inputs
            p_CV = jnp.exp(logits(table_VD, bias_V, x_CD) - log_sum_C[:, None])
            wanted_CV = is_target(len(bias_V), target_C)
            if smoothing:
                wanted_CV = jnp.where(wanted_CV, 1 - smoothing, 0) + smoothing / size
            dz_CV = g_C[:, None] * (p_CV - wanted_CV)
            # Unused slots and the rows that fill the last chunk: exactly 0, also where p is not
            # finite.
            dz_CV = jnp.where(g_C[:, None] != 0, dz_CV, 0)
            rounded_CV = dz_CV.astype(x_CD.dtype)
            d_table_VD = jnp.einsum("cd,cv->vd", x_CD, rounded_CV, preferred_element_type=high)
            dx_CD = over(
                (vocab,), jnp.einsum("cv,vd->cd", rounded_CV, table_VD, preferred_element_type=high)
            )
            return (sums[0] + d_table_VD, sums[1] + dz_CV.sum(axis=0)), dx_CD.astype(x_CD.dtype)

        zeros = jnp.zeros(table_VD.shape, high), jnp.zeros(bias_V.shape, high)
        (d_table_VD, d_bias_V), dx_ACD = jax.lax.scan(chunk, zeros, tuple(map(chunked, arrays)))
        return over(rows, d_table_VD), over(rows, d_bias_V), joined(dx_ACD, arrays[0].shape)

    def forward(*arguments: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        nll_BP, log_sum_BP = everywhere(local_nll, 2, PartitionSpec(rows))(*rounded(*arguments))
        return nll_BP, (*arguments, log_sum_BP)

    def rounded(
        table_VD: jax.Array, bias_V: jax.Array, *arrays: jax.Array
    ) -> tuple[jax.Array, ...]:
        return table_VD.astype(vectors_BPD.dtype), bias_V.astype(high), *arrays

    def backward(saved: tuple[jax.Array, ...], g_BP: jax.Array) -> tuple[jax.Array | None, ...]:
        specs = PartitionSpec(vocab), PartitionSpec(vocab), PartitionSpec(rows)
        grads = everywhere(local_gradient, 4, specs)(*rounded(*saved), g_BP)
        return *(d.astype(x.dtype) for d, x in zip(grads, saved, strict=False)), None

    run = jax.custom_vjp(lambda *arguments: forward(*arguments)[0])
    run.defvjp(forward, backward)
    return run(table_VD, bias_V, vectors_BPD, target_BP)


def chunked(x_BP: jax.Array) -> jax.Array:
    """[B, P, ..] -> [chunks, rows of a chunk, ..]: equal chunks, the last filled with zeros."""
    x_N = x_BP.reshape(-1, *x_BP.shape[2:])
    chunks = -(-len(x_N) // CHUNK)
    size = -(-len(x_N) // chunks)
    filled = jnp.pad(x_N, [(0, chunks * size - len(x_N)), *[(0, 0)] * (x_N.ndim - 1)])
    return filled.reshape(chunks, size, *x_N.shape[1:])


def joined(x_AC: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """The inverse of `chunked`."""
    return x_AC.reshape(-1, *x_AC.shape[2:])[: math.prod(shape[:2])].reshape(shape)
