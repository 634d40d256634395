"""ModernBERT against Hugging Face `transformers` itself, on configurations that nobody chose:
logits, loss and every gradient, with padding, windows and rows of several documents, in float64.

The names of its tensors are written here again, not taken from `convert`. Needs torch and
transformers; without them this file is skipped.
"""

import dataclasses

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import flax.linen as nn
import flax.traverse_util
import jax
import numpy as np
import tiny
import torch
from transformers import ModernBertConfig, ModernBertForMaskedLM
from transformers.models.modernbert import modeling_modernbert as theirs

from xlnet_jax.batch import NEVER, forward_text
from xlnet_jax.members import MEMBERS
from xlnet_jax.model.transformer import empty_memory
from xlnet_jax.train.loss import mean_loss
from xlnet_jax.train.recipe import make_recipe

ACTIVATIONS = {"gelu_erf": "gelu", "gelu": "gelu_pytorch_tanh", "relu": "relu"}
OUTSIDE = {
    "word_embedding": "model.embeddings.tok_embeddings.weight",
    "embedding_norm/scale": "model.embeddings.norm.weight",
    "final_norm/scale": "model.final_norm.weight",
    "lm_head/transform/kernel": "head.dense.weight",
    "lm_head/norm/scale": "head.norm.weight",
    "lm_head/bias": "decoder.bias",
}
OF_LAYER = {
    "attention/query": "attn.Wqkv.weight",
    "attention/key": "attn.Wqkv.weight",
    "attention/value": "attn.Wqkv.weight",
    "attention/output": "attn.Wo.weight",
    "attention/norm/scale": "attn_norm.weight",
    "feed_forward/inner/kernel": "mlp.Wi.weight",
    "feed_forward/gate/kernel": "mlp.Wi.weight",
    "feed_forward/outer/kernel": "mlp.Wo.weight",
    "feed_forward/norm/scale": "mlp_norm.weight",
}


def draw(seed, documents="joined"):
    """A configuration without dropout whose sizes are odd where they may be."""
    rng = np.random.default_rng(seed)
    heads, head_dim = int(rng.integers(1, 4)), 2 * int(rng.integers(1, 5))
    T = int(rng.integers(8, 33)) * 2 - 1
    sections = MEMBERS["modernbert"].usual(T)
    if whole := documents == "whole":
        sections["data"] |= {"documents": "whole", "reuse_len": T, "num_predict": T}
    window = int(rng.choice([0, *range(2, 14)]))
    of_windows = {
        "global_every": int(rng.integers(1, 5)),
        "theta_local": float(rng.choice([20.0, 10_000.0])),
    }
    sections["model"] |= (of_windows if window else {}) | {
        "vocab_size": tiny.VOCAB if whole else int(rng.integers(15, 40)),
        "layers": int(rng.integers(1, 8)),
        "heads": heads,
        "head_dim": head_dim,
        "d_model": heads * head_dim,
        "d_ff": int(rng.integers(3, 12)),
        "window": window,
        "theta": float(rng.choice([1.0, 500.0, 160_000.0])),
        "activation": list(ACTIVATIONS)[seed % 3],
        "layer_norm_epsilon": float(rng.choice([1e-12, 1e-5, 1e-3])),
        "compute_dtype": "float64",
    }
    return tiny.config(**sections) if whole else tiny.config().changed(**sections)


def peer(model):
    """Their model; without a window each layer is global."""
    kinds = ("full_attention", "sliding_attention")
    thetas = dict(zip(kinds, (model.theta, model.theta_local), strict=True))
    every = model.global_every if model.window else 1
    config = ModernBertConfig(
        vocab_size=model.vocab_size,
        hidden_size=model.d_model,
        num_attention_heads=model.heads,
        intermediate_size=model.d_ff,
        num_hidden_layers=model.layers,
        layer_types=[kinds[layer % every > 0] for layer in range(model.layers)],
        rope_parameters={
            kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in thetas.items()
        },
        local_attention=model.window or 128,
        norm_eps=model.layer_norm_epsilon,
        hidden_activation=ACTIVATIONS[model.activation],
        classifier_activation=ACTIVATIONS[model.activation],
        initializer_range=model.init_std,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        cls_token_id=1,
        sep_token_id=2,
        # Eager attention computes its softmax in float32.
        attn_implementation="sdpa",
    )
    return ModernBertForMaskedLM(config).double().eval()


def to_tree(model, arrays, missing=np.pi):
    """Our tree from arrays under their names; the first layer lacks a norm."""
    H, E, F = model.heads, model.head_dim, model.d_ff

    def of_layer(ours, layer):
        x = arrays.get(f"model.layers.{layer}.{OF_LAYER[ours]}")
        if x is None:
            return np.full(model.d_model, missing)
        part = ours.split("/")[1]
        if part in ("query", "key", "value"):
            at = ("query", "key", "value").index(part)
            return x.reshape(3, H, E, -1)[at].transpose(2, 0, 1)
        if part == "output":
            return x.reshape(-1, H, E)
        return x[{"inner": slice(0, F), "gate": slice(F, None)}.get(part, slice(None))].T

    flat = {ours: arrays[name] for ours, name in OUTSIDE.items()}
    flat["lm_head/transform/kernel"] = flat["lm_head/transform/kernel"].T
    for ours in OF_LAYER:
        layers = [of_layer(ours, layer) for layer in range(model.layers)]
        flat[f"layers/{ours}"] = np.stack(layers)
    return flax.traverse_util.unflatten_dict(flat, sep="/")


def drawn_peer(config, seed):
    """Their model with weights far from the initial ones, and our tree of these weights."""
    network, generator = peer(config.model), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, x in network.named_parameters():
            around = 1.0 if "norm" in name else 0.0
            x.copy_(around + 0.3 * torch.randn(x.shape, generator=generator, dtype=x.dtype))
    weights = {name: x.detach().numpy() for name, x in network.named_parameters()}
    return network, to_tree(config.model, weights)


def of_ours(config, params, batch):
    """Logits of all positions, the loss, and the gradient."""
    model = make_recipe(config).model
    memory = empty_memory(config.model, len(batch.tokens))

    def loss(params):
        out = model.transformer.apply({"params": params}, batch, memory)
        return mean_loss(params, model, batch, memory)[0], model.logits(params, out.hidden_BTD)

    (loss, logits), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    return np.asarray(logits), loss, grads


def of_theirs(config, network, texts):
    """The same, with the logits of each group of texts: tokens, which of them are text, labels."""
    network.zero_grad()
    found, total = [], 0.0
    for tokens, real, labels in texts:
        out = network(torch.tensor(tokens), attention_mask=torch.tensor(real.astype(int)))
        # Their own loss is computed in float32.
        total = total + torch.nn.functional.cross_entropy(
            out.logits.flatten(0, 1), torch.tensor(labels).flatten(), reduction="sum"
        )
        found.append(out.logits.detach().numpy()[real])
    loss = total / sum((labels >= 0).sum() for *_, labels in texts)
    loss.backward()
    grads = {name: x.grad.numpy() for name, x in network.named_parameters()}
    return found, loss.item(), to_tree(config.model, grads, 0.0)


def in_float64(monkeypatch):
    """Their rotary functions without the conversions to float32."""

    def angles(self, x, position_ids, layer_type):
        base = self.config.rope_parameters[layer_type]["rope_theta"]
        dim = self.config.hidden_size // self.config.num_attention_heads
        frequency = base ** -(torch.arange(0, dim, 2, dtype=torch.double) / dim)
        angle = position_ids[..., None].double() * frequency
        angle = torch.cat((angle, angle), -1)
        return angle.cos(), angle.sin()

    def apply(q, k, cos, sin, unsqueeze_dim=1):
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        return (q * cos + theirs.rotate_half(q) * sin, k * cos + theirs.rotate_half(k) * sin)

    monkeypatch.setattr(theirs.ModernBertRotaryEmbedding, "forward", angles)
    monkeypatch.setattr(theirs, "apply_rotary_pos_emb", apply)


def largest_error(found, expected):
    """Relative to the largest value of an array, but not to less than 1e-3."""
    return max(
        np.abs(x - y).max() / max(np.abs(y).max(), 1e-3)
        for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    )


def compare(config, seed, batch, groups, monkeypatch):
    """`groups` are the positions of our batch that they read together: rows [b, n], columns."""
    labels = np.full(batch.tokens.shape, -100)
    row, slot = np.nonzero(batch.target_weights)
    labels[row, batch.target_positions[row, slot]] = batch.target_tokens[row, slot]
    read = [tuple(x[at] for x in (batch.tokens, batch.rank != NEVER, labels)) for at in groups]
    network, params = drawn_peer(config, seed)
    logits, *ours = of_ours(config, params, batch)
    ours = [logits[at][real] for at, (_, real, _) in zip(groups, read, strict=True)], *ours
    as_it_is = largest_error(ours, of_theirs(config, network, read))
    in_float64(monkeypatch)
    exact = largest_error(ours, of_theirs(config, network, read))
    print(f"{seed}: {as_it_is:.1e} in float32, {exact:.1e} in float64")
    assert as_it_is < 1e-5 and exact < 1e-10, config.model


@pytest.mark.parametrize("seed", range(6))
def test_rows_with_padding_equal_the_other_side(seed, x64, monkeypatch):
    """Never so much padding that a row of it sees no key within a window: theirs is then NaN."""
    config, rng, B = draw(seed), np.random.default_rng((seed, 1)), 3
    T, model = config.data.segment_len, config.model
    most = min(model.window // 2 or T, T - 2)
    real = np.arange(T) < T - rng.integers(0, most + 1, B)[:, None]
    tokens = np.where(real, rng.integers(3, model.vocab_size, (B, T)), 0).astype(np.int32)
    at = np.broadcast_to(np.arange(T, dtype=np.int32), (B, T))
    labels = rng.integers(0, model.vocab_size, (B, T), np.int32)
    batch = forward_text(tokens, np.where(real, 0, NEVER), 0 * at, at, labels)
    chosen = real & ((rng.random((B, T)) < 0.3) | (at == 1))
    batch = dataclasses.replace(batch, target_weights=chosen.astype(np.float64))
    compare(config, seed, batch, [np.ix_(range(B), range(T))], monkeypatch)


class Text(tiny.Words):
    """Documents of random lengths."""

    def __init__(self, seed):
        super().__init__(400, seed)
        rng = np.random.default_rng(seed)
        ends = np.sort(rng.choice(np.arange(4, 396) // 4 * 4, 40, replace=False))
        self.lengths = np.diff([0, *np.unique(ends), 400])


@pytest.mark.parametrize("seed", range(6))
def test_documents_in_a_row_equal_the_other_side_alone(seed, x64, monkeypatch):
    """Rows as training builds them; the other side reads each document by itself."""
    config = draw(seed, documents="whole")
    batch = tiny.batch(config, rows=4, text=Text(seed))
    number = np.where(batch.rank == NEVER, -1, batch.documents.number)
    groups = [
        (np.array([[row]]), np.flatnonzero(number[row] == which)[None])
        for row in range(4)
        for which in set(number[row]) - {-1}
    ]
    assert len(groups) > 4, "no row has several documents"
    compare(config, seed, batch, groups, monkeypatch)


def test_fresh_parameters_are_drawn_as_there(x64):
    """Deviations of each tensor and its largest value: two of the deviation before the cut."""
    sizes = {"layers": 3, "heads": 4, "head_dim": 16, "d_model": 64, "d_ff": 96, "init_std": 0.02}
    config = draw(0).changed(model=sizes | {"vocab_size": 300})
    torch.manual_seed(0)
    weights = {name: x.detach().numpy() for name, x in peer(config.model).named_parameters()}
    expected = to_tree(config.model, weights, 1.0)
    found = nn.meta.unbox(jax.jit(make_recipe(config).init_params)())
    for (path, x), y in zip(
        jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(expected), strict=True
    ):
        for measure in (np.std, np.ptp):
            wanted = measure(np.asarray(y))
            assert measure(np.asarray(x)) == pytest.approx(wanted, rel=0.03, abs=1e-9), path
