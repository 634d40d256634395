"""`xlnet-jax train`: checks its inputs, connects the processes, and runs the loop."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from xlnet_jax import config as configs
from xlnet_jax.config import Config
from xlnet_jax.config.phases import keep_shuffle
from xlnet_jax.data.batches.mixture import Mixture, open_mixture
from xlnet_jax.data.vocabulary import warn_of_export
from xlnet_jax.distributed.processes import session
from xlnet_jax.infer import infill
from xlnet_jax.infer.options import Fill
from xlnet_jax.infer.orders import check_question
from xlnet_jax.library import Model
from xlnet_jax.messages import print_lines
from xlnet_jax.run import progress
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.run.goodput import Goodput
from xlnet_jax.run.signals import stop_request
from xlnet_jax.storage import files
from xlnet_jax.storage.files import Json
from xlnet_jax.train import branch as branches
from xlnet_jax.train import evaluation, launch, own_batches
from xlnet_jax.train.evaluation import HeldoutLoss
from xlnet_jax.train.loop import Job
from xlnet_jax.train.own_batches import BatchIterator
from xlnet_jax.train.recipe import Recipe, make_recipe
from xlnet_jax.train.sliding import windows

SAMPLE_LENGTH = 64
"""Maximum number of tokens of a held-out text for `log.samples`."""


def train(
    config: Config,
    workdir: str,
    *,
    branch: str | None = None,
    stop_at: int | None = None,
    dry_run: bool = False,
    recipe: Callable[[Config], Recipe] = make_recipe,
    batches: BatchIterator | None = None,
) -> Json:
    """Trains until `config.train.steps`, from the newest checkpoint in `workdir` if there is one.

    Call it in a separate process: before the first dispatch SIGTERM or Ctrl-C ends the whole
    interpreter.

    Args:
      branch: RUN or RUN@STEP: another run and a step. A new run starts from the state of that
        checkpoint, or without STEP from the newest checkpoint of RUN.
      stop_at: save and stop after this step; a later call continues to the end.
      recipe: makes the model, its losses and the optimizer of a configuration; the run does not
        record this function.
      batches: gives the batches in place of the corpus, which still gives the tokenizer and the
        held-out text; pass it at each start. `train.own_batches` describes it. A dry run does not
        read it.
      dry_run: check everything up to the first batch and the shapes of the step, then return;
        nothing is written.

    Returns:
      `step`, `loss`, `tokens_per_second`, `workdir`; `seconds` by cause and `goodput`, see
      `goodput.summary`; for a finished run, else None: `heldout_loss`, `heldout_share` (scored
      share of the held-out split), `unigram_cross_entropy` (on the same targets) and `picture`.

    Raises BadInput for a configuration, corpus or work directory that does not fit; Diverged;
    RestartMe for a signal.
    """
    goodput = Goodput()
    configs.check(config)
    with stop_request() as request:
        workdirs.check_folder(workdir)
        # The run records an absolute path, because it may be evaluated from another folder.
        config = config.changed(data={"corpus": workdirs.absolute(config.data.corpus)})
        for part in config.parts:
            recipe(part)  # refuses before the corpus is read
        own_batches.check_resumable(batches, config)
        mixture = open_mixture(config)
        warn_of_export(mixture.tokenizer, config)
        stop = config.train.steps if stop_at is None else min(stop_at, config.train.steps)
        origin = branches.origin_of(config, workdir, branch)
        known = workdir if origin is None or workdirs.read_config(workdir) else origin.path
        saved = workdirs.read_config(known)
        config = keep_shuffle(config, saved, known)
        if saved is not None:
            workdirs.check_resume(saved, config, mixture, known)
        for part in config.parts:
            mixture.stream(part).check(part.train.batch_size, mixture.split_names())
            mixture.check(part)
        heldout = evaluation.open_heldout(config, mixture)
        sample = sampler(config, heldout) if heldout and config.log.samples else None
        # No device has been used yet, and no process writes before all have read the work
        # directory.
        equal = {
            "phases": [*config.phases],
            "the corpus (sha256)": mixture.sha256,
            "--branch": branch,
            "--stop_at": stop_at,
            "--dry_run": dry_run,
        }
        with session(config, equal) as processes:
            make_evaluator = heldout and (
                lambda made, mesh: HeldoutLoss(
                    made, mesh, heldout, mixture.token_counts, evaluation.blocks_of(made.config)
                )
            )
            job = Job(
                config, workdir, mixture, recipe, make_evaluator, stop, origin, sample, batches
            )
            if dry_run:
                return launch.dry_run(job, processes)
            result, trained = launch.run(job, processes, request, goodput)
            return result | _outcome(config, workdir, result["step"], again=not trained)


def sampler(config: Config, heldout: Mixture) -> Callable[[Recipe, Any], list[Json]]:
    """Returns a function of recipe and parameters that fills the same held-out texts each time.

    Raises BadInput if the model of a phase fills no gaps, or the held-out split is too short.
    """
    parts = config.parts
    for part in parts:
        check_question(part, f"log.samples={config.log.samples}: this run", Fill())
    length = min(SAMPLE_LENGTH, *(part.data.segment_len for part in parts)) - 2  # SEP and CLS
    windows_NT = windows(heldout, length, config.log.samples, every=length)
    tokenizer = heldout.tokenizer
    alone = any(part.objective.likelihood == "pseudo" for part in parts)
    texts = [
        tokens_T[~np.isin(tokens_T, tokenizer.special.ids())].tolist()
        for tokens_T in windows_NT[:: len(heldout.corpora)]
    ]
    pairs = [
        (ids, gapped)
        for ids in texts
        if (gapped := infill.with_hidden_words(tokenizer, ids, alone))
    ]

    def sample(recipe: Recipe, params: Any) -> list[Json]:
        model = Model(recipe.config, tokenizer, params, max(len(pairs), 1))
        filled = model.filled([gapped for _, gapped in pairs], Fill())
        return [
            {
                "parts": gapped.parts,
                "truth": infill.texts_of(tokenizer, ids, gapped.gaps),
                "filled": infill.texts_of(tokenizer, one.token_N, gapped.gaps),
            }
            for (ids, gapped), one in zip(pairs, filled, strict=True)
        ]

    return sample


def show(result: Json) -> None:
    """Prints the results as lines, with the scored share of a held-out split, and the next
    command.
    """
    if (share := result.get("heldout_share")) and share < 1:
        result = result | {
            "heldout_share": f"{share:.3g}, evenly spread; `xlnet-jax evaluate` scores all of it"
        }
    print_lines(result | {"command": _next(result["workdir"], result["step"])})


def _next(workdir: str, step: int) -> str | None:
    """Returns the command that trains the rest of a run, or uses its finished model; None without a
    run, as after a dry run.
    """
    if workdirs.read_config(workdir) is None:
        return None
    config = workdirs.load_config(workdir)
    command = "fill --top=5 'TEXT WITH [MASK]'"
    if config.objective.causal:
        command = "generate --tokens=50 TEXT"
    if config.model.member.parts.positions == "per_layer":  # has no memory to generate with
        command = "evaluate"
    if step < config.train.steps:
        command = "train"
    if not config.pretrains:  # a task's `step` is the best, not the last
        command = "predict --input=FILE"
    return f"xlnet-jax {command} --workdir={shlex.quote(workdir)}"


def _outcome(config: Config, workdir: str, step: int, again: bool = False) -> Json:
    """Returns scores and picture of a finished run; None before the last step, and in all processes
    except the first.
    """
    loss = share = unigram = picture = None
    if config.evaluation.final and step == config.train.steps and jax.process_index() == 0:
        scores = workdirs.line_of(workdir, "evaluations", step)
        loss, share = workdirs.heldout_loss(scores), scores.get("heldout_share")
        unigram = scores.get("unigram_cross_entropy")
        # A run that had already reached this step keeps its picture.
        drawn = again and progress.PICTURE in files.listing(workdir)
        picture = (
            os.path.join(workdir, progress.PICTURE)
            if drawn
            else progress.draw_losses(workdir, loss, unigram)
        )
    return {
        "heldout_loss": loss,
        "heldout_share": share,
        "unigram_cross_entropy": unigram,
        "picture": picture,
    }
