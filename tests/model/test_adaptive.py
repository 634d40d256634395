"""Adaptive embedding and softmax: probabilities, factors of the table, counts, and refusals; the
recordings of Transformer-XL compare them with another implementation.
"""

import os

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from xlnet_jax import config as configs
from xlnet_jax.commands.inspect import count_parameters
from xlnet_jax.config import ModelConfig
from xlnet_jax.errors import BadInput
from xlnet_jax.model.embeddings import WordEmbedding
from xlnet_jax.model.heads import LMHead
from xlnet_jax.model.transformer import empty_memory
from xlnet_jax.train.recipe import make_recipe

CONFIGS = os.path.join(os.path.dirname(__file__), "..", "..", "configs", "transformer_xl")
CLM = {"objective": "clm", "reuse_len": 32, "num_predict": 32}
KINDS = [
    {"cutoffs": "10,20", "div_val": 2},
    {"cutoffs": "3,12,13"},
    {"cutoffs": "7", "d_embed": 6, "tie_projections": "rest"},
    {"cutoffs": "10,20", "div_val": 2, "tie_embedding": False, "tie_projections": "none"},
]


def head_and_params(**changes) -> tuple[LMHead, dict, dict]:
    """With the embedding's parameters and the head's own: none at a value that hides its term."""
    config = ModelConfig(vocab_size=31, d_model=8, compute_dtype="float64", **changes)
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


def test_a_factorised_embedding_is_the_full_one_with_the_product_as_its_table(x64):
    """Also in the softmax, whose vectors are projected back."""

    def of(d_embed):
        sizes = {"d_embed": d_embed, "memory_len": 0, "compute_dtype": "float64"}
        return tiny.config(model=sizes, data=CLM)

    narrow, full = of(6), of(0)
    params, batch = jax.tree.map(np.float64, tiny.random_params(narrow, 0.3)), tiny.batch(narrow)
    factors = params["word_embedding"]
    whole = params | {"word_embedding": factors["table_0"] @ factors["projection_0"]}
    ours, theirs = (
        make_recipe(config).model.row_losses(each, batch, empty_memory(config.model, 8))
        for config, each in ((narrow, params), (full, whole))
    )
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


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            {"cutoffs": "20,200"},
            "model.cutoffs=20,200 must be rising numbers between 0 and model.vocab_size=200",
        ),
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
