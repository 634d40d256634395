"""`xlnet-jax evaluate`: the held-out loss of a checkpoint, sharded over all available devices."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import jax

from xlnet_jax.checkpoint import restore
from xlnet_jax.data.batches.mixture import open_mixture
from xlnet_jax.model import implementation
from xlnet_jax.parallel import mesh as meshes
from xlnet_jax.parallel.processes import session
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.train.evaluation import HeldoutLoss
from xlnet_jax.train.recipe import make_recipe
from xlnet_jax.train.step import build_step

log = logging.getLogger("xlnet_jax")


def evaluate(
    workdir: str, *, step: int | None = None, blocks: int = 0, batch_size: int | None = None,
    overrides: Sequence[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """Scores the held-out split with the parameters of a checkpoint.

    Args:
      step: the checkpoint; None = the newest good one.
      blocks: score only the first blocks; 0 = the whole split.
      batch_size: rows at a time; None = as configured.
      overrides: elastic or free config keys to change, such as `--config.evaluation.batch_size=16`.

    Returns:
      `step` of the checkpoint, and see `train.evaluation.scores`.

    Raises:
      BadInput: no run or good checkpoint in `workdir`, a corpus without held-out documents or with another tokenizer.
    """
    rows = [] if batch_size is None else [f"--config.evaluation.batch_size={batch_size}"]
    config = workdirs.load_config(workdir, [*overrides, *rows])
    make_recipe(config)  # refuses a fine-tuned model before a corpus is asked for
    heldout = open_mixture(config, "heldout", weighted=False)
    train = open_mixture(config, weighted=False, opened=heldout)
    workdirs.check_tokenizer(workdir, heldout)
    equal = {"the corpus (sha256)": heldout.sha256, "--step": step, "--blocks": blocks, "--workdir": workdir}
    with session(config, equal) as processes:
        mesh = meshes.make_mesh(config.mesh)
        meshes.check_model(config.model, mesh)
        recipe = make_recipe(implementation.decided(config, processes))
        workdirs.use_compilation_cache(config, workdir)
        with jax.set_mesh(mesh):
            score = HeldoutLoss(recipe, mesh, heldout, train.token_counts, blocks)
            abstract = build_step(recipe, mesh).abstract_state.params
            params, found = restore.parameters(workdir, abstract, processes, step)
            log.info("evaluating step %d over %s, after compiling", found, score.scope)
            return {"step": found, **score(params)}
