"""A trained model on the devices that are here: what every verb does that reads a work directory and trains nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from xlnet_jax.checkpoint import restore
from xlnet_jax.config import Config
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.distributed.processes import Session
from xlnet_jax.model import implementation
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.train.recipe import Recipe, make_recipe
from xlnet_jax.train.step import build_step


class Opened(NamedTuple):
    """A model without its parameters."""

    recipe: Recipe
    """With the attention of these devices."""
    mesh: Mesh
    abstract_params: Any
    """With their shardings."""
    processes: Session

    @property
    def config(self) -> Config:
        """With the attention of these devices."""
        return self.recipe.config

    def restore(self, workdir: str, step: int | None = None) -> tuple[Any, int]:
        """The parameters of a checkpoint, placed, and its step; see `checkpoint.restore.parameters`."""
        return restore.parameters(workdir, self.abstract_params, self.processes, step)


@contextlib.contextmanager
def opened(
    config: Config, processes: Session, make_recipe: Callable[[Config], Recipe] = make_recipe
) -> Iterator[Opened]:
    """The model of a configuration on the mesh, which is set. Programs are kept in the user's own folder.

    Raises BadInput for a mesh that does not fit, or if `model.attention=fused` is not possible.
    """
    mesh = meshes.make_mesh(config.mesh)
    meshes.check_model(config.model, mesh)
    workdirs.use_compilation_cache(config)
    recipe = make_recipe(implementation.decided(config, processes))
    with jax.set_mesh(mesh):
        yield Opened(recipe, mesh, build_step(recipe, mesh).abstract_state.params, processes)
