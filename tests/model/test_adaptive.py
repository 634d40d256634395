"""Adaptive embedding and softmax: probabilities, the full softmax as a special case, every mesh,
and refusals.
"""

import dataclasses
import math
import os

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from model.test_left_to_right import CLM, CONFIG, make_batch, make_memory, make_model, make_params

from xlnet_jax import config as configs
from xlnet_jax.commands.inspect import count_parameters
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.errors import BadInput
from xlnet_jax.kernels import vocabulary_loss
from xlnet_jax.model.embeddings import WordEmbedding, clusters
from xlnet_jax.model.heads import LMHead
from xlnet_jax.train import gradients
from xlnet_jax.train.recipe import make_recipe

CONFIGS = os.path.join(os.path.dirname(__file__), "..", "..", "configs", "transformer_xl")
CUTS = {"cutoffs": "10,20", "div_val": 2}
KINDS = [
    CUTS,
    {"cutoffs": "3,12,13"},
    {"cutoffs": "7", "d_embed": 6, "tie_projections": "rest"},
    {"cutoffs": "10,20", "div_val": 2, "tie_embedding": False, "tie_projections": "none"},
]


def head_and_params(**changes) -> tuple[LMHead, dict, dict]:
    """With the embedding's parameters and the head's own: none at a value that hides its term."""
    config = dataclasses.replace(CONFIG, vocab_size=31, **changes)
    head, rng = LMHead(config), np.random.default_rng(0)

    def drawn(module, *arguments):
        shapes = jax.eval_shape(lambda: nn.meta.unbox(module.init(jax.random.key(0), *arguments)))
        return jax.tree.map(
            lambda x: jnp.asarray(rng.standard_normal(x.shape)), shapes.get("params", {})
        )

    embedding = drawn(WordEmbedding(config), np.zeros((1, 1), np.int32))
    return head, embedding, drawn(head, embedding, np.zeros((1, 1, 8)))


@pytest.mark.parametrize("changes", KINDS, ids=str)
def test_probabilities_add_up_and_are_those_of_the_loss(changes, x64):
    """Catches a tail whose cluster column is another's, a hole between clusters, a bias or
    projection of another.
    """
    head, embedding, own = head_and_params(**changes)
    vectors = jnp.asarray(np.random.default_rng(1).standard_normal((2, 31, 8)))
    every = jnp.broadcast_to(jnp.arange(31), (2, 31))

    @jax.jit
    def both(vectors):
        log_p, nll = (
            head.apply({"params": own}, embedding, vectors, *more, method=method)
            for more, method in (((), None), ((every,), "nll"))
        )
        return log_p, nll

    log_p, nll = both(vectors)
    assert log_p.shape == (2, 31, 31) and log_p.dtype == jnp.float64
    np.testing.assert_allclose(np.exp(log_p).sum(axis=-1), 1, atol=1e-12)
    np.testing.assert_allclose(
        nll, -np.take_along_axis(np.asarray(log_p), every[..., None], 2)[..., 0], rtol=1e-11
    )


def test_clusters_that_know_their_sums_are_the_full_softmax(x64):
    """If the logit of a cluster is the log-sum-exp of its words, both softmaxes are the same
    distribution.
    """
    head, embedding, _ = head_and_params(cutoffs="10,20")
    rng = np.random.default_rng(1)
    vector, bias = rng.standard_normal(8), rng.standard_normal(31)
    full = np.concatenate([embedding[f"table_{i}"] for i in range(3)]) @ vector + bias
    sums = [np.log(np.exp(full[a:b]).sum()) for a, b in ((10, 20), (20, 31))]
    own = {"bias": jnp.asarray([*bias, *sums]), "cluster_table": jnp.zeros((2, 8))}
    found = head.apply({"params": own}, embedding, jnp.asarray(vector)[None, None])
    np.testing.assert_allclose(found[0, 0], full - np.log(np.exp(full).sum()), rtol=1e-12)  # type: ignore[index]


def test_the_embedding_of_a_word_is_its_row_projected(x64):
    """Also at the first and the last word of each cluster; times sqrt(d_model)."""
    head, embedding, _ = head_and_params(**CUTS, scale_embedding=True)
    assert [(c.first, c.size, c.width) for c in clusters(head.config)] == [
        (0, 10, 8),
        (10, 10, 4),
        (20, 11, 2),
    ]
    tokens = np.array([[0, 9, 10, 19, 20, 30]], np.int32)
    found = WordEmbedding(head.config).apply({"params": embedding}, tokens)
    rows = [
        np.asarray(embedding[f"table_{i}"])[[0, -1]] @ embedding[f"projection_{i}"]
        for i in range(3)
    ]
    np.testing.assert_allclose(found[0], np.concatenate(rows) * 8**0.5, rtol=1e-12)  # type: ignore[index]


def test_a_factorised_embedding_is_the_full_one_with_the_product_as_its_table(x64):
    """Also in the softmax, whose vectors are projected back."""
    narrow, full = make_model(d_embed=6), make_model()
    params, batch, memory = make_params(narrow), make_batch(), make_memory()
    factors = params["word_embedding"]
    whole = params | {"word_embedding": factors["table_0"] @ factors["projection_0"]}
    ours, theirs = narrow.row_losses(params, batch, memory), full.row_losses(whole, batch, memory)
    np.testing.assert_allclose(ours.sums["tokens"][0], theirs.sums["tokens"][0], rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("wikitext103_large", 285_170_642),
        ("vanilla_small", 694_756),  # with heads that no other program has a name for
        pytest.param("wikitext103_base", 151_110_826, marks=pytest.mark.slow),
        pytest.param("enwik8_base", 41_060_566, marks=pytest.mark.slow),
        pytest.param("enwik8_large", 277_242_070, marks=pytest.mark.slow),
    ],
)
def test_counts_are_those_of_the_published_models(name, parameters):
    """41.0, 277.0, 151.1 and 285.2 million in the authors' scripts, the first two without their
    small vocabularies.
    """
    config = configs.load(os.path.join(CONFIGS, f"{name}.py"))
    assert count_parameters(config)["parameters"] == parameters


SHARDED = [
    ({"data": 2, "fsdp": 2, "tensor": 2}, 1, 16),
    ({"data": 1, "tensor": 2}, 1, 1024),
    ({"data": 2, "fsdp": 2}, 2, 5),
    ({"data": 2, "fsdp": 4}, 1, 1024),
]


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "accumulation", "chunk"), SHARDED, ids=str)
def test_any_mesh_gives_the_gradient_of_one_device(shape, accumulation, chunk, x64, monkeypatch):
    """In chunks and not. A sum over a mesh axis that is left out or made twice shows."""
    monkeypatch.setattr(vocabulary_loss, "CHUNK", chunk)

    def gradient(shape, accumulation):
        model = {
            "vocab_size": 191,
            **CUTS,
            "cutoffs": "10,51",
            "layers": 1,
            "compute_dtype": "float64",
            "dropout": 0.0,
            "attention_dropout": 0.0,
            "init_std": 0.3,
        }
        settings = tiny.config(
            data=CLM, model=model, mesh=shape, train={"gradient_accumulation_steps": accumulation}
        )
        recipe = make_recipe(settings)
        mesh = meshes.make_mesh(settings.mesh, jax.devices()[: math.prod(shape.values())])
        meshes.check_model(settings.model, mesh)
        rng = np.random.default_rng(0)
        batch, memory = recipe.example_batch(8), recipe.empty_memory(8)
        order = np.broadcast_to(np.arange(6, dtype=np.int32), (8, 6))
        batch = dataclasses.replace(
            batch,
            tokens=rng.integers(0, 191, (8, 6)),
            target_tokens=rng.integers(0, 191, (8, 6)),
            rank=order,
            target_positions=order,
            target_weights=np.ones((8, 6), np.float32),
            direction=np.ones(8, np.int32),
        )
        boxed = recipe.model.init(jax.random.key(0), batch)

        def run(params, batch, memory):
            with meshes.RULES.applied():
                (loss, _), grads = gradients.of_step(
                    recipe, params, batch, memory, jax.random.key(0)
                )
            return loss, grads

        with jax.set_mesh(mesh):
            placed = meshes.shardings(boxed, mesh), meshes.batch_sharding(mesh), None
            arguments = nn.meta.unbox(boxed), batch, memory
            compiled = jax.jit(run, in_shardings=placed).lower(*arguments).compile()
            return jax.device_get(compiled(*jax.device_put(arguments, compiled.input_shardings[0])))

    one, many = gradient({"data": 1}, 1), gradient(shape, accumulation)
    for (path, x), y in zip(jax.tree.leaves_with_path(one), jax.tree.leaves(many), strict=True):
        # Each device rounds its share of a sum, up to 0.5, to float32.
        np.testing.assert_allclose(y, x, rtol=1e-6, atol=3e-8, err_msg=jax.tree_util.keystr(path))
        assert np.any(x), path


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            {"cutoffs": "20,10"},
            "model.cutoffs=20,10 must be rising numbers between 0 and model.vocab_size=200",
        ),
        ({"cutoffs": "20,200"}, "model.cutoffs=20,200 must be rising"),
        ({"cutoffs": "20;40"}, "model.cutoffs=20;40 must be rising"),
        ({"div_val": 2}, "model.div_val=2 must be 1 without model.cutoffs"),
        (
            {"cutoffs": "20,40", "div_val": 8},
            "model.div_val=8 leaves no width for the last cluster",
        ),
    ],
)
def test_clusters_that_cannot_be_are_refused(model, message):
    with pytest.raises(BadInput, match=message):
        tiny.config(model=model, data=CLM)
