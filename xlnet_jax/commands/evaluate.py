"""`xlnet-jax evaluate`: scores of checkpoints on held-out text, sharded over all available devices.

Either the loss of the whole split; or with `--context` how far back one or several left-to-right
models look; or with `--target_share` joint likelihoods (`joint`).
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from xlnet_jax import config as configs
from xlnet_jax.commands.joint import joint
from xlnet_jax.config import Config
from xlnet_jax.data.batches.mixture import open_mixture
from xlnet_jax.data.batches.orders import DISTRIBUTIONS
from xlnet_jax.distributed.processes import session
from xlnet_jax.errors import BadInput
from xlnet_jax.infer.opened import Stored, opened
from xlnet_jax.objectives import CLM, PLM
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.run.progress import picture
from xlnet_jax.storage.files import Json
from xlnet_jax.train import sliding as contexts
from xlnet_jax.train.evaluation import HeldoutLoss, check_objective, configured, held_out
from xlnet_jax.train.recipe import make_recipe
from xlnet_jax.train.sliding import SlidingLoss

log = logging.getLogger("xlnet_jax")


def run(*, context: bool, **options: Any) -> Json:
    """`evaluate`, `by_context` or `joint.joint`, as the options ask. Raises BadInput for an option
    of another.
    """
    given = {
        name: value
        for name, value in options.items()
        if value not in (None, []) and value is not False
    }
    kind, scores, own = (
        "the loss of the split",
        evaluate,
        {"blocks", "streams", "sliding", "factorization_order"},
    )
    if "target_share" in given:
        kind, scores, own = "--target_share", joint, {"target_share", "orders", "windows"}
    elif context:
        kind, scores, own = "--context", by_context, {"against"}
    own |= {"workdir", "step", "batch_size", "overrides"}
    own |= set() if scores is joint else {"memory_len", "segment_len", "clamp_len", "same_length"}
    if others := sorted(given.keys() - own):
        raise BadInput(f"--{others[0]} is not for {kind}; leave it out, or see --help")
    return scores(**given)


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
      step, batch_size: None = the newest good checkpoint, and as many rows at a time as configured.
      blocks: score only so many blocks, evenly spread, as `evaluation.blocks` does in training;
        0 = the whole split.
      streams: of a left-to-right model: contiguous parts of each corpus's split, each of which
        starts without memory.
      sliding: for positions learned at every layer: predict each token from the window before it
        (`train.sliding`).
      factorization_order: of a permutation model: the order distribution of the targets; None = as
        in training.
      overrides: elastic or free config keys to change, such as `--config.evaluation.batch_size=16`.
      reach: `memory_len`, `segment_len`, `clamp_len`, `same_length` of a left-to-right model:
        others than in training.

    Returns:
      `step` of the checkpoint, and see `train.evaluation.scores`.

    Raises BadInput: no run or good checkpoint in `workdir`, a corpus without held-out documents or
    with another tokenizer, an option for left-to-right or permutation models with another
    objective.
    """
    config, step = configured(workdir, overrides, batch_size, step)
    config = under_distribution(as_asked(config, reach, streams), factorization_order)
    make_recipe(config)  # refuses a fine-tuned model before a corpus is asked for
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
    memory + segment.

    Args:
      against: work directories of other models with the same tokenizer; the baseline is the best of
        all.
      targets: number of tokens, evenly spaced in the held-out split of the first model's corpus.
      step, batch_size, overrides, reach: of all models; see `evaluate`.

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
    steps, losses = [], []
    with session(asked[workdir], equal) as processes:
        for name, config in asked.items():
            with opened(
                Stored(name, config, heldout.tokenizer), of_step[name], processes=processes
            ) as model:
                log.info(
                    "scoring %d tokens of step %d of %s with up to %d before them",
                    len(windows_NX),
                    model.step,
                    name,
                    lengths[-1],
                )
                steps.append(model.step)
                losses.append(
                    contexts.losses(model.recipe, model.mesh, model.params, windows_NX, lengths)
                )
            del model  # two do not fit into memory
        described = contexts.effective_contexts(lengths, np.stack(losses))
        models = {
            name: {"step": at, **each}
            for name, at, each in zip(asked, steps, described, strict=True)
        }
        path, title = os.path.join(workdir, "context.png"), "Loss on the same tokens by context"
        curves = {name: (lengths, each["loss"]) for name, each in models.items()}
        drawn = jax.process_index() == 0 and picture(
            path, title, "tokens of context", curves, {}, xscale="log"
        )
        return {
            "targets": len(windows_NX),
            "lengths": lengths,
            "models": models,
            "picture": drawn or None,
        }


def as_asked(config: Config, reach: Mapping[str, int | None], streams: int | None = None) -> Config:
    """The configuration with another memory, segment or bound on distances, which change no
    parameter.

    None, and False of `same_length`, is as in training. Raises BadInput for a model that cannot
    have others.
    """
    changes = {
        name: value for name, value in reach.items() if value is not None and value is not False
    }
    given = [*changes, *["streams"] * (streams is not None)]
    if given:
        check_objective(config, CLM, f"--{given[0]}")
    if changes and config.model.member.parts.positions == "per_layer":
        raise BadInput(
            f"--{given[0]}: model.architecture={config.model.architecture} "
            "has its own lengths; leave it out"
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
    """The configuration with another order distribution, in segments of the same length; no
    parameter changes.

    `spans` for a model of another distribution has the published shares: half of a segment is
    fresh, and a sixth predicted.
    """
    if factorization_order is None or factorization_order == config.data.factorization_order:
        return config
    check_objective(config, PLM, "--factorization_order")
    T = config.data.segment_len
    fresh, predicted = DISTRIBUTIONS[factorization_order].layout(T)
    keys = {
        "factorization_order": factorization_order,
        "reuse_len": fresh,
        "num_predict": predicted,
    }
    return configs.override(config, [f"--config.data.{key}={value}" for key, value in keys.items()])
