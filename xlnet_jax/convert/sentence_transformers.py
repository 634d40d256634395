"""Folders of sentence-transformers: a model of `transformers`, and modules that make one vector of
its outputs.

    modules.json                          Transformer, Pooling and perhaps Normalize, in this order
    sentence_bert_config.json             longest text
    1_Pooling/config.json                 pooling of the vectors of pieces, in the old or the new
                                          form of that library
    config_sentence_transformers.json     prompts, which may stand before a text

A field is carried, or must have its value in `_ONLY`. Any other field is refused by name, because
it may change the vectors.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
from collections.abc import Collection

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
"""Fields with the only value that can be imported. Any other field that is not carried must be null
or empty.
"""
_CARRIED = (
    "max_seq_length",
    "unpad_inputs",
    "prompts",
    "similarity_fn_name",
    "__version__",
    "requirements",
)
"""Fields of the files beside the model that may have any value."""
_USUAL = (None, {}, {"query": "", "document": ""}, "cosine")
"""Default values of prompts and similarity, which newer folders hold."""
_OF_POOLING = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Keys of the poolings, which all versions read, each with its value of `pooling_mode`, the key
that replaces them since 2026.
"""


def _poolings(member: Member) -> dict[str, str]:
    """Returns the values of `finetune.pooling` with their names in that library, whose `cls` always
    means the first piece.
    """
    return {
        "mean": "mean",
        "cls": "cls" if member.cls == "first" else "lasttoken",
        "max": "max",
        "last": "lasttoken",
    }


def documents(config: Config) -> Json:
    """Returns, by name, the additional JSON files for the folder of an embedding model."""
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


def read_modules(folder: str, listed: Collection[str], model: Json) -> tuple[Json, list[str]]:
    """Reads the files beside the model; `model` has the keys of `fields.read_model`. Raises
    BadInput for a field that may change the vectors.

    Returns:
      Keys of `finetune` and `data`; and KEY=VALUE of settings without a key here, which change a
      vector only if a caller asks for them.
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
    # Old folders name this file after a family: sentence_roberta_config.json.
    for name in fnmatch.filter(listed, "*sentence_*.json"):
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
    """Returns the folders of the two or three modules. Raises BadInput for other modules."""
    path = os.path.join(folder, MODULES)
    with files.translate_errors(path):
        found = files.parse_json(files.read(path), path)
    try:
        kinds = [re.sub(r"^sentence_transformers\..*\.", "", module["type"]) for module in found]
        paths = [module["path"] for module in found]
        other = any(module.get("kwargs") for module in found)
    except (TypeError, KeyError, AttributeError) as error:
        raise BadInput(f"{path}: not a list of modules with their types and paths") from error
    if kinds not in (_KINDS[:2], _KINDS) or paths[0] or other:
        raise BadInput(
            f"{path}: the modules are {', '.join(kinds)[:200]}; only Transformer, Pooling and "
            "perhaps Normalize can be imported, the first in the folder itself, without kwargs"
        )
    return [os.path.join(folder, each) for each in paths]


def _pooling(folder: str, member: Member) -> str:
    """Returns the value of `finetune.pooling`. Raises BadInput for another pooling."""
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


def _read(folder: str, name: str, only: Json, *carried: str) -> Json:
    """Reads a file. A field must be `carried`, be empty, or have its value in `only`; else raises
    BadInput.
    """
    path = os.path.join(folder, name)
    found = files.read_json_object(path)
    for key, value in found.items():
        if key not in carried and value not in (None, {}, only.get(key)):
            raise BadInput(
                f"{path}: {key}={json.dumps(value):.80} may change the vectors; only "
                f"{json.dumps(only.get(key))} can be imported"
            )
    return found
