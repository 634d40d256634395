"""The state at the start of a run: fresh, from the newest good checkpoint, or with the parameters of another run."""

from __future__ import annotations

import dataclasses
import logging
import os
from typing import Any

import jax
from flax import traverse_util

from xlnet_jax.checkpoint import restore
from xlnet_jax.checkpoint.store import Checkpoints, Trees
from xlnet_jax.data.batches.mixture import Mixture
from xlnet_jax.data.batches.stream import Plan, PlanEntry, extend_plan
from xlnet_jax.model.transformer import empty_memory
from xlnet_jax.parallel.processes import Session
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.run.metrics import read_jsonl
from xlnet_jax.train.recipe import Recipe
from xlnet_jax.train.state import State, memory_tree
from xlnet_jax.train.step import BuiltStep, create_state

log = logging.getLogger("xlnet_jax")


def restore_or_init(
    recipe: Recipe, mixture: Mixture, built: BuiltStep, checkpoints: Checkpoints, processes: Session
) -> tuple[State, Plan, int, dict[str, Any]]:
    """The state to start from, fresh or restored, its data plan and step, and its origin for `runs.jsonl`."""
    config = recipe.config
    W, batch_size = config.data.windows_per_block, config.train.batch_size
    abstract = built.abstract_state.split()

    def wanted(step: int, record: dict[str, Any]) -> Trees:
        workdirs.check_resume(record, config, mixture, str(checkpoints.path / str(step)))
        # With another batch size the rows are other rows: the saved memory is useless.
        same_rows = PlanEntry(*record["plan"][-1]).batch_size == batch_size
        return {name: tree for name, tree in abstract.items() if name != "memory" or same_rows}

    found = restore.resume(checkpoints, wanted, processes)
    if found is None:
        if read_jsonl(os.path.join(checkpoints.workdir, "metrics.jsonl")):
            log.warning("%s has metrics and no checkpoint: metrics dropped, starting at step 0", checkpoints.workdir)
        state, origin = _fresh(recipe, mixture, built, processes)
        return state, extend_plan((), 0, batch_size, W), 0, origin
    old, trees = tuple(PlanEntry(*entry) for entry in found.record["plan"]), found.trees
    plan = extend_plan(old, found.step, batch_size, W, mixture.stream(config).rows_per_block)
    if "memory" not in trees:
        memory_sharding = jax.tree.map(lambda x: x.sharding, built.abstract_state.memory)
        memory = jax.jit(lambda: empty_memory(config.model, batch_size), out_shardings=memory_sharding)()
        trees = trees | {"memory": memory_tree(memory)}
    if plan != old:
        log.info("batch size %d -> %d at step %d: memory emptied", old[-1].batch_size, batch_size, found.step)
    log.info("resuming at step %d from %s", found.step, checkpoints.path)
    return State.join(trees), plan, found.step, {}


def _fresh(recipe: Recipe, mixture: Mixture, built: BuiltStep, processes: Session) -> tuple[State, dict[str, Any]]:
    """The state of step 0, with the parameters of another run if so configured."""
    path = recipe.config.checkpoint.init_from
    if not path:
        return create_state(recipe, built), {}
    params, origin = restore.foreign_parameters(path, built.abstract_state.params, processes)
    if origin["tokenizer_sha256"] != mixture.tokenizer.sha256:
        log.warning("checkpoint.init_from=%s has another tokenizer: its embeddings are those of other pieces", path)
    log.info("starting with the parameters of step %d of %s", origin["step"], path)
    state = create_state(recipe, built)
    # Loaded parameters replace fresh ones; the other run may lack some.
    merged = traverse_util.unflatten_dict(traverse_util.flatten_dict(state.params) | traverse_util.flatten_dict(params))
    return dataclasses.replace(state, params=merged), {"init_from": origin}
