"""`xlnet-jax evaluate --context`: how far back one or several left-to-right models look."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from xlnet_jax.commands.evaluate import as_asked
from xlnet_jax.config import Config
from xlnet_jax.data.batches.mixture import open_mixture
from xlnet_jax.distributed.processes import Session, session
from xlnet_jax.errors import BadInput
from xlnet_jax.infer.opened import opened
from xlnet_jax.run import loss_curve
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.train import effective_context as contexts

log = logging.getLogger("xlnet_jax")

TARGETS = 2000
"""Tokens that are scored with every length."""


def context(
    workdir: str, *, against: Sequence[str] = (), step: int | None = None, batch_size: int | None = None,
    memory_len: int | None = None, segment_len: int | None = None, clamp_len: int | None = None,
    same_length: bool = False, targets: int = TARGETS, overrides: Sequence[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """Scores the same held-out tokens with contexts of 1, 2, 4, ... tokens, up to the least memory + segment.

    Args:
      against: work directories of other models with the same tokenizer; the baseline is the best of all.
      targets: number of tokens, evenly spaced in the held-out split of the first model's corpus.
      step, batch_size, memory_len, segment_len, clamp_len, same_length, overrides: of all models; see `evaluate`.

    Returns:
      `targets`, `lengths`, `models`: by work directory the `step` and `train.effective_context.described`; `picture`.

    Raises:
      BadInput: see `evaluate`; a model that is not left to right, another tokenizer, a split shorter than the context.
    """
    rows = [] if batch_size is None else [f"--config.evaluation.batch_size={batch_size}"]
    reach = {"memory_len": memory_len, "segment_len": segment_len, "clamp_len": clamp_len,
             "same_length": same_length or None}  # fmt: skip
    folders = list(dict.fromkeys([workdir, *against]))
    configs = {name: as_asked(workdirs.load_config(name, [*overrides, *rows]), reach) for name in folders}
    for name, config in configs.items():
        if not config.data.left_to_right:
            raise BadInput(
                f"--context is for left-to-right models (data.objective=clm), but {name} has data.objective="
                f"{config.data.objective}"
            )
    first = configs[workdir]
    heldout = open_mixture(first, "heldout", weighted=False)
    for name in folders:
        workdirs.check_tokenizer(name, heldout)
    steps = contexts.doubling(min(config.model.memory_len + config.data.segment_len for config in configs.values()))
    windows_NX = contexts.windows(heldout, steps[-1], targets)
    equal = {"the corpus (sha256)": heldout.sha256, "--step": step, "--workdir": workdir, "--against": list(against)}
    with session(first, equal) as processes:
        scored = {name: _losses(name, config, step, windows_NX, steps, processes) for name, config in configs.items()}
        found = contexts.described(steps, np.stack([loss_CN for _, loss_CN in scored.values()]))
        models = {name: {"step": scored[name][0], **each} for name, each in zip(folders, found, strict=True)}
        curves = {name: each["loss"] for name, each in models.items()}
        picture = loss_curve.draw_context(workdir, steps, curves) if jax.process_index() == 0 else None
        return {"targets": len(windows_NX), "lengths": steps, "models": models, "picture": picture}


def _losses(
    workdir: str, config: Config, step: int | None, windows_NX: np.ndarray, lengths: Sequence[int], processes: Session
) -> tuple[int, np.ndarray]:
    """The step of the checkpoint, and see `train.effective_context.losses`."""
    with opened(config, processes) as model:
        params, found = model.restore(workdir, step)
        log.info(
            "scoring %d tokens of step %d of %s with up to %d before them", len(windows_NX), found, workdir, lengths[-1]
        )
        return found, contexts.losses(model.recipe, model.mesh, params, windows_NX, lengths)
