"""A parameter says what it is where it is declared: no optimizer and no gradient asks for its name
or its place.

Two networks stand side by side, none of whose names the package has.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax.traverse_util import flatten_dict

from xlnet_jax.config import ModelConfig
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.model.layers import HEAD_DEPTH, Dense, Depth, layer_norm, parameter, product
from xlnet_jax.train import gradients
from xlnet_jax.train.loss import RowLosses
from xlnet_jax.train.recipe import Recipe
from xlnet_jax.train.step import build_step, create_state

D = 16
DEPTHS = {"generator": (1, 2), "discriminator": (3, 4)}


class Block(nn.Module):
    config: ModelConfig
    depth: Depth

    @nn.compact
    def __call__(self, x_BQD: jax.Array, _: None) -> tuple[jax.Array, None]:
        y_BQD = layer_norm("level", self.config, self.depth)(x_BQD).astype(x_BQD.dtype)
        return x_BQD + Dense(self.config, D, ("embed", "ff"), "matrix", self.depth, name="mix")(
            y_BQD
        ), None


class Network(nn.Module):
    """Two blocks and a head."""

    config: ModelConfig
    depth: Depth

    @nn.compact
    def __call__(self, x_BQD: jax.Array) -> jax.Array:
        blocks = nn.scan(
            Block,
            length=2,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            metadata_params={nn.PARTITION_NAME: "layers"},
        )
        x_BQD, _ = blocks(self.config, self.depth, name="blocks")(x_BQD, None)
        kernel_DF = parameter(self, "readout", (D, 4), ("embed", None), "kernel", HEAD_DEPTH)
        return product("bqd,df->bqf", x_BQD, kernel_DF, jnp.float32)


class Pair:
    """In place of a model."""

    coefficients = {"generator": 1.0, "discriminator": 0.5}

    def __init__(self, config: ModelConfig) -> None:
        self.networks = {name: Network(config, depth) for name, depth in DEPTHS.items()}
        self.dtype = config.compute_dtype

    def init(self, key: jax.Array, batch: Any) -> Any:
        return {
            name: each.init(key, batch["x_BQD"])["params"] for name, each in self.networks.items()
        }

    def carried(self, rows: int) -> tuple[()]:
        return ()

    def divisors(self, batch: Any) -> dict[str, jax.Array]:
        return dict.fromkeys(self.coefficients, batch["weight_B"].sum())

    def row_losses(
        self, params: Any, batch: Any, memory: Any, dropout_key: Any = None, rows_B: Any = None
    ) -> RowLosses:
        def loss_B(name: str) -> jax.Array:
            y_BQF = self.networks[name].apply(
                {"params": params[name]}, batch["x_BQD"].astype(self.dtype)
            )
            return jnp.square(y_BQF - 1).sum(axis=(1, 2))

        return RowLosses(
            {name: (loss_B(name), batch["weight_B"]) for name in self.networks}, memory
        )


def example(rows: int) -> dict[str, np.ndarray]:
    return {"x_BQD": np.zeros((rows, 3, D), np.float32), "weight_B": np.zeros(rows, np.float32)}


def recipe_of(**sections: Any) -> Recipe:
    usual = {
        "train": {"batch_size": 8, "steps_per_dispatch": 1},
        "model": {"compute_dtype": "bfloat16"},
    }
    config = tiny.config(**usual | sections)
    return Recipe(config, Pair(config.model), 1, example)


def by_path(tree: Any) -> dict[str, Any]:
    return {"/".join(path): x for path, x in flatten_dict(tree).items()}


MATRICES = {f"{name}/blocks/mix/kernel" for name in DEPTHS}
SPARED = {
    f"{name}/blocks/{each}" for name in DEPTHS for each in ("level/scale", "level/bias", "mix/bias")
}


def first_update(recipe: Recipe, gradient: float) -> dict[str, np.ndarray]:
    """Of parameters that are 1, as a share of the rate."""
    params = jax.tree.map(lambda x: jnp.ones(x.shape), nn.meta.unbox(recipe.abstract_params))
    grads = jax.tree.map(lambda x: gradient * x, params)
    updates, _ = jax.jit(
        lambda *args: recipe.optimizer.update(args[0], recipe.optimizer.init(params), args[1])
    )(grads, params)
    return jax.tree.map(
        lambda x: np.asarray(x) / -recipe.config.optimizer.learning_rate, by_path(updates)
    )


USUAL = {"warmup_steps": 0, "clip": 0.0, "adam_epsilon": 1e-12}


def test_a_layer_learns_at_the_rate_of_its_depth_and_a_head_at_the_full_rate():
    updates = first_update(
        recipe_of(optimizer=USUAL | {"layer_decay": 0.5, "weight_decay": 0.0}), 1.0
    )
    for path, update in updates.items():
        rates = {"generator": [0.125, 0.25], "discriminator": [0.5, 1.0]}[path.split("/")[0]]
        for found, rate in zip(update, [1.0] * D if "readout" in path else rates, strict=True):
            np.testing.assert_allclose(found, rate, rtol=1e-5, err_msg=path)


@pytest.mark.parametrize("name", ["adamw", "lamb", "muon"])
def test_weight_decay_spares_what_says_so(name):
    updates = first_update(recipe_of(optimizer=USUAL | {"name": name, "weight_decay": 0.5}), 0.0)
    assert {path for path, update in updates.items() if not update.any()} == SPARED
    assert updates.keys() > SPARED | MATRICES


def test_muon_has_one_moment_of_the_matrices_and_makes_each_layer_orthogonal():
    recipe = recipe_of(optimizer=USUAL | {"name": "muon", "weight_decay": 0.0})
    params = nn.meta.unbox(recipe.init_params())
    grads = jax.tree.map(lambda x: jax.random.normal(jax.random.key(x.size), x.shape), params)
    updates, state = jax.jit(recipe.optimizer.update)(grads, recipe.optimizer.init(params), params)
    of_matrices, other = (state[2].inner_states[name].inner_state for name in ("matrix", "other"))
    assert by_path(of_matrices[0].trace).keys() >= MATRICES
    assert {
        path for path, x in by_path(of_matrices[0].trace).items() if jax.tree.leaves(x)
    } == MATRICES
    assert not {path for path, x in by_path(other.mu).items() if jax.tree.leaves(x)} & MATRICES
    for path in MATRICES:
        for x_DF in by_path(updates)[path]:
            values = np.linalg.svd(x_DF / recipe.learning_rate(0), compute_uv=False) / (
                0.2 * D**0.5
            )
            # The smallest ones take longer.
            assert np.median(values) > 0.65 and values.max() < 1.3, path


def test_a_matrix_is_gathered_in_the_compute_dtype_by_its_layer_and_a_head_before_it_in_float32():
    recipe = recipe_of(mesh={"data": 2, "fsdp": 2})
    boxed, dtype = recipe.abstract_params, jnp.dtype("bfloat16")
    with jax.set_mesh(meshes.make_mesh(recipe.config.mesh, jax.devices()[:4])):
        whole, specs, entry = gradients.layouts(
            recipe, {"slices": 1, "data": 2, "fsdp": 2, "tensor": 1}
        )
        gathered = jax.eval_shape(
            lambda params: gradients.gather(params, boxed, specs, entry, dtype),
            nn.meta.unbox(boxed),
        )
    assert {path for path, x in by_path(gathered).items() if x.dtype == dtype} == MATRICES
    whole, specs, entry = map(by_path, (whole, specs, entry))
    assert {path for path in entry if entry[path] != whole[path]} == MATRICES
    assert (
        all(entry[path] == specs[path] for path in MATRICES)
        and specs["generator/readout"] != whole["generator/readout"]
    )


def test_two_networks_learn_the_same_on_four_devices():
    """In bfloat16, so the sums differ slightly.

    The fault: a device takes its part of a kernel for the whole kernel, or for the part of another
    layer.
    """
    x_BQD = np.random.default_rng(0).normal(size=(1, 8, 3, D)).astype(np.float32)
    losses = []
    for mesh in ({"data": 1}, {"data": 2, "fsdp": 2}):
        recipe = recipe_of(mesh=mesh, optimizer=USUAL | {"learning_rate": 0.01})
        grid = meshes.make_mesh(recipe.config.mesh, jax.devices()[: 4 if "fsdp" in mesh else 1])
        with jax.set_mesh(grid):
            step = build_step(recipe, grid)
            state = create_state(step)
            batch = meshes.place({"x_BQD": x_BQD, "weight_B": np.ones((1, 8), np.float32)}, grid)
            execute = step.jitted.lower(
                step.abstract_state, step.abstract_batch, step.dropout_seed
            ).compile()
            for _ in range(3):
                state, metrics = execute(state, batch, step.dropout_seed)
                losses.append(
                    [
                        float(metrics[f"{name}"][0])
                        for name in ("total_loss", "loss", "loss_discriminator")
                    ]
                )
    np.testing.assert_allclose(losses[:3], losses[3:], rtol=2e-3)
    assert (np.diff(losses[:3], axis=0) < -0.02 * np.array(losses[:2])).all(), "nothing is learnt"


class Bare(nn.Module):
    said: dict[str, Any]

    @nn.compact
    def __call__(self) -> jax.Array:
        return parameter(
            self, "bare", (2, 2), (None, None), initializer=nn.initializers.ones, **self.said
        )


@pytest.mark.parametrize("missing", ["kind", "depth"])
def test_a_parameter_without_kind_or_depth_is_refused_where_it_is_declared(missing):
    said = {"kind": "matrix", "depth": 0}
    assert Bare(said).init(jax.random.key(0))["params"]["bare"].depth == 0
    del said[missing]
    with pytest.raises(TypeError, match=f"missing 1 required positional argument: '{missing}'"):
        Bare(said).init(jax.random.key(0))


def test_a_parameter_that_is_not_declared_is_refused_by_its_place(monkeypatch):
    recipe = recipe_of()
    monkeypatch.setattr(
        Pair,
        "init",
        lambda *_: {"generator": nn.Dense(3).init(jax.random.key(0), jnp.ones((1, 2)))},
    )
    with pytest.raises(
        TypeError,
        match=r"parameter \['generator'\]\['params'\]\['bias'\]: declare it by `layers.para",
    ):
        _ = recipe.abstract_params
