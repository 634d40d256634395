"""Schedule and update against numbers worked out by hand."""

import dataclasses
import math
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny
from flax.traverse_util import flatten_dict

from xlnet_jax import config as configs
from xlnet_jax.config import OptimizerConfig
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.errors import BadInput
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.train.optimizer import OPTIMIZERS, SCHEDULES, make_optimizer, schedule
from xlnet_jax.train.recipe import make_recipe
from xlnet_jax.train.step import build_step

CONFIG = OptimizerConfig(
    learning_rate=0.1, warmup_steps=4, min_lr_ratio=0.2, weight_decay=0.5, clip=0.0
)


def test_there_is_a_row_for_every_name_and_a_run_from_before_the_key_is_one_of_adamw():
    """And neither the optimizer nor the average may change later."""
    choices = {name: field.metadata["choices"] for name, field in configs.fields().items()}
    assert (*OPTIMIZERS,) == choices["optimizer.name"] and (*SCHEDULES,) == choices[
        "optimizer.schedule"
    ]
    config, mixture = tiny.config(), SimpleNamespace(sha256="1", path="text")
    stored = {"config": configs.flat(config), "corpus_sha256": "1"}
    del stored["config"]["optimizer.name"]
    workdirs.check_resume(stored, config, mixture, "run")
    for changes, said in (
        ({"name": "lamb"}, "optimizer.name: 'adamw' -> 'lamb'"),
        ({"average": 0.9}, "optimizer.average: 0.0 -> 0.9"),
    ):
        with pytest.raises(BadInput, match=f"other frozen keys: {said}; restore"):
            workdirs.check_resume(stored, tiny.config(optimizer=changes), mixture, "run")


@pytest.mark.parametrize(
    ("changes", "rates"),
    [
        ({}, {0: 0, 1: 0.025, 4: 0.1, 9: 0.06, 14: 0.02, 20: 0.02}),
        ({"schedule": "cosine"}, {7: 0.1 * (0.8 * 0.5 * (1 + math.cos(math.pi * 3 / 10)) + 0.2)}),
        # Of 14 steps the last 5: constant until 9.
        (
            {"schedule": "wsd", "decay_fraction": 0.36},
            {2: 0.05, 9: 0.1, 10: 0.084, 14: 0.02},
        ),
        (
            {"schedule": "wsd", "decay_fraction": 0.36, "decay_shape": "sqrt"},
            {9: 0.1, 10: 0.1 - 0.08 * 0.2**0.5, 14: 0.02, 20: 0.02},
        ),
        # The Transformer's base model: 512^-0.5 min(n^-0.5, n 4000^-1.5) at n = 1, 4000, 100000.
        (
            {
                "schedule": "inverse_sqrt",
                "warmup_steps": 4000,
                "learning_rate": (512 * 4000) ** -0.5,
            },
            {0: 1.7469281e-07, 3999: 6.9877124e-04, 99999: 1.3975425e-04},
        ),
    ],
)
def test_rates_by_hand(changes, rates):
    rate = schedule(dataclasses.replace(CONFIG, **changes), 14)
    assert {step: float(rate(step)) for step in rates} == pytest.approx(rates)


OF_LAYERS = {"kernel", "query", "key", "value", "position", "output"}
OF_DISTANCES = {"content_bias", "position_bias", "segment_bias"}
OF_HEADS = {"lm_head", "auxiliary_heads", "pooler", "sentence_head"}


@pytest.mark.parametrize(
    "config",
    [
        tiny.config(model={"biases_per_layer": False}),
        tiny.config(model={"cutoffs": "40,100", "div_val": 2}),
        tiny.config(
            model={"architecture": "vanilla", "memory_len": 0, "layer_losses": True},
            data={
                "objective": "clm",
                "reuse_len": 32,
                "num_predict": 32,
                "multi_token_prediction": 2,
                "bidirectional": False,
            },
        ),
        *map(tiny.family, ("bert", "albert", "gpt2")),
    ],
    ids=["xlnet", "adaptive", "auxiliary", "bert", "albert", "gpt2"],
)
def test_depth_and_kind_of_every_parameter(config):
    """By their places in the tree. ALBERT's layers are one, as deep as the top one. Weight decay
    spares norms and biases, but not u, v and w of XLNet, which are none of a product.
    """
    boxes = flatten_dict(make_recipe(config).abstract_params)
    depths = dict.fromkeys(OF_HEADS, math.inf) | {
        "final_norm": 2,
        "layers": 2 if config.model.share_layers else (1, 2),
    }
    for path, box in boxes.items():
        assert box.depth == depths.get(path[0], 0), path
        assert (box.kind == "matrix") == (path[0] == "layers" and path[-1] in OF_LAYERS), path
        assert (box.kind == "vector") == (
            box.value.ndim == 1 + box.stacked or path[-1].endswith("_bias")
        ), path
        spared = "norm" in "".join(path) or ("bias" in path[-1] and path[-1] not in OF_DISTANCES)
        assert box.decays != spared, path
    assert ("layers", "attention", "query") in boxes


SPARED = tiny.box("vector", (1, 2), decays=False)
STACK_OF_TWO = {
    "word_embedding": tiny.box("table"),
    "layers": {
        "query": tiny.box("matrix", (1, 2)),
        "norm": {"scale": SPARED},
        "inner": {"kernel": tiny.box("matrix", (1, 2)), "bias": SPARED},
    },
}


def stack_of_two():
    """Parameters and gradients of two updates, in float64; the layers differ much in size."""
    rng = np.random.default_rng(0)
    size = np.array([1.0, 20.0])
    shapes = {
        "word_embedding": (7, 6),
        "layers": {
            "query": (2, 6, 3, 2),
            "norm": {"scale": (2, 6)},
            "inner": {"kernel": (2, 6, 9), "bias": (2, 9)},
        },
    }

    def draw(shape):
        x = rng.standard_normal(shape)
        return x * size.reshape(-1, *[1] * (x.ndim - 1)) if shape[0] == 2 else x

    return [jax.tree.map(draw, shapes, is_leaf=lambda x: isinstance(x, tuple)) for _ in range(3)]


def adam_by_hand(grads, b1=0.9, b2=0.999, epsilon=1e-3):
    m = v = 0.0
    for g in grads:
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
    t = len(grads)
    return (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + epsilon)


def adamw_by_hand(path, w, grads):
    return adam_by_hand(grads) + (0 if "norm" in path or "bias" in path else 0.5 * w)


def lamb_by_hand(path, w, grads):
    u = adam_by_hand(grads)
    if "norm" in path or "bias" in path:
        return u
    u = u + 0.5 * w
    parts = [slice(0, 1), slice(1, 2)] if "layers" in path else [slice(None)]
    for part in parts:
        u[part] *= np.linalg.norm(w[part]) / np.linalg.norm(u[part])
    return u


def muon_by_hand(path, w, grads):
    if "query" not in path and "kernel" not in path:
        return adamw_by_hand(path, w, grads)
    momentum, g = 0.0, None
    for g in grads:
        momentum = 0.95 * momentum + 0.05 * g
    u = 0.95 * momentum + 0.05 * g
    for layer in range(2):
        x = u[layer].reshape(6, -1)
        x = x / np.linalg.norm(x)
        for _ in range(5):
            gram = x @ x.T
            x = 3.4445 * x - 4.7750 * gram @ x + 2.0315 * gram @ gram @ x
        u[layer] = 0.2 * np.sqrt(max(x.shape)) * x.reshape(u[layer].shape)
    return u + 0.5 * w


@pytest.mark.parametrize(
    ("name", "by_hand"),
    [("adamw", adamw_by_hand), ("lamb", lamb_by_hand), ("muon", muon_by_hand)],
)
def test_an_update_of_stacked_layers_by_hand(name, by_hand, x64):
    """The second step in float64. The norm of the first gradient is twice the clip, the norm of the
    second gradient is below it. Catches a ratio or an iteration of the whole stack or of a bias, a
    table that is made orthogonal, and decay left out of the ratio.
    """
    params, first, second = stack_of_two()
    clipped = jax.tree.map(lambda g: g / 2, first)
    second = jax.tree.map(lambda g: g / 4, second)
    clip = float(optax.tree.norm(clipped))
    assert optax.tree.norm(second) < clip
    config = dataclasses.replace(
        CONFIG, name=name, warmup_steps=0, min_lr_ratio=1.0, adam_epsilon=1e-3, clip=clip
    )
    optimizer = make_optimizer(config, 10, STACK_OF_TWO)
    state = optimizer.init(params)
    for grads in (first, second):
        updates, state = optimizer.update(grads, state, params)

    def same(path, update, w, *grads):
        wanted = -0.1 * by_hand(jax.tree_util.keystr(path), w, grads)
        # Optax has 1 - b2^t in float32.
        np.testing.assert_allclose(update, wanted, rtol=1e-7, atol=1e-9, err_msg=str(path))

    jax.tree_util.tree_map_with_path(same, updates, params, clipped, second)


def test_what_is_zero_has_no_trust_ratio():
    boxed, params = {"kernel": tiny.box()}, {"kernel": jnp.zeros(2)}
    optimizer = make_optimizer(dataclasses.replace(CONFIG, name="lamb", warmup_steps=0), 10, boxed)
    updates, _ = optimizer.update({"kernel": jnp.ones(2)}, optimizer.init(params), params)
    np.testing.assert_allclose(updates["kernel"], -0.1, rtol=1e-4)


def test_muon_updates_a_matrix_that_layers_share():
    boxed = {"layers": {"kernel": tiny.box("matrix", 2)}}
    optimizer = make_optimizer(dataclasses.replace(CONFIG, name="muon"), 10, boxed)
    params = {"layers": {"kernel": jnp.ones((3, 2))}}
    updates, _ = optimizer.update(params, optimizer.init(params), params)
    assert updates["layers"]["kernel"].shape == (3, 2)


@pytest.mark.parametrize("zero1", [False, True])
def test_no_device_waits_for_another_inside_the_iteration_of_muon(zero1):
    """Each layer is gathered before its five iterations and comes back after them: the products
    between need nothing of another device. The fault: matrices that are split as their state is.
    """
    config = tiny.config(
        optimizer={"name": "muon"},
        mesh={"data": 4, "tensor": 2, "zero1": zero1},
        model={"layers": 8},
    )
    recipe, mesh = make_recipe(config), meshes.make_mesh(config.mesh)
    with jax.set_mesh(mesh):
        abstract = build_step(recipe, mesh).abstract_state
        split = [
            x.sharding.spec
            for x in jax.tree.leaves(abstract.opt_state)
            if x.shape[-3:] == (16, 2, 8)
        ]
        assert any("data" in str(spec) for spec in split) == zero1
        update = jax.jit(
            lambda grads, state, params: recipe.optimizer.update(grads, state, params)[0],
            out_shardings=jax.tree.map(lambda x: x.sharding, abstract.params),
        )
        text = (
            update.lower(abstract.params, abstract.opt_state, abstract.params).compile().as_text()
        )
    moved = re.findall(
        r" (?:all-gather|all-to-all|all-reduce|collective-permute)(?:-start)?\(", text
    )
    assert text.count(" dot(") >= 15  # three products of five iterations
    # Of seven stacks of matrices; without a place for layers there are 67 or 72.
    assert 0 < len(moved) <= 6 * 7


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"name": "muon", "layer_decay": 0.8},
            "optimizer.layer_decay=0.8 is not supported with optimizer.name=muon; use 1",
        ),
        (
            {"schedule": "inverse_sqrt", "warmup_steps": 0},
            "optimizer.warmup_steps=0 must be at least 1 with optimizer.",
        ),
        (
            {"schedule": "inverse_sqrt", "min_lr_ratio": 0.1},
            "optimizer.min_lr_ratio=0.1 must be 0 with optimizer.sched",
        ),
        (
            {"schedule": "wsd", "decay_fraction": 1.0},
            "optimizer.decay_fraction=1.0 leaves no room for optimizer.warm",
        ),
    ],
)
def test_what_an_optimizer_cannot_do_is_one_line(changes, said):
    with pytest.raises(BadInput, match=re.escape(said)):
        tiny.config(optimizer=changes)


@pytest.mark.parametrize("switch", ["no_bias_correction", "layer_decay_on_gradients"])
def test_the_switches_of_another_adam_are_refused_with_lamb(switch):
    with pytest.raises(BadInput, match="must leave out no_bias_correction and layer_decay_on_gra"):
        tiny.config(optimizer={"name": "lamb"}, compat={"switches": switch})


@pytest.mark.parametrize("decay", [0.5, 0.9999])
def test_an_average_by_hand_and_the_digits_of_its_first_steps(decay):
    """The recursion with its correction at the end. Of 1 - d^n with d = 0.9999, float32 keeps three
    digits at n = 1.
    """
    optimizer = make_optimizer(
        dataclasses.replace(CONFIG, warmup_steps=0, average=decay), 10, {"kernel": tiny.box()}
    )
    params = {"kernel": jnp.array([2.0, -3.0])}
    state, total = optimizer.init(params), np.zeros(2)
    for n in range(1, 6):
        updates, state = optimizer.update({"kernel": jnp.array([0.3, n - 3.0])}, state, params)
        params = optax.apply_updates(params, updates)
        total = decay * total + (1 - decay) * np.float64(params["kernel"])
        np.testing.assert_allclose(state[-1].average["kernel"], total / (1 - decay**n), rtol=5e-7)
    assert np.abs(state[-1].average["kernel"] - params["kernel"]).min() > 1e-2
