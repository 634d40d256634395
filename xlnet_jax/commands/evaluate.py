"""`xlnet-jax evaluate`: scores of checkpoints on held-out text, sharded over all available devices.

The command has three modes:

    split      the loss of the whole split (`evaluate`)
    context    with `--context`: the loss of left-to-right models by context length (`by_context`)
    joint      with `--target_share`: joint likelihoods of a permutation model (`joint`)
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from xlnet_jax import config as configs
from xlnet_jax.commands.joint import joint
from xlnet_jax.config import Config
from xlnet_jax.data.batches.mixture import open_mixture
from xlnet_jax.data.batches.orders import DISTRIBUTIONS
from xlnet_jax.distributed.processes import Session, session
from xlnet_jax.errors import BadInput
from xlnet_jax.infer.opened import Stored, opened
from xlnet_jax.objectives import CLM, PLM
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.run.progress import write_plot
from xlnet_jax.storage.files import Json
from xlnet_jax.train import sliding as contexts
from xlnet_jax.train.evaluation import HeldoutLoss, check_objective, configured, held_out
from xlnet_jax.train.recipe import make_recipe
from xlnet_jax.train.sliding import SlidingLoss

log = logging.getLogger("xlnet_jax")


def run(**options: Any) -> Json:
    """Scores in the mode that the options select. Raises BadInput for an option of another mode."""
    given = set_options(options)
    own = {"blocks", "streams", "sliding", "factorization_order"}
    mode, scores = "split", evaluate
    if "target_share" in given:
        mode, scores, own = "joint", joint, {"target_share", "orders", "windows"}
    elif given.pop("context", False):
        mode, scores, own = "context", by_context, {"against"}
    own |= {"workdir", "step", "batch_size", "overrides"}
    own |= set() if scores is joint else {"memory_len", "segment_len", "clamp_len", "same_length"}
    if others := sorted(given.keys() - own):
        raise BadInput(f"--{others[0]} is not for the {mode} mode; leave it out, or see --help")
    return scores(**given)


def set_options(options: Json) -> Json:
    """Returns the options with a value other than None, [] and False."""
    return {
        name: value
        for name, value in options.items()
        if value not in (None, []) and value is not False
    }


def evaluate(
    workdir: str,
    *,
    step: int | None = None,
    blocks: int = 0,
    batch_size: int | None = None,
    streams: int | None = None,
    sliding: bool = False,
    factorization_order: str | None = None,
    overrides: Sequence[str] = (),
    **reach: Any,
) -> Json:
    """Scores the held-out split with the parameters of a checkpoint.

    Args:
      step: the checkpoint; None = the newest good one.
      batch_size: rows at a time; None = as configured.
      blocks: number of blocks to score, evenly spread, as `evaluation.blocks` does in training;
        0 = the whole split.
      streams: for a left-to-right model: number of contiguous parts of each corpus's split; each
        part starts without memory.
      sliding: for positions learned at every layer: predict each token from the window before it
        (`train.sliding`).
      factorization_order: for a permutation model: the order distribution of the targets; None = as
        in training.
      overrides: elastic or free config keys to change, such as `--config.evaluation.batch_size=16`.
      reach: `memory_len`, `segment_len`, `clamp_len`, `same_length` for a left-to-right model, in
        place of their values in training.

    Returns:
      `step` of the checkpoint, and the values of `train.evaluation.scores`.

    Raises BadInput: no run or good checkpoint in `workdir`, a corpus without held-out documents or
    with another tokenizer, or an option that the objective of the model excludes.
    """
    config, step = configured(workdir, overrides, batch_size, step)
    config = under_distribution(as_asked(config, reach, streams), factorization_order)
    make_recipe(config)  # refuses a fine-tuned model before a corpus is opened
    heldout = held_out(workdir, config)
    train = open_mixture(config, weighted=False, opened=heldout)
    equal = {
        "the corpus (sha256)": heldout.sha256,
        "--blocks": blocks,
        "--streams": streams,
        "--factorization_order": factorization_order,
    }
    with opened(Stored(workdir, config, heldout.tokenizer), step, equal) as model:
        make = SlidingLoss if sliding else functools.partial(HeldoutLoss, streams=streams or 0)
        score = make(model.recipe, model.mesh, heldout, train.token_counts, blocks)
        log.info("evaluating step %d over %s, after compiling", model.step, score.scope)
        return {"step": model.step, **score(model.params)}


def by_context(
    workdir: str,
    *,
    against: Sequence[str] = (),
    step: int | None = None,
    batch_size: int | None = None,
    targets: int = 2000,
    overrides: Sequence[str] = (),
    **reach: Any,
) -> Json:
    """Scores the same held-out tokens with contexts of 1, 2, 4, ... tokens, up to the smallest
    memory + segment of the models.

    Args:
      against: work directories of other models with the same tokenizer; the best of all models is
        the baseline.
      targets: number of tokens, evenly spaced in the held-out split of the first model's corpus.
      step, batch_size, overrides, reach: for all models; see `evaluate`.

    Returns:
      `targets`, `lengths`, `models`: by work directory the `step` and
      `train.sliding.effective_contexts`; `picture`.

    Raises BadInput: see `evaluate`; a model that is not left to right, a split shorter than the
    context.
    """
    asked, of_step = dict[str, Config](), dict[str, int | None]()
    for name in (workdir, *against):
        config, of_step[name] = configured(name, overrides, batch_size, step)
        asked[name] = as_asked(config, reach)
        check_objective(config, CLM, "--context", name)
    heldout = held_out(workdir, asked[workdir])
    for name in against:
        workdirs.check_tokenizer(name, heldout)
    lengths = contexts.doubling(
        min(config.model.memory_len + config.data.segment_len for config in asked.values())
    )
    windows_NX = contexts.windows(heldout, lengths[-1] + 1, -(-targets // len(heldout.corpora)))
    equal = {
        "the corpus (sha256)": heldout.sha256,
        "--step": step,
        "--workdir": workdir,
        "--against": list(against),
    }
    with session(asked[workdir], equal) as processes:
        scored = [
            score_contexts(
                Stored(name, config, heldout.tokenizer),
                of_step[name],
                processes,
                windows_NX,
                lengths,
            )
            for name, config in asked.items()
        ]
        described = contexts.effective_contexts(
            lengths, np.stack([losses_CN for _, losses_CN in scored])
        )
        models = {
            name: {"step": at, **each}
            for name, (at, _), each in zip(asked, scored, described, strict=True)
        }
        path, title = os.path.join(workdir, "context.png"), "Loss on the same tokens by context"
        curves = {name: (lengths, each["loss"]) for name, each in models.items()}
        drawn = jax.process_index() == 0 and write_plot(
            path, title, "tokens of context", curves, {}, xscale="log"
        )
    return {
        "targets": len(windows_NX),
        "lengths": lengths,
        "models": models,
        "picture": drawn or None,
    }


def score_contexts(
    stored: Stored,
    step: int | None,
    processes: Session,
    windows_NX: np.ndarray,
    lengths: Sequence[int],
) -> tuple[int, np.ndarray]:
    """Returns the step of the checkpoint and the losses of `train.sliding.losses`. The parameters
    are released on return, because the parameters of two models may not fit into memory.
    """
    with opened(stored, step, processes=processes) as model:
        log.info(
            "scoring %d tokens of step %d of %s with up to %d before them",
            len(windows_NX),
            model.step,
            stored.path,
            lengths[-1],
        )
        return model.step, contexts.losses(
            model.recipe, model.mesh, model.params, windows_NX, lengths
        )


def as_asked(config: Config, reach: Json, streams: int | None = None) -> Config:
    """Returns the configuration with another memory, segment or bound on distances, which change no
    parameter. A key with the value None, or False for `same_length`, stays as in training.

    Raises BadInput for a model that is not left to right, or that has fixed lengths.
    """
    changes = set_options(reach)
    given = [*changes, *["streams"] * (streams is not None)]
    if given:
        check_objective(config, CLM, f"--{given[0]}")
    if changes and config.model.member.parts.positions == "per_layer":
        raise BadInput(
            f"--{given[0]}: model.architecture={config.model.architecture} "
            "has fixed lengths; leave it out"
        )
    segment = ["data.segment_len", "data.reuse_len", "data.num_predict"]
    return configs.override(
        config,
        [
            f"--config.{key}={value}"
            for name, value in changes.items()
            for key in (segment if name == "segment_len" else [f"model.{name}"])
        ],
    )


def under_distribution(config: Config, factorization_order: str | None) -> Config:
    """Returns the configuration with another order distribution, in segments of the same length; no
    parameter changes.

    If `spans` replaces another distribution, the shares are the published ones: half of a segment
    is fresh, and a sixth is predicted.
    """
    if factorization_order is None or factorization_order == config.data.factorization_order:
        return config
    check_objective(config, PLM, "--factorization_order")
    T = config.data.segment_len
    fresh, predicted = DISTRIBUTIONS[factorization_order].layout(T)
    return configs.override(
        config,
        [
            f"--config.data.factorization_order={factorization_order}",
            f"--config.data.reuse_len={fresh}",
            f"--config.data.num_predict={predicted}",
        ],
    )
