"""A step trains on one segment; a dispatch runs K steps on the devices.

`build_step` has the only `jax.jit` of training: every run uses its program.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from xlnet_jax.compat import hooks
from xlnet_jax.config import Config
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.run.programs import compiler_options
from xlnet_jax.train import gradients
from xlnet_jax.train import state as states
from xlnet_jax.train.recipe import Recipe
from xlnet_jax.train.state import State


class BuiltStep(NamedTuple):
    """The jitted training step of a recipe on a mesh, with the shapes and shardings of its
    arguments.
    """

    recipe: Recipe
    mesh: Mesh
    jitted: Any
    """(State, batch [K, B, ...], `dropout_seed`) -> (State, metrics with a leading axis K); the
    State is donated.
    """
    abstract_state: State
    """Shapes, dtypes and shardings of the State."""
    logical: State
    """The abstract state as in a checkpoint: without packed arrays (`mesh.pack`)."""
    abstract_batch: Any
    """Shapes, dtypes and shardings of K stacked batches."""
    rows: int
    """Number of rows of a batch on the devices: `train.batch_size`, plus the rows of weight 0 that
    `train.elastic` adds.
    """

    @property
    def dropout_seed(self) -> np.uint32:
        """The seed of all dropout masks: an argument, so that one program serves all seeds."""
        return np.uint32(self.recipe.config.seeds.dropout)


def train_step(
    recipe: Recipe, dropout_seed: Any, state: State, batch: Any
) -> tuple[State, dict[str, jax.Array]]:
    """Runs forward pass, backward pass and update on a segment of the global batch. Metrics are
    scalars, except `rows_B`.
    """
    config = recipe.config
    memory, dropout_key = _inputs(config, dropout_seed, state.memory, state.step)
    (loss, aux), grads = gradients.of_step(recipe, state.params, batch, memory, dropout_key)
    grad_norm = optax.tree.norm(grads)
    updates, opt_state = recipe.optimizer.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)

    # A bad step consumes its data but changes no parameter. Its memory may be wrong and is emptied.
    is_good = jnp.isfinite(loss) & jnp.isfinite(grad_norm) & ~_is_spike(config, state, loss)
    good = State(
        params,
        opt_state,
        aux.memory,
        state.step + 1,
        state.skipped,
        jnp.zeros_like(state.skipped),
        *_running_moments(config, state, loss),
    )
    bad = dataclasses.replace(
        state,
        memory=jax.tree.map(jnp.zeros_like, state.memory),
        step=state.step + 1,
        skipped=state.skipped + 1,
        consecutive_bad=state.consecutive_bad + 1,
    )
    new_state = jax.tree.map(lambda a, b: jnp.where(is_good, a, b), good, bad)
    sums = aux.sums
    metrics = {
        "loss": loss,
        "grad_norm": grad_norm,
        "learning_rate": jnp.asarray(recipe.learning_rate(_good_steps(state)), jnp.float32),
        "targets": sums[recipe.first_loss][1].sum(),
        "skipped": new_state.skipped,
        "consecutive_bad": new_state.consecutive_bad,
    }
    if len(sums) > 1:
        divisors = recipe.model.divisors(batch)
        means = {
            name: sum_B.sum() / jnp.maximum(divisors[name], 1) for name, (sum_B, _) in sums.items()
        }
        # `loss` always names the loss that evaluations score.
        metrics |= {"total_loss": loss, "loss": means.pop(recipe.first_loss)}
        metrics |= {f"loss_{name}": mean for name, mean in means.items()}
    if len(config.data.folders()) > 1:
        # The host sums these losses by corpus: only the host has the corpus of each row.
        metrics["rows_B"] = sums[recipe.first_loss]
    return new_state, metrics


def next_memory(
    recipe: Recipe, dropout_seed: Any, params: Any, memory: Any, step: jax.Array, batch: Any
) -> Any:
    """Returns the memory after a step; does not update the parameters."""
    memory, dropout_key = _inputs(recipe.config, dropout_seed, memory, step)
    return recipe.model.row_losses(params, batch, memory, dropout_key).memory


def _good_steps(state: State) -> jax.Array:
    return state.step - state.skipped


def _is_spike(config: Config, state: State, loss: jax.Array) -> jax.Array:
    """Whether a loss is more than `train.spike_zscore` standard deviations above the mean. Always
    False in the first `train.spike_window` good steps.
    """
    if not config.train.spike_zscore:
        return jnp.zeros((), bool)
    known = _good_steps(state) >= config.train.spike_window
    above = loss.astype(jnp.float32) - state.loss_mean
    return known & (above > config.train.spike_zscore * jnp.sqrt(state.loss_variance))


def _running_moments(config: Config, state: State, loss: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns mean and variance of the good losses including `loss`: equally weighted in the first
    `train.spike_window` good steps, then exponentially weighted over this window.

    They are updated even if spikes are not checked, so that any later start can enable the check.
    """
    share = 1 / jnp.minimum(_good_steps(state) + 1, config.train.spike_window).astype(jnp.float32)
    off = loss.astype(jnp.float32) - state.loss_mean
    return state.loss_mean + share * off, (1 - share) * (state.loss_variance + share * off * off)


def _inputs(
    config: Config, dropout_seed: Any, memory: Any, step: jax.Array
) -> tuple[Any, jax.Array]:
    """The memory that a step reads, and the dropout key of the step."""
    memory = hooks.before_step(config.compat, memory, step)
    return memory, jax.random.fold_in(jax.random.key(dropout_seed), step)


def build_step(recipe: Recipe, mesh: Mesh) -> BuiltStep:
    """Jits a scan of K steps for a mesh, with fixed shardings of State and Batch. Compiles nothing.

    Raises BadInput if the compiler refuses an option of `train.compiler_options`.
    """
    rows = meshes.training_rows(recipe.config.train, mesh)
    boxed = logical = jax.eval_shape(
        lambda params: states.init_state(recipe, params, rows), recipe.abstract_params
    )
    split = meshes.split_of(recipe.config, boxed.params, mesh.shape)
    packed = meshes.pack({"params": boxed.params, "opt_state": boxed.opt_state}, mesh.shape, split)
    boxed = dataclasses.replace(boxed, **packed)
    state_shardings = dataclasses.replace(
        meshes.shardings(boxed, mesh), **meshes.shardings(packed, mesh, split)
    )
    batch_sharding = meshes.batch_sharding(mesh, leading=1)
    everywhere = NamedSharding(mesh, PartitionSpec())

    def steps(state: State, batches: Any, seed: Any) -> tuple[State, dict[str, jax.Array]]:
        with meshes.RULES.applied():
            return jax.lax.scan(functools.partial(train_step, recipe, seed), state, batches)

    jitted = jax.jit(
        steps,
        in_shardings=(state_shardings, batch_sharding, everywhere),
        # Every host reads all metrics.
        out_shardings=(state_shardings, everywhere),
        donate_argnums=0,
        compiler_options=compiler_options(recipe.config.train.compiler_options, mesh),
    )
    size = recipe.config.train.steps_per_dispatch
    abstract_batch = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((size, *x.shape), x.dtype, sharding=batch_sharding),
        recipe.example_batch(rows),
    )
    abstract_state = jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        nn.meta.unbox(boxed),
        state_shardings,
    )

    def unpacked(x: Any, stored: Any) -> Any:
        if x.shape == stored.shape:
            return stored
        # Split along the chunks of a checkpoint: each device gets a part of every layer of a stack.
        chunk = [size if axis < stored.ndim - 1 else 1 for axis, size in enumerate(x.shape)]
        return x.update(sharding=meshes.spread(everywhere, x.shape, chunk))

    logical = jax.tree.map(unpacked, nn.meta.unbox(logical), abstract_state)
    return BuiltStep(recipe, mesh, jitted, abstract_state, logical, abstract_batch, rows)


def create_state(built: BuiltStep) -> State:
    """The state before the first step; every device computes its own part."""
    recipe = built.recipe
    out_shardings = jax.tree.map(lambda x: x.sharding, built.logical)
    drawn = jax.jit(
        lambda seed: nn.meta.unbox(states.init_state(recipe, recipe.init_params(seed), built.rows)),
        out_shardings=out_shardings,
    )(np.uint32(recipe.config.seeds.init))
    return meshes.like(meshes.settled(drawn), built.abstract_state)
