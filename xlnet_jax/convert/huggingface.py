"""Exports a trained model as a folder that Hugging Face `transformers` loads: weights, configuration and tokenizer.

The library itself is not needed. Its XLNet is the original graph with three differences that matter here: dense kernels
are transposed, biases are always per layer, and its "gelu" is the erf form, where the original has tanh. The
fine-tuning heads of that library load from the same folder.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from xlnet_jax.config import ModelConfig
from xlnet_jax.convert import tokenizer_json
from xlnet_jax.data.tokenizer import BOS, EOS, PAD, Normalization, Tokenizer
from xlnet_jax.errors import BadInput
from xlnet_jax.model import names
from xlnet_jax.storage import files

ACTIVATIONS = {"gelu": "gelu_new", "gelu_erf": "gelu", "relu": "relu"}
"""That library's names for our activations; its plain "gelu" would change logits by 1e-2."""


def export(
    params: Mapping[str, Any], model: ModelConfig, tokenizer_path: str, normalization: Normalization, output: str
) -> list[str]:
    """Writes the folder; it appears complete or not at all.

    Args:
      params: the unboxed tree of `XLNet`, numpy or jax arrays.
      model: its architecture.
      tokenizer_path: the SentencePiece model of the training run.
      normalization: of the text before SentencePiece, as in the training run.
      output: a local folder that does not exist yet, or is empty.

    Returns:
      Paths of the files written, sorted.

    Raises:
      BadInput: the library cannot express the model or the tokenizer, the two do not fit each other, or the folder
        cannot be written or is not empty.
    """
    check(model, output)
    tokenizer = Tokenizer(tokenizer_path)  # raises BadInput if it is not an XLNet tokenizer
    if tokenizer.vocab_size != model.vocab_size:
        raise BadInput(
            f"tokenizer {tokenizer_path}: has {tokenizer.vocab_size} pieces, the model {model.vocab_size}; "
            "use the tokenizer that the model was trained with"
        )
    pieces = files.read(tokenizer_path)
    bos_eos_pad = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
    documents = {
        "config.json": _config(model) | bos_eos_pad,
        "generation_config.json": {"_from_model_config": True} | bos_eos_pad,
        "tokenizer.json": tokenizer_json.tokenizer_json(pieces, normalization, tokenizer_path),
        "tokenizer_config.json": tokenizer_json.tokenizer_config(normalization),
    }
    output = os.path.abspath(output)
    try:
        _write(output, documents, pieces, state_dict(params, model))
    except OSError as error:
        raise BadInput(f"export folder {output}: {error.strerror or error}; choose another folder") from error
    return sorted(os.path.join(output, name) for name in os.listdir(output))


def check(model: ModelConfig, output: str) -> None:
    """Checks the model and the folder before a checkpoint is read. Raises BadInput."""
    if model.share_layers:
        raise BadInput(
            "model.share_layers=True: Hugging Face's XLNet has parameters of each layer; no export of this model"
        )
    if model.heads * model.head_dim != model.d_model:
        raise BadInput(
            f"model.heads={model.heads} times model.head_dim={model.head_dim} is not model.d_model={model.d_model}, "
            f"which Hugging Face's XLNet requires; train with model.head_dim={model.d_model / model.heads:g} to export"
        )
    if "://" in output:
        raise BadInput(f"export folder {output}: must be a local folder; export to one and copy it afterwards")
    if os.path.lexists(output) and not os.path.isdir(output):
        raise BadInput(f"export folder {output}: is not a folder; choose another name")
    if os.path.isdir(output) and os.listdir(output):
        raise BadInput(f"export folder {output}: is not empty; choose another, nothing is overwritten")


def state_dict(params: Mapping[str, Any], model: ModelConfig) -> dict[str, np.ndarray]:
    """The parameters with that library's names, float32.

    `lm_loss.weight` is left out: it is the word embedding, and the library ties it when it loads.
    """
    official = names.official(params)
    root = "model/transformer"
    tensors = {
        "transformer.word_embedding.weight": official[f"{root}/word_embedding/lookup_table"],
        "transformer.mask_emb": official[f"{root}/mask_emb/mask_emb"],
        "lm_loss.bias": official["model/lm_loss/bias"],
    }
    for i in range(model.layers):
        ours, theirs = f"{root}/layer_{i}", f"transformer.layer.{i}"
        tensors |= {f"{theirs}.rel_attn.{name}": official[f"{ours}/rel_attn/{name}/kernel"] for name in "qkvor"}
        for bias in ("r_w_bias", "r_r_bias", "r_s_bias"):
            values = official[f"{root}/{bias}"]
            # The library has no single set for all layers; copies are the same function until they are fine-tuned.
            tensors[f"{theirs}.rel_attn.{bias}"] = values[i] if model.untie_biases else values
        tensors[f"{theirs}.rel_attn.seg_embed"] = official[f"{root}/seg_embed"][i]
        for part in ("rel_attn", "ff"):
            tensors[f"{theirs}.{part}.layer_norm.weight"] = official[f"{ours}/{part}/LayerNorm/gamma"]
            tensors[f"{theirs}.{part}.layer_norm.bias"] = official[f"{ours}/{part}/LayerNorm/beta"]
        for dense in ("layer_1", "layer_2"):
            tensors[f"{theirs}.ff.{dense}.weight"] = official[f"{ours}/ff/{dense}/kernel"].T
            tensors[f"{theirs}.ff.{dense}.bias"] = official[f"{ours}/ff/{dense}/bias"]
    # The file format stores the bytes in buffer order, so a transposed view must be copied.
    return {name: np.ascontiguousarray(tensor, np.float32) for name, tensor in tensors.items()}


def _config(model: ModelConfig) -> dict[str, Any]:
    return {
        "architectures": ["XLNetLMHeadModel"],
        "model_type": "xlnet",
        "dtype": "float32",  # it has no working half-precision two-stream attention
        "vocab_size": model.vocab_size,
        "n_layer": model.layers,
        "d_model": model.d_model,
        "n_head": model.heads,
        "d_head": model.head_dim,
        "d_inner": model.d_ff,
        "ff_activation": ACTIVATIONS[model.activation],
        "layer_norm_eps": model.layer_norm_epsilon,
        "dropout": model.dropout,
        "initializer_range": model.init_std,
        "clamp_len": model.clamp_len,
        "attn_type": "bi",
        "untie_r": True,
        "tie_word_embeddings": True,
        # The lengths of pretraining would change inference and generation there.
        "mem_len": None,
        "reuse_len": None,
        "bi_data": False,
        "same_length": False,
        "use_mems_train": False,
        "use_mems_eval": True,
        "summary_type": "last",
        "summary_use_proj": True,
        "summary_activation": "tanh",
        "summary_last_dropout": model.dropout,
    }


def _write(output: str, documents: dict[str, Any], pieces: bytes, tensors: dict[str, np.ndarray]) -> None:
    """Fills a folder beside `output` and renames it, which is atomic; removes it if that fails."""
    os.makedirs(os.path.dirname(output), exist_ok=True)
    with files.scratch(output) as partial:
        for file_name, document in documents.items():
            indent = None if file_name == "tokenizer.json" else 2
            files.write(os.path.join(partial, file_name), files.to_json(document, indent))
        vocabulary, weights = (os.path.join(partial, name) for name in ("spiece.model", "model.safetensors"))
        files.write(vocabulary, pieces)
        save_file(tensors, weights, metadata={"format": "pt"})
        os.chmod(weights, os.stat(vocabulary).st_mode)  # safetensors creates a file that only its owner can read
        files.rename(partial, output)
