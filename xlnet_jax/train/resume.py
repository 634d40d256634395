"""The state at the start of a run: fresh, from the newest good checkpoint, or with the parameters of another run."""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from flax import traverse_util

from xlnet_jax.batch import stack
from xlnet_jax.checkpoint import restore
from xlnet_jax.checkpoint.store import Checkpoints, Trees
from xlnet_jax.config import ARCHITECTURE, FROZEN, Config, changed_keys
from xlnet_jax.data.batches import loader
from xlnet_jax.data.batches.loader import TrainingData
from xlnet_jax.data.batches.stream import Plan, PlanEntry, extend_plan
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.distributed.processes import Session
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.run.metrics import read_jsonl
from xlnet_jax.train.recipe import Recipe
from xlnet_jax.train.state import State
from xlnet_jax.train.step import BuiltStep, create_state, next_memory

log = logging.getLogger("xlnet_jax")


def restore_or_init(
    recipe: Recipe, data: TrainingData, built: BuiltStep, checkpoints: Checkpoints, processes: Session
) -> tuple[State, Plan, int, dict[str, Any]]:
    """The state to start from, fresh or restored, its data plan and step, and its origin for `runs.jsonl`.

    The origin has `rebuilt`, the steps at which the run has rebuilt its memory, and of a fresh state `init_from`.
    """
    config = recipe.config
    W, batch_size = config.data.windows_per_block, config.train.batch_size
    abstract = built.abstract_state.split()

    def wanted(step: int, record: dict[str, Any]) -> Trees:
        workdirs.check_resume(record, config, data, str(checkpoints.path / str(step)))
        # With another batch size the rows are other rows: the saved memory is useless.
        same_rows = PlanEntry(*record["plan"][-1]).batch_size == batch_size
        usable = same_rows and any(name.startswith("memory/") for name in record["checksums"])
        return {name: tree for name, tree in abstract.items() if name != "memory" or usable}

    restored = restore.resume(checkpoints, wanted, processes)
    if restored is None:
        if read_jsonl(os.path.join(checkpoints.workdir, "metrics.jsonl")):
            log.warning("%s has metrics and no checkpoint: metrics dropped, starting at step 0", checkpoints.workdir)
        state, origin = _fresh(recipe, data, built, processes)
        return state, extend_plan((), 0, batch_size, W), 0, origin
    old, trees = tuple(PlanEntry(*entry) for entry in restored.record["plan"]), restored.trees
    plan = extend_plan(old, restored.step, batch_size, W, data.stream(config).rows_per_block)
    rebuilt = restored.record.get("rebuilt") or []
    if "memory" not in trees:
        first = _first_in_memory(config, plan, restored.step)
        memory = _rebuild(recipe, data, built, plan, range(first, restored.step), trees["params"], processes)
        trees = trees | {"memory": memory}
        rebuilt = rebuilt + [restored.step] * (first < restored.step)
    if plan != old:
        log.info("batch size %d -> %d at step %d: memory emptied", old[-1].batch_size, batch_size, restored.step)
    log.info("resuming at step %d from %s", restored.step, checkpoints.path)
    return State.join(trees), plan, restored.step, {"rebuilt": rebuilt}


def _first_in_memory(config: Config, plan: Plan, step: int) -> int:
    """The first step whose segment has an effect on the memory before `step`; `step` itself if none has.

    A row sees nothing from before its block, and all rows start their blocks at the same steps. The inputs of layer l,
    counted from 0, depend on l + 1 times as many earlier segments as fill the memory.
    """
    in_block = (step - plan[-1].step) % config.data.windows_per_block
    in_reach = config.model.layers * -(-config.model.memory_len // config.data.reuse_len)
    return step - min(in_block, in_reach)


def _rebuild(
    recipe: Recipe, data: TrainingData, built: BuiltStep, plan: Plan, steps: range, params: Any, processes: Session
) -> Any:
    """An empty memory after the segments of `steps`, forward only, with the same parameters in all of them.

    All processes must call it together.
    """
    config, began = recipe.config, time.perf_counter()
    sharding: Any = built.abstract_state.step.sharding
    mesh = sharding.mesh
    out_shardings = jax.tree.map(lambda x: x.sharding, built.abstract_state.memory)
    memory = jax.jit(lambda: recipe.empty_memory(built.rows), out_shardings=out_shardings)()
    if not steps:
        return memory

    def after(memory: Any, params: Any, step: jax.Array, batches: Any) -> Any:
        with nn.logical_axis_rules(meshes.RULES.pairs()):
            return next_memory(recipe, params, memory, step, jax.tree.map(lambda x: x[0], batches))

    rows = meshes.rows_here(built.rows, mesh)
    dispatches = loader.TrainDispatches(data, config, plan, rows, steps.start, steps.stop)
    # One program for any number of segments.
    jitted: Any = jax.jit(after, donate_argnums=0, out_shardings=out_shardings)
    compiled = None
    for step in steps:
        batch = meshes.place(stack([dispatches.batch(step)]), mesh, built.rows)
        if compiled is None:
            compiled = jitted.lower(memory, params, np.int32(step), batch).compile()
            # A collective operation waits less time for a late process than compiling takes.
            processes.barrier("rebuilding the memory")
        memory = compiled(memory, params, np.int32(step), batch)
    jax.block_until_ready(memory)
    seconds = time.perf_counter() - began
    log.info("memory rebuilt from steps %d to %d in %.1f s", steps[0] + 1, steps[-1] + 1, seconds)
    return memory


def _fresh(recipe: Recipe, data: TrainingData, built: BuiltStep, processes: Session) -> tuple[State, dict[str, Any]]:
    """The state of step 0, with the parameters of another run if so configured."""
    path = recipe.config.checkpoint.init_from
    if not path:
        return create_state(recipe, built), {"rebuilt": []}
    # The head of another task predicts something else, even where the shapes agree.
    wanted = {name: tree for name, tree in built.abstract_state.params.items() if name != "head"}
    params, origin = restore.foreign_parameters(path, wanted, processes)
    if origin["tokenizer_sha256"] != data.tokenizer.sha256:
        log.warning("checkpoint.init_from=%s has another tokenizer: its embeddings are those of other pieces", path)
    theirs = (workdirs.read_config(restore.run_of(path)[0]) or {}).get("config", {})
    architecture = {name: theirs[name] for key in ARCHITECTURE if (name := f"model.{key}") in theirs}
    if other := changed_keys(recipe.config, architecture, FROZEN):
        log.warning("checkpoint.init_from=%s has another architecture, so its parameters compute something else here: "
                    "%s", path, "; ".join(other))  # fmt: skip
    # A new head is meant; other new parameters may be a mistake in the configuration.
    say = log.warning if origin["fresh"] else log.info
    head = ["params/head"] if "head" in built.abstract_state.params else []
    lists = (("new", origin["fresh"] + head), ("not used", origin["left_over"]))
    say("starting with the parameters of step %d of %s%s", origin["step"], path,
        "".join(f"; {what}: {', '.join(names)}" for what, names in lists if names))  # fmt: skip
    state = create_state(recipe, built)
    # Loaded parameters replace fresh ones; the other run may lack some.
    merged = traverse_util.unflatten_dict(traverse_util.flatten_dict(state.params) | traverse_util.flatten_dict(params))
    return dataclasses.replace(state, params=merged), {"init_from": origin, "rebuilt": []}
