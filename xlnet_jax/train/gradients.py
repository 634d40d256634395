"""The gradient of a step: of sum(weighted losses) / sum(weights) over the global batch, or as in 2019."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jax.sharding import PartitionSpec

from xlnet_jax.batch import Memory
from xlnet_jax.model.layers import accumulator
from xlnet_jax.parallel import mesh as meshes
from xlnet_jax.train.loss import RowLosses, mean_loss
from xlnet_jax.train.recipe import Recipe

GRADIENT = jax.value_and_grad(mean_loss, has_aux=True)

LossAndGradient = tuple[tuple[jax.Array, RowLosses], Any]
"""((mean loss, its rows and the next memory), gradient like the parameters)."""

BY_HAND = ("slices", "data")
"""Mesh axes that `reduce` sums over, once. The compiler handles the others, which split parameters."""


def reduce(grads: Any) -> Any:
    """Sums a gradient over the devices that split rows only: each element crosses each axis of `BY_HAND` once.

    Arrays of less than a hundredth of all elements travel as one: a message between slices costs more than its bytes.
    The compiler sums within a slice before it sums across slices, where each device sends its share of the sum.
    """
    leaves, tree = jax.tree.flatten(grads)
    bound = sum(x.size for x in leaves) / 100
    packed, unpack = ravel_pytree([x for x in leaves if x.size < bound])
    # XLA refuses a sum over axes of one device.
    axes = [axis for axis in BY_HAND if jax.lax.axis_size(axis) > 1]
    *large, packed = jax.lax.psum([*(x for x in leaves if x.size >= bound), packed], axes)
    small = iter(unpack(jax.lax.with_sharding_constraint(packed, PartitionSpec())))
    whole = iter(large)
    return tree.unflatten([next(small if x.size < bound else whole) for x in leaves])


def of_step(recipe: Recipe, params: Any, batch: Any, memory: Memory, dropout_key: jax.Array) -> LossAndGradient:
    """The gradient that the configuration asks for, in float32. Requires a mesh (`jax.set_mesh`).

    Every device sums the gradients of its own rows over `train.accumulation` micro-batches, each with its share of the
    memory, and only the sum crosses the network. The compiler would reduce in each layer and each micro-batch, and in
    bfloat16 where it can: hence `shard_map`, over the axes that split rows alone.

    Args:
      batch, memory: the B rows of the global batch, as the recipe's model takes them.
    """
    if recipe.config.compat.on("core_clip"):
        return core_clipped_gradient(recipe, params, batch, memory, dropout_key)
    parts, model = recipe.config.train.accumulation, recipe.model
    weight = model.weight(batch)
    rows_B = jnp.arange(len(memory.valid_B))
    high = accumulator(jnp.dtype(recipe.config.model.compute_dtype))

    def local(
        params: Any, batch: Any, memory: Memory, rows_B: jax.Array, weight: jax.Array, dropout_key: jax.Array
    ) -> LossAndGradient:
        def micro(summed: Any, inputs: tuple[Any, Memory, jax.Array]) -> tuple[Any, RowLosses]:
            (share, rows), grads = GRADIENT(params, model, *inputs[:2], dropout_key, inputs[2], weight)
            return jax.tree.map(jnp.add, summed, (share, grads)), rows

        total = (jnp.zeros((), high), jax.tree.map(jnp.zeros_like, params))
        if parts == 1:
            # Not as a scan: the TPU compiler would take the one turn out of the loop, and keep the empty loop as well.
            total, rows = micro(total, (batch, memory, rows_B))
        else:
            # Every parts-th row goes together: the rows of a device stay there, however many devices share the axis.
            total, rows_A = jax.lax.scan(micro, total, _split((batch, memory, rows_B), parts, 1))
            rows = _join(rows_A, 1)
        loss, grads = reduce(total)
        return (loss, rows), grads

    rows, layers_rows, everywhere = PartitionSpec(BY_HAND), PartitionSpec(None, BY_HAND), PartitionSpec()
    memories = Memory(layers_rows, rows)  # type: ignore[arg-type]
    with nn.logical_axis_rules(meshes.RULES.without(BY_HAND).pairs()):
        return jax.shard_map(
            local,
            in_specs=(everywhere, rows, memories, rows, everywhere, everywhere),
            out_specs=((everywhere, RowLosses(rows, rows, memories)), everywhere),  # type: ignore[arg-type]
            axis_names=set(BY_HAND),
            # Else the gradient of the replicated parameters would be reduced where it is taken: inside the loop.
            check_vma=False,
        )(params, batch, memory, rows_B, weight, dropout_key)


def core_clipped_gradient(
    recipe: Recipe, params: Any, batch: Any, memory: Memory, dropout_key: jax.Array
) -> LossAndGradient:
    """The 2019 gradient (compat switch core_clip), for `compat.cores` equal groups of consecutive rows.

    Each core averages over its own targets, scales by 1 / cores, and clips the result to the whole bound; then the
    cores are summed. So a core with fewer targets weighs more per target, and the bound hardly ever acts.
    """
    model, cores = recipe.model, recipe.config.compat.cores

    def core(summed: Any, inputs: tuple[Any, Memory, jax.Array]) -> tuple[Any, Any]:
        (loss, rows), grads = GRADIENT(params, model, *inputs[:2], dropout_key, inputs[2])
        share = jax.tree.map(lambda g: g / cores, grads)
        norm = optax.tree.norm(share)
        bound = recipe.config.optimizer.clip or jnp.inf
        factor = jnp.where(norm > bound, bound / norm, 1)
        return jax.tree.map(lambda s, g: s + g * factor, summed, share), (loss, rows)

    inputs = _split((batch, memory, jnp.arange(len(memory.valid_B))), cores, 0)
    grads, (loss_C, rows_C) = jax.lax.scan(core, jax.tree.map(jnp.zeros_like, params), inputs)
    return (loss_C.mean(), _join(rows_C, 0)), grads


def _split(rows: tuple[Any, Memory, jax.Array], parts: int, which: int) -> tuple:
    """The rows in `parts`, along a new first axis: consecutive rows together (`which` 0), or every parts-th row (1)."""

    def split(x: jax.Array, axis: int = 0) -> jax.Array:
        # Not with -1: a memory without slots has no elements.
        sizes = [parts, x.shape[axis] // parts]
        x = x.reshape(*x.shape[:axis], *(sizes[::-1] if which else sizes), *x.shape[axis + 1 :])
        return jnp.moveaxis(x, axis + which, 0)

    batch, memory, rows_B = rows
    memories = Memory(split(memory.hidden_LBMD, 1), split(memory.valid_B))
    return jax.tree.map(split, batch), memories, split(rows_B)


def _join(parts: RowLosses, which: int) -> RowLosses:
    """The inverse of `_split` for the results of all parts."""

    def join(x: jax.Array) -> jax.Array:
        axis = int(x.ndim == 5)
        x = jnp.moveaxis(x, 0, axis + which)
        return x.reshape(*x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :])

    return jax.tree.map(join, parts)
