"""Mesh sizes, logical axes, refusals that explain themselves."""

import os
import subprocess
import sys

import jax
import pytest
from jax.sharding import PartitionSpec

from xlnet_jax.config import MeshConfig, ModelConfig
from xlnet_jax.distributed.mesh import RULES, ShardingRules, check_model, device_rows, make_mesh
from xlnet_jax.errors import BadInput


def test_minus_one_takes_what_is_left():
    mesh = make_mesh(MeshConfig(data=-1, fsdp=2, tensor=2))
    assert dict(mesh.shape) == {"slices": 1, "data": 2, "fsdp": 2, "tensor": 2}
    assert make_mesh(MeshConfig(data=2, tensor=-1)).shape["tensor"] == 4


@pytest.mark.parametrize("config", [MeshConfig(data=2), MeshConfig(data=-1, tensor=3)])
def test_sizes_that_do_not_multiply_to_the_devices_are_refused(config):
    with pytest.raises(
        BadInput, match=f"does not fit {jax.device_count()} devices; set one axis to -1"
    ):
        make_mesh(config)


def test_a_batch_that_does_not_divide_names_the_nearest_that_do():
    mesh = make_mesh(MeshConfig(data=4, fsdp=2))
    assert device_rows(16, mesh) == device_rows(16, mesh, elastic=True) == 16
    with pytest.raises(
        BadInput, match="train.batch_size=20 does not divide over the 8 devices.*use 16 or 24"
    ):
        device_rows(20, mesh)
    with pytest.raises(BadInput, match="evaluation.batch_size=3 .*; use 8, or train.elastic=True"):
        device_rows(3, mesh, "evaluation.batch_size")
    assert (
        device_rows(20, mesh, elastic=True) == 24
        and device_rows(20, mesh, parts=4, elastic=True) == 32
    )


def test_a_model_that_does_not_divide_over_the_mesh_is_told():
    mesh = make_mesh(MeshConfig(data=2, tensor=4))
    check_model(ModelConfig(), mesh)
    with pytest.raises(
        BadInput, match="model.heads=2 does not divide over the 4 devices of mesh axis 'tensor'"
    ):
        check_model(ModelConfig(heads=2), mesh)


def test_logical_axes_become_mesh_axes_and_none_is_used_twice():
    assert RULES.spec(("layers", "embed", "heads", "head_dim")) == PartitionSpec(
        None, None, "tensor", None
    )
    assert RULES.spec(("batch", None)) == PartitionSpec(("slices", "data", "fsdp"), None)
    with pytest.raises(ValueError, match="use a mesh axis twice"):
        RULES.spec(("heads", "ff"))
    with pytest.raises(ValueError, match="twice"):
        ShardingRules(ff="fsdp").spec(("batch", "ff"))
    with pytest.raises(AttributeError):
        RULES.spec(("embd",))


COLLECTIVES = """
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from xlnet_jax.config import MeshConfig
from xlnet_jax.distributed import mesh as meshes

mesh = meshes.make_mesh(MeshConfig(data=1, fsdp=4))
split, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (["fsdp"], []))
packed = {n: jax.ShapeDtypeStruct((44,), jnp.float32, sharding=split) for n in range(20)}
logical = {n: jax.ShapeDtypeStruct((6, 7), jnp.float32, sharding=whole) for n in range(20)}
tree = jax.device_put({n: jnp.arange(42.0).reshape(6, 7) for n in range(20)}, whole)
for _ in range(100):
    tree = meshes.like(meshes.like(tree, packed), logical)
assert all((x == jnp.arange(42.0).reshape(6, 7)).all() for x in tree.values())
"""


@pytest.mark.parametrize("starts", [1, pytest.param(200, marks=pytest.mark.prove)])
def test_arrays_are_packed_on_virtual_devices_without_a_deadlock(starts):
    """20 programs with collective operations, none of which needs another; XLA ends a process in
    which they wait.
    """
    limit = "--xla_cpu_collective_call_{}_timeout_seconds={}".format
    flags = (
        f"--xla_force_host_platform_device_count=4 {limit('warn_stuck', 5)} {limit('terminate', 9)}"
    )
    for _ in range(starts):
        child = subprocess.run(
            [sys.executable, "-c", COLLECTIVES],
            env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Termination timeout" not in child.stderr and child.returncode == 0, child.stderr[
            -2000:
        ]
