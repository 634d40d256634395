"""The training state: everything that an exact resume needs from a checkpoint, except the data
plan.

A checkpoint holds the state as named trees: `params`, `optimizer`, `memory`, and every other member
under `counters`.
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
    """The training state, a pytree; a step returns a new State."""

    params: Any
    """Parameters, float32."""
    opt_state: optax.OptState
    """State of the optimizer, float32. Its step count, which sets the learning rate, excludes
    skipped steps.
    """
    memory: Any
    """The memory that a step hands to the next step: a `Memory`, another pytree, or ()."""
    step: jax.Array
    """int32: segments consumed. Every step adds 1, and the data is a function of this number."""
    skipped: jax.Array
    """int32: bad steps so far, non-finite or spikes."""
    consecutive_bad: jax.Array
    """int32: bad steps since the last good step."""
    loss_mean: jax.Array
    """float32: running mean of the losses of the last `train.spike_window` good steps."""
    loss_variance: jax.Array
    """float32: running variance of the same losses."""

    def split(self, memory: bool = True) -> dict[str, Any]:
        """Returns the named trees of a checkpoint (arrays or abstract). The memory is left out if
        it is empty or if `memory` is false.
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
        """The parameters to evaluate: if `averaged`, their average, which is the last state of the
        optimizer (`optimizer.average`).
        """
        states: Any = self.opt_state
        return states[-1].average if averaged else self.params

    @staticmethod
    def join(trees: dict[str, Any]) -> State:
        """The inverse of `split`; `memory` is needed, as a `Memory` or as in a checkpoint."""
        memory = trees["memory"]
        if isinstance(memory, dict) and memory.keys() == {"hidden", "valid"}:
            memory = Memory(memory["hidden"], memory["valid"])
        return State(trees["params"], trees["optimizer"], memory, **trees["counters"])


MUST_BE_FINITE = ("params", "optimizer")
"""Trees of `State.split` that must be finite in a checkpoint. A non-finite memory or mean loss
recovers in later steps.
"""


def init_state(recipe: Recipe, params: Any, rows: int | None = None) -> State:
    """The state before the first step, with parameters and memory in Flax's boxes.

    `rows` is the number of rows of the memory, including rows of weight 0; None =
    `train.batch_size`.
    """
    memory = recipe.model.carried(rows or recipe.config.train.batch_size)
    # A separate array for each counter: donated buffers must not be shared.
    zeros = (jnp.zeros((), dtype) for dtype in [jnp.int32] * 3 + [jnp.float32] * 2)
    return State(params, recipe.optimizer.init(params), memory, *zeros)
