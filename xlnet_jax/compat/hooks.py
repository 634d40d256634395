"""The hooks of the originals in the model, the step, the gradient and the optimizer; see
`xlnet_jax.compat`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from xlnet_jax.compat import CompatConfig
from xlnet_jax.errors import BadInput

OUTSIDE_LAYERS = frozenset({"content_bias", "position_bias", "segment_bias", "segment_embedding"})
"""Layer parameters that were one variable of all layers in 2019 (`r_w_bias` and so on), outside of
`layer_0`.
"""

SESSION_STEPS = 1000
"""Steps of a session call (`iterations` of the 2019 code), which starts with a memory of zeros."""


def mask_initializer(compat: CompatConfig, width: int) -> Any:
    """Returns the initialiser of the query stream's first vector; None = the initialiser of all
    vectors.

    `glorot_mask_embedding` is TensorFlow's default for a [1, 1, D] variable: the original sets no
    initialiser for its mask_emb.
    """
    if not compat.on("glorot_mask_embedding"):
        return None
    bound = (6 / (1 + width)) ** 0.5
    return lambda *args: jax.random.uniform(*args, minval=-bound, maxval=bound)


def position_masks(compat: CompatConfig, rows_B: jax.Array) -> jax.Array:
    """Returns the keys of the dropout masks on the position table: a single key, or with
    `position_dropout_per_row` a key per row.
    """
    return rows_B if compat.on("position_dropout_per_row") else jnp.zeros(1, jnp.int32)


def seen_slots(
    compat: CompatConfig, hidden_LBMD: jax.Array, filled_BM: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns the memory, and which slots are seen: the filled slots; with `zero_memory` all slots,
    with zeros in the empty slots.
    """
    if not compat.on("zero_memory"):
        return hidden_LBMD, filled_BM
    return jnp.where(filled_BM[None, :, :, None], hidden_LBMD, 0), jnp.ones_like(filled_BM)


def empty_slots(compat: CompatConfig) -> int | None:
    """Returns the number of slots of an empty memory: 0, because no position sees them; with
    `zero_memory` None, for all slots.
    """
    return None if compat.on("zero_memory") else 0


def check_cache(compat: CompatConfig, path: str) -> None:
    """Raises BadInput for a model that needs more than the keys and values of visible positions."""
    if compat.on("zero_memory"):
        raise BadInput(
            f"{path}: zero_memory in compat.switches does not work with a cache, "
            "which has no empty slots"
        )


def before_step(compat: CompatConfig, memory: Any, step: jax.Array) -> Any:
    """Returns the memory of a step; `zero_memory` empties it at the first step of a session."""
    if not compat.on("zero_memory"):
        return memory
    return jax.tree.map(lambda x: jnp.where(step % SESSION_STEPS == 0, 0, x), memory)


def by_cores(
    recipe: Any, mean_loss: Any, params: Any, rows: tuple, dropout_key: jax.Array
) -> tuple | None:
    """Returns with `core_clip` the gradient of a step, from `compat.cores` equal groups of
    consecutive rows; else None.

    Each core averages over its own targets, scales by 1 / cores, and clips the result to the whole
    bound; then the gradients of the cores are summed. So a target weighs more in a core with fewer
    targets, and a gradient hardly ever reaches the bound.
    """
    compat = recipe.config.compat
    bound = recipe.config.optimizer.clip or jnp.inf
    if not compat.on("core_clip"):
        return None

    def core(summed: Any, rows: tuple) -> tuple[Any, Any]:
        batch, memory, rows_B = rows
        results, grads = of_rows(params, recipe.model, batch, memory, dropout_key, rows_B)
        share = jax.tree.map(lambda g: g / compat.cores, grads)
        norm = optax.tree.norm(share)
        factor = jnp.where(norm > bound, bound / norm, 1)
        return jax.tree.map(lambda s, g: s + g * factor, summed, share), results

    of_rows = jax.value_and_grad(mean_loss, has_aux=True)
    zeros = jax.tree.map(jnp.zeros_like, params)
    grads, (loss_C, losses_C) = jax.lax.scan(core, zeros, recipe.split_rows(rows, compat.cores, 0))
    return (loss_C.mean(), recipe.join_rows(losses_C, 0)), grads


def chain(compat: CompatConfig, config: Any, boxed: Any, default: list) -> list:
    """Returns the transformations of the optimizer, in the order of `default`: clip, no change,
    update rule, rates by layers, learning rate.
    """
    clip, before, *named, by_layers, rate = default
    if compat.on("core_clip"):  # each core's gradient is clipped already
        clip = optax.identity()
    if compat.on("no_bias_correction"):
        named[0] = adam(config)
    if compat.on("layer_decay_on_gradients"):
        before, by_layers = in_layers(by_layers, boxed), before
    return [clip, before, *named, by_layers, rate]


def adam(config: Any) -> optax.GradientTransformation:
    """Returns the AdamW of the 2019 code: m / (sqrt(v) + epsilon) with raw moments, so that its
    first steps are larger.

    Without weight decay it is TensorFlow's Adam, as in the 2019 code: at update t the quotient is
    multiplied by sqrt(1 - b2^t) / (1 - b1^t). Its epsilon is the "epsilon hat" of Kingma and Ba,
    section 2.
    """
    b1 = config.adam_b1
    b2 = config.adam_b2

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, optax.ScaleByAdamState]:
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, updates)
        nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, state.nu, updates)
        count = state.count + 1
        factor = (
            jnp.sqrt(1 - b2**count) / (1 - b1**count) if not config.weight_decay else jnp.ones(())
        )
        scaled = jax.tree.map(
            lambda m, v: factor.astype(m.dtype) * m / (jnp.sqrt(v) + config.adam_epsilon), mu, nu
        )
        return scaled, optax.ScaleByAdamState(count=count, mu=mu, nu=nu)

    return optax.GradientTransformation(optax.scale_by_adam().init, update)


def in_layers(by_layers: optax.GradientTransformation, boxed: Any) -> optax.GradientTransformation:
    """Restricts `by_layers` to parameters with a layer in their 2019 name: no embeddings, no
    relative biases.
    """

    def update(updates: Any, _: Any) -> Any:
        scaled, _ = by_layers.update(updates, optax.EmptyState())
        return jax.tree.map_with_path(
            lambda path, x, scaled, box: (
                scaled if box.stacked and path[-1].key not in OUTSIDE_LAYERS else x
            ),
            updates,
            scaled,
            boxed,
        )

    return optax.stateless(update)
