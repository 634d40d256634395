"""Precision, dropout sites, and gradients that must be exactly zero."""

import collections
import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from jax.extend.core import jaxprs_in_params

from xlnet_jax.data.batches import loader
from xlnet_jax.data.batches.stream import extend_plan
from xlnet_jax.distributed.mesh import make_mesh
from xlnet_jax.kernels import dropout
from xlnet_jax.model import layers
from xlnet_jax.model.layers import Dropout
from xlnet_jax.model.transformer import empty_memory
from xlnet_jax.train.loss import mean_loss
from xlnet_jax.train.recipe import make_recipe

NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}
B, T, P, M, K, N, D, F, H = 8, 32, 6, 24, 56, 87, 16, 32, 2


def batch_of(config, step=1):
    plan = extend_plan((), 0, 8, config.data.windows_per_block)
    return loader.TrainDispatches(tiny.mixture(), config, plan, np.arange(8), 0, 1).batch(step)


@functools.cache
def params():
    """The same float32 weights for every test, larger than fresh ones so that attention is not
    uniform.
    """
    config = tiny.config(model={"init_std": 0.3})
    return jax.jit(lambda: nn.meta.unbox(make_recipe(config).init_params()))()


def equations(jaxpr):
    """Also those of the jaxprs inside it."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from equations(inner)


def loss_and_gradient(config, batch=None):
    model, batch = make_recipe(config).model, batch_of(config) if batch is None else batch
    memory = empty_memory(config.model, 8)
    return jax.value_and_grad(lambda p: mean_loss(p, model, batch, memory)[0])


def test_under_bfloat16_positions_softmax_layer_norm_and_loss_are_float32():
    config = tiny.config(model={"compute_dtype": "bfloat16", **NO_DROPOUT})
    found = collections.defaultdict(set)
    for equation in equations(jax.make_jaxpr(loss_and_gradient(config))(params()).jaxpr):
        found[equation.primitive.name].update(
            str(v.aval.dtype) for v in equation.invars if hasattr(v.aval, "dtype")
        )
    # exp and log: softmax and loss. sin and cos: positions. rsqrt and the variance's square:
    # LayerNorm.
    for name in ("exp", "log", "sin", "cos", "rsqrt"):
        assert found[name] == {"float32"}, name
    assert found["dot_general"] >= {"bfloat16"}, "nothing is computed in bfloat16"
    whole = tiny.config(model={"compute_dtype": "float32", **NO_DROPOUT})
    every = equations(jax.make_jaxpr(loss_and_gradient(whole))(params()).jaxpr)
    assert not any(out.aval.dtype == jnp.bfloat16 for equation in every for out in equation.outvars)


def test_bfloat16_stays_close_to_float32():
    values, grads = {}, {}
    for dtype in ("float32", "bfloat16"):
        config = tiny.config(model={"compute_dtype": dtype, **NO_DROPOUT})
        values[dtype], grads[dtype] = jax.jit(loss_and_gradient(config))(params())
    assert values["bfloat16"] != values["float32"]
    assert values["bfloat16"] == pytest.approx(float(values["float32"]), rel=5e-3)
    # bfloat16 has 8 bits: 2^-8 = 0.4 % a rounding, and a gradient goes through some tens of them.
    for (path, full), half in zip(
        jax.tree_util.tree_leaves_with_path(grads["float32"]),
        jax.tree.leaves(grads["bfloat16"]),
        strict=True,
    ):
        assert half.dtype == jnp.float32
        error = jnp.linalg.norm(half - full) / jnp.linalg.norm(full)
        assert error < 0.06, (jax.tree_util.keystr(path), float(error))


def test_a_gradient_is_not_rounded_to_the_dtype_of_the_computation():
    """Else the devices would add it up in bfloat16."""
    config = tiny.config(model={"compute_dtype": "bfloat16", **NO_DROPOUT})
    grads = jax.jit(loss_and_gradient(config))(params())[1]["layers"]
    for name, grad in (grads["attention"] | grads["feed_forward"]["inner"]).items():
        # A CPU sums the gradient of `position` over the rows first: its product has only the N
        # distances to sum, and with fewer terms more elements happen to be bfloat16 numbers (0.11;
        # all, if they were rounded).
        bound = 0.88 if name == "position" else 0.9
        for x in jax.tree.leaves(grad):
            assert np.mean(x != x.astype(jnp.bfloat16).astype(jnp.float32)) > bound, name


def masks(**rates):
    """Shapes of all dropout masks of one training step's forward pass, outside and inside the scan
    over layers.
    """
    config = tiny.config(model={**NO_DROPOUT, "activation_dropout": 0.0, **rates})
    model, batch, memory = (
        make_recipe(config).model.transformer,
        batch_of(config),
        empty_memory(config.model, 8),
    )

    def run(p, key):
        return model.apply({"params": p}, batch, memory, rngs={"dropout": key})

    found = equations(jax.make_jaxpr(run)(params(), jax.random.key(0)).jaxpr)
    # Hashes are compared with a threshold as signed integers.
    cast = (
        e
        for e in found
        if e.primitive.name == "convert_element_type" and e.invars[0].aval.dtype == jnp.uint32
    )
    return sorted(tuple(e.outvars[0].aval.shape) for e in cast)


def test_dropout_is_at_the_sites_of_the_original_each_with_its_rate():
    assert masks() == []
    both = T + P  # the rows of the two streams are one array
    # Word embedding, query vector, position table, output.
    outside = [(B, T, D), (B, P, D), (1, N, D), (B, P, D)]
    assert masks(dropout=0.1) == sorted(outside + 2 * [(B, both, D)]), (
        "two sites a layer: attention and FFN output"
    )
    assert masks(attention_dropout=0.1) == sorted([(B, H, T, K), (B, H, P, K)])
    assert masks(activation_dropout=0.1) == [(B, both, F)]


def mask(x, rows_B, position_BQ=None):
    rngs = {"dropout": jax.random.key(3)}
    return Dropout(0.5).apply({}, x, rows_B, position_BQ, rngs=rngs)


def test_a_mask_is_the_same_on_one_two_and_eight_devices():
    drawn = []
    for count in (1, 2, 8):
        mesh = make_mesh(tiny.config().mesh, jax.devices()[:count])
        sharding = jax.sharding.NamedSharding(mesh, jax.P("data"))
        run = jax.jit(lambda x: mask(x, jnp.arange(8)), out_shardings=sharding)
        out = run(jax.device_put(jnp.ones((8, 5, 64)), sharding))
        assert len(out.sharding.device_set) == count
        drawn.append(np.asarray(out))
    assert 0.3 < np.mean(drawn[0] == 0) < 0.7
    np.testing.assert_array_equal(drawn[0], drawn[1])
    np.testing.assert_array_equal(drawn[0], drawn[2])
    # Of some rows alone, the masks of those rows.
    np.testing.assert_array_equal(
        mask(jnp.ones((3, 5, 64)), jnp.array([6, 1, 4])), drawn[0][[6, 1, 4]]
    )
    assert len({row.tobytes() for row in drawn[0].reshape(40, 64)}) == 40
    # And of some positions, wherever they stand.
    there = mask(jnp.ones((2, 3, 64)), jnp.array([6, 1]), jnp.array([[4, 0, 0], [2, 3, 1]]))
    np.testing.assert_array_equal(there[0], drawn[0][6, [4, 0, 0]])
    np.testing.assert_array_equal(there[1], drawn[0][1, [2, 3, 1]])


def test_masks_are_the_same_with_64_bits():
    """Keys of 64 bits once dropped everything."""

    def loss(dtype):
        config = tiny.config(
            model={"compute_dtype": dtype, "layers": 1, "dropout": 0.1, "attention_dropout": 0.1}
        )
        model, batch, memory = (
            make_recipe(config).model,
            batch_of(config),
            empty_memory(config.model, 8),
        )
        one = params() | {"layers": jax.tree.map(lambda x: x[:1], params()["layers"])}
        return np.asarray(
            jax.jit(lambda p: mean_loss(p, model, batch, memory, jax.random.key(0))[0])(one)
        )

    usual = loss("float32")
    with jax.enable_x64(True):
        double = loss("float64")
    assert double.dtype == "float64" and double != usual
    np.testing.assert_allclose(double, usual, rtol=1e-5)


@pytest.mark.slow
def test_every_site_stream_layer_and_step_has_a_mask_of_its_own(monkeypatch):
    config = tiny.config(model={"activation_dropout": 0.3})
    model, batch, memory = (
        make_recipe(config).model.transformer,
        batch_of(config),
        empty_memory(config.model, 8),
    )
    used, positions = [], []

    def drop(x, rate, key, *indices):
        if not isinstance(key, jax.core.Tracer):  # Flax traces the body of a scan before it runs
            # The stream, where attention shares a key.
            scalars = [index for index in indices if index.ndim == 0]
            used.append(tuple(map(int, (key, *scalars))))
            if x.shape[1] == T + P:
                positions.append(indices[1][..., 0])
        return x

    monkeypatch.setattr(layers, "drop", drop)
    monkeypatch.setattr(dropout, "drop", drop)
    variables = {"params": params()}
    with jax.disable_jit():
        for step in (0, 1):
            model.apply(
                variables,
                batch,
                memory,
                rngs={"dropout": jax.random.key(step)},
            )
    # Attention of two streams; of both at once its output, the activation, feed-forward output.
    a_layer = 2 + 3
    assert len(used) == 2 * (4 + config.model.layers * a_layer)
    assert len(set(used)) == len(used)
    assert len(positions) >= 3 * config.model.layers
    for at in positions:
        np.testing.assert_array_equal(at[:, :T], np.broadcast_to(np.arange(T), (B, T)))
        # Not those of the content.
        np.testing.assert_array_equal(at[:, T:], T + batch.target_positions)


def test_no_mask_depends_on_the_slot_of_a_target():
    """Targets in another order of slots: the same vectors, in that order."""
    config = tiny.config(model={"activation_dropout": 0.3})
    model, batch, memory = (
        make_recipe(config).model.transformer,
        batch_of(config),
        empty_memory(config.model, 8),
    )
    turned = dataclasses.replace(batch, target_positions=batch.target_positions[:, ::-1])

    @jax.jit
    def run(batch):
        rngs = {"dropout": jax.random.key(0)}
        return model.apply({"params": params()}, batch, memory, rngs=rngs).target_vectors_BPD

    np.testing.assert_allclose(run(turned)[:, ::-1], run(batch), rtol=1e-5, atol=1e-5)


def test_slots_of_weight_zero_give_exactly_no_gradient():
    config = tiny.config(model=NO_DROPOUT)
    batch = batch_of(config)
    run = jax.jit(lambda p, b: loss_and_gradient(config, b)(p))
    none = dataclasses.replace(batch, target_weights=np.zeros_like(batch.target_weights))
    loss, grads = run(params(), none)
    assert loss == 0 and all(not np.any(g) for g in jax.tree.leaves(grads))
    # A likelihood that overflows in an unused slot stays where it is.
    huge = params() | {"lm_head": {"bias": jnp.full(tiny.VOCAB, -jnp.inf).at[:2].set(0.0)}}
    tokens = batch.target_tokens.copy()
    weights = batch.target_weights.copy()
    tokens[:, :3], tokens[:, 3:] = 1, 100
    weights[:, 3:] = 0
    loss, grads = run(
        huge, dataclasses.replace(batch, target_tokens=tokens, target_weights=weights)
    )
    assert np.isfinite(loss) and all(np.isfinite(g).all() for g in jax.tree.leaves(grads))


def test_queries_that_see_nothing_give_exactly_no_gradient_through_attention():
    config = tiny.config(model={"layers": 1, **NO_DROPOUT})
    batch = batch_of(config)
    one = params() | {"layers": jax.tree.map(lambda x: x[:1], params()["layers"])}
    run = jax.jit(lambda p, b: loss_and_gradient(config, b)(p))
    blind = dataclasses.replace(
        batch, rank=np.full_like(batch.rank, 5), continues=np.zeros(8, bool)
    )
    seeing, unseeing = run(one, batch)[1], run(one, blind)[1]
    for name in ("query", "key", "value", "position", "content_bias", "segment_embedding"):
        assert np.any(seeing["layers"]["attention"][name]), name
        assert not np.any(unseeing["layers"]["attention"][name]), name
    assert np.any(unseeing["layers"]["feed_forward"]["inner"]["kernel"])
