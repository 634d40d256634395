"""One segment is one optimizer step; one dispatch is K of them on the device.

`build_step` is the only `jax.jit` of training: what it accepts is what runs.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from xlnet_jax import objective
from xlnet_jax.batch import Batch, Memory
from xlnet_jax.config import Config
from xlnet_jax.parallel import mesh as meshes
from xlnet_jax.train import state as states
from xlnet_jax.train.optimizer import schedule
from xlnet_jax.train.state import State

COMPAT_MEMORY_STEPS = 1000
"""The 2019 code's `iterations`: steps of one session call, each of which began with a memory of zeros."""


class BuiltStep(NamedTuple):
    """The compiled form of training for one configuration and mesh."""

    jitted: Any
    """(State, Batch [K, B, ...]) -> (State, metrics of K steps); the State is donated."""
    abstract_state: State
    """Shapes, dtypes and shardings."""
    abstract_batch: Batch
    """The same of a Batch with K stacked steps."""


def train_step(config: Config, state: State, batch: Batch) -> tuple[State, dict[str, jax.Array]]:
    """Forward, backward, update of one segment of the global batch. Metrics are scalars, but for those named `_B`."""
    optimizer = states.optimizer_of(config)
    dropout_key = jax.random.fold_in(jax.random.key(config.seeds.dropout), state.step)
    memory = _reset_memory(config, state)
    if config.compat.on("core_clip"):
        (loss, aux), grads = core_clipped_gradient(config, state.params, batch, memory, dropout_key)
    else:
        gradient = jax.value_and_grad(objective.mean_loss, has_aux=True)
        (loss, aux), grads = gradient(state.params, states.make_model(config), batch, memory, dropout_key)
    grad_norm = optax.tree.norm(grads)
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)

    # A non-finite step moves on in the data and changes nothing else; its memory cannot be trusted and is emptied.
    finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
    good = State(params, opt_state, aux.memory, state.step + 1, state.skipped, jnp.zeros_like(state.skipped))
    bad = dataclasses.replace(
        state,
        memory=jax.tree.map(jnp.zeros_like, state.memory),
        step=state.step + 1,
        skipped=state.skipped + 1,
        consecutive_bad=state.consecutive_bad + 1,
    )
    new_state = jax.tree.map(lambda a, b: jnp.where(finite, a, b), good, bad)
    metrics = {
        "loss": loss,
        "grad_norm": grad_norm,
        "learning_rate": jnp.asarray(
            schedule(config.optimizer, config.train.steps)(state.step - state.skipped), jnp.float32
        ),
        "targets": aux.weight_B.sum(),
        "skipped": new_state.skipped,
        "consecutive_bad": new_state.consecutive_bad,
    }
    if len(config.data.folders()) > 1:
        # The host knows which corpus a row was read from, and adds up by corpus.
        metrics |= {"loss_B": aux.loss_B, "targets_B": aux.weight_B}
    return new_state, metrics


def _reset_memory(config: Config, state: State) -> Memory:
    """The memory to begin with: the carried one; with compat switch zero_memory emptied at every 1000th step."""
    if not config.compat.on("zero_memory"):
        return state.memory
    return jax.tree.map(lambda x: jnp.where(state.step % COMPAT_MEMORY_STEPS == 0, 0, x), state.memory)


def core_clipped_gradient(
    config: Config, params: Any, batch: Batch, memory: Memory, dropout_key: jax.Array
) -> tuple[tuple[jax.Array, objective.Aux], Any]:
    """The 2019 gradient (compat switch core_clip), for `compat.cores` equal groups of consecutive rows.

    Each core averages over its own targets, scales by 1 / cores, and clips that to the whole bound, before the cores
    are added up: a core with fewer targets weighs more per target, and the bound hardly ever acts.
    """
    model, cores = states.make_model(config), config.compat.cores
    gradient = jax.value_and_grad(objective.mean_loss, has_aux=True)

    def core(summed: Any, inputs: tuple[Batch, Memory, jax.Array]) -> tuple[Any, Any]:
        rows, hidden, key = inputs
        (loss, aux), grads = gradient(params, model, rows, hidden, key)
        share = jax.tree.map(lambda g: g / cores, grads)
        norm = optax.tree.norm(share)
        bound = config.optimizer.clip or jnp.inf
        factor = jnp.where(norm > bound, bound / norm, 1)
        return jax.tree.map(lambda s, g: s + g * factor, summed, share), (loss, aux)

    def split(x: jax.Array, axis: int = 0) -> jax.Array:
        x = jnp.moveaxis(x, axis, 0).reshape(cores, -1, *x.shape[:axis], *x.shape[axis + 1 :])
        return jnp.moveaxis(x, 1, axis + 1)

    memories = Memory(split(memory.hidden_LBMD, 1), split(memory.valid_B))
    inputs = (jax.tree.map(split, batch), memories, jax.random.split(dropout_key, cores))
    grads, (loss_C, aux_C) = jax.lax.scan(core, jax.tree.map(jnp.zeros_like, params), inputs)
    joined = Memory(
        jnp.moveaxis(aux_C.memory.hidden_LBMD, 0, 1).reshape(memory.hidden_LBMD.shape),
        aux_C.memory.valid_B.reshape(memory.valid_B.shape),
    )
    return (loss_C.mean(), objective.Aux(aux_C.loss_B.reshape(-1), aux_C.weight_B.reshape(-1), joined)), grads


def train_steps(config: Config, state: State, batches: Batch) -> tuple[State, dict[str, jax.Array]]:
    """K segments in one scan that carries the State; every metric has a leading axis K."""
    return jax.lax.scan(lambda carry, batch: train_step(config, carry, batch), state, batches)


def build_step(config: Config, mesh: Mesh) -> BuiltStep:
    """Jits `train_steps` for a mesh, with the shardings of State and Batch fixed. Computes nothing yet."""
    optimizer = states.optimizer_of(config)
    boxed = states.abstract_state(config, optimizer)
    state_shardings = meshes.shardings(boxed, mesh)
    batch_sharding = meshes.batch_sharding(mesh, leading=1)

    def steps(state: State, batches: Batch) -> tuple[State, dict[str, jax.Array]]:
        with nn.logical_axis_rules(meshes.RULES.pairs()):
            return train_steps(config, state, batches)

    jitted = jax.jit(
        steps,
        in_shardings=(state_shardings, batch_sharding),
        # Every host reads all metrics.
        out_shardings=(state_shardings, NamedSharding(mesh, PartitionSpec())),
        donate_argnums=0,
    )
    size = config.train.steps_per_dispatch
    abstract_batch = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((size, *x.shape), x.dtype, sharding=batch_sharding),
        states.example_batch(config, config.train.batch_size),
    )
    abstract_state = jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        nn.meta.unbox(boxed),
        state_shardings,
    )
    return BuiltStep(jitted, abstract_state, abstract_batch)


def create_state(config: Config, built: BuiltStep) -> State:
    """The state before the first step, each part made where it lives."""
    optimizer = states.optimizer_of(config)
    out_shardings = jax.tree.map(lambda x: x.sharding, built.abstract_state)
    return jax.jit(lambda: nn.meta.unbox(states.init_state(config, optimizer)), out_shardings=out_shardings)()
