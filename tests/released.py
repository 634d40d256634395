"""Checkpoints with the names and shapes of the released models, made here of random numbers, and a
tokenizer for them.

The names are written down from the published checkpoints, not taken from the tables under test.
"""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

import numpy as np

from xlnet_jax.convert import tokenizer_json
from xlnet_jax.data.tokenizer import SPECIAL_PIECES

SIZES = {
    "tiny": dict(n_layer=2, d_model=32, n_head=4, d_head=8, d_inner=64, n_token=300),
    "base": dict(n_layer=12, d_model=768, n_head=12, d_head=64, d_inner=3072, n_token=32000),
    "large": dict(n_layer=24, d_model=1024, n_head=16, d_head=64, d_inner=4096, n_token=32000),
}
"""The keys of `xlnet_config.json`, but for the activation."""


def tensorflow_shapes(
    n_layer: int, d_model: int, n_head: int, d_head: int, d_inner: int, n_token: int
) -> dict:
    """Of every variable of a released checkpoint, by name."""
    root, heads = "model/transformer", (n_head, d_head)
    shapes: dict[str, tuple[int, ...]] = {
        f"{root}/word_embedding/lookup_table": (n_token, d_model),
        f"{root}/mask_emb/mask_emb": (1, 1, d_model),
        f"{root}/seg_embed": (n_layer, 2, *heads),
        "model/lm_loss/bias": (n_token,),
        **{f"{root}/{name}": (n_layer, *heads) for name in ("r_w_bias", "r_r_bias", "r_s_bias")},
    }
    for layer in range(n_layer):
        at = f"{root}/layer_{layer}"
        shapes |= {f"{at}/rel_attn/{name}/kernel": (d_model, *heads) for name in "qkvro"}
        shapes |= {
            f"{at}/{part}/LayerNorm/{name}": (d_model,)
            for part in ("rel_attn", "ff")
            for name in ("gamma", "beta")
        }
        shapes |= {
            f"{at}/ff/layer_1/kernel": (d_model, d_inner),
            f"{at}/ff/layer_1/bias": (d_inner,),
            f"{at}/ff/layer_2/kernel": (d_inner, d_model),
            f"{at}/ff/layer_2/bias": (d_model,),
        }
    return shapes


def tensorflow_arrays(size: str) -> dict[str, np.ndarray]:
    """Random values, larger than those of an initialisation, whose loss hardly depends on what is
    seen.
    """
    generator, scale = np.random.default_rng(0), 0.3 if size == "tiny" else 0.06
    return {
        name: (
            name.endswith("gamma") + scale * generator.standard_normal(shape, np.float32)
        ).astype(np.float32)
        for name, shape in tensorflow_shapes(**SIZES[size]).items()
    }


_RENAMED = (
    (r"^model/", ""),
    (r"transformer/layer_(\d+)/", r"transformer.layer.\1."),
    (r"rel_attn/([qkvro])/kernel", r"rel_attn.\1"),
    ("LayerNorm/gamma", "layer_norm.weight"),
    ("LayerNorm/beta", "layer_norm.bias"),
    ("lookup_table", "weight"),
    ("mask_emb/mask_emb", "mask_emb"),
    ("kernel", "weight"),
    ("/", "."),
)


def huggingface_arrays(variables: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same numbers as the state dict of `XLNetLMHeadModel`, by the rules of its converter,
    written down again.
    """
    arrays = {}
    for name, array in variables.items():
        short = name.rpartition("/")[2]
        if short in ("r_w_bias", "r_r_bias", "r_s_bias", "seg_embed"):
            arrays |= {
                f"transformer.layer.{i}.rel_attn.{short}": part for i, part in enumerate(array)
            }
            continue
        array = array.T if "/ff/" in name and short == "kernel" else array
        for pattern, new in _RENAMED:
            name = re.sub(pattern, new, name)
        arrays[name] = array
    return {name: np.ascontiguousarray(array) for name, array in arrays.items()}


def write_tokenizer(folder: pathlib.Path, pieces: int) -> str:
    """A unigram model with this many pieces: letters, digits, and words that no text has."""
    letters = [chr(code) for code in range(33, 127) if chr(code) not in "<>"]
    known = [*SPECIAL_PIECES, "▁", *letters]
    vocab = [[piece, 0.0 if index < 9 else -5.0] for index, piece in enumerate(known)]
    vocab += [[f"▁{'zq' * 5}{number}", -30.0] for number in range(pieces - len(vocab))]
    model = {"type": "Unigram", "vocab": vocab}
    path = folder / "spiece.model"
    path.write_bytes(tokenizer_json.sentencepiece_model({"model": model}, "made"))
    return str(path)


def config_json(size: str, **changes: Any) -> str:
    """As the released models have it in the hub of Hugging Face."""
    sizes = SIZES[size]
    config = {
        "model_type": "xlnet",
        "architectures": ["XLNetLMHeadModel"],
        "attn_type": "bi",
        "mem_len": None,
        "vocab_size": sizes["n_token"],
        "untie_r": True,
        "dropout": 0.0,
        **{name: sizes[name] for name in ("n_layer", "d_model", "n_head", "d_head", "d_inner")},
    }
    return json.dumps(config | changes)
