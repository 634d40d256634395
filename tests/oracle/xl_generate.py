"""Writes the .npz files that `test_oracle.py` replays: Transformer-XL as `transformers` computes
it, in float64.

    python tests/oracle/xl_generate.py

Needs torch and transformers 4.57 (the extra `peers4`), the last version that has this model. It
does not run there as it is: it calls `Tensor.type_as` with a dtype. It rounds to float32 in two
places, which are kept from that here. Its memory begins as zeros that are seen; here it is given an
empty one. It keeps what enters each layer, as ours does.
"""

from __future__ import annotations

import os
import sys
import warnings
import zlib
from unittest import mock

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import numpy as np
import torch
import transformers
from oracle import replay
from oracle.xl_replay import CASES, SEGMENTS, Arrays, B, T

from xlnet_jax.config import ModelConfig

type_as = torch.Tensor.type_as


def to_dtype(
    tensor: torch.Tensor, other: torch.Tensor | None = None, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """`type_as`, which may also be given a dtype."""
    return tensor.to(dtype) if other is None else type_as(tensor, other)


def build(model: ModelConfig) -> transformers.TransfoXLLMHeadModel:
    cuts = model.cutoff_list()
    tied = {
        "all": [True] * (len(cuts) + 1),
        "rest": [False, *[True] * len(cuts)],
        "none": [False] * (len(cuts) + 1),
    }
    config = transformers.TransfoXLConfig(
        vocab_size=model.vocab_size,
        cutoffs=cuts,
        d_model=model.d_model,
        d_embed=model.d_embed or model.d_model,
        n_head=model.heads,
        d_head=model.head_dim,
        d_inner=model.d_ff,
        div_val=model.div_val,
        n_layer=model.layers,
        pre_lnorm=model.norm == "pre",
        mem_len=model.memory_len,
        clamp_len=model.clamp_len,
        same_length=model.same_length,
        tie_projs=tied[model.tie_projections],
        untie_r=model.biases_per_layer,
        tie_word_embeddings=model.tie_embedding,
        layer_norm_epsilon=model.layer_norm_epsilon,
        dropout=0.0,
        dropatt=0.0,
        trainer_compatible=True,
        eos_token_id=0,
    )
    found = transformers.TransfoXLLMHeadModel(config).to(torch.float64).eval()
    # Its frequencies are float32.
    exponents = torch.arange(0, model.d_model, 2, dtype=torch.float64) / model.d_model
    found.transformer.pos_emb.inv_freq = 10000**-exponents
    return found


def draw(name: str, model: ModelConfig) -> Arrays:
    """Weights and text. The weights are large, so that attention is far from uniform; exact in
    float32.

    In the last segment every cluster has words that are read and words that are predicted: all has
    a gradient.
    """
    rng, ends = np.random.default_rng(zlib.crc32(name.encode())), model.cutoff_list()

    def some_of_all(tokens: np.ndarray) -> bool:
        return all(
            len(np.unique(np.digitize(x, ends))) > len(ends)
            for x in (tokens[:, -T - 1 : -1], tokens[:, -T:])
        )

    draws = (
        rng.integers(0, model.vocab_size, (B, SEGMENTS * T + 1)).astype(np.int32)
        for _ in range(100)
    )
    drawn: Arrays = {"tokens": next(filter(some_of_all, draws))}
    for weight, tensor in build(model).named_parameters():
        scale = 0.35 if "emb" in weight else 0.5
        around = 1.0 if weight.endswith("layer_norm.weight") else 0.0
        drawn[f"weight/{weight}"] = (
            around + scale * rng.standard_normal(tuple(tensor.shape))
        ).astype(np.float32)
    return drawn


def record(model: ModelConfig, drawn: Arrays) -> Arrays:
    peer = build(model)
    weights = dict(peer.named_parameters())
    with torch.no_grad():
        for name, tensor in weights.items():
            tensor.copy_(torch.tensor(drawn[f"weight/{name}"], dtype=torch.float64))
    memory = [torch.zeros(0, B, model.d_model, dtype=torch.float64) for _ in range(model.layers)]
    results, hidden, nll = dict(drawn), [], []
    patches = {"type_as": to_dtype, "float": torch.Tensor.double}
    with mock.patch.multiple(torch.Tensor, **patches):
        for segment in range(SEGMENTS):
            tokens = torch.tensor(drawn["tokens"][:, segment * T : (segment + 1) * T + 1]).long()
            out = peer(input_ids=tokens[:, :-1], mems=memory, output_hidden_states=True)
            chosen = -out.logits.gather(2, tokens[:, 1:, None])[..., 0]
            own = peer(input_ids=tokens[:, :-1], labels=tokens[:, :-1], mems=memory).loss
            assert torch.allclose(
                own, -out.logits[:, :-1].gather(2, tokens[:, 1:-1, None]).mean(), rtol=1e-12
            )
            memory = out.mems
            results[f"memory_{segment}"] = np.stack(
                [layer.numpy().swapaxes(0, 1) for layer in memory]
            )
            hidden.append(np.stack([layer.detach().numpy() for layer in out.hidden_states[1:]]))
            nll.append(chosen.detach().numpy())
    chosen.mean().backward()
    results |= {f"gradient/{name}": tensor.grad.numpy() for name, tensor in weights.items()}
    return results | {
        "hidden": np.stack(hidden),
        "nll": np.stack(nll),
        "log_probability": out.logits.detach().numpy(),
    }


def recorded(name: str) -> Arrays:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return record(CASES[name], draw(name, CASES[name]))


def main() -> None:
    torch.set_num_threads(1)
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    for name in CASES:
        np.savez_compressed(replay.path(f"xl/{name}"), **recorded(name))
        print(f"{name:16} {os.path.getsize(replay.path(f'xl/{name}')):8} bytes")


if __name__ == "__main__":
    main()
