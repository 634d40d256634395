"""The device mesh, one sharding rule per logical axis, and the placement of State and Batch.

The model names logical axes only. Mesh axes: `slices` (rows; TPU slices, joined by the data-centre
network), `data` (rows), `fsdp` (rows, and parameters), `tensor` (heads, feed-forward, vocabulary).
All axes are Auto: the compiler inserts the collectives, except for the sums over axes of rows in a
step (`train.gradients`).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from xlnet_jax.config import Config, MeshConfig, ModelConfig, TrainConfig
from xlnet_jax.errors import BadInput
from xlnet_jax.messages import quantity


@dataclasses.dataclass(frozen=True)
class ShardingRules:
    """The mesh axes of each logical axis."""

    batch: tuple[str, ...] = ("slices", "data", "fsdp")
    embed: str | None = None
    heads: str | None = "tensor"
    head_dim: str | None = None
    ff: str | None = "tensor"
    vocab: str | None = "tensor"
    norm: str | None = None
    layers: str | None = None

    def spec(self, axes: tuple[str | None, ...]) -> PartitionSpec:
        """The PartitionSpec of an array with these logical axes. Raises ValueError if it uses a
        mesh axis twice.
        """
        spec = PartitionSpec(*(None if axis is None else getattr(self, axis) for axis in axes))
        used = [name for names in _mesh_axes(spec) for name in names]
        if len(used) != len(set(used)):
            raise ValueError(f"logical axes {axes} use a mesh axis twice: {spec}")
        return spec

    def without(self, axes: Sequence[str]) -> ShardingRules:
        """The rules inside a `shard_map` over these mesh axes, which split rows."""
        return dataclasses.replace(
            self, batch=tuple(axis for axis in self.batch if axis not in axes)
        )

    def applied(self) -> Any:
        """A context or decorator in which Flax's modules follow these rules."""
        return nn.logical_axis_rules(list(dataclasses.asdict(self).items()))


RULES = ShardingRules()

AXES = ("slices", "data", "fsdp", "tensor")
"""Mesh axes, from the slowest network to the fastest."""


def _mesh_axes(spec: PartitionSpec) -> list[tuple[str, ...]]:
    """The mesh axes that split each axis of an array, for the axes that the spec covers."""
    return [(names,) if isinstance(names, str) else names or () for names in spec]


def quiet_libtpu() -> None:
    """Tells libtpu that this machine is alone, if it has no TPU. JAX loads an installed libtpu on
    every machine, and without these variables libtpu prints errors where it finds no TPU.
    """
    # JAX, when it is imported, sets the first variable if the PCI bus has no TPU.
    absent = os.environ.get("TPU_SKIP_MDS_QUERY") == "1"
    if absent and not any(name.startswith("TPU_WORKER_") for name in os.environ):
        os.environ["TPU_WORKER_HOSTNAMES"] = "localhost"
        os.environ.setdefault("TPU_HOST_BOUNDS", "1,1,1")


quiet_libtpu()  # before a device is used


def available_devices(local: bool = False) -> list[Any]:
    """The devices of the run, or if `local` the devices of this process. Raises BadInput if the
    platform is not available.
    """
    try:
        return jax.local_devices() if local else jax.devices()
    # AssertionError: JAX asserts that the plugin of a GPU platform is installed.
    except (RuntimeError, AssertionError) as error:
        asked = os.environ.get("JAX_PLATFORMS")
        platforms = f"JAX_PLATFORMS={asked}: " if asked else ""
        why = (
            " ".join(str(error).split()).partition(" (set JAX_PLATFORMS=")[0].rstrip(".")
            or "no such platform here"
        )
        raise BadInput(
            f"{platforms}{why}; set JAX_PLATFORMS to a platform that this machine has, such as cpu"
        ) from error


def device() -> Any:
    """A device of the mesh in use (`jax.set_mesh`), or else the default device. Use only its
    `platform` and `device_kind`.
    """
    return jax.sharding.get_abstract_mesh().abstract_device or jax.devices()[0]


def free_axes() -> tuple[dict[str, int], tuple[str, ...]]:
    """Returns the sizes of the mesh axes that no enclosing `shard_map` handles, and the names of
    these axes that split rows.
    """
    mesh = jax.sharding.get_abstract_mesh()
    free = {axis: size for axis, size in mesh.shape.items() if axis not in mesh.manual_axes}
    return free, tuple(axis for axis in RULES.batch if axis in free)


def make_mesh(config: MeshConfig, devices: Sequence[Any] | None = None) -> Mesh:
    """The mesh over `devices` (default: all). Raises BadInput if the product of its sizes is not
    the number of devices.
    """
    devices = available_devices() if devices is None else devices
    # TPU slices; devices of other kinds count as one slice.
    tpu_slices = (
        len({getattr(device, "slice_index", 0) for device in devices if device.platform == "tpu"})
        or 1
    )
    slices = config.slices or tpu_slices
    if tpu_slices > 1 and slices != tpu_slices:
        raise BadInput(
            f"mesh.slices={slices}: the devices belong to {tpu_slices} slices; leave it at 0"
        )
    sizes = {"slices": slices, "data": config.data, "fsdp": config.fsdp, "tensor": config.tensor}
    try:
        shape = np.empty(len(devices)).reshape(tuple(sizes.values())).shape  # -1 takes the rest
    except ValueError as error:
        wanted = " x ".join(
            f"mesh.{name}={size}" for name, size in sizes.items() if name != "slices" or size > 1
        )
        raise BadInput(
            f"{wanted} does not fit {quantity(len(devices), 'device')}; "
            "set one axis to -1: it takes the rest"
        ) from error
    types = (AxisType.Auto,) * len(AXES)
    try:
        if tpu_slices == 1:
            return jax.make_mesh(shape, AXES, axis_types=types, devices=devices)
        grid = mesh_utils.create_hybrid_device_mesh(
            (1, *shape[1:]), (slices, 1, 1, 1), devices=devices
        )
    except NotImplementedError as error:  # JAX would split a side of the torus
        sides = " x ".join(str(1 + max(device.coords[n] for device in devices)) for n in range(3))
        raise BadInput(
            f"mesh.data={shape[1]} x mesh.fsdp={shape[2]} x mesh.tensor={shape[3]} does not fit "
            f"the {sides} chips of a slice; use products of its sides"
        ) from error
    return Mesh(grid, AXES, axis_types=types)


def row_devices(mesh: Mesh) -> int:
    """Number of devices that share the rows."""
    return math.prod(mesh.shape[axis] for axis in RULES.batch)


def device_rows(
    batch_size: int,
    mesh: Mesh,
    key: str = "train.batch_size",
    parts: int = 1,
    elastic: bool = False,
) -> int:
    """Returns the number of rows of a batch on the devices: `batch_size`, plus the rows of weight 0
    that `elastic` adds to make it divide.

    Raises BadInput if the rows of `parts` micro-batches do not divide over the devices.
    """
    devices = row_devices(mesh)
    ways = devices * parts
    below = batch_size // ways * ways
    above = -(-batch_size // ways) * ways
    if batch_size == above or elastic:
        return above
    fix = f"use {below} or {above}" if below else f"use {above}"
    micro = f", with train.gradient_accumulation_steps={parts}" if parts > 1 else ""
    raise BadInput(
        f"{key}={batch_size} does not divide over the {devices} devices of mesh axes 'data' and "
        f"'fsdp'{micro}; {fix}, or train.elastic=True, which adds rows of weight 0"
    )


def training_rows(train: TrainConfig, mesh: Mesh) -> int:
    """`device_rows` of a training batch."""
    return device_rows(
        train.batch_size, mesh, parts=train.gradient_accumulation_steps, elastic=train.elastic
    )


def check_model(model: ModelConfig, mesh: Mesh) -> None:
    """Raises BadInput if the model's sizes do not divide over the mesh axes that split them."""
    sizes = {"heads": model.heads, "d_ff": model.d_ff}
    if not model.adaptive:  # otherwise the tables are not split over words
        sizes["vocab_size"] = model.vocab_size
    ways = mesh.shape["tensor"]
    for key, size in sizes.items():
        if size % ways:
            raise BadInput(
                f"model.{key}={size} does not divide over the {ways} devices of mesh axis "
                "'tensor'; use a mesh.tensor that divides it"
            )


@dataclasses.dataclass(frozen=True)
class Split:
    """Which parameters are split over axes of rows, and over which axes."""

    axes: tuple[str, ...] = ()
    """`fsdp`, and with ZeRO-1 `data`."""
    least: float = 0
    """Least number of elements of a split array: a hundredth of all parameters, because each
    message has a fixed cost.
    """
    packs: bool = True
    """Whether `pack` packs arrays that no axis can split."""


WHOLE = Split()
"""The split that leaves all arrays whole."""


def split_of(config: Config, params: Any, sizes: Mapping[str, int]) -> Split:
    """The split of a configuration on a mesh of these sizes."""
    axes = tuple(
        axis for axis, on in (("fsdp", True), ("data", config.mesh.zero1)) if on and sizes[axis] > 1
    )
    # Muon needs the rows and columns of a matrix.
    return Split(
        axes, sum(x.size for x in jax.tree.leaves(params)) / 100, config.optimizer.name != "muon"
    )


def pack(abstract: Any, sizes: Mapping[str, int], split: Split) -> Any:
    """Returns a tree of abstract arrays in Flax's boxes as the state keeps them. A large matrix
    with no axis that can be split becomes [L, N] or [N]: its elements in order, then zeros until N
    divides. Arrays that `tensor` splits do not change.
    """
    ways = math.prod(sizes[axis] for axis in split.axes)

    def packed(box: Any) -> Any:
        if (
            not isinstance(box, nn.LogicallyPartitioned)
            or not split.packs
            or box.value.size < split.least
        ):
            return box
        shape = box.value.shape
        by_layer = int(box.names[0] == "layers")
        by_tensor = any(sizes.get(axis, 1) > 1 for axis in RULES.spec(tuple(box.names)))
        if by_tensor or len(shape) < 2 + by_layer or any(size % ways == 0 for size in shape):
            return box
        shape = (*shape[:by_layer], -(-math.prod(shape[by_layer:]) // ways) * ways)
        value = jax.ShapeDtypeStruct(shape, box.value.dtype)
        return dataclasses.replace(box, value=value, names=(*box.names[:by_layer], None))

    return jax.tree.map(packed, abstract, is_leaf=nn.meta.is_axis_metadata)


def reshaped(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Unpacks an array to its logical shape, or packs it (`pack`). An array that already has as
    many axes as `shape` does not change.
    """
    if x.ndim == len(shape):
        return x
    lead = min(x.ndim, len(shape)) - 1
    n = math.prod(shape[lead:])
    flat = x.reshape(*x.shape[:lead], -1)[..., :n]
    return jnp.pad(flat, [(0, 0)] * lead + [(0, n - flat.shape[-1])]).reshape(shape)


@functools.cache
def _reshaping(shape: tuple[int, ...], sharding: NamedSharding) -> Any:
    """`reshaped` on the devices, layer by layer: only one layer of a stack is whole on each device,
    as in a step.
    """

    def gather_and_reshape(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return reshaped(
            jax.lax.with_sharding_constraint(x, NamedSharding(sharding.mesh, PartitionSpec())),
            shape,
        )

    def every(x: jax.Array) -> jax.Array:
        if min(x.ndim, len(shape)) == 1:
            return gather_and_reshape(x, shape)
        return jax.lax.map(functools.partial(gather_and_reshape, shape=shape[1:]), x)

    return jax.jit(every, out_shardings=sharding)


def settled(arrays: Any) -> Any:
    """Returns the same arrays. If the devices are several CPUs, waits until the arrays are
    computed.

    The results of every program over a mesh must pass through this function. On CPUs XLA (jaxlib
    0.10.2) runs the parts of a program on as many threads as there are devices. Two independent
    programs in flight may each hold some of the threads while their collective operations wait for
    the rest; after 40 seconds XLA ends the process ("Termination timeout for `all gather`").
    """
    if jax.default_backend() == "cpu" and jax.device_count() > 1:
        jax.block_until_ready(arrays)
    return arrays


def placed(tree: Any, shardings: Any) -> Any:
    """Returns `jax.device_put` of each array of a tree, `settled` because `device_put` may be a
    program that moves parts between devices.
    """
    return jax.tree.map(lambda x, sharding: settled(jax.device_put(x, sharding)), tree, shardings)


def like(tree: Any, abstract: Any) -> Any:
    """Returns the arrays of `tree` in the shapes and shardings of `abstract`: packs or unpacks
    arrays whose shapes differ.
    """
    return jax.tree.map(
        lambda x, y: x if x.shape == y.shape else settled(_reshaping(y.shape, y.sharding)(x)),
        tree,
        abstract,
    )


def specs(abstract: Any, sizes: Mapping[str, int], split: Split = WHOLE) -> Any:
    """PartitionSpecs of a tree whose arrays have logical axes (Flax boxes); arrays without boxes
    are replicated.

    Args:
      sizes: sizes of the mesh axes.
      split: also splits large arrays, along their first axis that divides and is not yet split. The
        axis of layers is the last choice: a scan needs it whole.
    """
    ways = math.prod(sizes[axis] for axis in split.axes)

    def spec(logical: PartitionSpec, x: Any) -> Any:
        mesh_axes: list[Any] = list(RULES.spec(tuple(logical)))
        if split.axes and x.size >= split.least:
            free = [
                n
                for n, axis in enumerate(mesh_axes)
                if sizes.get(axis, 1) == 1 and x.shape[n] % ways == 0
            ]
            if free:
                mesh_axes[min(free, key=lambda n: logical[n] == "layers")] = split.axes
        return PartitionSpec(*mesh_axes)

    logical = nn.get_partition_spec(abstract)
    return jax.tree.map(
        spec, logical, nn.meta.unbox(abstract), is_leaf=lambda leaf: isinstance(leaf, PartitionSpec)
    )


def shardings(abstract: Any, mesh: Mesh, split: Split = WHOLE) -> Any:
    """NamedShardings of a tree on a mesh; see `specs`."""
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs(abstract, mesh.shape, split))


def row_split(spec: PartitionSpec) -> tuple[int, tuple[str, ...]] | None:
    """The axis of a parameter that is split over mesh axes of rows, with these axes, or None."""
    return next(
        ((n, axes) for n, axes in enumerate(_mesh_axes(spec)) if set(axes) & set(RULES.batch)), None
    )


def device_bytes(tree: Any) -> int:
    """Bytes of a tree of sharded arrays on a device, without the compiler's padding."""
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree)
    )


def split_share(abstract: Any) -> tuple[float, int]:
    """Returns the share of the bytes of sharded arrays that is split over axes of rows, and the
    bytes on a device that are not split.
    """
    total = {True: 0, False: 0}
    for x in jax.tree.leaves(abstract):
        split = row_split(x.sharding.spec)
        sizes = x.sharding.mesh.shape
        ways = math.prod(sizes[axis] for axis in split[1]) if split else 1
        total[split is not None] += device_bytes(x) * ways
    return total[True] / sum(total.values()), total[False]


def spread(sharding: Any, shape: Sequence[int], chunk: Sequence[int]) -> Any:
    """Returns the sharding for reading an array: devices that hold copies under `sharding` get
    different parts, as far as possible.

    The devices and their order do not change, so a jitted function can take arrays of both
    shardings. Only
    a NamedSharding can be spread. `shape` is the shape of the array, `chunk` the shape of its
    stored chunks.
    """
    if not isinstance(sharding, NamedSharding) or len(chunk) != len(shape):
        return sharding
    mesh: Any = sharding.mesh
    mesh_axes = _mesh_axes(sharding.spec)
    mesh_axes += [()] * (len(shape) - len(mesh_axes))
    used = set(itertools.chain(*mesh_axes))
    # The order of the devices does not change if only leading mesh axes are divided again. The
    # other axes split the model.
    free = len(list(itertools.takewhile(lambda axis: axis not in used, mesh.axis_names)))
    copies = math.prod(mesh.devices.shape[:free])
    parts = []
    for size, width, axes in zip(shape, chunk, mesh_axes, strict=True):
        chunks, rest = divmod(size, width * math.prod(mesh.shape[axis] for axis in axes))
        parts.append(1 if rest else math.gcd(copies, chunks))
        copies //= parts[-1]
    if math.prod(parts) == 1:
        return sharding
    names = [f"part{axis}" for axis in range(len(shape))]
    axis_names = (*names, "copies", *mesh.axis_names[free:])
    devices = mesh.devices.reshape(*parts, copies, *mesh.devices.shape[free:])
    spec = PartitionSpec(*((*axes, name) for axes, name in zip(mesh_axes, names, strict=True)))
    return NamedSharding(
        Mesh(devices, axis_names, axis_types=(AxisType.Auto,) * len(axis_names)), spec
    )


def by_layer(x_LMN: jax.Array) -> jax.Array:
    """Returns a stack with each layer whole on one device and the layers spread over all devices of
    the mesh in use. Without a mesh, returns the stack unchanged.
    """
    axes = jax.sharding.get_abstract_mesh().axis_names
    return jax.lax.with_sharding_constraint(x_LMN, PartitionSpec(axes)) if axes else x_LMN


def batch_sharding(mesh: Mesh, leading: int = 0) -> NamedSharding:
    """Shards the rows over their devices, after `leading` unsharded axes (such as the K steps of a
    dispatch).
    """
    return NamedSharding(mesh, PartitionSpec(*[None] * leading, RULES.batch))


def rows_here(batch_size: int, mesh: Mesh) -> np.ndarray:
    """The rows of the global batch that this process feeds, ascending.

    If the mesh shards the model over processes, several processes feed the same rows.
    """
    indices = batch_sharding(mesh).addressable_devices_indices_map((batch_size,))
    return np.unique([np.arange(batch_size)[rows] for (rows,) in indices.values()])  # type: ignore[misc]


def place(batch: Any, mesh: Mesh, batch_size: int | None = None) -> Any:
    """Puts this process's rows of K stacked batches on its devices: numpy [K, b, ...] -> global
    jax.Array [K, B, ...].

    The rows are in the order of `rows_here`. B is `batch_size`; None = this process has all rows.
    """
    sharding = batch_sharding(mesh, leading=1)

    def put(x: np.ndarray) -> jax.Array:
        return jax.make_array_from_process_local_data(
            sharding, x, (x.shape[0], batch_size or x.shape[1], *x.shape[2:])
        )

    return jax.tree.map(lambda x: put(np.asarray(x)), batch)
