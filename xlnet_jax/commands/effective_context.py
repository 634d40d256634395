"""`xlnet-jax evaluate --context`: how far back one or several left-to-right models look."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from xlnet_jax.commands.evaluate import as_asked, configured, held_out
from xlnet_jax.distributed.processes import session
from xlnet_jax.errors import BadInput
from xlnet_jax.infer.opened import Stored, opened
from xlnet_jax.run import loss_curve
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.train import sliding as contexts

log = logging.getLogger("xlnet_jax")

TARGETS = 2000
"""Tokens that are scored with every length."""


def context(
    workdir: str, *, against: Sequence[str] = (), step: int | None = None, batch_size: int | None = None,
    targets: int = TARGETS, overrides: Sequence[str] = (), **reach: Any,
) -> dict[str, Any]:  # fmt: skip
    """Scores the same held-out tokens with contexts of 1, 2, 4, ... tokens, up to the smallest memory + segment.

    Args:
      against: work directories of other models with the same tokenizer; the baseline is the best of all.
      targets: number of tokens, evenly spaced in the held-out split of the first model's corpus.
      step, batch_size, overrides, reach: of all models; see `evaluate`.

    Returns:
      `targets`, `lengths`, `models`: by work directory the `step` and `train.sliding.described`; `picture`.

    Raises:
      BadInput: see `evaluate`; a model that is not left to right, another tokenizer, a split shorter than the context.
    """
    folders = dict.fromkeys([workdir, *against])
    configs = {name: as_asked(configured(name, overrides, batch_size), reach) for name in folders}
    for name, config in configs.items():
        if not config.data.left_to_right:
            raise BadInput(
                f"--context is for left-to-right models (data.objective=clm), but {name} has data.objective="
                f"{config.data.objective}"
            )
    heldout = held_out(workdir, configs[workdir])
    for name in against:
        workdirs.check_tokenizer(name, heldout)
    lengths = contexts.doubling(min(config.model.memory_len + config.data.segment_len for config in configs.values()))
    windows_NX = contexts.windows(heldout, lengths[-1], targets)
    equal = {"the corpus (sha256)": heldout.sha256, "--step": step, "--workdir": workdir, "--against": list(against)}
    steps, losses = [], []
    with session(configs[workdir], equal) as processes:
        for name, config in configs.items():
            with opened(Stored(name, config, heldout.tokenizer), step, processes=processes) as model:
                log.info("scoring %d tokens of step %d of %s with up to %d before them", len(windows_NX), model.step,
                         name, lengths[-1])  # fmt: skip
                steps.append(model.step)
                losses.append(contexts.losses(model.recipe, model.mesh, model.params, windows_NX, lengths))
            del model  # two do not fit into memory
        described = contexts.described(lengths, np.stack(losses))
        models = {name: {"step": at, **each} for name, at, each in zip(folders, steps, described, strict=True)}
        curves = {name: each["loss"] for name, each in models.items()}
        picture = loss_curve.draw_context(workdir, lengths, curves) if jax.process_index() == 0 else None
        return {"targets": len(windows_NX), "lengths": lengths, "models": models, "picture": picture}
