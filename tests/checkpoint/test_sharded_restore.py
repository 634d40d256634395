"""How a replicated array is split for reading: every chunk once per process, in any mesh, with the same devices."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec, SingleDeviceSharding

from xlnet_jax.checkpoint.sharded_restore import spread

SHAPE = (4, 64, 96)


def wanted(sizes, spec):
    mesh = jax.make_mesh(sizes, ("data", "fsdp"), axis_types=(AxisType.Auto,) * 2)
    return NamedSharding(mesh, PartitionSpec(*spec))


@pytest.mark.parametrize(
    ("sizes", "spec", "chunk", "parts"),
    [
        ((8, 1), (), (1, 64, 96), (4, 1, 1)),  # as many as there are chunks
        ((8, 1), (), (1, 32, 96), (4, 2, 1)),
        ((8, 1), (), (4, 64, 32), (1, 1, 1)),  # 3 chunks do not divide over 8 devices
        ((8, 1), (), (4, 8, 32), (1, 8, 1)),
        ((4, 2), (None, "fsdp"), (4, 8, 96), (1, 8, 1)),  # each half in 4 parts
        ((4, 2), (None, "fsdp"), (4, 64, 96), (1, 2, 1)),  # the chunk is larger than the half: as without
        ((4, 2), (None, ("data", "fsdp")), (1, 8, 96), (1, 8, 1)),  # no copies
    ],
)
def test_the_parts_are_whole_chunks_and_cover_the_array(sizes, spec, chunk, parts):
    """Fails if a part cuts a chunk (two devices read it), overlaps another, or needs another order of the devices."""
    asked = wanted(sizes, spec)
    got = spread(asked, SHAPE, chunk)
    assert tuple(np.array(SHAPE) // got.shard_shape(SHAPE)) == parts
    assert list(got.mesh.devices.flat) == list(asked.mesh.devices.flat)
    covered = np.zeros(SHAPE, int)
    for device, index in got.devices_indices_map(SHAPE).items():
        covered[index] += 1
        mine = np.zeros(SHAPE, bool)
        mine[asked.devices_indices_map(SHAPE)[device]] = True
        assert mine[index].all(), "a device reads only what it will hold"
    assert (covered == 8 // np.prod(parts)).all()


def test_what_cannot_be_split_stays():
    one = SingleDeviceSharding(jax.devices()[0])
    assert spread(one, SHAPE, SHAPE) is one
    asked = wanted((8, 1), ())
    assert spread(asked, (), ()) is asked and spread(asked, SHAPE, SHAPE) is asked
