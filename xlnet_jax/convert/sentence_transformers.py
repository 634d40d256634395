"""Folders of sentence-transformers: a model of `transformers`, and the modules that make one vector of what it gives.

    modules.json                          Transformer, Pooling and perhaps Normalize, in this order
    sentence_bert_config.json             how long a text may be
    1_Pooling/config.json                 which vectors of pieces count, in the words of two generations of that library
    config_sentence_transformers.json     what may be put before a text

The tables here say of every field that it is carried, has one value, or changes no vector. All others are refused by
name: a module or a field that nobody knows here may make other vectors.
"""

from __future__ import annotations

import json
import os
import re
import string
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from xlnet_jax.config import Config
from xlnet_jax.config.families import FAMILIES, Family
from xlnet_jax.convert.fields import MODULES
from xlnet_jax.convert.peers import NONE
from xlnet_jax.data.tokenizer import Tokenizer
from xlnet_jax.errors import BadInput
from xlnet_jax.storage import files

_KINDS = ("Transformer", "Pooling", "Normalize")
_TEXTS, _PROMPTS = "sentence_bert_config.json", "config_sentence_transformers.json"

_VECTOR = "sentence_embedding"
_USUAL = (None, {}, {"query": "", "document": ""}, "cosine")
"""What newer folders say of prompts and of the similarity, if nobody has set them."""
_ONLY = {
    "transformer_task": "feature-extraction", "module_output_name": "token_embeddings", "include_prompt": True,
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "model_type": "SentenceTransformer",
}  # fmt: skip
"""Fields with the only value that can be imported; of other fields that are not carried it is null or nothing."""
_OF_POOLING = {
    "pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max", "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}  # fmt: skip
"""A key for each pooling, as all versions read them, and the value of `pooling_mode` in its place since 2026."""


class Modules(NamedTuple):
    """What such a folder says beside its model."""

    keys: Mapping[str, Any] = NONE
    """Keys of `finetune` and `data`."""
    lowers: bool = False
    """Whether it puts a text in lower case before its tokenizer does anything."""
    lost: Sequence[str] = ()
    """KEY=VALUE that have no place here, and change no vector unless a caller asks for it."""


def _poolings(family: Family) -> dict[str, str]:
    """The values of `finetune.pooling` with their names there, where `cls` is the first piece of any family."""
    return {"mean": "mean", "cls": "cls" if family.cls == "first" else "lasttoken", "max": "max", "last": "lasttoken"}


def documents(config: Config) -> dict[str, Any]:
    """The JSON files by name that make the folder of a model for embeddings one of that library."""
    task, chosen = config.finetune, _poolings(config.model.family)[config.finetune.pooling]
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), *[("2_Normalize", "Normalize")] * task.normalize]
    return {
        MODULES: [{"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
                  for number, (path, kind) in enumerate(modules)],
        _TEXTS: {"max_seq_length": config.data.segment_len, "do_lower_case": False},
        "1_Pooling/config.json": {"word_embedding_dimension": config.model.d_model,
                                  **{key: name == chosen for key, name in _OF_POOLING.items()}},
    }  # fmt: skip


def read(folder: str, listed: Collection[str], model: Mapping[str, Any]) -> Modules:
    """What the files beside the model say; `model` has its keys. Raises BadInput for what would make other vectors."""
    _, pooling, *normalize = _paths(folder)
    for path in normalize:
        if "config.json" in files.listing(path):
            _read(path, "config.json", {"module_input_name": _VECTOR, "module_output_name": _VECTOR})
    # Old folders name the file after a family.
    texts = next((name for name in sorted(listed) if re.fullmatch("sentence_.*_config.json", name)), None)
    of_texts = _read(folder, texts, _ONLY, "max_seq_length", "do_lower_case", "unpad_inputs") if texts else {}
    asked = ("prompts", "similarity_fn_name")
    prompts = _read(folder, _PROMPTS, _ONLY, *asked, "__version__", "requirements") if _PROMPTS in listed else {}
    length = of_texts.get("max_seq_length")
    return Modules(
        {"finetune.pooling": _pooling(pooling, FAMILIES[model["model.architecture"]]),
         "finetune.normalize": bool(normalize), **({"data.segment_len": length} if length else {})},
        bool(of_texts.get("do_lower_case")),
        [f"{name}={prompts[name]!r:.60}" for name in asked if prompts.get(name) not in _USUAL],
    )  # fmt: skip


def check_case(folder: str, modules: Modules, tokenizer: Tokenizer) -> None:
    """Raises BadInput if the case of a text makes a difference here and none there."""
    upper, lower = (tokenizer.encode(" ".join(text)) for text in (string.ascii_uppercase, string.ascii_lowercase))
    if modules.lowers and not np.array_equal(upper, lower):
        raise BadInput(
            f"{folder}: do_lower_case=true beside a tokenizer that keeps the case; only false can be imported"
        )


def _paths(folder: str) -> list[str]:
    """The folders of the two or three modules."""
    path = os.path.join(folder, MODULES)
    with files.translate_errors(path):
        found = files.parse_json(files.read(path), path)
    try:
        kinds = tuple(re.sub(r"^sentence_transformers\..*\.", "", module["type"]) for module in found)
        paths, other = [module["path"] for module in found], any(module.get("kwargs") for module in found)
    except (TypeError, KeyError, AttributeError) as error:
        raise BadInput(f"{path}: not a list of modules with their types and paths") from error
    if kinds not in (_KINDS[:2], _KINDS) or paths[0] or other:
        raise BadInput(f"{path}: the modules are {', '.join(kinds)[:200]}; only {', '.join(_KINDS[:2])} and perhaps "
                       f"{_KINDS[2]} can be imported, the first in the folder itself, without kwargs")  # fmt: skip
    return [os.path.join(folder, each) for each in paths]


def _pooling(folder: str, family: Family) -> str:
    """The value of `finetune.pooling`."""
    found = _read(folder, "config.json", _ONLY, "embedding_dimension", "word_embedding_dimension", "pooling_mode",
                  *_OF_POOLING)  # fmt: skip
    named = found.get("pooling_mode") or [name for key, name in _OF_POOLING.items() if found.get(key)] or ["mean"]
    poolings = _poolings(family)
    if ours := [name for name, theirs in poolings.items() if named in (theirs, [theirs])]:
        return ours[0]
    known = ", ".join(dict.fromkeys(poolings.values()))
    raise BadInput(f"{folder}/config.json: pooling_mode is {str(named)[:80]}; only one of {known} can be imported")


def _read(folder: str, name: str, only: Mapping[str, Any], *carried: str) -> dict[str, Any]:
    """The content of a file. Raises BadInput for a field that is not `carried` and says something."""
    path = os.path.join(folder, name)
    found = files.read_json_object(path)
    for key, value in found.items():
        if key not in carried and value not in (None, {}, only.get(key)):
            raise BadInput(f"{path}: {key}={json.dumps(value):.80} may make other vectors; only "
                           f"{json.dumps(only.get(key))} can be imported")  # fmt: skip
    return found
