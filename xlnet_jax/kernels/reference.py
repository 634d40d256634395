"""Relative attention with its gradient written out, plainly: fused kernels are tested against it.

Forward, for a query i at the position t_i and a key j (letters and distances as in `xla`):

    a_i = q_i + u    b_i = q_i + v    c_i = q_i + w    row n_ij = T - 1 - t_i + j    r = even + direction odd
    s_ij = E^(-1/2) [ a_i . k_j + b_i . r[n_ij] + c_i . S[g_ij] ]      g_ij = 0 in the same segment, 1 in another one
    p_ij = exp(s_ij) / sum of exp(s_ij') over the visible j'           0 for hidden keys and for rows that see nothing
    o_i  = sum_j p_ij z_ij v_j                                         z: dropout, 0 or 1 / share kept

Backward, from the gradient do of o; a sum over the rows of the batch where an input has no row:

    dv_j = sum_i p_ij z_ij do_i
    ds_ij = E^(-1/2) p_ij (z_ij do_i . v_j - do_i . o_i)               do_i . o_i = sum_j p_ij z_ij do_i . v_j
    da_i = sum_j ds_ij k_j    db_i = sum_j ds_ij r[n_ij]    dc_i = sum_j ds_ij S[g_ij]
    dq_i = da_i + db_i + dc_i    du = sum_i da_i    dv = sum_i db_i (the bias)    dw = sum_i dc_i
    dk_j = sum_i ds_ij a_i    dr[n] = sum of ds_ij b_i where n_ij = n    dS[g] = sum of ds_ij c_i where g_ij = g
    deven = dr    dodd = direction dr

All of it in the dtype of the arguments, with arrays of B H Q N elements.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from xlnet_jax.batch import NEVER
from xlnet_jax.kernels.xla import Arguments

NUMBERS = "q_BQHE", "k_BKHE", "v_BKHE", "position", "biases", "segment_2HE"
"""The arguments that have a gradient; of `position` the two tables."""


def attend(a: Arguments) -> tuple[jax.Array, jax.Array]:
    """The results of `xla.attend`."""
    probability_BHQK, kept_BHQK, *_ = _probabilities(a)
    return jnp.einsum("bhqk,bkhe->bqhe", probability_BHQK * kept_BHQK, a.v_BKHE), probability_BHQK


def gradients(a: Arguments, do_BQHE: jax.Array) -> dict[str, Any]:
    """The gradients of sum(do * o), by the names in NUMBERS; `position` is (odd, even)."""
    odd_SNHE, _, direction_B = a.position
    p_BHQK, z_BHQK, r_BNHE, row_BHQK, other_BHQK, (a_BQHE, b_BQHE, c_BQHE) = _probabilities(a)
    dropped_BHQK = p_BHQK * z_BHQK
    dp_BHQK = jnp.einsum("bqhe,bkhe->bhqk", do_BQHE, a.v_BKHE)
    delta_BHQ1 = jnp.sum(dropped_BHQK * dp_BHQK, axis=-1, keepdims=True)
    ds_BHQK = p_BHQK * (z_BHQK * dp_BHQK - delta_BHQ1) * a.k_BKHE.shape[-1] ** -0.5
    # Query i has each row of the position keys at most once: setting is adding.
    ds_BHQN = jnp.zeros((*ds_BHQK.shape[:3], r_BNHE.shape[1]), ds_BHQK.dtype)
    ds_BHQN = jnp.put_along_axis(ds_BHQN, row_BHQK, ds_BHQK, axis=-1, inplace=False)
    ds_2BHQ = jnp.stack([jnp.sum(jnp.where(other_BHQK == g, ds_BHQK, 0), axis=-1) for g in (False, True)])
    da_BQHE = jnp.einsum("bhqk,bkhe->bqhe", ds_BHQK, a.k_BKHE)
    db_BQHE = jnp.einsum("bhqn,bnhe->bqhe", ds_BHQN, r_BNHE)
    dc_BQHE = jnp.einsum("gbhq,ghe->bqhe", ds_2BHQ, a.segment_2HE)
    dr_BNHE = jnp.einsum("bhqn,bqhe->bnhe", ds_BHQN, b_BQHE)
    dodd_BNHE = dr_BNHE * direction_B[:, None, None, None].astype(dr_BNHE.dtype)
    one_table = len(odd_SNHE) == 1
    return {
        "q_BQHE": da_BQHE + db_BQHE + dc_BQHE,
        "k_BKHE": jnp.einsum("bhqk,bqhe->bkhe", ds_BHQK, a_BQHE),
        "v_BKHE": jnp.einsum("bhqk,bqhe->bkhe", dropped_BHQK, do_BQHE),
        "position": tuple(x.sum(axis=0, keepdims=True) if one_table else x for x in (dodd_BNHE, dr_BNHE)),
        "biases": {
            f"{name}_bias": x.sum(axis=(0, 1))
            for name, x in (("content", da_BQHE), ("position", db_BQHE), ("segment", dc_BQHE))
        },
        "segment_2HE": jnp.einsum("gbhq,bqhe->ghe", ds_2BHQ, c_BQHE),
    }


def differentiated(
    attend: Callable[[Arguments], Any], a: Arguments
) -> tuple[tuple[jax.Array, jax.Array | None], Callable[[jax.Array], dict[str, Any]]]:
    """The results of any implementation, and do -> its gradients in the form of `gradients`, by JAX."""
    *tables, direction_B = a.position
    numbers = {name: getattr(a, name) for name in NUMBERS} | {"position": tuple(tables)}

    def output(numbers: dict[str, Any]) -> tuple[jax.Array, jax.Array | None]:
        return attend(dataclasses.replace(a, **numbers | {"position": (*numbers["position"], direction_B)}))

    o_BQHE, pull, probability_BHQK = jax.vjp(output, numbers, has_aux=True)
    return (o_BQHE, probability_BHQK), lambda do_BQHE: pull(do_BQHE)[0]


def _probabilities(a: Arguments) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array, list[jax.Array]]:
    """p, z, r, n, whether g is 1, and (a, b, c)."""
    odd_SNHE, even_SNHE, direction_B = a.position
    (B, Q, H, E), K, T = a.q_BQHE.shape, a.k_BKHE.shape[1], even_SNHE.shape[1] + 1 - a.k_BKHE.shape[1]
    r_BNHE = even_SNHE + direction_B[:, None, None, None].astype(even_SNHE.dtype) * odd_SNHE
    row_BQK = T - 1 - a.position_BQ[:, :, None] + jnp.arange(K)[None, None]
    row_BHQK = jnp.broadcast_to(row_BQK[:, None], (B, H, Q, K))
    other_BHQK = (a.segment_BQ[:, :, None] != a.segment_BK[:, None, :])[:, None]
    a_BQHE, b_BQHE, c_BQHE = (a.q_BQHE + a.biases[f"{n}_bias"][None, None] for n in ("content", "position", "segment"))
    either_BHQG = jnp.einsum("bqhe,ghe->bhqg", c_BQHE, a.segment_2HE)
    score_BHQK = jnp.einsum("bqhe,bkhe->bhqk", a_BQHE, a.k_BKHE)
    score_BHQK += jnp.take_along_axis(jnp.einsum("bqhe,bnhe->bhqn", b_BQHE, r_BNHE), row_BHQK, axis=-1)
    score_BHQK = (score_BHQK + jnp.where(other_BHQK, either_BHQG[..., 1:], either_BHQG[..., :1])) * E**-0.5
    visible_BQK = (a.rank_BK[:, None, :] < a.limit_BQ[:, :, None]) & (a.rank_BK != NEVER)[:, None, :]
    if a.max_distance is not None:  # distance M + t_i - j = K - 1 - n_ij
        visible_BQK &= K - 1 - row_BQK <= a.max_distance
    visible_BHQK = visible_BQK[:, None]
    highest = jnp.max(score_BHQK, axis=-1, keepdims=True, initial=-1e30, where=visible_BHQK)
    weight_BHQK = jnp.where(visible_BHQK, jnp.exp(jnp.minimum(score_BHQK - highest, 0)), 0)
    p_BHQK = weight_BHQK / jnp.maximum(weight_BHQK.sum(axis=-1, keepdims=True), jnp.finfo(weight_BHQK.dtype).tiny)
    z_BHQK = jnp.ones_like(p_BHQK)
    if a.dropout is not None:
        z_BHQK = a.dropout(z_BHQK, a.rows_B, a.position_BQ)
    return p_BHQK, z_BHQK, r_BNHE, row_BHQK, other_BHQK, [a_BQHE, b_BQHE, c_BQHE]
