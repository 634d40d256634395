"""The loss in chunks of rows: as the plain one, on any mesh, and never with all logits at once."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from jax.extend.core import jaxprs_in_params
from jax.sharding import NamedSharding, PartitionSpec

from xlnet_jax.batch import Memory
from xlnet_jax.compat import CompatConfig
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.kernels import vocabulary_loss
from xlnet_jax.members.parts import Parts
from xlnet_jax.model.heads import LMHead
from xlnet_jax.model.layers import declared
from xlnet_jax.model.transformer import Output
from xlnet_jax.objectives import PLM
from xlnet_jax.train import gradients
from xlnet_jax.train.loss import LanguageModel
from xlnet_jax.train.recipe import example_batch, make_recipe

V, D, B, P = 97, 12, 3, 13


def case(dtype: Any = np.float64, shape=(V, D, B, P)):
    """Parameters with `inputs` [B, P, D], targets, and weights of which some are 0."""
    rng = np.random.default_rng(0)
    V, D, B, P = shape
    table, bias, inputs = rng.normal(size=(V, D)), rng.normal(size=V), rng.normal(size=(B, P, D))
    params = {
        "table": jnp.asarray(table, jnp.promote_types(dtype, jnp.float32)),
        "inputs": jnp.asarray(inputs, dtype),
        "bias": jnp.asarray(bias, jnp.promote_types(dtype, jnp.float32)),
    }
    weights = rng.random((B, P)) * (rng.random((B, P)) < 0.8)
    return params, jnp.asarray(rng.integers(0, V, (B, P))), jnp.asarray(weights)


def loss(params, target, weights, smoothing=0.0):
    head = LMHead(dataclasses.replace(tiny.config().model, vocab_size=V))
    inputs = params["table"], params["inputs"], target, smoothing
    nll_BP = head.apply({"params": {"bias": params["bias"]}}, *inputs, method="nll")
    return jnp.sum(jnp.where(weights != 0, nll_BP, 0) * weights)


def results(monkeypatch, chunk, *arguments, smoothing=0.0):
    monkeypatch.setattr(vocabulary_loss, "CHUNK", chunk)
    return jax.jit(jax.value_and_grad(functools.partial(loss, smoothing=smoothing)))(*arguments)


@pytest.mark.parametrize(("chunk", "smoothing"), [(1, 0.0), (5, 0.0), (38, 0.0), (5, 0.3)])
def test_loss_and_gradients_are_those_of_all_logits(monkeypatch, x64, chunk, smoothing):
    """39 rows: in chunks of 1, of 5 and one filled slot, of 20. A row left out or counted twice
    shows.
    """
    arguments = case()
    plain = results(monkeypatch, 39, *arguments, smoothing=smoothing)
    chunked = results(monkeypatch, chunk, *arguments, smoothing=smoothing)
    for x, y in zip(jax.tree.leaves(plain), jax.tree.leaves(chunked), strict=True):
        np.testing.assert_allclose(y, x, rtol=1e-12, atol=1e-12)
    unused = np.asarray(arguments[2]) == 0
    assert unused.any() and not np.asarray(chunked[1]["inputs"])[unused].any()
    params, target, weights = (jax.tree.map(np.asarray, each) for each in arguments)
    z_BPV = params["inputs"] @ params["table"].T + params["bias"]
    log_p_BPV = z_BPV - np.logaddexp.reduce(z_BPV, axis=-1, keepdims=True)
    nll_BP = -np.take_along_axis(log_p_BPV, target[..., None], axis=-1)[..., 0]
    wanted = ((1 - smoothing) * nll_BP - smoothing * log_p_BPV.mean(axis=-1)) * weights
    assert float(plain[0]) == pytest.approx(wanted.sum(), rel=1e-12)


def sizes(jaxpr):
    """Numbers of elements of all arrays that a program makes, also inside its loops and calls."""
    for equation in jaxpr.eqns:
        yield from (math.prod(out.aval.shape) for out in equation.outvars)
        for inner in jaxprs_in_params(equation.params):
            yield from sizes(inner)


def test_no_array_has_the_logits_of_all_rows(monkeypatch):
    def largest(chunk):
        monkeypatch.setattr(vocabulary_loss, "CHUNK", chunk)
        return max(sizes(jax.make_jaxpr(jax.value_and_grad(loss))(*case(np.float32)).jaxpr))

    assert largest(B * P) == B * P * V, "the plain path has them"
    assert largest(D) == D * V


def test_bfloat16_gives_float32_likelihoods_and_gradients_of_parameters(monkeypatch):
    """As the plain path to the roundoff of one bfloat16 product: both round the same factors."""
    arguments = case(jnp.bfloat16)
    plain, chunked = results(monkeypatch, 39, *arguments), results(monkeypatch, 5, *arguments)
    assert [x.dtype for x in jax.tree.leaves(chunked)] == [
        jnp.float32,
        jnp.float32,
        jnp.bfloat16,
        jnp.float32,
    ]
    for x, y in zip(jax.tree.leaves(plain), jax.tree.leaves(chunked), strict=True):
        np.testing.assert_allclose(
            np.float32(y), np.float32(x), rtol=0, atol=4e-3 * np.abs(np.float32(x)).max()
        )


def test_pieces_of_probability_0(monkeypatch):
    """They add no NaN; nor do the zeros that fill the last chunk, whose exponentials of the bias
    overflow.
    """
    params, target, weights = case(np.float32)
    params["bias"] = jnp.full(V, -jnp.inf).at[:2].set(100.0)
    value, grads = results(monkeypatch, 5, params, target % 2, weights)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((value, grads)))


class EmbeddingsOnly:
    """In place of the transformer: each target is predicted from the embedding of a token."""

    config, parts = dataclasses.replace(tiny.config().model, d_model=12, vocab_size=96), Parts()
    objective = PLM

    def init(self, key, batch, memory):
        return {
            "params": {
                "word_embedding": declared(
                    lambda: jnp.zeros((96, 12)), ("vocab", "embed"), "table", 0
                )()
            }
        }

    def apply(self, variables, batch, memory, rows_B, rngs=None):
        table_VD = jax.lax.with_sharding_constraint(
            variables["params"]["word_embedding"], PartitionSpec()
        )
        vectors_BPD = table_VD[batch.tokens]
        return Output(vectors_BPD, vectors_BPD, memory)


def of_step(monkeypatch, chunk, shape, accumulation, switches):
    monkeypatch.setattr(vocabulary_loss, "CHUNK", chunk)
    settings = tiny.config(
        train={"gradient_accumulation_steps": accumulation},
        mesh=shape,
        model={"compute_dtype": "float64"},
    )
    settings = dataclasses.replace(settings, compat=CompatConfig(switches, cores=2))
    recipe = dataclasses.replace(make_recipe(settings), model=LanguageModel(EmbeddingsOnly()))
    params, target, weights = case(shape=(96, 12, 8, 13))
    tokens = np.random.default_rng(1).integers(0, 96, (8, 13))
    batch = dataclasses.replace(
        example_batch(settings, 8), tokens=tokens, target_tokens=target, target_weights=weights
    )
    memory = Memory(jnp.zeros((1, 8, 1, 1)), jnp.zeros(8, jnp.int32))
    mesh = meshes.make_mesh(settings.mesh, jax.devices()[: math.prod(shape.values())])
    placed = {
        "word_embedding": NamedSharding(mesh, PartitionSpec("tensor", "fsdp")),
        "lm_head": {"bias": NamedSharding(mesh, PartitionSpec("tensor"))},
    }

    def run(params, batch, memory):
        with meshes.RULES.applied():
            (loss, rows), grads = gradients.of_step(
                recipe, params, batch, memory, jax.random.key(0)
            )
            # The forward pass alone, as `evaluate` runs it, has all axes to split.
            alone = recipe.model.row_losses(params, batch, memory)
        return loss, rows.sums["tokens"][0], alone.sums["tokens"][0], grads

    with jax.set_mesh(mesh):
        shardings = (placed, meshes.batch_sharding(mesh), None)
        params = {"word_embedding": params["table"], "lm_head": {"bias": params["bias"]}}
        compiled = jax.jit(run, in_shardings=shardings).lower(params, batch, memory).compile()
        return jax.device_get(
            compiled(*jax.device_put((params, batch, memory), compiled.input_shardings[0]))
        )


MESHES = [({"data": 2, "fsdp": 2, "tensor": 2}, 2, "")] + [
    pytest.param(*case, marks=pytest.mark.slow)
    for case in [
        ({"data": 2, "fsdp": 1, "tensor": 4}, 1, ""),
        ({"slices": 2, "data": 1, "fsdp": 4}, 1, ""),
        ({"data": 2, "fsdp": 2, "tensor": 2}, 1, "core_clip"),
    ]
]


@pytest.mark.parametrize(("shape", "accumulation", "switches"), MESHES, ids=str)
def test_any_mesh_gives_the_gradient_of_one_device(monkeypatch, x64, shape, accumulation, switches):
    """Rows, d_model and the vocabulary split: a sum left out, or made twice over an axis, shows."""
    one = of_step(monkeypatch, 1000, {"data": 1}, 1, switches)
    many = of_step(monkeypatch, 5, shape, accumulation, switches)
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(many), strict=True):
        np.testing.assert_allclose(y, x, rtol=1e-12, atol=1e-13)
