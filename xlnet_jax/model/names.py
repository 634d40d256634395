"""The parameters under the names of the original TensorFlow checkpoints.

Our tree stacks the layers on a leading axis L; the original has one variable per layer, except for the three attention
biases and the segment embedding, which it stacks as well. Kernels have the same layout on both sides. Everything that
faces other programs (export, parameter counts, import of released checkpoints) uses these names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import traverse_util

from xlnet_jax.errors import BadInput

_ROOT = "model/transformer"
_WHOLE = {
    "word_embedding": f"{_ROOT}/word_embedding/lookup_table",
    "lm_head/bias": "model/lm_loss/bias",
    "layers/attention/segment_embedding": f"{_ROOT}/seg_embed",
}
_MASK = f"{_ROOT}/mask_emb/mask_emb"
_BIASES = {
    "content_bias": f"{_ROOT}/r_w_bias",
    "position_bias": f"{_ROOT}/r_r_bias",
    "segment_bias": f"{_ROOT}/r_s_bias",
}
_PER_LAYER = {
    "attention/query": "rel_attn/q/kernel",
    "attention/key": "rel_attn/k/kernel",
    "attention/value": "rel_attn/v/kernel",
    "attention/position": "rel_attn/r/kernel",
    "attention/output": "rel_attn/o/kernel",
    "attention/norm/scale": "rel_attn/LayerNorm/gamma",
    "attention/norm/bias": "rel_attn/LayerNorm/beta",
    "feed_forward/inner/kernel": "ff/layer_1/kernel",
    "feed_forward/inner/bias": "ff/layer_1/bias",
    "feed_forward/outer/kernel": "ff/layer_2/kernel",
    "feed_forward/outer/bias": "ff/layer_2/bias",
    "feed_forward/norm/scale": "ff/LayerNorm/gamma",
    "feed_forward/norm/bias": "ff/LayerNorm/beta",
}


def official(params: Mapping[str, Any]) -> dict[str, Any]:
    """Our tree as the original's variables, one entry per variable.

    Args:
      params: the unboxed tree of `XLNet` with its `LMHead`; leaves are numpy or jax arrays. To count parameters without
        computing them, use `jax.eval_shape(official, params)`.

    Returns:
      Name -> leaf of the same kind. Per-layer variables lose the axis L; `r_w_bias`, `r_r_bias` and `r_s_bias` are
      [L, H, E], or [H, E] where one set serves all layers; `mask_emb` is [1, 1, D].

    Raises:
      BadInput: all layers share one set of parameters, and those checkpoints cannot hold that.
    """
    flat: dict[str, Any] = dict(traverse_util.flatten_dict(dict(params), sep="/"))
    if flat["layers/attention/query"].ndim == 3:
        raise BadInput("model.share_layers=True: the original's checkpoints have parameters of each layer")
    tensors = {name: flat[ours] for ours, name in _WHOLE.items()}
    tensors[_MASK] = flat["mask_embedding"].reshape(1, 1, -1)
    scope = "biases" if "biases/content_bias" in flat else "layers/attention"
    tensors |= {name: flat[f"{scope}/{ours}"] for ours, name in _BIASES.items()}
    for layer in range(flat["layers/attention/query"].shape[0]):
        for ours, name in _PER_LAYER.items():
            tensors[f"{_ROOT}/layer_{layer}/{name}"] = flat[f"layers/{ours}"][layer]
    return tensors


def from_official(tensors: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `official`.

    Args:
      tensors: name -> array; other names (optimizer slots, `global_step`) are ignored.
      params: the unboxed tree of the model, for its shapes; leaves may be abstract.

    Returns:
      The tree of `XLNet` with its `LMHead`, numpy arrays.

    Raises:
      BadInput: a tensor is missing, or its shape is not the one of the model.
    """
    for name, wanted in jax.eval_shape(official, params).items():
        if name not in tensors:
            raise BadInput(f"tensor {name} is missing; the model section of the config needs it")
        if np.shape(tensors[name]) != wanted.shape:
            shape = np.shape(tensors[name])
            raise BadInput(f"tensor {name} has shape {shape}, the model section of the config gives {wanted.shape}")
    flat = {ours: np.asarray(tensors[name]) for ours, name in _WHOLE.items()}
    flat["mask_embedding"] = np.reshape(tensors[_MASK], -1)
    scope = "biases" if "biases" in params else "layers/attention"
    flat |= {f"{scope}/{ours}": np.asarray(tensors[name]) for ours, name in _BIASES.items()}
    for ours, name in _PER_LAYER.items():
        layers = range(len(params["layers"]["attention"]["query"]))
        flat[f"layers/{ours}"] = np.stack([tensors[f"{_ROOT}/layer_{layer}/{name}"] for layer in layers])
    return traverse_util.unflatten_dict(flat, sep="/")
