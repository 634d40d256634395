"""Optimizers and schedules, each a row of a table; around them the clip of the gradient and the rates of the layers.

The clip acts on the averaged gradient of the whole batch. With `adamw`, linear warm-up and linear decay this is XLNet's
(appendix A.4). docs/compat.md describes the differences of the 2019 code (per-core clipping, no bias correction,
layer-wise decay of gradients).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from xlnet_jax.config import CORRECT, CompatConfig, OptimizerConfig
from xlnet_jax.model.transformer import Depths

SCHEDULES: dict[str, Callable[[OptimizerConfig, int], optax.Schedule]] = {
    "polynomial": lambda config, steps: optax.linear_schedule(
        config.learning_rate, config.learning_rate * config.min_lr_ratio, steps
    ),
    "cosine": lambda config, steps: optax.cosine_decay_schedule(config.learning_rate, steps, config.min_lr_ratio),
}
"""By `optimizer.schedule`: the rate after the warm-up, which the rest of the run, so many steps, brings down."""


def schedule(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """Learning rate by the number of earlier good steps: from 0 to its peak in the warm-up, then to its minimum."""
    decay = SCHEDULES[config.schedule](config, steps - config.warmup_steps)
    if not config.warmup_steps:
        return decay
    warmup = optax.linear_schedule(0.0, config.learning_rate, config.warmup_steps)
    return optax.join_schedules([warmup, decay], [config.warmup_steps])


def decay_mask(params: Any) -> Any:
    """True where weight decay acts: everywhere except LayerNorm and the biases of products and of the softmax.

    The relative biases u, v, w and the embeddings are decayed, as in the original.
    """
    spared = {"scale", "bias", *(f"{name}_bias" for name in ("query", "key", "value", "output"))}
    return jax.tree_util.tree_map_with_path(lambda path, _: _names(path)[-1] not in spared, params)


OUTSIDE_LAYERS = frozenset({"content_bias", "position_bias", "segment_bias", "segment_embedding"})
"""Parameters of a layer that were one variable for all layers in 2019, `r_w_bias` and so on, beside `layer_0`."""


def scale_layers(rate: float, depths: Depths, as_in_2019: bool = False) -> optax.GradientTransformation:
    """Multiplies updates at depth d by rate^(L-d), where L is the depth of the top layer; heads keep theirs.

    With `as_in_2019` only what had a layer in its name in the 2019 code: no embeddings, no relative biases. Its `init`
    raises ValueError if a parameter has no depth: it would learn at a rate that nobody chose.
    """
    top = max((d for depth in depths.values() for d in np.ravel(depth) if math.isfinite(d)), default=0)

    def check(params: Any) -> optax.EmptyState:
        paths = map(_names, (path for path, _ in jax.tree_util.tree_leaves_with_path(params)))
        if missing := sorted({"/".join(path) for path in paths if path[0] not in depths}):
            raise ValueError(f"no depth is stated for {', '.join(missing)}; add it to `depths` of its module")
        return optax.EmptyState()

    def scale(path: tuple, x: jax.Array) -> jax.Array:
        names = _names(path)
        depth = np.asarray(depths[names[0]])
        if as_in_2019 and (not depth.ndim or names[-1] in OUTSIDE_LAYERS):
            return x
        if depth.ndim:
            factor_L = rate ** jnp.asarray(top - depth, x.dtype)
            return x * factor_L.reshape(-1, *[1] * (x.ndim - 1))
        return x if depth > top else x * rate ** int(top - depth)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        return jax.tree_util.tree_map_with_path(scale, updates), state

    return optax.GradientTransformation(check, update)


def _names(path: tuple) -> list[str]:
    """The dictionary keys of a path; at initialisation the path also has entries of Flax's boxes."""
    return [entry.key for entry in path if isinstance(entry, jax.tree_util.DictKey)]


def adam_of_2019(b1: float, b2: float, epsilon: float, corrected: bool) -> optax.GradientTransformation:
    """m / (sqrt(v) + epsilon) with raw moments: the AdamW of the 2019 code, whose first steps are larger.

    Args:
      corrected: TensorFlow's Adam, which that code used without weight decay: at the t-th update the quotient times
        sqrt(1 - b2^t) / (1 - b1^t); its epsilon is the "epsilon hat" of Kingma and Ba, section 2.
    """

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, optax.ScaleByAdamState]:
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, updates)
        nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, state.nu, updates)
        count = state.count + 1
        factor = jnp.sqrt(1 - b2**count) / (1 - b1**count) if corrected else jnp.ones(())
        scaled = jax.tree.map(lambda m, v: factor.astype(m.dtype) * m / (jnp.sqrt(v) + epsilon), mu, nu)
        return scaled, optax.ScaleByAdamState(count=count, mu=mu, nu=nu)

    return optax.GradientTransformation(optax.scale_by_adam().init, update)


def adamw(config: OptimizerConfig, compat: CompatConfig) -> tuple[optax.GradientTransformation, ...]:
    """Adam, bias-corrected, with decoupled weight decay (Loshchilov and Hutter 2017, arXiv 1711.05101)."""
    raw, moments = compat.on("no_bias_correction"), (config.adam_b1, config.adam_b2, config.adam_epsilon)
    adam = adam_of_2019(*moments, corrected=not config.weight_decay) if raw else optax.scale_by_adam(*moments)
    return adam, optax.add_decayed_weights(config.weight_decay, mask=decay_mask)


OPTIMIZERS: dict[str, Callable[[OptimizerConfig, CompatConfig], tuple[optax.GradientTransformation, ...]]] = {
    "adamw": adamw,
}
"""By `optimizer.name`: from the clipped gradient to the update at rate 1. Checkpoints name the state of each of these
transformations by its number in the chain, so a row keeps how many it has."""


def make_optimizer(
    config: OptimizerConfig, steps: int, depths: Depths, compat: CompatConfig = CORRECT
) -> optax.GradientTransformation:
    """Clip, the row of `OPTIMIZERS`, learning rate, all in float32; layer-wise decay is a rate of each layer.
    With L layers the embeddings learn at layer_decay^L of the rate.
    """
    on_gradients = compat.on("layer_decay_on_gradients")
    # With core_clip each core's gradient is clipped already.
    clip = config.clip and not compat.on("core_clip")
    decay = config.layer_decay
    return optax.chain(
        optax.clip_by_global_norm(config.clip) if clip else optax.identity(),
        scale_layers(decay, depths, as_in_2019=True) if on_gradients else optax.identity(),
        *OPTIMIZERS[config.name](config, compat),
        optax.identity() if on_gradients else scale_layers(decay, depths),
        optax.scale_by_learning_rate(schedule(config, steps)),
    )
