"""The gradient of a step: of sum(weighted losses) / sum(weights) over the global batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.sharding import PartitionSpec

from xlnet_jax.compat import hooks
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.model.layers import Declared, PrecastKernel, accumulator
from xlnet_jax.train.loss import RowLosses, mean_loss
from xlnet_jax.train.recipe import Recipe


def _mean_loss(receivers: Any, params: Any, specs: Any, *args: Any) -> tuple[jax.Array, RowLosses]:
    """Returns `mean_loss` for differentiation with respect to `receivers`: the parameters, or zeros
    in place of rounded parameters.

    `specs` are the PartitionSpecs of the parameters. A split parameter is a stack of layers; each
    layer gets its slice, without the first axis.
    """

    def with_receiver(
        receiver: jax.Array, x: jax.Array, spec: PartitionSpec
    ) -> jax.Array | PrecastKernel:
        if meshes.row_split(spec):
            return PrecastKernel(x, receiver, PartitionSpec(*spec[1:]))
        return receiver if x.dtype == receiver.dtype else PrecastKernel(x, receiver)

    return mean_loss(jax.tree.map(with_receiver, receivers, params, specs), *args)


BY_HAND = ("slices", "data", "fsdp")
"""Mesh axes that `reduce` sums over. The compiler handles the remaining axis, `tensor`."""


def layouts(recipe: Recipe, sizes: Mapping[str, int]) -> tuple[Any, Any, Any]:
    """Returns PartitionSpecs of the parameters on a mesh of these sizes, in three forms: whole on
    all devices that split rows; as in the state; and as the layers get them.

    A layer of a stack gathers its own matrices and sums their gradients. With several micro-batches
    each micro-batch would repeat these collectives, so the layers get whole matrices instead.
    """
    boxed = recipe.abstract_params
    split = meshes.split_of(recipe.config, boxed, sizes)
    boxed = meshes.pack(boxed, sizes, split)
    whole = meshes.specs(boxed, sizes)
    specs = meshes.specs(boxed, sizes, split)
    if recipe.config.train.gradient_accumulation_steps > 1:
        return whole, specs, whole

    def in_layer(whole: PartitionSpec, spec: PartitionSpec, box: Declared) -> PartitionSpec:
        axis, _ = meshes.row_split(spec) or (0, None)
        return spec if axis and box.stacked and box.kind == "matrix" else whole

    return whole, specs, jax.tree.map(in_layer, whole, specs, boxed)


def gather(params: Any, boxed: Any, specs: Any, entry: Any, dtype: jnp.dtype) -> Any:
    """Returns the parameters as the layers get them: gathered, or split if a layer gathers them;
    matrices are cast to `dtype` if it is smaller.

    Matrix products cast matrices to `dtype` anyway, so the result of the model is the same. `boxed`
    are the boxes of the parameters (`layers.Declared`), `specs` their PartitionSpecs, and `entry`
    the PartitionSpecs of the result.
    """

    def gathered(
        x: jax.Array, box: Declared, spec: PartitionSpec, entry: PartitionSpec
    ) -> jax.Array:
        split = meshes.row_split(spec)
        if split is None:
            return x
        rounds = box.kind == "matrix" and dtype.itemsize < x.dtype.itemsize
        x = x.astype(dtype) if rounds else x
        return x if spec == entry else jax.lax.all_gather(x, split[1], axis=split[0], tiled=True)

    return jax.shard_map(
        lambda params: jax.tree.map(gathered, params, boxed, specs, entry),
        in_specs=(specs,),
        out_specs=entry,
        check_vma=False,
    )(params)


def _row_axes_of(spec: PartitionSpec) -> PartitionSpec:
    """The part of a spec that splits over axes of rows."""
    axis, names = meshes.row_split(spec) or (0, None)
    return PartitionSpec(*[None] * axis, names)


def reduce(grads: Any, specs: Any, entry: Any, whole: Any) -> Any:
    """Sums gradients over the devices that split rows: each element crosses each axis of `BY_HAND`
    once.

    Arrays with less than a hundredth of all elements are sent as one array, because each message
    between slices has a fixed cost. The compiler sums within a slice first; then each device sends
    its share of the sum across slices.

    Args:
      grads: the gradients of each device, along a new first axis that is split over `BY_HAND`.
      specs: PartitionSpecs of the result. A device gets its part of a sum that is split over axes
        of rows.
      entry: as in `gather`. Layers that gather their matrices have already summed the gradients of
        these matrices.
      whole: PartitionSpecs of the parameters if no axis of rows splits them.
    """

    def local(grads: Any) -> Any:
        leaves, tree = jax.tree.flatten(jax.tree.map(lambda x: x[0], grads))
        splits, by_layers = (
            [meshes.row_split(spec) for spec in tree.flatten_up_to(each)] for each in (specs, entry)
        )
        bound = sum(x.size for x in leaves) / 100
        kinds = [
            "part" if split else "small" if x.size < bound else "large"
            for x, split in zip(leaves, splits, strict=True)
        ]
        of = {
            kind: [x for x, each in zip(leaves, kinds, strict=True) if each == kind]
            for kind in ("part", "small", "large")
        }
        # XLA refuses a sum over axes of one device.
        present = [axis for axis in BY_HAND if jax.lax.axis_size(axis) > 1]
        packed, unpack = ravel_pytree(of["small"])
        *large, packed = jax.lax.psum([*of["large"], packed], present)
        # Rings of collective-permute would not overlap with more computation on v5e: libtpu 0.0.51
        # runs a permutation around a side of the torus synchronously.
        parts = [
            x if done else jax.lax.psum_scatter(x, split[1], scatter_dimension=split[0], tiled=True)
            for x, split, done in zip(leaves, splits, by_layers, strict=True)
            if split
        ]
        rest = [
            axis
            for axis in present
            if axis not in next((split[1] for split in splits if split), ())
        ]
        parts = jax.lax.psum(parts, rest) if parts and rest else parts
        summed = {"part": iter(parts), "large": iter(large), "small": iter(unpack(packed))}
        return tree.unflatten([next(summed[kind]) for kind in kinds])

    stacked = jax.tree.map(lambda spec: PartitionSpec(BY_HAND, *spec), whole)
    return jax.shard_map(local, in_specs=(stacked,), out_specs=specs, check_vma=False)(grads)


def of_step(
    recipe: Recipe, params: Any, batch: Any, memory: Any, dropout_key: jax.Array
) -> tuple[tuple, Any]:
    """Returns ((mean loss, row losses and next memory), gradient like the parameters, in float32)
    of B rows.

    Requires a mesh (`jax.set_mesh`). Every device sums the gradients of its own rows, and only the
    sum crosses the network. Without the `shard_map` over the axes that split rows, the compiler
    would reduce gradients in each layer and each micro-batch, in bfloat16 where possible.
    """
    rows = batch, memory, jnp.arange(len(jax.tree.leaves(batch)[0]))
    if clipped := hooks.by_cores(recipe, mean_loss, params, rows, dropout_key):
        return clipped
    dtype = jnp.dtype(recipe.config.model.compute_dtype)
    whole, specs, entry = layouts(recipe, jax.sharding.get_abstract_mesh().shape)
    entered = (
        params if specs == whole else gather(params, recipe.abstract_params, specs, entry, dtype)
    )

    def local(
        entered: Any, rows: tuple, divisors: Any, dropout_key: jax.Array
    ) -> tuple[RowLosses, Any]:
        receivers = jax.tree.map(
            lambda x, high: x if x.dtype == high.dtype else jnp.zeros(x.shape, high.dtype),
            entered,
            params,
        )
        losses, total = _sum_micro_batches(
            recipe, (receivers, entered, entry), rows, divisors, dropout_key
        )
        return losses, jax.tree.map(lambda x: x[None], total)

    by_row = PartitionSpec(BY_HAND)
    everywhere = PartitionSpec()
    carried = jax.tree.map(lambda axis: PartitionSpec(*[None] * axis, BY_HAND), recipe.row_axes)
    with meshes.RULES.without(BY_HAND).applied():
        row_losses, total = jax.shard_map(
            local,
            # A shard_map has no specs for the mesh axes that the compiler handles.
            in_specs=(
                jax.tree.map(_row_axes_of, entry),
                (by_row, carried, by_row),
                everywhere,
                everywhere,
            ),
            out_specs=(RowLosses(by_row, carried), by_row),  # type: ignore[arg-type]
            axis_names=set(BY_HAND),
            # With the check, the gradient of the replicated parameters would be reduced inside the
            # loop.
            check_vma=False,
        )(entered, rows, recipe.model.divisors(batch), dropout_key)
    loss, grads = reduce(total, (everywhere, specs), (everywhere, entry), (everywhere, whole))
    return (loss, row_losses), grads


def _sum_micro_batches(
    recipe: Recipe, parameters: tuple, rows: tuple, divisors: Any, dropout_key: jax.Array
) -> tuple[RowLosses, Any]:
    """Returns, on one device, the losses of its rows, and (share of the loss, gradient) summed over
    its `train.gradient_accumulation_steps` micro-batches. Each micro-batch has the memory of its
    rows. `parameters` are the first arguments of `_mean_loss`.
    """
    parts = recipe.config.train.gradient_accumulation_steps
    gradient = jax.value_and_grad(_mean_loss, has_aux=True)

    def micro(summed: Any, inputs: tuple[Any, Any, jax.Array]) -> tuple[Any, RowLosses]:
        batch, memory, rows_B = inputs
        (share, losses), grads = gradient(
            *parameters, recipe.model, batch, memory, dropout_key, rows_B, divisors
        )
        return jax.tree.map(jnp.add, summed, (share, grads)), losses

    high = accumulator(jnp.dtype(recipe.config.model.compute_dtype))
    total = (jnp.zeros((), high), jax.tree.map(jnp.zeros_like, parameters[0]))
    if parts == 1:
        # No scan: the TPU compiler would move the single iteration out of the loop and keep the
        # empty loop.
        total, losses = micro(total, rows)
        return losses, total
    # A micro-batch has every parts-th row, so no row changes its device, whatever the number of
    # devices on the axis.
    total, losses_A = jax.lax.scan(micro, total, recipe.split_rows(rows, parts, 1))
    return recipe.join_rows(losses_A, 1), total
