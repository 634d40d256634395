"""Each process reads its part of the replicated arrays of a checkpoint; the devices' network brings the rest.

Under data parallelism every process needs all parameters, and the bucket would send them to each: N times. Instead an
array is read split over the devices that will hold copies of it (`spread`), and an all-gather copies it to where it is
wanted (`Checkpoints.gather`).

An array is stored in chunks, which can only be read whole. So it is split between chunks: no process reads one twice,
and none reads more than without the split, even if the checkpoint was written by other devices. Orbax's own
`use_load_and_broadcast` is not used: the hosts of one replica read everything, a replica must be whole hosts, and the
broadcast is part of the read, where a process waits for others that may have found their files damaged.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec


def spread(sharding: Any, shape: Sequence[int], chunk: Sequence[int]) -> Any:
    """The sharding to read an array with: copies that `sharding` asks for hold different parts, as far as possible.

    The devices and their order stay, so that a jitted function can take both.

    Args:
      sharding: the wanted one. Only a NamedSharding can be spread.
      shape, chunk: of the array, and of the chunks that it is stored in.
    """
    if not isinstance(sharding, NamedSharding) or len(chunk) != len(shape):
        return sharding
    mesh: Any = sharding.mesh
    mesh_axes = [axes if isinstance(axes, tuple) else (axes,) * (axes is not None) for axes in sharding.spec]
    mesh_axes += [()] * (len(shape) - len(mesh_axes))
    used = set(itertools.chain(*mesh_axes))
    # Only leading mesh axes can be cut otherwise without another order of the devices. The others are for the model.
    free = len(list(itertools.takewhile(lambda axis: axis not in used, mesh.axis_names)))
    copies, parts = math.prod(mesh.devices.shape[:free]), []
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
    return NamedSharding(Mesh(devices, axis_names, axis_types=(AxisType.Auto,) * len(axis_names)), spec)
