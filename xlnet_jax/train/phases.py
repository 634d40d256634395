"""The phases of a run on its devices: builds and compiles their steps before training, and passes
the state from one phase to the next.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from xlnet_jax.checkpoint import checksums
from xlnet_jax.config import Config
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.distributed.processes import Session
from xlnet_jax.errors import BadInput
from xlnet_jax.messages import quantity
from xlnet_jax.model import choice
from xlnet_jax.run.goodput import Goodput
from xlnet_jax.storage.files import Json
from xlnet_jax.train.loop import compile_step, shapes
from xlnet_jax.train.recipe import Recipe, recipes
from xlnet_jax.train.state import State
from xlnet_jax.train.step import BuiltStep, build_step

log = logging.getLogger("xlnet_jax")


def build(
    config: Config, make_recipe: Callable[[Config], Recipe], processes: Session
) -> list[BuiltStep]:
    """The step of each phase, on one mesh; a run without phases is a single phase. Raises BadInput
    if a batch or the model does not divide over the mesh.
    """
    mesh = meshes.make_mesh(config.mesh)
    for part in config.parts:
        _check_rows(part, mesh)
    made = recipes(
        [choice.resolve_attention(part, processes) for part in config.parts], make_recipe
    )
    with jax.set_mesh(mesh):
        phases = [build_step(recipe, mesh) for recipe in made]
    if config.mesh.zero1 or mesh.shape["fsdp"] > 1:
        state = phases[0].abstract_state
        share, rest = meshes.split_share((state.params, state.opt_state))
        log.info(
            "%.1f %% of parameters and optimizer are split over fsdp=%d%s, and %.1f MB stay whole",
            100 * share,
            mesh.shape["fsdp"],
            f" and data={mesh.shape['data']}" * config.mesh.zero1,
            rest / 1e6,
        )
    return phases


def _check_rows(config: Config, mesh: Mesh) -> None:
    rows = meshes.training_rows(config.train, mesh)
    meshes.check_model(config.model, mesh)
    if rows != config.train.batch_size:
        empty = quantity(rows - config.train.batch_size, "row")
        log.info(
            "train.elastic: the batch of %d is filled up with %s of weight 0, on %s",
            config.train.batch_size,
            empty,
            quantity(meshes.row_devices(mesh), "device"),
        )


def check_parameters(built: BuiltStep, record: Json, where: str) -> None:
    """Raises BadInput unless the checkpoint has exactly the parameters that the phases need now."""
    ours = checksums.by_path({"params": built.abstract_state.params}).keys()
    if other := sorted(ours ^ {name for name in record["checksums"] if name.startswith("params/")}):
        what = (
            "is not in the checkpoint, but phases need it now"
            if other[0] in ours
            else "is in the checkpoint, but no phase needs it now"
        )
        raise BadInput(
            f"{where}: {other[0]} {what}; a run has the parameters of all its phases from its "
            f"start: keep the phases, or start a new run with checkpoint.init_from={where}"
        )


def compile_later(
    later: Sequence[BuiltStep], first: int, goodput: Goodput, processes: Session
) -> dict[int, dict[tuple[int, ...], Any]]:
    """Returns the compiled steps of later phases, by number of phase and shape of batch. Compiling
    at the start ends the run at once if a phase does not fit the devices.
    """
    executables: dict[int, dict[tuple[int, ...], Any]] = collections.defaultdict(dict)
    for number, built in enumerate(later, first):
        with goodput.measure("compile"):
            shape = max(shapes(built.abstract_batch), key=len)
            executables[number][shape] = compile_step(
                built, built.abstract_state, built.abstract_batch
            )
            processes.barrier(f"compiling phase {number + 1}")
    return executables


def enter(state: State, built: BuiltStep) -> State:
    """The state at the start of a phase: its memory is emptied if the memory of the previous phase
    has another shape.
    """
    if shapes(state.memory) == shapes(built.abstract_state.memory):
        return state
    return dataclasses.replace(state, memory=empty_memory(built))


def memory_since(config: Config, phases: Sequence[BuiltStep], number: int) -> int:
    """The step of the last emptying of the memory by `enter`, up to this phase; 0 if none."""
    memories = [shapes(built.abstract_state.memory) for built in phases]
    while number and memories[number - 1] == memories[number]:
        number -= 1
    return [0, *config.ends][number]


def empty_memory(built: BuiltStep) -> Any:
    """The empty memory of all rows, on the devices."""
    out_shardings = jax.tree.map(lambda x: x.sharding, built.abstract_state.memory)
    return jax.jit(lambda: built.recipe.empty_memory(built.rows), out_shardings=out_shardings)()
