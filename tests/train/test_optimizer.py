"""Schedule and update against numbers worked out by hand."""

import dataclasses
import math
from types import SimpleNamespace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny
from flax.traverse_util import flatten_dict

from xlnet_jax import config as configs
from xlnet_jax.config import OptimizerConfig
from xlnet_jax.errors import BadInput
from xlnet_jax.model import heads
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.train.optimizer import OPTIMIZERS, SCHEDULES, decay_mask, make_optimizer, schedule
from xlnet_jax.train.recipe import make_recipe
from xlnet_jax.train.state import init_params

CONFIG = OptimizerConfig(learning_rate=0.1, warmup_steps=4, min_lr_ratio=0.2, weight_decay=0.5, clip=0.0)


def test_there_is_a_row_for_every_name_and_a_run_from_before_the_key_is_one_of_adamw():
    choices = {name: field.metadata["choices"] for name, field in configs.fields().items()}
    assert (*OPTIMIZERS,) == choices["optimizer.name"] and (*SCHEDULES,) == choices["optimizer.schedule"]
    config, mixture = tiny.config(), SimpleNamespace(sha256="1", path="text")
    stored = {"config": configs.flat(config), "corpus_sha256": "1"}
    del stored["config"]["optimizer.name"]
    workdirs.check_resume(stored, config, mixture, "run")
    other = dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, name="other"))
    with pytest.raises(BadInput, match="other frozen keys: optimizer.name: 'adamw' -> 'other'; restore them"):
        workdirs.check_resume(stored, other, mixture, "run")


@pytest.mark.parametrize(
    ("changes", "rates"),
    [
        ({}, {0: 0, 1: 0.025, 4: 0.1, 9: 0.06, 14: 0.02, 20: 0.02}),
        ({"schedule": "cosine"}, {7: 0.1 * (0.8 * 0.5 * (1 + math.cos(math.pi * 3 / 10)) + 0.2)}),
        ({"warmup_steps": 0}, {0: 0.1}),
    ],
)
def test_warm_up_starts_at_zero_and_decay_goes_to_the_minimum(changes, rates):
    rate = schedule(dataclasses.replace(CONFIG, **changes), 14)
    assert {step: float(rate(step)) for step in rates} == pytest.approx(rates)


def test_two_adamw_steps_by_hand():
    config = dataclasses.replace(CONFIG, warmup_steps=0, min_lr_ratio=1.0, adam_epsilon=1e-3)
    optimizer = make_optimizer(config, 10, {"kernel": 0, "bias": 0})
    params = {"kernel": jnp.array([2.0]), "bias": jnp.array([2.0])}
    state = optimizer.init(params)
    m = v = 0.0
    kernel = bias = 2.0
    for t, g in ((1, 0.3), (2, -0.1)):
        updates, state = optimizer.update({"kernel": jnp.array([g]), "bias": jnp.array([g])}, state, params)
        params = optax.apply_updates(params, updates)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        adam = (m / (1 - 0.9**t)) / (math.sqrt(v / (1 - 0.999**t)) + 1e-3)
        kernel, bias = kernel - 0.1 * (adam + 0.5 * kernel), bias - 0.1 * adam
    assert float(params["kernel"][0]) == pytest.approx(kernel, rel=1e-5)
    assert float(params["bias"][0]) == pytest.approx(bias, rel=1e-5)


def test_decay_spares_layer_norm_and_dense_biases_only():
    params = {
        "word_embedding": 0, "mask_embedding": 0, "lm_head": {"bias": 0},
        "layers": {
            "attention": {"query": 0, "content_bias": 0, "segment_bias": 0, "norm": {"scale": 0, "bias": 0}},
            "feed_forward": {"inner": {"kernel": 0, "bias": 0}},
        },
    }  # fmt: skip
    mask = decay_mask(params)
    assert mask["word_embedding"] and mask["mask_embedding"] and not mask["lm_head"]["bias"]
    assert mask["layers"]["attention"] == {"query": True, "content_bias": True, "segment_bias": True,
                                           "norm": {"scale": False, "bias": False}}  # fmt: skip
    assert mask["layers"]["feed_forward"]["inner"] == {"kernel": True, "bias": False}


@pytest.mark.parametrize("family", ["xlnet", "bert", "gpt2"])
def test_decay_spares_what_is_a_bias_or_of_a_norm_in_the_whole_model(family):
    """By what a parameter is: a bias may have a name of its own, and XLNet's u, v and w are none of a product."""
    config = tiny.config() if family == "xlnet" else tiny.family(family)
    params = nn.meta.unbox(jax.eval_shape(lambda: init_params(make_recipe(config))))
    decayed = {"/".join(path): value for path, value in flatten_dict(decay_mask(params)).items()}
    relative = {f"layers/attention/{name}_bias" for name in ("content", "position", "segment")}
    for path, value in decayed.items():
        assert value == (path in relative or not ("bias" in path or "norm" in path)), path
    assert (relative <= decayed.keys()) == (family == "xlnet")
    spared = {path for path, value in decayed.items() if not value}
    of_products = {f"layers/attention/{name}_bias" for name in ("query", "key", "value", "output")}
    assert (of_products <= spared) == (family != "xlnet") and {path for path in spared if "norm/scale" in path}


def test_a_head_learns_at_the_full_rate_and_a_parameter_without_a_depth_is_an_error():
    """A new head used to learn at the rate of the embeddings, silently."""
    depths = {**make_recipe(tiny.config()).model.depths, "classifier": heads.DEPTH}
    assert depths["word_embedding"] == 0 and depths["layers"] == (1, 2)
    params = {
        "word_embedding": jnp.ones(1),
        "layers": {"query": jnp.ones((2, 1))},
        "classifier": {"kernel": jnp.ones(1)},
    }
    config = dataclasses.replace(CONFIG, layer_decay=0.5, warmup_steps=0, weight_decay=0.0)
    optimizer = make_optimizer(config, 10, depths)
    updates, _ = optimizer.update(params, optimizer.init(params), params)
    rates = [float(x) / -0.1 for x in (*updates["word_embedding"], *updates["layers"]["query"][:, 0])]
    np.testing.assert_allclose(rates, [0.25, 0.5, 1.0], rtol=1e-5)
    assert float(updates["classifier"]["kernel"][0]) == pytest.approx(-0.1, rel=1e-5)
    with pytest.raises(ValueError, match="no depth is stated for span/bias, span/kernel; add it to `depths`"):
        optimizer.init({**params, "span": {"kernel": jnp.ones(1), "bias": jnp.ones(1)}})


def test_the_clip_bounds_the_global_norm():
    clipped = make_optimizer(dataclasses.replace(CONFIG, clip=1.0, warmup_steps=0), 10, {"kernel": 0, "query": 0})
    params = {"kernel": jnp.zeros(2), "query": jnp.zeros(2)}
    big = {"kernel": jnp.array([3.0, 0.0]), "query": jnp.array([0.0, 4.0])}
    small = {"kernel": jnp.array([0.6, 0.0]), "query": jnp.array([0.0, 0.8])}
    a, b = (clipped.update(grads, clipped.init(params), params)[1] for grads in (big, small))
    np.testing.assert_allclose(a[2].mu["query"], b[2].mu["query"], rtol=1e-6)
    np.testing.assert_allclose(a[2].mu["query"], [0, 0.08], rtol=1e-6)
