"""Transformer-XL: the cases of its oracle, and our side of them.

`xl_generate.py` writes what Hugging Face `transformers` 4.57 did with three segments of a text in a
row, memory carried: one .npz file per case in `xl/`. Nothing here needs it or torch. S = 3
segments; a file has

    tokens                      [B, S T + 1]
    hidden                      [S, L, B, T, D]        after every layer
    memory_0, .. _2             [L, B, filled slots, D]   after each segment
    nll                         [S, B, T]              of the token after each position
    log_probability             [B, T, V]              of the last segment
    weight/NAME, gradient/NAME  its parameters; the gradient is that of the mean nll of the last
                                segment
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from oracle import replay
from oracle.replay import Arrays

from xlnet_jax.batch import Batch, Memory
from xlnet_jax.config import Config, DataConfig, ModelConfig
from xlnet_jax.model.transformer import empty_memory
from xlnet_jax.train.loss import mean_loss
from xlnet_jax.train.recipe import example_batch, language_model

SEGMENTS, B, T = 3, 2, 6
SMALL = ModelConfig(
    architecture="transformer_xl",
    vocab_size=24,
    layers=2,
    d_model=8,
    heads=2,
    head_dim=4,
    d_ff=12,
    activation="relu",
    biases_per_layer=False,
    scale_embedding=True,
    memory_len=4,
    dropout=0.0,
    attention_dropout=0.0,
    layer_norm_epsilon=1e-5,
    compute_dtype="float64",
)
_case = functools.partial(dataclasses.replace, SMALL)
CASES = {
    "plain": SMALL,
    "same_length": _case(same_length=True, memory_len=9, clamp_len=5, biases_per_layer=True),
    "pre_norm": _case(norm="pre", memory_len=9, same_length=True),
    "adaptive": _case(cutoffs="9,15", same_length=True),
    "projected": _case(cutoffs="9,15", d_embed=6, tie_projections="rest", biases_per_layer=True),
    "div_4": _case(cutoffs="9,15", d_embed=16, div_val=4, memory_len=9, tie_projections="rest"),
    "untied": _case(
        cutoffs="9,15",
        d_embed=16,
        div_val=4,
        same_length=True,
        tie_projections="none",
        tie_embedding=False,
    ),
}
"""Memory shorter and longer than a segment of 6; the second and third segment find it partly and
all filled.
"""


def load(name: str) -> Arrays:
    return replay.load(f"xl/{name}")


def parameters(theirs: Arrays, model: ModelConfig) -> Arrays:
    """Their tensors, or gradients, under our paths, layers stacked."""
    L, D, H, E = model.layers, model.d_model, model.heads, model.head_dim
    ends = [*model.cutoff_list(), model.vocab_size]
    ours: Arrays = {}

    def stacked(name: str) -> np.ndarray:
        return np.stack([theirs[f"transformer.layers.{i}.{name}"] for i in range(L)])

    qkv = stacked("dec_attn.qkv_net.weight").reshape(L, 3, H, E, D).transpose(1, 0, 4, 2, 3)
    attention = dict(zip(("query", "key", "value"), qkv, strict=True))
    attention["position"] = (
        stacked("dec_attn.r_net.weight").reshape(L, H, E, D).transpose(0, 3, 1, 2)
    )
    attention["output"] = stacked("dec_attn.o_net.weight").reshape(L, D, H, E)
    ours |= {f"layers/attention/{name}": array for name, array in attention.items()}
    for mine, name in (("inner", "pos_ff.CoreNet.0"), ("outer", "pos_ff.CoreNet.3")):
        ours[f"layers/feed_forward/{mine}/kernel"] = stacked(f"{name}.weight").transpose(0, 2, 1)
        ours[f"layers/feed_forward/{mine}/bias"] = stacked(f"{name}.bias")
    for mine, name in (("attention", "dec_attn"), ("feed_forward", "pos_ff")):
        ours[f"layers/{mine}/norm/scale"] = stacked(f"{name}.layer_norm.weight")
        ours[f"layers/{mine}/norm/bias"] = stacked(f"{name}.layer_norm.bias")
    for mine, name in (("content_bias", "r_w_bias"), ("position_bias", "r_r_bias")):
        if model.biases_per_layer:
            ours[f"layers/attention/{mine}"] = stacked(f"dec_attn.{name}")
        else:
            ours[f"biases/{mine}"] = theirs[f"transformer.{name}"]

    biases = [
        theirs[name]
        for name in sorted(theirs)
        if name.startswith("crit.out_layers") and name.endswith("bias")
    ]
    if model.adaptive:
        biases.append(theirs["crit.cluster_bias"])
        ours["lm_head/cluster_table"] = theirs["crit.cluster_weight"]
    ours["lm_head/bias"] = np.concatenate(biases)
    for name, array in theirs.items():
        *_, kind, last = ["", *name.removesuffix(".weight").split(".")]
        place = "lm_head" if name.startswith("crit") else "word_embedding"
        if kind in ("emb_projs", "out_projs"):
            ours[f"{place}/projection_{last}"] = array.T
        elif kind in ("emb_layers", "out_layers"):
            parts = np.split(array, ends[:-1]) if model.div_val == 1 else [array]
            if model.adaptive:
                ours |= {f"{place}/table_{int(last) + i}": part for i, part in enumerate(parts)}
            else:
                ours[place] = array
    return ours


def batch_of(recorded: Arrays, segment: int) -> Batch:
    tokens = recorded["tokens"][:, segment * T : (segment + 1) * T + 1].astype(np.int32)
    order = np.broadcast_to(np.arange(T, dtype=np.int32), (B, T))
    empty = example_batch(Config(data=DataConfig(segment_len=T, num_predict=T)), B)
    return dataclasses.replace(
        empty,
        tokens=tokens[:, :-1],
        target_tokens=tokens[:, 1:],
        rank=order,
        target_positions=order,
        target_weights=np.ones((B, T), np.float32),
        direction=np.ones(B, np.int32),
        continues=np.ones(B, bool),
    )


@functools.partial(jax.jit, static_argnums=0)
def measure(model: ModelConfig, params: Any, batch: Batch, memory: Memory) -> dict[str, Any]:
    whole = language_model(
        Config(model=model, data=DataConfig(objective="clm", segment_len=T, reuse_len=T))
    )
    out: Any
    out, seen = whole.transformer.apply(
        {"params": params}, batch, memory, mutable=["layer_outputs"]
    )
    (_, rows), gradient = jax.value_and_grad(mean_loss, has_aux=True)(params, whole, batch, memory)
    return {
        "hidden": seen["layer_outputs"]["layers"]["content_stream"][0],
        "nll": whole.nll(params, out.target_vectors_BPD, batch.target_tokens),
        "log_probability": jax.nn.log_softmax(whole.logits(params, out.target_vectors_BPD)),
        "gradient": gradient,
        "memory": rows.memory,
    }


def run(model: ModelConfig, recorded: Arrays) -> Arrays:
    """Our results for the segments of a file, in its layout, gradients under our paths; x64 is
    enabled.
    """
    theirs = {
        name.removeprefix("weight/"): x
        for name, x in recorded.items()
        if name.startswith("weight/")
    }
    flat = {name: jnp.asarray(x, jnp.float64) for name, x in parameters(theirs, model).items()}
    params, memory = traverse_util.unflatten_dict(flat, sep="/"), empty_memory(model, B)
    found: Arrays = {}
    each: list[dict[str, Any]] = []
    for segment in range(SEGMENTS):
        each.append(jax.device_get(measure(model, params, batch_of(recorded, segment), memory)))
        memory = each[-1]["memory"]
        found[f"memory_{segment}"] = memory.hidden_LBMD[
            :, :, model.memory_len - memory.valid_B[0] :
        ]
    found |= {name: np.stack([one[name] for one in each]) for name in ("hidden", "nll")}
    found["log_probability"] = each[-1]["log_probability"]
    flat = traverse_util.flatten_dict(each[-1]["gradient"], sep="/")
    return found | {f"gradient/{name}": x for name, x in flat.items()}


def errors(model: ModelConfig, recorded: Arrays, found: Arrays) -> dict[str, float]:
    """The largest error of every array, relative to the largest value that the other side has
    there.
    """
    theirs = {
        name.removeprefix("gradient/"): x
        for name, x in recorded.items()
        if name.startswith("gradient/")
    }
    expected = {f"gradient/{name}": x for name, x in parameters(theirs, model).items()}
    expected |= {name: x for name, x in recorded.items() if name != "tokens" and "/" not in name}
    assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
    assert all(found[name].shape == x.shape for name, x in expected.items())
    return {
        name: float(np.abs(found[name] - x).max() / np.abs(x).max()) for name, x in expected.items()
    }
