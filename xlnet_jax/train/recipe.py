"""From a configuration to everything that computes with it, built once and passed on.

Training, evaluation, export, inspection and the compiler for absent devices take the same Recipe. To use another model,
head, loss or optimizer, change this file; the step and the loop do not change.
"""

from __future__ import annotations

import dataclasses

import jax
import optax

from xlnet_jax.config import Config
from xlnet_jax.errors import BadInput
from xlnet_jax.model import flops
from xlnet_jax.model.transformer import XLNet
from xlnet_jax.train.loss import LanguageModel
from xlnet_jax.train.optimizer import make_optimizer, schedule


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The functions of one configuration. Holds no array, and does not depend on a mesh."""

    config: Config
    model: LanguageModel
    """The module with its head, and the losses of a segment (`row_losses`; `train.loss.mean_loss` divides them)."""
    optimizer: optax.GradientTransformation
    learning_rate: optax.Schedule
    """By the number of earlier good steps; the optimizer uses the same."""
    flops_per_step: int
    """FLOPs of one optimizer step of the whole batch."""


def make_recipe(config: Config) -> Recipe:
    """Builds everything; touches no device. Raises BadInput if JAX would compute in another precision."""
    if config.model.compute_dtype == "float64" and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        raise BadInput("model.compute_dtype=float64 needs 64-bit JAX; set the environment variable JAX_ENABLE_X64=1")
    model = LanguageModel(XLNet(config.model, config.data.reuse_len, config.compat, config.data.objective == "plm"))
    return Recipe(
        config=config,
        model=model,
        optimizer=make_optimizer(config.optimizer, config.train.steps, model.depths, config.compat),
        learning_rate=schedule(config.optimizer, config.train.steps),
        flops_per_step=flops.step_flops(config),
    )
