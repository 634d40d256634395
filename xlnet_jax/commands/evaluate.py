"""`xlnet-jax evaluate`: the held-out loss of a checkpoint, sharded over all available devices."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from xlnet_jax import config as configs
from xlnet_jax.config import Config
from xlnet_jax.data.batches.mixture import open_mixture
from xlnet_jax.data.batches.orders import LAWS
from xlnet_jax.distributed.processes import session
from xlnet_jax.errors import BadInput
from xlnet_jax.infer.opened import opened
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.train.evaluation import HeldoutLoss
from xlnet_jax.train.recipe import make_recipe
from xlnet_jax.train.sliding import SlidingLoss

log = logging.getLogger("xlnet_jax")


def evaluate(
    workdir: str, *, step: int | None = None, blocks: int = 0, batch_size: int | None = None,
    streams: int | None = None, memory_len: int | None = None, segment_len: int | None = None,
    clamp_len: int | None = None, same_length: bool = False, sliding: bool = False,
    factorization_order: str | None = None,
    overrides: Sequence[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """Scores the held-out split with the parameters of a checkpoint.

    Args:
      step: the checkpoint; None = the newest good one.
      blocks: score only the first blocks; 0 = the whole split.
      batch_size: rows at a time; None = as configured.
      streams: of a left-to-right model: contiguous parts of each corpus's split, each of which starts without memory.
      memory_len, segment_len, clamp_len, same_length: of a left-to-right model: others than in training.
      factorization_order: of a permutation model: the order law of the targets; None = as in training.
      sliding: of a model with absolute positions: every token from a window of its own (`train.sliding`).
      overrides: elastic or free config keys to change, such as `--config.evaluation.batch_size=16`.

    Returns:
      `step` of the checkpoint, and see `train.evaluation.scores`.

    Raises:
      BadInput: no run or good checkpoint in `workdir`, a corpus without held-out documents or with another tokenizer,
        an option for left-to-right or permutation models with another objective.
    """
    rows = [] if batch_size is None else [f"--config.evaluation.batch_size={batch_size}"]
    config = workdirs.load_config(workdir, [*overrides, *rows])
    reach = {"memory_len": memory_len, "segment_len": segment_len, "clamp_len": clamp_len}
    config = under_law(as_asked(config, reach | {"same_length": same_length or None}, streams), factorization_order)
    make_recipe(config)  # refuses a fine-tuned model before a corpus is asked for
    heldout = open_mixture(config, "heldout", weighted=False)
    train = open_mixture(config, weighted=False, opened=heldout)
    workdirs.check_tokenizer(workdir, heldout)
    equal = {"the corpus (sha256)": heldout.sha256, "--step": step, "--blocks": blocks, "--workdir": workdir}
    equal |= {"--streams": streams, "--factorization_order": factorization_order}
    with session(config, equal) as processes, opened(config, processes) as model:
        score: SlidingLoss | HeldoutLoss
        if sliding:
            score = SlidingLoss(model.recipe, model.mesh, heldout, train.token_counts, blocks)
        else:
            score = HeldoutLoss(model.recipe, model.mesh, heldout, train.token_counts, blocks, streams or 0)
        params, found = model.restore(workdir, step)
        log.info("evaluating step %d over %s, after compiling", found, score.scope)
        return {"step": found, **score(params)}


def as_asked(config: Config, reach: dict[str, int | None], streams: int | None = None) -> Config:
    """The configuration with another memory, segment or bound on distances, which change no parameter.

    Raises BadInput.
    """
    given = [f"--{name}" for name, value in {**reach, "streams": streams}.items() if value is not None]
    if given and not config.data.left_to_right:
        raise BadInput(
            f"{given[0]} is for left-to-right models (data.objective=clm), but this one has data.objective="
            f"{config.data.objective}; leave it out"
        )
    if given and config.model.position_scheme == "absolute" and given != ["--streams"]:
        raise BadInput(f"{given[0]}: a model with model.position_scheme=absolute has its own lengths; leave it out")
    segment = ["data.segment_len", "data.reuse_len", "data.num_predict"]
    return configs.override(config, [
        f"--config.{key}={value}" for name, value in reach.items() if value is not None
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
        raise BadInput(f"--factorization_order is for permutation models (data.objective=plm); this one has "
                       f"data.objective={config.data.objective}; leave it out")  # fmt: skip
    T = config.data.segment_len
    fresh, predicted = LAWS[factorization_order].layout(T)
    keys = {"factorization_order": factorization_order, "reuse_len": fresh, "num_predict": predicted}
    return configs.override(config, [f"--config.data.{key}={value}" for key, value in keys.items()])
