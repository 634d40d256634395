"""Tables of optimizers and schedules, and the chain of transformations: gradient clip, optimizer,
learning rate of each layer.

The clip acts on the averaged gradient of the whole batch. With `adamw`, linear warm-up and linear
decay this is the optimizer of XLNet (appendix A.4).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.core import meta

from xlnet_jax.compat import CORRECT, CompatConfig, hooks
from xlnet_jax.config import OptimizerConfig
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.model.layers import Declared


def polynomial(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """Linear decay to the minimum."""
    peak = config.learning_rate
    return after_warmup(config, optax.linear_schedule(peak, peak * config.min_lr_ratio, steps))


def cosine(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """Decay to the minimum along half a period of a cosine."""
    return after_warmup(
        config, optax.cosine_decay_schedule(config.learning_rate, steps, config.min_lr_ratio)
    )


def wsd(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """Constant, then decay to the minimum in the last `decay_fraction` of the run (Hu et al. 2024,
    arXiv 2404.06395).
    """
    lowest = config.min_lr_ratio
    falling = max(1, round(config.decay_fraction * (steps + config.warmup_steps)))

    def decay(count: Any) -> jax.Array:
        x = jnp.clip((count - (steps - falling)) / falling, 0, 1)
        return config.learning_rate * (
            1 - (1 - lowest) * (jnp.sqrt(x) if config.decay_shape == "sqrt" else x)
        )

    return after_warmup(config, decay)


def after_warmup(config: OptimizerConfig, decay: optax.Schedule) -> optax.Schedule:
    """Linear warm-up from 0 to the peak, then `decay`."""
    if not config.warmup_steps:
        return decay
    w = config.warmup_steps
    return optax.join_schedules([optax.linear_schedule(0.0, config.learning_rate, w), decay], [w])


def inverse_sqrt(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """At the n-th update, n = 1, 2, ..., peak * min(n / w, sqrt(w / n)) with w steps of warm-up.

    With the peak (D w)^-0.5 the rate is D^-0.5 min(n^-0.5, n w^-1.5) (Vaswani et al. 2017,
    equation 3).
    """
    peak = config.learning_rate
    w = config.warmup_steps
    return lambda count: peak * jnp.minimum((count + 1) / w, jnp.sqrt(w / (count + 1)))


SCHEDULES: dict[str, Callable[[OptimizerConfig, int], optax.Schedule]] = {
    "polynomial": polynomial,
    "cosine": cosine,
    "wsd": wsd,
    "inverse_sqrt": inverse_sqrt,
}
"""Schedules by `optimizer.schedule`: functions of the configuration and of the number of good steps
after the warm-up.
"""


def schedule(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """Returns the learning rate as a function of the number of earlier good steps, in a run of
    `steps` steps.
    """
    return SCHEDULES[config.schedule](config, steps - config.warmup_steps)


def scale_layers(rate: float, boxed: Any) -> optax.GradientTransformation:
    """Multiplies updates at depth d by rate^(L-d), where L is the depth of the top layer; does not
    change updates of heads.
    """
    depths = meta.map_axis_meta(operator.attrgetter("depth"), boxed)
    top = max(filter(math.isfinite, jax.tree.leaves(depths)), default=0)

    def scale(x: jax.Array, box: Declared) -> jax.Array:
        depth = np.asarray(box.depth)
        if box.stacked:
            factor_L = rate ** jnp.asarray(top - depth, x.dtype)
            return x * factor_L.reshape(-1, *[1] * (x.ndim - 1))
        return x if depth > top else x * rate ** int(top - depth)

    return optax.stateless(lambda updates, _: jax.tree.map(scale, updates, boxed))


Row = tuple[optax.GradientTransformation, ...]


def adamw(config: OptimizerConfig, boxed: Any) -> Row:
    """Adam, bias-corrected, with decoupled weight decay (Loshchilov and Hutter 2017, arXiv
    1711.05101).
    """
    adam = optax.scale_by_adam(config.adam_b1, config.adam_b2, config.adam_epsilon)
    decays = meta.map_axis_meta(operator.attrgetter("decays"), boxed)
    return adam, optax.add_decayed_weights(config.weight_decay, decays)


def lamb(config: OptimizerConfig, boxed: Any) -> Row:
    """AdamW whose update has the norm of the parameters, layer by layer (You et al. 2019, arXiv
    1904.00962).
    """
    return *adamw(config, boxed), trust_ratio(boxed)


def trust_ratio(boxed: Any) -> optax.GradientTransformation:
    """Multiplies the update u of a parameter w by |w| / |u|, or by 1 if a norm is 0; in a stack,
    separately for each layer.

    Parameters without weight decay (LayerNorm and biases) are not scaled, as in the authors' code.
    """

    def norm(x: jax.Array, box: Declared) -> jax.Array:
        return jnp.sqrt(
            jnp.sum(jnp.square(x), axis=tuple(range(box.stacked, x.ndim)), keepdims=True)
        )

    def scale(u: jax.Array, w: jax.Array, box: Declared) -> jax.Array:
        if not box.decays:
            return u
        of_w = norm(w, box)
        of_u = norm(u, box)
        return u * jnp.where((of_w > 0) & (of_u > 0), of_w / jnp.where(of_u > 0, of_u, 1), 1)

    return optax.stateless(lambda updates, params: jax.tree.map(scale, updates, params, boxed))


NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of the Newton-Schulz iteration. After five iterations singular values are about 0.7
to 1.2 (Jordan et al. 2024).
"""


def muon(config: OptimizerConfig, boxed: Any) -> Row:
    """Orthogonalised momentum for the matrices (Jordan et al. 2024, "Muon"), Adam for other
    parameters.

    Both have decoupled weight decay and the same rate: an orthogonal update is scaled to the size
    of an update of Adam, root mean square 0.2 (Liu et al. 2025, arXiv 2502.16982, section 2.2).
    `optax.contrib.muon` is not used, because it gathers in each iteration. Compiled for 8 CPU
    devices with fsdp=8, the collectives of its update of 8 layers of width 64 move 16.4 MB per
    device; the update here moves 0.6 MB. Optax also corrects the bias of momentum: in float64 its
    second update differs by up to 16 %.
    """
    matrices = optax.chain(optax.trace(0.95, nesterov=True), orthogonal(boxed))
    adam, decay = adamw(config, boxed)

    def label(box: Any) -> str:
        return "matrix" if box.kind == "matrix" else "other"

    return optax.partition(
        {"matrix": matrices, "other": adam}, meta.map_axis_meta(label, boxed)
    ), decay


def orthogonal(boxed: Any) -> optax.GradientTransformation:
    """Replaces matrices [..., M, N] by the nearest matrices with equal singular values, about
    0.2 sqrt(max(M, N)).

    A stack of layers is moved once so that each layer is on one device; the result is moved back
    once.
    """

    def orthogonalize(box: Declared, x: Any) -> Any:
        if box.kind != "matrix":  # Adam updates it
            return x
        x_LMN = x.reshape(*(x.shape[:2] if box.stacked else (1, len(x))), -1)
        x_LMN = meshes.by_layer(x_LMN)
        M, N = x_LMN.shape[1:]
        x_LMN = jnp.swapaxes(x_LMN, 1, 2) if M > N else x_LMN
        x_LMN = x_LMN / (jnp.sqrt(jnp.sum(jnp.square(x_LMN), axis=(1, 2), keepdims=True)) + 1e-8)
        a, b, c = NEWTON_SCHULZ
        for _ in range(5):
            gram_LMM = jnp.einsum("lmn,lkn->lmk", x_LMN, x_LMN)
            x_LMN = a * x_LMN + jnp.einsum(
                "lmk,lkn->lmn", b * gram_LMM + c * gram_LMM @ gram_LMM, x_LMN
            )
        x_LMN = meshes.by_layer(0.2 * max(M, N) ** 0.5 * x_LMN)
        return (jnp.swapaxes(x_LMN, 1, 2) if M > N else x_LMN).reshape(x.shape)

    return optax.stateless(
        lambda updates, _: jax.tree.map(
            orthogonalize, boxed, updates, is_leaf=meta.is_axis_metadata
        )
    )


def freeze(
    unused: Collection[tuple[str, ...]], inner: optax.GradientTransformation
) -> optax.GradientTransformation:
    """Returns the transformation `inner` without updates of the `unused` parameters, whose moments
    stay the same.
    """

    def is_frozen(path: tuple) -> bool:
        names = tuple(entry.key for entry in path if isinstance(entry, jax.tree_util.DictKey))
        # The path of a moment is its name in the transformation, then the name of its parameter.
        return any(names[at:] in unused for at in range(len(names)))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        updates, new = inner.update(updates, state, params)
        updates = jax.tree_util.tree_map_with_path(
            lambda path, x: 0 * x if is_frozen(path) else x, updates
        )
        return updates, jax.tree_util.tree_map_with_path(
            lambda path, x, y: x if is_frozen(path) else y, state, new
        )

    return optax.GradientTransformation(inner.init, update)


class Average(NamedTuple):
    """The state of `exponential_average`; `checkpoint.restore` finds it by the name of its field
    `average`.
    """

    updates: jax.Array
    """int32: number of updates that the average covers."""
    average: Any
    """The averaged parameters; zeros before the first update."""


def exponential_average(decay: float) -> optax.GradientTransformation:
    """Averages the parameters w_n after each update and does not change the update. Must be the
    last transformation of a chain.

    a_n = a_{n-1} + s_n (w_n - a_{n-1}) with s_n = (1 - d) / (1 - d^n): the weights of w_n, w_{n-1},
    w_{n-2}, ... are 1, d, d^2, ... divided by their sum, as in Adam's corrected moments. The
    parameters before the first update have weight 0. For large n, a_n = d a_{n-1} + (1 - d) w_n.
    """

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Average]:
        n = state.updates + 1
        after = optax.apply_updates(params, updates)
        share = (1 - decay) / -jnp.expm1(n * math.log(decay))  # 1 - d^n has few digits in float32
        average = jax.tree.map(
            lambda a, w: a + share.astype(a.dtype) * (w - a), state.average, after
        )
        return updates, Average(n, average)

    return optax.GradientTransformation(
        lambda params: Average(jnp.zeros((), jnp.int32), optax.tree.zeros_like(params)), update
    )


OPTIMIZERS: dict[str, Callable[[OptimizerConfig, Any], Row]] = {
    "adamw": adamw,
    "lamb": lamb,
    "muon": muon,
}
"""Transformations by `optimizer.name`, from the clipped gradient to the update at learning rate 1.
Checkpoints name the state of a transformation by its number in the chain, so the number of
transformations in a row must not change.
"""


def make_optimizer(
    config: OptimizerConfig,
    steps: int,
    boxed: Any,
    compat: CompatConfig = CORRECT,
    unused: Collection[tuple[str, ...]] = (),
) -> optax.GradientTransformation:
    """Chains clip, row of `OPTIMIZERS`, layer-wise decay, learning rate and average, in float32.

    With L layers the embeddings learn at layer_decay^L of the rate. `boxed` has the box of each
    parameter (`layers.Declared`), which decides its weight decay, rate and optimizer. Parameters in
    `unused` do not change.
    """
    chain = [
        optax.clip_by_global_norm(config.clip) if config.clip else optax.identity(),
        # Placeholder for `layer_decay_on_gradients` (compat); always present, because checkpoints
        # number the transformations.
        optax.identity(),
        *OPTIMIZERS[config.name](config, boxed),
        scale_layers(config.layer_decay, boxed),
        optax.scale_by_learning_rate(schedule(config, steps)),
    ]
    chain = hooks.chain(compat, config, boxed, chain)
    average = [exponential_average(config.average)] if config.average else []
    return optax.chain(*(freeze(unused, each) for each in chain), *average)
