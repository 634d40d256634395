"""The training state: everything that an exact resume needs in a checkpoint, except the data plan.

A checkpoint holds it as named trees: `params`, `optimizer`, `memory`, and every other member under
`counters`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from xlnet_jax.batch import Memory
from xlnet_jax.train.recipe import Recipe


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """A pytree; the step functions return a new one."""

    params: Any
    """float32."""
    opt_state: optax.OptState
    """float32; its schedule count leaves out skipped steps."""
    memory: Any
    """What a step hands to the next one: a `Memory`, another pytree, or ()."""
    step: jax.Array
    """int32: segments consumed; every step adds 1, and the data is a function of it."""
    skipped: jax.Array
    """int32: bad steps so far: non-finite ones and spikes."""
    consecutive_bad: jax.Array
    """int32: bad steps since the last good one."""
    loss_mean: jax.Array
    """float32: running mean of the good steps' losses, over `train.spike_window` of them."""
    loss_variance: jax.Array
    """float32: running variance of the same losses."""

    def split(self, memory: bool = True) -> dict[str, Any]:
        """The named trees of a checkpoint (arrays or abstract), without the memory if so asked or
        if it is empty.
        """
        counters = dict(vars(self))
        trees = {"params": counters.pop("params"), "optimizer": counters.pop("opt_state")}
        carried = counters.pop("memory")
        sizes = [leaf.size for leaf in jax.tree.leaves(carried)]
        if memory and sizes and all(sizes):
            if isinstance(carried, Memory):
                carried = {"hidden": carried.hidden_LBMD, "valid": carried.valid_B}
            trees["memory"] = carried
        return trees | {"counters": counters}

    def evaluated(self, averaged: bool) -> Any:
        """The parameters, or their average, which is the last state of the optimizer
        (`optimizer.average`).
        """
        states: Any = self.opt_state
        return states[-1].average if averaged else self.params

    @staticmethod
    def join(trees: dict[str, Any]) -> State:
        """The inverse of `split`; `memory` must be among the trees, as it was or as stored."""
        memory = trees["memory"]
        if isinstance(memory, dict) and memory.keys() == {"hidden", "valid"}:
            memory = Memory(memory["hidden"], memory["valid"])
        return State(trees["params"], trees["optimizer"], memory, **trees["counters"])


MUST_BE_FINITE = ("params", "optimizer")
"""Trees of `State.split` that make a checkpoint useless if not finite. A memory or a mean of losses
recovers.
"""


def init_state(recipe: Recipe, params: Any, rows: int | None = None) -> State:
    """The state before the first step, of fresh parameters. Boxed; `flax.linen.meta.unbox` gives
    the arrays.
    The memory has `rows`, those of weight 0 included; None = `train.batch_size`.
    """
    memory = recipe.model.carried(rows or recipe.config.train.batch_size)
    # One array each: donated buffers must not be shared.
    zeros = (jnp.zeros((), dtype) for dtype in [jnp.int32] * 3 + [jnp.float32] * 2)
    return State(params, recipe.optimizer.init(params), memory, *zeros)
