"""The loss in chunks of rows: as the plain one, on any mesh, and never with all logits at once."""

import dataclasses
import functools
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
import traced

from xlnet_jax.compat import CORRECT
from xlnet_jax.config import ModelConfig
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.kernels import vocabulary_loss
from xlnet_jax.members.parts import Parts
from xlnet_jax.model.embeddings import Embedding
from xlnet_jax.model.heads import LMHead
from xlnet_jax.model.transformer import Output, places
from xlnet_jax.objectives import PLM
from xlnet_jax.objectives.objective import Objective
from xlnet_jax.train import gradients
from xlnet_jax.train.loss import LanguageModel
from xlnet_jax.train.recipe import make_recipe

V, D, B, P = 97, 12, 3, 13


def case(dtype: Any = np.float64):
    """Parameters with `inputs` [B, P, D], targets, and weights of which some are 0."""
    rng = np.random.default_rng(0)
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


def test_no_array_has_the_logits_of_all_rows(monkeypatch):
    def largest(chunk):
        monkeypatch.setattr(vocabulary_loss, "CHUNK", chunk)
        program = jax.make_jaxpr(jax.value_and_grad(loss))(*case(np.float32))
        made = [out for each in traced.equations(program.jaxpr) for out in each.outvars]
        return max(math.prod(out.aval.shape) for out in made)

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


class EmbeddingsOnly(nn.Module):
    """In place of the transformer: each target is predicted from the embedding of a token."""

    config: ModelConfig
    parts: Parts = Parts(streams=1, targets="content")
    objective: Objective = PLM

    @nn.compact
    def __call__(self, batch, memory, rows_B=None):
        embedding = Embedding(self.config, CORRECT, self.parts, name="embedding")
        nn.share_scope(self, embedding)
        vectors_BPD, _ = embedding(batch, *places(batch, jnp.arange(len(batch.tokens))))
        return Output(vectors_BPD, vectors_BPD, memory)


def of_step(shape, accumulation=1, model=None, compat=None):
    """Losses of a step and of the forward pass alone, and the gradients, on a mesh."""
    sizes = {"vocab_size": 96, "d_model": 12, "compute_dtype": "float64", "dropout": 0.0}
    settings = tiny.config(
        train={"gradient_accumulation_steps": accumulation},
        mesh=shape,
        model=sizes | (model or {}),
        compat=compat or {},
    )
    recipe = make_recipe(settings)
    recipe = dataclasses.replace(recipe, model=LanguageModel(EmbeddingsOnly(settings.model)))
    rng, memory = np.random.default_rng(1), recipe.empty_memory(8)
    params = jax.tree.map(
        lambda x: rng.standard_normal(x.shape), nn.meta.unbox(recipe.abstract_params)
    )
    batch = dataclasses.replace(
        recipe.example_batch(8),
        tokens=rng.integers(0, 96, (8, 13)),
        target_tokens=rng.integers(0, 96, (8, 13)),
        target_weights=rng.random((8, 13)) * (rng.random((8, 13)) < 0.8),
    )
    mesh = meshes.make_mesh(settings.mesh, jax.devices()[: math.prod(shape.values())])

    def run(params, batch, memory):
        with meshes.RULES.applied():
            (loss, rows), grads = gradients.of_step(
                recipe, params, batch, memory, jax.random.key(0)
            )
            # The forward pass alone, as `evaluate` runs it, has all axes to split.
            alone = recipe.model.row_losses(params, batch, memory)
        return loss, rows.sums["tokens"][0], alone.sums["tokens"][0], grads

    with jax.set_mesh(mesh):
        placed = meshes.shardings(recipe.abstract_params, mesh), meshes.batch_sharding(mesh), None
        compiled = jax.jit(run, in_shardings=placed).lower(params, batch, memory).compile()
        return jax.device_get(
            compiled(*jax.device_put((params, batch, memory), compiled.input_shardings[0]))
        )


EIGHT = {"data": 2, "fsdp": 2, "tensor": 2}
CLUSTERS = {"model": {"cutoffs": "10,51", "div_val": 2, "d_model": 16}}
MESHES = [(EIGHT, 2, 5, {})] + [
    pytest.param(*case, marks=pytest.mark.slow)
    for case in [
        ({"data": 2, "fsdp": 1, "tensor": 4}, 1, 5, {}),
        ({"slices": 2, "data": 1, "fsdp": 4}, 1, 5, {}),
        (EIGHT, 1, 5, {"compat": {"switches": "core_clip", "cores": 2}}),
        (EIGHT, 1, 5, CLUSTERS),
        ({"data": 2, "fsdp": 2}, 2, 5, CLUSTERS),
        ({"data": 2, "fsdp": 4}, 1, 1000, CLUSTERS),
    ]
]


@pytest.mark.parametrize(("shape", "accumulation", "chunk", "changes"), MESHES, ids=str)
def test_any_mesh_gives_the_gradient_of_one_device(
    monkeypatch, x64, shape, accumulation, chunk, changes
):
    """Rows, d_model and the vocabulary split: a sum left out, or made twice over an axis, shows."""
    monkeypatch.setattr(vocabulary_loss, "CHUNK", 1000)
    one = of_step({"data": 1}, **changes)
    monkeypatch.setattr(vocabulary_loss, "CHUNK", chunk)
    many = of_step(shape, accumulation, **changes)
    for (path, x), y in zip(jax.tree.leaves_with_path(one), jax.tree.leaves(many), strict=True):
        np.testing.assert_allclose(y, x, rtol=1e-12, atol=1e-13, err_msg=jax.tree_util.keystr(path))
        assert np.any(x), path
