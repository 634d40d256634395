"""The gradient of a step: of the whole batch at once, of micro-batches one after the other, or as in 2019.

All three are the gradient of sum(weighted losses) / sum(weights) over the global batch, but for the last, which is not.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec

from xlnet_jax.batch import Batch, Memory
from xlnet_jax.parallel import mesh as meshes
from xlnet_jax.train.loss import Aux, mean_loss
from xlnet_jax.train.recipe import Recipe

GRADIENT = jax.value_and_grad(mean_loss, has_aux=True)

LossAndGradient = tuple[tuple[jax.Array, Aux], Any]
"""((mean loss, what else training needs), gradient like the parameters)."""

BY_HAND = ("slices", "data")
"""Mesh axes whose reduction accumulation holds back; over the others parameters are split, which is the compiler's."""


def of_step(recipe: Recipe, params: Any, batch: Batch, memory: Memory, dropout_key: jax.Array) -> LossAndGradient:
    """The gradient that the configuration asks for. `batch` and `memory` hold the B rows of the global batch."""
    if recipe.config.compat.on("core_clip"):
        return core_clipped_gradient(recipe, params, batch, memory, dropout_key)
    if recipe.config.train.accumulation > 1:
        return accumulated_gradient(recipe, params, batch, memory, dropout_key)
    return GRADIENT(params, recipe.model, batch, memory, dropout_key)


def accumulated_gradient(
    recipe: Recipe, params: Any, batch: Batch, memory: Memory, dropout_key: jax.Array
) -> LossAndGradient:
    """The same gradient, added up over `train.accumulation` micro-batches, each with its share of the memory.

    Every device adds up its own rows' and only the sum crosses the network. Left to the compiler, the reduction would
    stay inside the loop: hence `shard_map`, over the axes that split rows alone. Requires a mesh (`jax.set_mesh`).
    """
    parts, model = recipe.config.train.accumulation, recipe.model
    weight = batch.target_weights.sum()
    rows_B = jnp.arange(len(batch.direction))

    def local(
        params: Any, batch: Batch, memory: Memory, rows_B: jax.Array, weight: jax.Array, dropout_key: jax.Array
    ) -> LossAndGradient:
        def micro(summed: tuple, inputs: tuple[Batch, Memory, jax.Array]) -> tuple[tuple, Aux]:
            (share, aux), grads = GRADIENT(params, model, *inputs[:2], dropout_key, inputs[2], weight)
            return jax.tree.map(jnp.add, summed, (share, grads)), aux

        inputs = (
            jax.tree.map(split, batch),
            Memory(split(memory.hidden_LBMD, 1), split(memory.valid_B)),
            split(rows_B),
        )
        zeros = (jnp.zeros((), jnp.promote_types(weight.dtype, jnp.float32)), jax.tree.map(jnp.zeros_like, params))
        (loss, grads), aux_A = jax.lax.scan(micro, zeros, inputs)
        memory = Memory(join(aux_A.memory.hidden_LBMD, 1), join(aux_A.memory.valid_B))
        aux = Aux(join(aux_A.loss_B), join(aux_A.weight_B), memory)
        return (jax.lax.psum(loss, BY_HAND), aux), jax.lax.psum(grads, BY_HAND)

    def split(x: jax.Array, axis: int = 0) -> jax.Array:
        # Every parts-th row goes together: the rows of a device stay there, however many share `axis`.
        x = x.reshape(*x.shape[:axis], -1, parts, *x.shape[axis + 1 :])
        return jnp.moveaxis(x, axis + 1, 0)

    def join(x: jax.Array, axis: int = 0) -> jax.Array:
        x = jnp.moveaxis(x, 0, axis + 1)
        return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])

    rows, layers_rows, everywhere = PartitionSpec(BY_HAND), PartitionSpec(None, BY_HAND), PartitionSpec()
    memories = Memory(layers_rows, rows)  # type: ignore[arg-type]
    with nn.logical_axis_rules(meshes.RULES.without(BY_HAND).pairs()):
        return jax.shard_map(
            local,
            in_specs=(everywhere, rows, memories, rows, everywhere, everywhere),
            out_specs=((everywhere, Aux(rows, rows, memories)), everywhere),  # type: ignore[arg-type]
            axis_names=set(BY_HAND),
            # Else the gradient of the replicated parameters would be reduced where it is taken: inside the loop.
            check_vma=False,
        )(params, batch, memory, rows_B, weight, dropout_key)


def core_clipped_gradient(
    recipe: Recipe, params: Any, batch: Batch, memory: Memory, dropout_key: jax.Array
) -> LossAndGradient:
    """The 2019 gradient (compat switch core_clip), for `compat.cores` equal groups of consecutive rows.

    Each core averages over its own targets, scales by 1 / cores, and clips that to the whole bound, before the cores
    are added up: a core with fewer targets weighs more per target, and the bound hardly ever acts.
    """
    model, cores = recipe.model, recipe.config.compat.cores

    def core(summed: Any, inputs: tuple[Batch, Memory, jax.Array]) -> tuple[Any, Any]:
        rows, hidden, rows_B = inputs
        (loss, aux), grads = GRADIENT(params, model, rows, hidden, dropout_key, rows_B)
        share = jax.tree.map(lambda g: g / cores, grads)
        norm = optax.tree.norm(share)
        bound = recipe.config.optimizer.clip or jnp.inf
        factor = jnp.where(norm > bound, bound / norm, 1)
        return jax.tree.map(lambda s, g: s + g * factor, summed, share), (loss, aux)

    def split(x: jax.Array, axis: int = 0) -> jax.Array:
        x = jnp.moveaxis(x, axis, 0).reshape(cores, -1, *x.shape[:axis], *x.shape[axis + 1 :])
        return jnp.moveaxis(x, 1, axis + 1)

    memories = Memory(split(memory.hidden_LBMD, 1), split(memory.valid_B))
    inputs = (jax.tree.map(split, batch), memories, split(jnp.arange(len(batch.direction))))
    grads, (loss_C, aux_C) = jax.lax.scan(core, jax.tree.map(jnp.zeros_like, params), inputs)
    joined = Memory(
        jnp.moveaxis(aux_C.memory.hidden_LBMD, 0, 1).reshape(memory.hidden_LBMD.shape),
        aux_C.memory.valid_B.reshape(memory.valid_B.shape),
    )
    return (loss_C.mean(), Aux(aux_C.loss_B.reshape(-1), aux_C.weight_B.reshape(-1), joined)), grads
