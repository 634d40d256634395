"""Opens a trained model for reading: every command loads parameters with this module.

- `find`: reads configuration and tokenizer at a path, and the arrays of a foreign folder; uses no
  device.
- `opened`: a context with the parameters on all devices of all processes.
- `on_one_device`: the parameters on the first device of this process, for the library and exports.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
from jax.sharding import Mesh

from xlnet_jax.checkpoint import restore
from xlnet_jax.checkpoint.store import Checkpoints
from xlnet_jax.config import Config
from xlnet_jax.convert import tensorflow
from xlnet_jax.convert.orbax import PARAMS
from xlnet_jax.convert.source import open_source
from xlnet_jax.data.tokenizer import Tokenizer
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.distributed.links import find_process_info
from xlnet_jax.distributed.processes import Session, session
from xlnet_jax.errors import BadInput
from xlnet_jax.finetune.setup import any_recipe
from xlnet_jax.messages import suggest_file
from xlnet_jax.model import choice
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.run.metrics import read_jsonl
from xlnet_jax.run.programs import use_compilation_cache
from xlnet_jax.storage import files
from xlnet_jax.train.evaluation import best
from xlnet_jax.train.recipe import Recipe
from xlnet_jax.train.step import build_step

_PRETRAINED = f"{os.path.dirname(__file__)}/../pretrained"
"""Folder with the models that the package brings, a folder for each."""


class Stored(NamedTuple):
    """A trained model that is not on a device yet."""

    path: str
    config: Config
    tokenizer: Tokenizer
    params: Any = None
    """numpy arrays of a foreign folder; None: the parameters are in a checkpoint of the work
    directory.
    """
    of_step: int | None = None
    """The step whose checkpoint has `config`; None: see `workdir.config_at`."""

    def step(self, step: int | None = None) -> int | None:
        """Returns the step of the checkpoint to read: by default, for a fine-tuned model, the step
        with the best score; None = the newest good checkpoint.
        """
        step = self.of_step if step is None else step
        if step is None and not self.config.pretrains:
            with Checkpoints(self.path) as checkpoints:
                steps = checkpoints.steps()
            lines = read_jsonl(self.path, "evaluations.jsonl")
            top = best([line for line in lines if line["step"] in steps])
            return top["step"] if top else None
        return step


class Opened(NamedTuple):
    """A model on the mesh of the context."""

    recipe: Recipe
    """Recipe with the attention implementation of these devices."""
    mesh: Mesh
    params: Any
    step: int
    """Step of the checkpoint; 0 for a foreign folder."""


def find(path: str, overrides: Sequence[str] = (), step: int | None = None) -> Stored:
    """Finds the model at a path: a work directory, or a folder that `convert.source.open_source`
    reads. A path that does not exist may be the name of a model that the package brings.

    A model from a foreign folder computes in float32 by default. Raises BadInput for a path without
    a readable model.
    """
    names = os.listdir(_PRETRAINED)
    if path in names and not os.path.lexists(path):
        path = f"{_PRETRAINED}/{path}"
    with files.translate_errors(path):
        listed = files.listing(files.resolve(path))
    weights = any(name == f"{PARAMS}/" or name.endswith(".safetensors") for name in listed)
    if not weights and not tensorflow.is_checkpoint(path, listed):
        if not listed:
            raise BadInput(
                f"{path}: no config.json; give the --workdir of a training run, or the name of a "
                f"model of the package ({', '.join(names)}){suggest_file(path)}"
            )
        config, step = workdirs.config_at(path, overrides, step)
        return Stored(path, config, workdirs.tokenizer(path), of_step=step)
    with open_source(
        path, overrides=["--config.model.compute_dtype=float32", *overrides]
    ) as source:
        params = source.params(any_recipe(source.config, source.tokenizer))
        return Stored(path, source.config, source.tokenizer, params)


@contextlib.contextmanager
def opened(
    stored: Stored,
    step: int | None = None,
    equal: Mapping[str, Any] | None = None,
    processes: Session | None = None,
) -> Iterator[Opened]:
    """Places the parameters on the mesh of the configuration. Compiled programs are cached in the
    user's cache folder.

    Args:
      step: step of the checkpoint; see `Stored.step`.
      equal: values that all processes must share besides the configuration, the step and the path.
      processes: a running session; None: the context starts and ends its own.

    Raises:
      BadInput: the mesh does not fit, `model.attention=fused` is not possible, or no checkpoint is
        good.
      RestartMe: see `distributed.processes.session`.
    """
    config = stored.config
    with contextlib.ExitStack() as stack:
        if processes is None:
            identity = {**(equal or {}), "--step": step, "--workdir": stored.path}
            processes = stack.enter_context(session(config, identity))
        mesh = meshes.make_mesh(config.mesh)
        meshes.check_model(config.model, mesh)
        use_compilation_cache(config)
        recipe = any_recipe(choice.resolve_attention(config, processes), stored.tokenizer)
        stack.enter_context(jax.set_mesh(mesh))
        abstract = build_step(recipe, mesh).logical.params
        if stored.params is None:
            params, at = restore.parameters(
                stored.path, abstract, processes, stored.step(step), config.evaluation.averaged
            )
        else:
            shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract)
            params, at = jax.device_put(stored.params, shardings), 0
        yield Opened(recipe, mesh, params, at)


def on_one_device(stored: Stored, step: int | None = None) -> tuple[Any, int]:
    """Returns the parameters, or their average, on the first device of this process, and their
    step; see `Stored.step`.
    """
    meshes.available_devices(local=True)
    if stored.params is not None:
        return jax.device_put(stored.params), 0
    # Parameters are float32 for every compute dtype.
    config = stored.config.changed(model={"compute_dtype": "float32"})
    recipe = any_recipe(config, stored.tokenizer)
    device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    abstract = jax.tree.map(
        lambda x: x.update(sharding=device), nn.meta.unbox(recipe.abstract_params)
    )
    return restore.parameters(
        stored.path, abstract, Session(), stored.step(step), config.evaluation.averaged
    )


def on_host(config: Config) -> int:
    """Returns the number of this process. Process 0 continues alone on its CPU; others must stop.

    The devices of a pod start only together, and reading parameters needs no device.
    """
    me = find_process_info(config)
    if me is None:
        return 0
    if not me.process:
        jax.config.update("jax_platforms", "cpu")
    return me.process
