"""`xlnet-jax evaluate`: the held-out loss of a checkpoint, sharded over all available devices."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from xlnet_jax import config as configs
from xlnet_jax.config import Config
from xlnet_jax.data.batches.mixture import Mixture, open_mixture
from xlnet_jax.data.batches.orders import LAWS
from xlnet_jax.errors import BadInput
from xlnet_jax.infer.opened import Stored, opened
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.train.evaluation import HeldoutLoss
from xlnet_jax.train.recipe import make_recipe
from xlnet_jax.train.sliding import SlidingLoss

log = logging.getLogger("xlnet_jax")


def run(
    *, context: bool, against: list[str], target_share: float | None, orders: int | None, windows: int | None,
    **options: Any,
) -> dict[str, Any]:  # fmt: skip
    """What the command line asks for: `evaluate`, `effective_context.context` or `joint.joint`.

    Raises BadInput, also for an option that is of another one of them.
    """
    from xlnet_jax.commands import effective_context, joint  # they import what is shared from here

    if against and not context:
        raise BadInput("--against is for --context; give both or neither")
    if target_share is None and (orders, windows) != (None, None):
        raise BadInput("--orders and --windows are for --target_share=SHARE; give that too")
    whole_split = {"streams", "blocks", "sliding", "factorization_order"}
    shared = {name: options[name] for name in ("workdir", "step", "batch_size", "overrides")}
    given = {name for name, value in options.items() if value} - {*shared}
    if target_share is not None:
        if context or given:
            raise BadInput("--target_share scores windows of text; next to it there are --orders, --windows, --step "
                           "and --batch_size only")  # fmt: skip
        counts = {name: value for name, value in (("orders", orders), ("windows", windows)) if value is not None}
        return joint.joint(target_share=target_share, **counts, **shared)
    if not context:
        return evaluate(**options)
    if given & whole_split:
        raise BadInput(
            "--context scores single tokens; leave --streams, --blocks, --sliding and --factorization_order out"
        )
    return effective_context.context(against=against, **{name: options[name] for name in options.keys() - whole_split})


def evaluate(
    workdir: str, *, step: int | None = None, blocks: int = 0, batch_size: int | None = None,
    streams: int | None = None, sliding: bool = False, factorization_order: str | None = None,
    overrides: Sequence[str] = (), **reach: Any,
) -> dict[str, Any]:  # fmt: skip
    """Scores the held-out split with the parameters of a checkpoint.

    Args:
      step: the checkpoint; None = the newest good one.
      blocks: score only the first blocks; 0 = the whole split.
      batch_size: rows at a time; None = as configured.
      streams: of a left-to-right model: contiguous parts of each corpus's split, each of which starts without memory.
      sliding: of a model with absolute positions: every token from a window of its own (`train.sliding`).
      factorization_order: of a permutation model: the order law of the targets; None = as in training.
      overrides: elastic or free config keys to change, such as `--config.evaluation.batch_size=16`.
      reach: `memory_len`, `segment_len`, `clamp_len`, `same_length` of a left-to-right model: others than in training.

    Returns:
      `step` of the checkpoint, and see `train.evaluation.scores`.

    Raises:
      BadInput: no run or good checkpoint in `workdir`, a corpus without held-out documents or with another tokenizer,
        an option for left-to-right or permutation models with another objective.
    """
    config = as_asked(configured(workdir, overrides, batch_size), reach, streams)
    config = under_law(config, factorization_order)
    make_recipe(config)  # refuses a fine-tuned model before a corpus is asked for
    heldout = held_out(workdir, config)
    train = open_mixture(config, weighted=False, opened=heldout)
    equal = {"the corpus (sha256)": heldout.sha256, "--blocks": blocks, "--streams": streams,
             "--factorization_order": factorization_order}  # fmt: skip
    with opened(Stored(workdir, config, heldout.tokenizer), step, equal) as model:
        make = SlidingLoss if sliding else functools.partial(HeldoutLoss, streams=streams or 0)
        score = make(model.recipe, model.mesh, heldout, train.token_counts, blocks)
        log.info("evaluating step %d over %s, after compiling", model.step, score.scope)
        return {"step": model.step, **score(model.params)}


def configured(workdir: str, overrides: Sequence[str], batch_size: int | None) -> Config:
    """The configuration of a run, with so many rows of an evaluation at a time. Raises BadInput."""
    rows = [] if batch_size is None else [f"--config.evaluation.batch_size={batch_size}"]
    return workdirs.load_config(workdir, [*overrides, *rows])


def held_out(workdir: str, config: Config) -> Mixture:
    """The held-out splits of the corpora. Raises BadInput, also if their tokenizer is not that of the run."""
    heldout = open_mixture(config, "heldout", weighted=False)
    workdirs.check_tokenizer(workdir, heldout)
    return heldout


def as_asked(config: Config, reach: Mapping[str, int | None], streams: int | None = None) -> Config:
    """The configuration with another memory, segment or bound on distances, which change no parameter.

    Args:
      reach: None, and False of `same_length`: as in training.

    Raises BadInput.
    """
    changes = {name: value for name, value in reach.items() if value is not None and value is not False}
    given = [f"--{name}" for name in (*changes, *(["streams"] if streams is not None else []))]
    if given and not config.data.left_to_right:
        raise BadInput(
            f"{given[0]} is for left-to-right models (data.objective=clm), but this one has data.objective="
            f"{config.data.objective}; leave it out"
        )
    if changes and config.model.position_scheme == "absolute":
        raise BadInput(f"{given[0]}: a model with model.position_scheme=absolute has its own lengths; leave it out")
    segment = ["data.segment_len", "data.reuse_len", "data.num_predict"]
    return configs.override(config, [
        f"--config.{key}={value}" for name, value in changes.items()
        for key in (segment if name == "segment_len" else [f"model.{name}"])
    ])  # fmt: skip


def under_law(config: Config, factorization_order: str | None) -> Config:
    """The configuration with another order law, in segments of the same length; no parameter changes.

    `spans` for a model of another law has the published shares: half of a segment is fresh, and a sixth predicted.

    Raises BadInput.
    """
    if factorization_order is None or factorization_order == config.data.factorization_order:
        return config
    if config.data.objective != "plm":
        raise BadInput("--factorization_order is for permutation models (data.objective=plm), but this one has "
                       f"data.objective={config.data.objective}; leave it out")  # fmt: skip
    T = config.data.segment_len
    fresh, predicted = LAWS[factorization_order].layout(T)
    keys = {"factorization_order": factorization_order, "reuse_len": fresh, "num_predict": predicted}
    return configs.override(config, [f"--config.data.{key}={value}" for key, value in keys.items()])
