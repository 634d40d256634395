"""`xlnet-jax train`: checks its inputs, connects the processes, and runs the loop."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
from typing import Any

import jax

from xlnet_jax import messages
from xlnet_jax.checkpoint.store import Checkpoints
from xlnet_jax.config import Config
from xlnet_jax.data.batches import loader
from xlnet_jax.data.batches.mixture import Mixture, open_mixture
from xlnet_jax.data.batches.stream import extend_plan
from xlnet_jax.errors import BadInput
from xlnet_jax.model import implementation
from xlnet_jax.parallel import mesh as meshes
from xlnet_jax.parallel.processes import Session, session
from xlnet_jax.run import goodput as goodputs
from xlnet_jax.run import lock, loss_curve
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.run.corruption import CorruptionCheck
from xlnet_jax.run.goodput import Goodput
from xlnet_jax.run.metrics import MetricsWriter, read_jsonl
from xlnet_jax.run.signals import StopRequest, stop_request
from xlnet_jax.run.watchdog import Watchdog
from xlnet_jax.storage import files
from xlnet_jax.train import evaluation
from xlnet_jax.train.evaluation import HeldoutLoss
from xlnet_jax.train.loop import Run
from xlnet_jax.train.recipe import Recipe, make_recipe
from xlnet_jax.train.resume import restore_or_init
from xlnet_jax.train.step import BuiltStep, build_step, loss_and_gradient

log = logging.getLogger("xlnet_jax")


def train(config: Config, workdir: str, *, stop_at: int | None = None, dry_run: bool = False) -> dict[str, Any]:
    """Trains until `config.train.steps`, from the newest checkpoint in `workdir` if there is one.

    It is meant for a process of its own: before the first dispatch there is nothing to save, and SIGTERM or Ctrl-C ends
    the whole interpreter with exit code 42. A notebook should run the command line.

    Args:
      stop_at: save and stop after this step; a later call continues to the end.
      dry_run: check everything up to the first batch and the shapes of the step, then return; nothing is written.

    Returns:
      `step`, `loss`, `tokens_per_second`, `workdir`; `seconds` by cause and `goodput`, see `goodput.summary`; of a
      finished run `heldout_loss`, `unigram_cross_entropy` (of the same targets) and `picture`, else None.

    Raises:
      BadInput: a configuration, corpus or work directory that does not fit.
      Diverged: `train.max_bad_steps` non-finite steps or spikes in a row.
      RestartMe: a signal arrived; everything is saved.
    """
    goodput = Goodput()
    with stop_request() as request:
        if stop_at is not None and stop_at < 1:
            raise BadInput(f"--stop_at={stop_at} must be at least 1")
        files.resolve(workdir)  # refuses an unusable address first
        workdirs.check_folder(workdir)
        # The run records its corpus, and may be evaluated from another folder.
        data = dataclasses.replace(config.data, corpus=workdirs.absolute(config.data.corpus))
        config = dataclasses.replace(config, data=data)
        recipe = make_recipe(config)
        mixture = open_mixture(config)
        stop = config.train.steps if stop_at is None else min(stop_at, config.train.steps)
        if (found := workdirs.read_config(workdir)) is not None:
            workdirs.check_resume(found, config, mixture, workdir)
        mixture.stream(config).check(config.train.batch_size, mixture.described())
        mixture.check(config)
        heldout = evaluation.open_heldout(config, mixture)
        # No device has been used yet, and no process writes before all have read the work directory.
        equal = {"the corpus (sha256)": mixture.sha256, "--stop_at": stop_at, "--dry_run": dry_run}
        with session(config, equal) as processes:
            return _train(recipe, workdir, mixture, heldout, stop, dry_run, processes, request, goodput)


def _train(
    recipe: Recipe, workdir: str, mixture: Mixture, heldout: Mixture | None, stop: int, dry_run: bool,
    processes: Session, request: StopRequest, goodput: Goodput,
) -> dict[str, Any]:  # fmt: skip
    """The part of `train` that needs all processes of the run."""
    config = recipe.config
    mesh = meshes.make_mesh(config.mesh)
    meshes.check_batch_size(config.train.batch_size, mesh, parts=config.train.accumulation)
    meshes.check_model(config.model, mesh)
    recipe = make_recipe(implementation.decided(config, processes))
    with jax.set_mesh(mesh):
        built = build_step(recipe, mesh)
        if dry_run:
            return _dry_run(config, workdir, mixture, built, mesh)
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
                state, plan, start, origin = restore_or_init(recipe, mixture, built, checkpoints, processes)
            # The run may have stopped after the checkpoint or in the evaluation. Process 0 decides: another process may
            # see the file a little later than the one that writes it.
            scored = processes.gather(str(bool(workdirs.line_of(workdir, "evaluations", start))))[0] == "True"
            unscored = heldout is not None and evaluation.due(config, start) and not scored
            if start >= stop and not unscored:
                log.info("%s is already at step %d and was to stop at step %d: nothing to train", workdir, start, stop)
                last = workdirs.line_of(workdir, "metrics", start)
                times = goodputs.last_complete(read_jsonl(os.path.join(workdir, "time.jsonl")))
                result = goodputs.result(workdir, start, last.get("loss"), last.get("tokens_per_second"), times)
                return result | _outcome(config, workdir, start, again=True)
            workdirs.write_start(workdir, config, mixture, start, origin | {"attention": recipe.config.model.attention})
            writer = MetricsWriter(workdir, start, config.log.tensorboard, check)
            stack.enter_context(contextlib.closing(writer))
            goodput.resume_from(writer.earlier)
            stacks = os.path.join(workdir, "stacks", f"process_{jax.process_index()}.txt")
            watchdog = Watchdog(config.watchdog.seconds, stacks, lambda: goodput.cause, messages.end)
            stack.callback(watchdog.cancel)
            run = Run(recipe, workdir, mixture, mesh, built, checkpoints, writer, plan, origin["rebuilt"], processes,
                      request, goodput, watchdog)  # fmt: skip
            if heldout:
                run.heldout = HeldoutLoss(recipe, mesh, heldout, mixture.token_counts, evaluation.blocks_of(config))
            if config.watchdog.sdc_every:
                run.corruption = CorruptionCheck(config, mesh, functools.partial(loss_and_gradient, recipe))
            result = run.loop(state, start, stop, unscored)
            return result | _outcome(config, workdir, result["step"])


def _outcome(config: Config, workdir: str, step: int, again: bool = False) -> dict[str, Any]:
    """The scores and picture of a finished run; None before its last step, and in all processes but the first.

    Args:
      again: the run had already reached this step, so its picture may exist.
    """
    scores: dict[str, Any] = {}
    picture = None
    if config.evaluation.final and step == config.train.steps and jax.process_index() == 0:
        scores = workdirs.line_of(workdir, "evaluations", step)
        there = again and loss_curve.PICTURE in files.listing(workdir)
        picture = os.path.join(workdir, loss_curve.PICTURE) if there else loss_curve.draw(workdir, scores)
    loss, unigram = (scores.get(name) for name in ("loss", "unigram_cross_entropy"))
    return {"heldout_loss": loss, "unigram_cross_entropy": unigram, "picture": picture}


def _dry_run(config: Config, workdir: str, mixture: Mixture, built: BuiltStep, mesh: Any) -> dict[str, Any]:
    """Builds the first batch and traces the step; neither compiles nor writes."""
    rows = meshes.rows_here(config.train.batch_size, mesh)
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
