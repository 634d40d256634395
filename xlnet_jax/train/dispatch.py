"""Around a dispatch: compiling it, capturing it for the profiler, and what a dry run looks at in its place."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from typing import Any

import jax

from xlnet_jax import files
from xlnet_jax.batch import Batch
from xlnet_jax.config import Config
from xlnet_jax.data import loader
from xlnet_jax.data.mixture import Mixture
from xlnet_jax.data.stream import extend_plan
from xlnet_jax.parallel import mesh as meshes
from xlnet_jax.train.state import State
from xlnet_jax.train.step import BuiltStep

log = logging.getLogger("xlnet_jax")


def compile_step(built: BuiltStep, state: State, batch: Batch) -> Any:
    """Compiles the step for the shapes at hand, and says how long it took and whether the cache had it."""
    hits: list[str] = []

    def listen(event: str, **_: Any) -> None:
        if event == "/jax/compilation_cache/cache_hits":
            hits.append(event)

    jax.monitoring.register_event_listener(listen)
    began = time.perf_counter()
    executable = built.jitted.lower(state, batch).compile()
    jax.monitoring.unregister_event_listener(listen)
    enabled = jax.config.jax_compilation_cache_dir is not None  # type: ignore[attr-defined]
    cache = "off" if not enabled else "hit" if hits else "miss"
    steps = jax.tree.leaves(batch)[0].shape[0]
    log.info("compiled %d steps in %.1f s (compilation cache: %s)", steps, time.perf_counter() - began, cache)
    return executable


@contextlib.contextmanager
def profiled(config: Config, workdir: str, steps: range) -> Iterator[bool]:
    """Captures the whole dispatches that hold the configured steps; yields whether this one is."""
    first = config.log.profile_start
    last = first + config.log.profile_steps - 1
    if first < 0 or steps[-1] < first or steps[0] > last:
        yield False
        return
    folder = os.path.join(workdir, "profile")
    with files.on_disk(os.path.join(folder, f"step_{steps[0]}")) as here, jax.profiler.trace(here):
        yield True
    log.info("profile of steps %d to %d in %s", steps[0], steps[-1], folder)


def dry_run_of(config: Config, workdir: str, mixture: Mixture, built: BuiltStep, mesh: Any) -> dict[str, Any]:
    """Builds the first batch and traces the step; neither compiles nor writes."""
    rows, _ = meshes.rows_here(config.train.batch_size, mesh)
    plan = extend_plan((), 0, config.train.batch_size, config.data.windows_per_block)
    batch = loader.TrainDispatches(mixture, config, plan, rows, 0, config.train.steps)(0)
    out = jax.eval_shape(built.jitted, built.abstract_state, built.abstract_batch)
    parameters = sum(x.size for x in jax.tree.leaves(built.abstract_state.params))
    stream = mixture.stream(config)
    read = stream.epochs(config.train.steps, plan)
    for name, corpus, epochs in zip(mixture.names, stream.corpora, read, strict=True):
        log.info("dry run: %s has %d blocks an epoch, the run reads %.2f epochs", name, corpus.blocks, epochs)
    log.info(
        "dry run: %d parameters, mesh %s, first batch with %d targets, %d metrics",
        parameters, dict(mesh.shape), int(batch.target_weights.sum()), len(out[1]),
    )  # fmt: skip
    return {"step": 0, "loss": None, "tokens_per_second": None, "workdir": workdir, "parameters": parameters}
