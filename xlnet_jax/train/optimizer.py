"""AdamW with a clipped global gradient, linear warm-up and linear or cosine decay (XLNet, appendix A.4).

The clip acts on the averaged gradient of the whole batch. Adam is bias-corrected. What the 2019 code did differently
(per-core clipping, no bias correction) is described in docs/training.md.
"""

from __future__ import annotations

from typing import Any

import jax
import optax

from xlnet_jax.config import OptimizerConfig


def schedule(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """Learning rate by the number of good steps before: 0 at first, its peak after the warm-up, then to its minimum."""
    rest = steps - config.warmup_steps
    if config.schedule == "cosine":
        decay = optax.cosine_decay_schedule(config.learning_rate, rest, config.min_lr_ratio)
    else:
        decay = optax.linear_schedule(config.learning_rate, config.learning_rate * config.min_lr_ratio, rest)
    if not config.warmup_steps:
        return decay
    warmup = optax.linear_schedule(0.0, config.learning_rate, config.warmup_steps)
    return optax.join_schedules([warmup, decay], [config.warmup_steps])


def decay_mask(params: Any) -> Any:
    """True where weight decay acts: all but LayerNorm and the biases of dense layers and of the softmax.

    The relative biases u, v, w and the embeddings are decayed, as in the original.
    """
    spared = {"scale", "bias", "lm_bias"}

    def decayed(path: tuple, _: Any) -> bool:
        # The last dictionary key: at initialisation the arrays still sit in Flax's boxes.
        return [entry.key for entry in path if isinstance(entry, jax.tree_util.DictKey)][-1] not in spared

    return jax.tree_util.tree_map_with_path(decayed, params)


def make_optimizer(config: OptimizerConfig, steps: int) -> optax.GradientTransformation:
    """Clip, Adam, decoupled weight decay, learning rate; all in float32."""
    return optax.chain(
        optax.clip_by_global_norm(config.clip) if config.clip else optax.identity(),
        optax.scale_by_adam(config.adam_b1, config.adam_b2, config.adam_epsilon),
        optax.add_decayed_weights(config.weight_decay, mask=decay_mask),
        optax.scale_by_learning_rate(schedule(config, steps)),
    )
