"""`xlnet-jax export`: a checkpoint's parameters and tokenizer into a folder for another library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from xlnet_jax.checkpoint import restore
from xlnet_jax.config import MeshConfig
from xlnet_jax.convert import huggingface
from xlnet_jax.errors import BadInput
from xlnet_jax.parallel import mesh as meshes
from xlnet_jax.parallel.processes import Session, find_process_info
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.train.recipe import make_recipe
from xlnet_jax.train.step import build_step


def export(
    workdir: str, output: str, *, format: str = "huggingface", step: int | None = None, overrides: Sequence[str] = ()
) -> dict[str, Any]:
    """Writes the Hugging Face folder of a checkpoint. With several processes, only number 0 writes.

    Args:
      output: a new or empty folder.
      format: there is one.
      step: the checkpoint; None = the newest good one.
      overrides: config keys to change. A run of an older version has no copy of its tokenizer and may need
        `--config.data.corpus=DIR`.

    Raises:
      BadInput: no run or good checkpoint in `workdir`, `output` in use, or a model the other library cannot express.
    """
    del format
    config = workdirs.load_config(workdir, list(overrides))
    me = find_process_info(config)
    if me is not None:
        if me.process:
            return {"output": output, "process": me.process}
        # The devices of a pod only start together, and reading parameters does not need them.
        jax.config.update("jax_platforms", "cpu")
    huggingface.check(config.model, output)
    if config.data.objective == "clm":
        raise BadInput(
            f"{workdir} was trained with data.objective=clm; only models that see both sides (plm, mlm) can be exported"
        )
    tokenizer = workdirs.tokenizer(workdir, overrides)
    # One device is enough to read the parameters once, for any mesh of the run.
    mesh = meshes.make_mesh(MeshConfig(), meshes.available_devices(local=True)[:1])
    abstract = build_step(make_recipe(config), mesh).abstract_state.params
    params, found = restore.parameters(workdir, abstract, Session(), step)
    files = huggingface.export(jax.device_get(params), config.model, tokenizer.path, tokenizer.normalization, output)
    return {"output": output, "step": found, "files": sorted(files)}
