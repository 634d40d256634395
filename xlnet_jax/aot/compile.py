"""Compiles one training dispatch for absent devices: its memory, whether it fits, its text.

The step is the step of `train`, from the same `build_step`; nothing is executed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax
from jax.sharding import Mesh

from xlnet_jax.aot import schedule
from xlnet_jax.aot.topology import Topology
from xlnet_jax.config import Config
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.messages import duration
from xlnet_jax.run.programs import refusals
from xlnet_jax.train.recipe import Recipe
from xlnet_jax.train.step import BuiltStep, build_step

log = logging.getLogger("xlnet_jax")

BUSY_SECONDS = 30.0
"""Seconds between two lines of the log during a compilation."""
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclasses.dataclass(frozen=True)
class Trial:
    """One configuration, compiled or refused by the compiler. Bytes are per device."""

    recipe: Recipe
    mesh: Mesh
    arguments: dict[str, int]
    seconds: float
    needed: int
    """Peak HBM: arguments, temporaries, results that do not alias an argument, and the program."""
    available: int
    """HBM that the compiler may use; the published size if the trial compiled."""
    temp: int | None = None
    """Bytes of temporaries; None if the trial did not compile."""
    executable: Any = None
    schedules: dict[str, schedule.Schedule] = dataclasses.field(default_factory=dict)
    """Schedules of the operations by the name of their instruction."""
    zero1: dict[str, float] | None = None
    """`meshes.split_share` of parameters and optimizer; None without ZeRO-1."""

    @property
    def config(self) -> Config:
        """Configuration of the recipe."""
        return self.recipe.config

    @property
    def fits(self) -> bool:
        """Whether it compiled and fits into the HBM."""
        return self.executable is not None and self.needed <= self.available


def lower(recipe: Recipe, mesh: Mesh) -> tuple[BuiltStep, Any]:
    """Returns the jitted training step for a mesh, as `train` calls it, and its lowered form.
    Raises BadInput if batch or model does not divide over the mesh.
    """
    meshes.training_rows(recipe.config.train, mesh)
    meshes.check_model(recipe.config.model, mesh)
    with jax.set_mesh(mesh):
        built = build_step(recipe, mesh)
        return built, built.jitted.lower(
            built.abstract_state, built.abstract_batch, built.dropout_seed
        )


@contextlib.contextmanager
def _told(recipe: Recipe, mesh: Mesh) -> Iterator[None]:
    """Logs that a compilation starts, and how long it has taken so far."""
    train, over = recipe.config.train, threading.Event()
    log.info(
        "compiling with train.batch_size=%d, model.remat=%s, mesh %s",
        train.batch_size,
        recipe.config.model.remat,
        dict(mesh.shape),
    )
    began = time.monotonic()

    def tell() -> None:
        while not over.wait(BUSY_SECONDS):
            log.info("compiling for %s", duration(time.monotonic() - began))

    threading.Thread(target=tell, name="compiling", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def attempt(recipe: Recipe, topology: Topology) -> Trial:
    """Compiles once. A program too large for the HBM gives a Trial without executable; other errors
    are raised.
    """
    mesh = meshes.make_mesh(recipe.config.mesh, topology.devices)
    began = time.monotonic()
    with _told(recipe, mesh):
        trial = _compiled(recipe, mesh, topology)
    seconds = time.monotonic() - began
    log.info(
        "compiled in %s: %s %.2f of %.2f GiB",
        duration(seconds),
        "it needs" if trial.fits else "too large, it would need",
        trial.needed / 2**30,
        trial.available / 2**30,
    )
    return dataclasses.replace(trial, seconds=seconds)


def _compiled(recipe: Recipe, mesh: Mesh, topology: Topology) -> Trial:
    """Returns the Trial of `attempt`, without its seconds."""
    built, lowered = lower(recipe, mesh)
    arguments = argument_bytes(built)
    zero1 = None
    if recipe.config.mesh.zero1 or mesh.shape["fsdp"] > 1:
        share, whole = meshes.split_share(
            (built.abstract_state.params, built.abstract_state.opt_state)
        )
        zero1 = {"split_share": share, "whole_bytes": whole}
    try:
        with refusals(recipe.config.train.compiler_options), schedule.collected() as schedules:
            compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        compiled, temp, schedules = None, None, {}
        needed, available = out_of_memory(str(error))
        needed += sum(arguments.values())  # the compiler reports the size of the temporaries only
    else:
        memory = compiled.memory_analysis()
        available = topology.hbm_bytes
        temp = memory.temp_size_in_bytes
        needed = (
            memory.argument_size_in_bytes
            + memory.output_size_in_bytes
            - memory.alias_size_in_bytes
            + temp
            + memory.generated_code_size_in_bytes
        )
    return Trial(recipe, mesh, arguments, 0.0, needed, available, temp, compiled, schedules, zero1)


def out_of_memory(message: str) -> tuple[int, int]:
    """Reads the bytes needed and available from the compiler's out-of-memory message. Raises
    RuntimeError for any other message.
    """
    found = re.search(
        r"(?:HLO temporaries \(|Used )([\d.]+)([KMGT]?)\)?(?: "
        r"exceeds available HBM \(| of )([\d.]+)([KMGT]?)",
        message,
    )
    # A kernel may need more than the vector memory, which is no matter of HBM.
    vector = found and f"{found[0]} vmem" in message
    if "RESOURCE_EXHAUSTED" not in message or not found or vector:
        raise RuntimeError(f"the TPU compiler failed: {message}")
    wanted, wanted_unit, available, available_unit = found.groups()
    return int(float(wanted) * _UNITS[wanted_unit]), int(float(available) * _UNITS[available_unit])


def argument_bytes(built: BuiltStep) -> dict[str, int]:
    """Returns bytes per device by group, from shapes and shardings, without compiler padding."""
    trees = built.abstract_state.split()
    groups = {
        "parameters": trees.pop("params"),
        "memory": (),
        **trees,
        "batch": built.abstract_batch,
    }
    return {name: meshes.device_bytes(tree) for name, tree in groups.items()}
