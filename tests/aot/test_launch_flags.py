"""The flags of launch/flags/ with libtpu itself: it knows them, and compiles with them."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TOPOLOGIES = {"v4": "v4:2x2x1", "v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2", "tpu7x": "tpu7x:2x2x1"}
# A matrix product whose result is reduced over the devices of a slice and of several.
PROGRAM = """
import sys
from xlnet_jax.aot.topology import describe, prepare_environment

prepare_environment()
import jax, jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

devices = describe(sys.argv[1], int(sys.argv[2])).devices
mesh = Mesh(list(devices), ("data",))
x_BD = jax.ShapeDtypeStruct((256, 128), jnp.bfloat16, sharding=NamedSharding(mesh, PartitionSpec("data")))
w_DE = jax.ShapeDtypeStruct((128, 128), jnp.bfloat16, sharding=NamedSharding(mesh, PartitionSpec()))
jax.jit(jax.grad(lambda w_DE, x_BD: jnp.sum((x_BD @ w_DE).astype(jnp.float32) ** 2))).lower(w_DE, x_BD).compile()
print("compiled")
"""


def compile_with(flags: list[str], topology: str, slices: int) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), *sys.path])
    environment = os.environ | {"LIBTPU_INIT_ARGS": " ".join(flags), "PYTHONPATH": path}
    words = [sys.executable, "-c", PROGRAM, topology, str(slices)]
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)


def flags_of(name: str) -> list[str]:
    lines = (ROOT / "launch" / "flags" / f"{name}.txt").read_text().splitlines()
    return [line for line in lines if line.startswith("--")]


def test_every_file_is_for_a_chip_or_for_slices():
    assert {path.stem for path in (ROOT / "launch" / "flags").iterdir()} == {*TOPOLOGIES, "slices"}


@pytest.mark.parametrize("chip", TOPOLOGIES)
def test_libtpu_takes_the_flags_of_a_chip(chip):
    for slices, flags in (1, flags_of(chip)), (2, flags_of(chip) + flags_of("slices")):
        done = compile_with(flags, TOPOLOGIES[chip], slices)
        assert "compiled" in done.stdout, done.stderr


def test_libtpu_refuses_a_flag_that_it_does_not_know():
    done = compile_with(["--xla_tpu_no_such_flag=true"], "v6e:2x2", 1)
    assert done.returncode != 0 and "xla_tpu_no_such_flag" in done.stderr
