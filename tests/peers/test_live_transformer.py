"""The Transformer of 2017 from left to right against `torch.nn.TransformerEncoder`: vectors, loss,
every gradient.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from xlnet_jax.batch import NEVER
from xlnet_jax.model.transformer import empty_memory
from xlnet_jax.train.loss import mean_loss
from xlnet_jax.train.recipe import make_recipe

torch = pytest.importorskip("torch")

SMOOTHING = 0.1


def _as_theirs(ours, model):
    """Our parameters of the layers, or their gradients, under torch's names and in its layout:
    a list over the layers.
    """
    attention, feed_forward = ours["layers"]["attention"], ours["layers"]["feed_forward"]
    L, D = model.layers, model.d_model
    three = ("query", "key", "value")
    # [in, heads, head_dim] to [out, in].
    of_three = [np.asarray(attention[name]).reshape(L, D, D).swapaxes(1, 2) for name in three]
    bias_of_three = [np.asarray(attention[f"{name}_bias"]).reshape(L, D) for name in three]
    return {
        "self_attn.in_proj_weight": np.concatenate(of_three, axis=1),
        "self_attn.in_proj_bias": np.concatenate(bias_of_three, axis=1),
        "self_attn.out_proj.weight": np.asarray(attention["output"]).reshape(L, D, D),
        "self_attn.out_proj.bias": attention["output_bias"],
        "norm1.weight": attention["norm"]["scale"],
        "norm1.bias": attention["norm"]["bias"],
        "linear1.weight": np.asarray(feed_forward["inner"]["kernel"]).swapaxes(1, 2),
        "linear1.bias": feed_forward["inner"]["bias"],
        "linear2.weight": np.asarray(feed_forward["outer"]["kernel"]).swapaxes(1, 2),
        "linear2.bias": feed_forward["outer"]["bias"],
        "norm2.weight": feed_forward["norm"]["scale"],
        "norm2.bias": feed_forward["norm"]["bias"],
    }


def _theirs(model, params, tokens_BT, real_BT):
    """Hidden states, the smoothed loss of the next tokens, and gradients: of the layers by name, of
    the table.
    """
    D, values = model.d_model, _as_theirs(params, model)
    table = torch.tensor(np.asarray(params["word_embedding"]), requires_grad=True)
    layers = []
    for number in range(model.layers):
        layer = torch.nn.TransformerEncoderLayer(
            D,
            model.heads,
            model.d_ff,
            dropout=0.0,
            activation="relu",
            norm_first=False,
            batch_first=True,
            layer_norm_eps=model.layer_norm_epsilon,
            dtype=torch.float64,
        )
        with torch.no_grad():
            for name, parameter in layer.named_parameters():
                parameter.copy_(torch.tensor(np.asarray(values[name][number])))
        layers.append(layer.train())  # the path of inference is another program
    B, T = tokens_BT.shape
    place, pair = np.arange(T)[:, None], np.arange(D // 2)[None]
    angle = place / 10000 ** (2 * pair / D)
    position = np.zeros((T, D))
    position[:, 0::2], position[:, 1::2] = np.sin(angle), np.cos(angle)
    h = table[torch.tensor(tokens_BT).long()] * D**0.5 + torch.tensor(position)
    future = torch.triu(torch.ones(T, T, dtype=torch.bool), diagonal=1)
    for layer in layers:
        h = layer(h, src_mask=future, src_key_padding_mask=torch.tensor(~real_BT))
    logits = (h @ table.T)[:, :-1].reshape(B * (T - 1), -1)
    target = torch.tensor(np.where(real_BT[:, 1:], tokens_BT[:, 1:], -100)).long().reshape(-1)
    loss = torch.nn.functional.cross_entropy(logits, target, label_smoothing=SMOOTHING)
    loss.backward()
    grads = {
        name: [dict(layer.named_parameters())[name].grad.numpy() for layer in layers]
        for name in values
    }
    return h.detach().numpy(), loss.item(), grads, table.grad.numpy()


@pytest.mark.parametrize("seed", range(4))
def test_equals_torch(seed, x64):
    draw = np.random.default_rng(seed)
    heads = int(draw.integers(1, 4))
    size = {
        "layers": int(draw.integers(1, 4)),
        "heads": heads,
        "head_dim": 4,
        "d_model": 4 * heads,
        "d_ff": 20,
    }
    config = tiny.family(
        "transformer",
        model={**size, "vocab_size": 30, "compute_dtype": "float64"},
        train={"label_smoothing": SMOOTHING},
    )
    config = config.changed(model={"dropout": 0.0, "attention_dropout": 0.0})
    model = make_recipe(config).model
    shapes = tiny.random_params(config)
    params = jax.tree.map(lambda x: jnp.asarray(0.5 * draw.standard_normal(x.shape)), shapes)
    B, T = 3, 32
    length_B = draw.integers(2, T + 1, B)
    real_BT = np.arange(T)[None] < length_B[:, None]
    tokens_BT = draw.integers(9, 30, (B, T)).astype(np.int32)
    batch = tiny.batch(config, rows=B)
    batch = dataclasses.replace(
        batch,
        tokens=tokens_BT,
        rank=np.where(real_BT, np.arange(T), NEVER).astype(np.int32),
        target_positions=np.broadcast_to(np.arange(T, dtype=np.int32), (B, T)),
        target_tokens=np.roll(tokens_BT, -1, axis=1),
        target_weights=np.where(np.arange(T)[None] < length_B[:, None] - 1, 1, 0).astype(
            np.float32
        ),
    )
    memory = empty_memory(config.model, B)
    hidden, loss, grads, of_table = _theirs(config.model, params, tokens_BT, real_BT)
    ours = model.transformer.apply({"params": params}, batch, memory)
    np.testing.assert_allclose(
        np.asarray(ours.hidden_BTD)[real_BT], hidden[real_BT], rtol=0, atol=1e-9
    )
    # A key switches the smoothing on: all dropout is 0.
    (found, _), gradient = jax.jit(
        jax.value_and_grad(
            lambda params: mean_loss(params, model, batch, memory, jax.random.key(0)), has_aux=True
        )
    )(params)
    plain, _ = mean_loss(params, model, batch, memory)
    assert abs(float(found) - loss) < 1e-9 < abs(float(plain) - loss)
    np.testing.assert_allclose(gradient["word_embedding"], of_table, rtol=0, atol=1e-9)
    for name, mine in _as_theirs(gradient, config.model).items():
        np.testing.assert_allclose(mine, grads[name], rtol=0, atol=1e-9, err_msg=name)
