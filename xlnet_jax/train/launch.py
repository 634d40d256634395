"""A start of a run, of pretraining or of a task: mesh, step, work directory, checkpoint, and then the loop."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh

from xlnet_jax.checkpoint.store import Checkpoints
from xlnet_jax.config import Config
from xlnet_jax.data.batches import loader
from xlnet_jax.data.batches.loader import TrainingData
from xlnet_jax.data.batches.stream import extend_plan
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.distributed.processes import Session
from xlnet_jax.messages import quantity
from xlnet_jax.model import implementation
from xlnet_jax.run import goodput as goodputs
from xlnet_jax.run import lock
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.run.goodput import Goodput
from xlnet_jax.run.metrics import MetricsWriter, read_jsonl
from xlnet_jax.run.signals import StopRequest
from xlnet_jax.run.watchdog import Watchdog
from xlnet_jax.storage import files
from xlnet_jax.train import evaluation
from xlnet_jax.train.evaluation import Evaluator
from xlnet_jax.train.loop import Run
from xlnet_jax.train.recipe import Recipe
from xlnet_jax.train.resume import restore_or_init
from xlnet_jax.train.step import BuiltStep, build_step

log = logging.getLogger("xlnet_jax")


@dataclasses.dataclass(frozen=True)
class Job:
    """What is trained, where, and how far. Its inputs have been checked."""

    config: Config
    workdir: str
    data: TrainingData
    make_recipe: Callable[[Config], Recipe]
    """Called with the configuration that this machine has decided (`implementation.decided`)."""
    make_evaluator: Callable[[Recipe, Mesh], Evaluator] | None
    """None = nothing is evaluated."""
    stop: int
    """Save and stop at this step."""


def run(job: Job, processes: Session, request: StopRequest, goodput: Goodput) -> tuple[dict[str, Any], bool]:
    """Trains from the newest checkpoint in the work directory, or from step 0. All processes of the run call it.

    Returns:
      The result (`goodput.result`), and whether there was anything to do.
    """
    workdir = job.workdir
    config, recipe, mesh, built = _built(job, processes)
    with jax.set_mesh(mesh):
        workdirs.use_compilation_cache(config, workdir)
        check = None
        with contextlib.ExitStack() as stack:
            if jax.process_index() == 0:
                with files.translate_errors(workdir):
                    files.make_folder(workdir)
                check = stack.enter_context(lock.held(workdir))
            with files.translate_errors(workdir):
                workdirs.check_shared(workdir, processes)
            losses = functools.partial(workdirs.losses, workdir)
            checkpoints = stack.enter_context(Checkpoints(workdir, config.checkpoint, losses))
            with goodput.measure("restore" if checkpoints.steps() else "start"):
                state, plan, start, origin = restore_or_init(recipe, job.data, built, checkpoints, processes)
            evaluator = job.make_evaluator(recipe, mesh) if job.make_evaluator else None
            unscored, ended = _evaluated(config, workdir, evaluator, start, processes)
            if ended or (start >= job.stop and not unscored):
                log.info("%s is already at step %d and was to stop at step %d: nothing to train",
                         workdir, start, start if ended else job.stop)  # fmt: skip
                return _earlier(workdir, start), False
            workdirs.write_start(
                workdir, config, job.data, start, origin | {"attention": recipe.config.model.attention}
            )
            writer = MetricsWriter(workdir, start, config.log.tensorboard, check)
            stack.enter_context(contextlib.closing(writer))
            goodput.resume_from(writer.earlier)
            watchdog = Watchdog(config.watchdog.seconds, lambda: goodput.cause)
            stack.callback(watchdog.cancel)
            loop = Run(recipe, workdir, job.data, mesh, built, checkpoints, writer, plan, origin["rebuilt"], processes,
                       request, goodput, watchdog, evaluator)  # fmt: skip
            return loop.loop(state, start, job.stop, unscored), True


def dry_run(job: Job, processes: Session) -> dict[str, Any]:
    """Builds the first batch and traces the step; neither compiles nor writes."""
    config, recipe, mesh, built = _built(job, processes)
    with jax.set_mesh(mesh):
        rows = meshes.rows_here(built.rows, mesh)
        plan = extend_plan((), 0, config.train.batch_size, config.data.windows_per_block)
        batch = loader.TrainDispatches(job.data, config, plan, rows, 0, config.train.steps)(0)
        out = jax.eval_shape(built.jitted, built.abstract_state, built.abstract_batch)
    parameters = sum(x.size for x in jax.tree.leaves(built.abstract_state.params))
    stream = job.data.stream(config)
    read = stream.epochs(config.train.steps, plan)
    for name, corpus, epochs in zip(job.data.names, stream.corpora, read, strict=True):
        log.info(
            "dry run: %s has %s an epoch, the run reads %.2f epochs", name, quantity(corpus.blocks, "block"), epochs
        )
    log.info(
        "dry run: %s, mesh %s, first batch with %s, %s", quantity(parameters, "parameter"), dict(mesh.shape),
        quantity(int(recipe.model.divisors(batch)[recipe.first_loss]), "target"), quantity(len(out[1]), "metric"),
    )  # fmt: skip
    return {"step": 0, "loss": None, "tokens_per_second": None, "workdir": job.workdir, "parameters": parameters}


def _built(job: Job, processes: Session) -> tuple[Config, Recipe, Mesh, BuiltStep]:
    config = job.config
    mesh = meshes.make_mesh(config.mesh)
    rows = meshes.training_rows(config.train, mesh)
    meshes.check_model(config.model, mesh)
    if rows != config.train.batch_size:
        empty = quantity(rows - config.train.batch_size, "row")
        log.info("train.elastic: the batch of %d is filled up with %s of weight 0, on %s", config.train.batch_size,
                 empty, quantity(meshes.row_devices(mesh), "device"))  # fmt: skip
    recipe = job.make_recipe(implementation.decided(config, processes))
    with jax.set_mesh(mesh):
        return config, recipe, mesh, build_step(recipe, mesh)


def _evaluated(
    config: Config, workdir: str, evaluator: Evaluator | None, start: int, processes: Session
) -> tuple[bool, bool]:
    """Whether the evaluation of the step `start` is missing, and whether the evaluations so far end the run.

    The run may have stopped after the checkpoint or in the evaluation. Process 0 decides: another process may see the
    file a little later than the one that writes it.
    """
    if evaluator is None:
        return False, False
    lines = [line for line in read_jsonl(os.path.join(workdir, "evaluations.jsonl")) if line["step"] <= start]
    scored = any(line["step"] == start for line in lines)
    unscored = evaluation.due(config, start) and not scored
    answers = processes.gather(f"{unscored} {not unscored and evaluator.ends(lines)}")[0].split()
    return answers[0] == "True", answers[1] == "True"


def _earlier(workdir: str, step: int) -> dict[str, Any]:
    """The result of a run that was complete before this start."""
    last = workdirs.line_of(workdir, "metrics", step)
    times = goodputs.last_complete(read_jsonl(os.path.join(workdir, "time.jsonl")))
    return goodputs.result(workdir, step, last.get("loss"), last.get("tokens_per_second"), times)
