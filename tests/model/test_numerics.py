"""Precision, masks of dropout, and gradients that must be exactly zero."""

import collections
import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
import traced

from xlnet_jax.kernels import dropout
from xlnet_jax.model import layers
from xlnet_jax.model.layers import Dropout
from xlnet_jax.model.transformer import empty_memory
from xlnet_jax.train.loss import mean_loss
from xlnet_jax.train.recipe import make_recipe

NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}
B, T, P = 8, 32, 6


@functools.cache
def params():
    """The same float32 weights for every test, larger than fresh ones so that attention is not
    uniform.
    """
    config = tiny.config(model={"init_std": 0.3})
    return jax.jit(lambda: nn.meta.unbox(make_recipe(config).init_params()))()


def loss_and_gradient(config, batch=None):
    model, batch = make_recipe(config).model, tiny.batch(config, 1) if batch is None else batch
    memory = empty_memory(config.model, 8)
    return jax.value_and_grad(lambda p: mean_loss(p, model, batch, memory)[0])


@functools.cache
def computed_in(dtype):
    """The loss and its gradient, without dropout."""
    config = tiny.config(model={"compute_dtype": dtype, **NO_DROPOUT})
    return jax.jit(loss_and_gradient(config))(params())


def program_in(dtype):
    """The operations of the loss and its gradient."""
    config = tiny.config(model={"compute_dtype": dtype, **NO_DROPOUT})
    return traced.equations(jax.make_jaxpr(loss_and_gradient(config))(params()).jaxpr)


def test_under_bfloat16_positions_softmax_layer_norm_and_loss_are_float32():
    found = collections.defaultdict(set)
    for equation in program_in("bfloat16"):
        found[equation.primitive.name].update(
            str(v.aval.dtype) for v in equation.invars if hasattr(v.aval, "dtype")
        )
    # exp and log: softmax and loss. sin and cos: positions. rsqrt: LayerNorm.
    for name in ("exp", "log", "sin", "cos", "rsqrt"):
        assert found[name] == {"float32"}, name
    assert found["dot_general"] >= {"bfloat16"}, "nothing is computed in bfloat16"
    made = [out.aval.dtype for equation in program_in("float32") for out in equation.outvars]
    assert jnp.bfloat16 not in made


def test_bfloat16_stays_close_to_float32():
    (half_loss, half_grads), (loss, grads) = computed_in("bfloat16"), computed_in("float32")
    assert half_loss != loss and half_loss == pytest.approx(float(loss), rel=5e-3)
    # bfloat16 has 8 bits: 2^-8 = 0.4 % a rounding, and a gradient goes through some tens of them.
    for (path, full), half in zip(
        jax.tree.leaves_with_path(grads), jax.tree.leaves(half_grads), strict=True
    ):
        assert half.dtype == jnp.float32
        error = jnp.linalg.norm(half - full) / jnp.linalg.norm(full)
        assert error < 0.06, (jax.tree_util.keystr(path), float(error))


def test_a_gradient_is_not_rounded_to_the_dtype_of_the_computation():
    """Else the devices would add it up in bfloat16."""
    grads = computed_in("bfloat16")[1]["layers"]
    for name, grad in (grads["attention"] | grads["feed_forward"]["inner"]).items():
        # A CPU sums the gradient of `position` over the rows first: its product has only the N
        # distances to sum, and with fewer terms more elements happen to be bfloat16 numbers (0.11;
        # all, if they were rounded).
        bound = 0.88 if name == "position" else 0.9
        for x in jax.tree.leaves(grad):
            assert np.mean(x != x.astype(jnp.bfloat16).astype(jnp.float32)) > bound, name


def mask(x, rows_B, position_BQ=None):
    rngs = {"dropout": jax.random.key(3)}
    return Dropout(0.5).apply({}, x, rows_B, position_BQ, rngs=rngs)


def test_a_mask_is_of_the_row_and_the_position_wherever_they_stand():
    whole = np.asarray(mask(jnp.ones((8, 5, 64)), jnp.arange(8)))
    assert 0.3 < np.mean(whole == 0) < 0.7
    assert len({row.tobytes() for row in whole.reshape(40, 64)}) == 40
    part = mask(jnp.ones((2, 3, 64)), jnp.array([6, 1]), jnp.array([[4, 0, 0], [2, 3, 1]]))
    np.testing.assert_array_equal(part[0], whole[6, [4, 0, 0]])
    np.testing.assert_array_equal(part[1], whole[1, [2, 3, 1]])


def test_masks_are_the_same_with_64_bits():
    """Keys of 64 bits once dropped everything."""
    usual = mask(jnp.ones((8, 5, 64)), jnp.arange(8))
    with jax.enable_x64(True):
        wide = mask(jnp.ones((8, 5, 64)), jnp.arange(8))
    assert wide.dtype == "float64"
    np.testing.assert_array_equal(wide, usual)


def network():
    """The transformer with dropout everywhere, a batch, and its memory."""
    config = tiny.config(model={"activation_dropout": 0.3})
    model = make_recipe(config).model.transformer
    return model, tiny.batch(config, 1), empty_memory(config.model, 8)


@pytest.mark.slow
def test_every_site_stream_layer_and_step_has_a_mask_of_its_own(monkeypatch):
    model, batch, memory = network()
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
    with jax.disable_jit():
        for step in (0, 1):
            rngs = {"dropout": jax.random.key(step)}
            model.apply({"params": params()}, batch, memory, rngs=rngs)
    # Attention of two streams; of both at once its output, the activation, feed-forward output.
    a_layer = 2 + 3
    assert len(used) == 2 * (4 + model.config.layers * a_layer)
    assert len(set(used)) == len(used)
    assert len(positions) >= 3 * model.config.layers
    for at in positions:
        np.testing.assert_array_equal(at[:, :T], np.broadcast_to(np.arange(T), (B, T)))
        # Not those of the content.
        np.testing.assert_array_equal(at[:, T:], T + batch.target_positions)


def test_no_mask_depends_on_the_slot_of_a_target():
    """Targets in another order of slots: the same vectors, in that order."""
    model, batch, memory = network()
    turned = dataclasses.replace(batch, target_positions=batch.target_positions[:, ::-1])

    @jax.jit
    def run(batch):
        rngs = {"dropout": jax.random.key(0)}
        return model.apply({"params": params()}, batch, memory, rngs=rngs).target_vectors_BPD

    np.testing.assert_allclose(run(turned)[:, ::-1], run(batch), rtol=1e-5, atol=1e-5)


def test_slots_of_weight_zero_give_exactly_no_gradient():
    config = tiny.config(model=NO_DROPOUT)
    batch = tiny.batch(config, 1)
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
    batch = tiny.batch(config, 1)
    one = params() | {"layers": jax.tree.map(lambda x: x[:1], params()["layers"])}
    run = jax.jit(lambda p, b: loss_and_gradient(config, b)(p))
    blind = dataclasses.replace(
        batch, rank=np.full_like(batch.rank, 5), continues=np.zeros(8, bool)
    )
    seeing, (loss, unseeing) = run(one, batch)[1], run(one, blind)
    assert np.isfinite(loss)
    for name in ("query", "key", "value", "position", "content_bias", "segment_embedding"):
        assert np.any(seeing["layers"]["attention"][name]), name
        assert not np.any(unseeing["layers"]["attention"][name]), name
    assert np.any(unseeing["layers"]["feed_forward"]["inner"]["kernel"])
