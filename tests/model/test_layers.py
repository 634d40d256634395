"""A parameter says what it is where it is declared: no optimizer asks for its name or its place."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
import tiny

from xlnet_jax.train.optimizer import make_optimizer
from xlnet_jax.train.recipe import make_recipe


def test_muon_takes_matrices_alone_whatever_their_names():
    """It has one moment of each; Adam has two of all other arrays, kernels of heads among them."""
    boxed = {"mix": tiny.box("matrix"), "query": tiny.box("kernel"), "level": tiny.box("vector")}
    params = {name: jnp.ones((2, 2)) for name in boxed}
    config = tiny.config(optimizer={"name": "muon"}).optimizer
    state: Any = make_optimizer(config, 10, boxed).init(params)
    by_kind = state[2].inner_states
    of_matrices = by_kind["matrix"].inner_state[0].trace
    assert [name for name, moment in of_matrices.items() if jax.tree.leaves(moment)] == ["mix"]
    others = by_kind["other"].inner_state.mu
    assert {name for name, moment in others.items() if jax.tree.leaves(moment)} == {
        "query",
        "level",
    }


def test_a_parameter_that_is_not_declared_is_refused_by_its_place():
    dense = nn.Dense(3).init(jax.random.key(0), jnp.ones((1, 2)))
    model = SimpleNamespace(init=lambda *_: {"generator": dense})
    recipe = dataclasses.replace(make_recipe(tiny.config()), model=model)
    with pytest.raises(
        TypeError,
        match=r"parameter \['generator'\]\['params'\]\['bias'\]: declare it by `layers.para",
    ):
        _ = recipe.abstract_params
