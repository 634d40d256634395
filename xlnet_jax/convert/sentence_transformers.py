"""Folders of sentence-transformers: a model of `transformers`, and the modules that make one vector
of what it gives.

    modules.json                          Transformer, Pooling and perhaps Normalize, in this order
    sentence_bert_config.json             how long a text may be
    1_Pooling/config.json                 which vectors of pieces count, in the words of two
                                          generations of that library
    config_sentence_transformers.json     what may be put before a text

Every field is carried, has the only value in `_ONLY`, or is refused by name: it may make other
vectors.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
from collections.abc import Collection, Mapping
from typing import Any

from xlnet_jax.config import Config
from xlnet_jax.convert.fields import MODULES
from xlnet_jax.errors import BadInput
from xlnet_jax.members import MEMBERS
from xlnet_jax.members.member import Member
from xlnet_jax.storage import files
from xlnet_jax.storage.files import Json

_KINDS = ["Transformer", "Pooling", "Normalize"]

_ONLY = {
    "transformer_task": "feature-extraction",
    "module_output_name": "token_embeddings",
    "include_prompt": True,
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "model_type": "SentenceTransformer",
    "do_lower_case": False,
}
"""Fields with the only value that can be imported; of other fields that are not carried it is null
or nothing.
"""
_CARRIED = (
    "max_seq_length",
    "unpad_inputs",
    "prompts",
    "similarity_fn_name",
    "__version__",
    "requirements",
)
"""Of the files beside the model."""
_USUAL = (None, {}, {"query": "", "document": ""}, "cosine")
"""What newer folders say of prompts and of the similarity, if nobody has set them."""
_OF_POOLING = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""A key for each pooling, as all versions read them, and the value of `pooling_mode` in its place
since 2026.
"""


def _poolings(member: Member) -> dict[str, str]:
    """The values of `finetune.pooling` with their names there, where `cls` is the first piece of
    any member.
    """
    return {
        "mean": "mean",
        "cls": "cls" if member.cls == "first" else "lasttoken",
        "max": "max",
        "last": "lasttoken",
    }


def documents(config: Config) -> Json:
    """The JSON files by name that make the folder of a model for embeddings one of that library."""
    task, chosen = config.finetune, _poolings(config.model.member)[config.finetune.pooling]
    modules = zip(_KINDS[: 2 + task.normalize], ("", "1_Pooling", "2_Normalize"), strict=False)
    return {
        MODULES: [
            {
                "idx": number,
                "name": str(number),
                "path": path,
                "type": f"sentence_transformers.models.{kind}",
            }
            for number, (kind, path) in enumerate(modules)
        ],
        "sentence_bert_config.json": {
            "max_seq_length": config.data.segment_len,
            "do_lower_case": False,
        },
        "1_Pooling/config.json": {
            "word_embedding_dimension": config.model.d_model,
            **{key: name == chosen for key, name in _OF_POOLING.items()},
        },
    }


def read(folder: str, listed: Collection[str], model: Mapping[str, Any]) -> tuple[Json, list[str]]:
    """What the files beside the model say; `model` has its keys. Raises BadInput for what would
    make other vectors.

    Returns:
      Keys of `finetune` and `data`; KEY=VALUE that have no place here, and change no vector unless
      a caller asks.
    """
    _, pooling, *normalize = _paths(folder)
    for path in normalize:
        if "config.json" in files.listing(path):
            _read(
                path,
                "config.json",
                dict.fromkeys(("module_input_name", "module_output_name"), "sentence_embedding"),
            )
    said: Json = {}
    for name in fnmatch.filter(listed, "*sentence_*.json"):  # old folders name one after a family
        said |= _read(folder, name, _ONLY, *_CARRIED)
    keys = {
        "finetune.pooling": _pooling(pooling, MEMBERS[model["model.architecture"]]),
        "finetune.normalize": bool(normalize),
    }
    if said.get("max_seq_length"):
        keys["data.segment_len"] = said["max_seq_length"]
    asked = ("prompts", "similarity_fn_name")
    return keys, [f"{name}={said[name]!r:.60}" for name in asked if said.get(name) not in _USUAL]


def _paths(folder: str) -> list[str]:
    """The folders of the two or three modules."""
    path = os.path.join(folder, MODULES)
    with files.translate_errors(path):
        found = files.parse_json(files.read(path), path)
    try:
        kinds = [re.sub(r"^sentence_transformers\..*\.", "", module["type"]) for module in found]
        paths, other = (
            [module["path"] for module in found],
            any(module.get("kwargs") for module in found),
        )
    except (TypeError, KeyError, AttributeError) as error:
        raise BadInput(f"{path}: not a list of modules with their types and paths") from error
    if kinds not in (_KINDS[:2], _KINDS) or paths[0] or other:
        raise BadInput(
            f"{path}: the modules are {', '.join(kinds)[:200]}; only Transformer, Pooling and "
            "perhaps Normalize can be imported, the first in the folder itself, without kwargs"
        )
    return [os.path.join(folder, each) for each in paths]


def _pooling(folder: str, member: Member) -> str:
    """The value of `finetune.pooling`."""
    sizes = ("embedding_dimension", "word_embedding_dimension")
    found = _read(folder, "config.json", _ONLY, *sizes, "pooling_mode", *_OF_POOLING)
    named = (
        found.get("pooling_mode")
        or [name for key, name in _OF_POOLING.items() if found.get(key)]
        or ["mean"]
    )
    poolings = _poolings(member)
    for ours, theirs in poolings.items():
        if named in (theirs, [theirs]):
            return ours
    known = ", ".join(dict.fromkeys(poolings.values()))
    raise BadInput(
        f"{folder}/config.json: pooling_mode is {str(named)[:80]}; "
        f"only one of {known} can be imported"
    )


def _read(folder: str, name: str, only: Mapping[str, Any], *carried: str) -> Json:
    """The content of a file. Raises BadInput for a field that is not `carried` and says
    something.
    """
    path = os.path.join(folder, name)
    found = files.read_json_object(path)
    for key, value in found.items():
        if key not in carried and value not in (None, {}, only.get(key)):
            raise BadInput(
                f"{path}: {key}={json.dumps(value):.80} may make other vectors; only "
                f"{json.dumps(only.get(key))} can be imported"
            )
    return found
