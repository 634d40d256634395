"""The Vanilla Transformer: absolute positions at every layer, its auxiliary losses, and sliding
evaluation.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from xlnet_jax.batch import stack
from xlnet_jax.data.batches import loader
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.errors import BadInput
from xlnet_jax.infer.options import Generate
from xlnet_jax.infer.orders import check_question
from xlnet_jax.model import flops
from xlnet_jax.train import sliding
from xlnet_jax.train.loss import mean_loss
from xlnet_jax.train.recipe import make_recipe
from xlnet_jax.train.step import build_step, create_state

T, LAYERS = 16, 3
ROWS = np.arange(4)


def config(steps=60, **model):
    return tiny.config(
        model={
            "memory_len": 0,
            "layers": LAYERS,
            "architecture": "vanilla",
            "layer_losses": True,
            "dropout": 0.0,
            "attention_dropout": 0.0,
        }
        | model,
        data={
            "objective": "clm",
            "segment_len": T,
            "reuse_len": T,
            "num_predict": T,
            "multi_token_prediction": 2,
            "bidirectional": False,
        },
        train={"steps": steps, "batch_size": 4},
    )


@functools.cache
def vanilla():
    """(recipe, parameters, a batch of step 0)."""
    settings = config()
    return (
        make_recipe(settings),
        tiny.params(settings),
        jax.tree.map(jnp.asarray, tiny.batch(settings, 0)),
    )


def streams(tokens_BT):
    """The content stream after every layer, without dropout."""
    recipe, params, batch = vanilla()
    _, seen = recipe.model.transformer.apply(
        {"params": params},
        dataclasses.replace(batch, tokens=tokens_BT),
        recipe.empty_memory(4),
        mutable=["layer_outputs"],
    )
    return seen["layer_outputs"]["layers"]["content_stream"][0]


def test_the_second_target_is_the_token_two_ahead():
    batch = tiny.batch(config(), 0)
    np.testing.assert_array_equal(batch.target_tokens[:, 1:], batch.auxiliary.tokens[:, 0, :-1])
    np.testing.assert_array_equal(batch.tokens[:, 2:], batch.auxiliary.tokens[:, 0, :-2])
    mixture = tiny.mixture()
    heldout = loader.HeldoutDispatches(mixture, config(), mixture.single_pass(config()), 4, ROWS)(0)
    assert heldout.auxiliary is None and (heldout.target_weights == 1).any()


def test_layer_l_of_n_stops_after_l_2nths_of_the_training():
    settings = config(steps=60)
    # The last step with a loss of layer 1 and of layer 2 of 3, and the first without.
    shares = {step: tiny.batch(settings, step).auxiliary.weights for step in (9, 10, 19, 20)}
    for weights_BLA in shares.values():
        assert (weights_BLA == weights_BLA[:1]).all()
        np.testing.assert_array_equal(weights_BLA[..., 1], 0.5 * weights_BLA[..., 0])
    assert {step: w[0, :, 0].tolist() for step, w in shares.items()} == {
        9: [1, 1, 1],
        10: [0, 1, 1],
        19: [0, 1, 1],
        20: [0, 0, 1],
    }


def test_the_loss_is_the_weighted_sum_of_all_its_parts():
    recipe, params, batch = vanilla()
    weights = jnp.asarray(np.random.default_rng(0).random((4, LAYERS, 2)), jnp.float32)
    batch = dataclasses.replace(
        batch, auxiliary=dataclasses.replace(batch.auxiliary, weights=weights)
    )
    loss, rows = jax.jit(functools.partial(mean_loss, model=recipe.model))(
        params, batch=batch, memory=recipe.empty_memory(4)
    )
    expected = np.zeros(4)
    streams_LBTD, own = streams(batch.tokens), params["auxiliary_heads"]
    tokens = [batch.target_tokens, batch.auxiliary.tokens[:, 0]]
    for layer in range(LAYERS):
        for ahead in (0, 1) if layer < LAYERS - 1 else (1,):
            kernel_VD = own["layers"][layer, ahead] if layer < LAYERS - 1 else own["further"][0]
            logs = jax.nn.log_softmax(streams_LBTD[layer] @ kernel_VD.T, axis=-1)
            expected = expected - weights[:, layer, ahead] * np.take_along_axis(
                np.asarray(logs), np.asarray(tokens[ahead])[..., None], 2
            ).sum(axis=(1, 2))
    (tokens_B, weight_B), (auxiliary_B, _) = rows.sums["tokens"], rows.sums["auxiliary"]
    np.testing.assert_allclose(auxiliary_B, expected, rtol=1e-5)
    np.testing.assert_array_equal(weight_B, np.full(4, T))
    assert float(loss) == pytest.approx(float((tokens_B + auxiliary_B).sum()) / (4 * T), rel=1e-6)


def test_flops_have_no_position_term_and_count_the_auxiliary_softmaxes():
    settings = config()
    found = flops.forward_flops(settings)
    V, D, F = tiny.VOCAB, 16, 32
    assert (
        found["content"] == LAYERS * T * (4 * D * D + 2 * 2 * T * D + 4 * D * F)
        and found["query"] == 0
    )
    # Two for each of the two lower layers, and the second target of the last one.
    assert found["auxiliary"] == 5 * T * 2 * D * V
    assert flops.step_flops(settings) == 4 * 3 * sum(found.values())


def by_hand(windows_NX):
    """-log p of every token of each window but the first, given those before it."""
    recipe, params, batch = vanilla()
    tokens_NT, zeros_N = windows_NX[:, :-1], np.zeros(len(windows_NX), np.int32)
    batch = dataclasses.replace(
        batch,
        tokens=tokens_NT,
        segments=0 * tokens_NT,
        rank=np.broadcast_to(np.arange(tokens_NT.shape[1]), tokens_NT.shape),
        direction=zeros_N + 1,
        continues=zeros_N > 0,
        target_positions=zeros_N[:, None],
        auxiliary=None,
    )
    out = jax.jit(recipe.model.transformer.apply)(
        {"params": params}, batch, recipe.empty_memory(len(zeros_N))
    )
    logs_NTV = jax.nn.log_softmax(recipe.model.logits(params, out.hidden_BTD))
    return -np.take_along_axis(np.asarray(logs_NTV), windows_NX[:, 1:, None], 2)[..., 0]


def test_sliding_scores_every_token_but_the_first_with_all_the_context_that_there_is():
    recipe, params, _ = vanilla()
    # The last of three batches is not full.
    of_16 = recipe.config.changed(evaluation={"batch_size": 16})
    recipe = dataclasses.replace(recipe, config=of_16)
    mesh = meshes.make_mesh(recipe.config.mesh, jax.devices()[:4])
    mixture = tiny.mixture(tiny.Words(tokens=61, seed=1))
    with jax.set_mesh(mesh):
        placed = jax.device_put(params, jax.NamedSharding(mesh, jax.P()))
        found = sliding.SlidingLoss(recipe, mesh, mixture, np.ones(tiny.VOCAB, np.int64))(placed)
    assert found["targets"] == 60 and found["context"] == T
    windows = np.lib.stride_tricks.sliding_window_view(mixture.corpora[0].text, T + 1)
    losses = by_hand(windows)
    expected = np.concatenate([losses[0], losses[1:, -1]]).mean()
    assert found["heldout_loss"] == pytest.approx(expected, rel=1e-5)
    # Every token is a character.
    assert found["bits_per_character"] == pytest.approx(expected / np.log(2), rel=1e-5)
    # Windows may be shorter than the segments of training.
    short = windows[:, :13]
    last_B1 = jax.jit(functools.partial(sliding.window_nll, recipe.model, slots=1))(params, short)
    np.testing.assert_allclose(last_B1, by_hand(short)[:, -1:], rtol=1e-5)


@pytest.mark.prove
@pytest.mark.production
def test_any_mesh_and_any_number_of_micro_batches_have_the_same_losses():
    """The auxiliary losses cross `shard_map`, a split vocabulary and micro-batches like all
    others.
    """
    losses = []
    for devices, shape, parts in ((1, {}, 1), (8, {"data": 2, "fsdp": 2, "tensor": 2}, 2)):
        settings = config(dropout=0.1, attention_dropout=0.1)
        settings = settings.changed(
            train={"batch_size": 8, "gradient_accumulation_steps": parts}, mesh=shape
        )
        mesh, recipe = (
            meshes.make_mesh(settings.mesh, jax.devices()[:devices]),
            make_recipe(settings),
        )
        batches = stack([tiny.batch(settings, step) for step in range(6)])
        with jax.set_mesh(mesh):
            built = build_step(recipe, mesh)
            _, metrics = built.jitted(
                create_state(built), meshes.place(batches, mesh), built.dropout_seed
            )
        np.testing.assert_allclose(
            metrics["total_loss"], metrics["loss"] + metrics["loss_auxiliary"], rtol=1e-6
        )
        losses.append(metrics["loss"])
    assert losses[0][0] > losses[0][-1]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)


def test_what_does_not_fit_absolute_positions_is_refused():
    with pytest.raises(
        BadInput, match="model.memory_len=8 is not for model.architecture=vanilla; use 0"
    ):
        config(memory_len=8)
    with pytest.raises(
        BadInput, match="plm is not for model.architecture=vanilla, which is trained by clm"
    ):
        tiny.config(model={"architecture": "vanilla", "memory_len": 0})
    with pytest.raises(
        BadInput, match="data.multi_token_prediction=2 is for pretraining with data.objective=clm"
    ):
        tiny.config(data={"multi_token_prediction": 2})
    with pytest.raises(
        BadInput, match="run has model.architecture=vanilla without a memory, so it"
    ):
        check_question(config(), "run", Generate())
