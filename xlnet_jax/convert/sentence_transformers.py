"""Folders of sentence-transformers: a model of `transformers`, and the modules that make one vector of what it gives.

    modules.json                          Transformer, Pooling and perhaps Normalize, in this order
    sentence_bert_config.json             how long a text may be
    1_Pooling/config.json                 which vectors of pieces count, in the words of two generations of that library
    config_sentence_transformers.json     what may be put before a text

The tables here say of every field that it is carried, has one value, or changes no vector. All others are refused by
name: a module or a field that nobody knows here may make other vectors.
"""

from __future__ import annotations

import os
import string
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from xlnet_jax.config import Config
from xlnet_jax.config.families import FAMILIES, Family
from xlnet_jax.convert.fields import MODULES, check_only
from xlnet_jax.data.tokenizer import Tokenizer
from xlnet_jax.errors import BadInput
from xlnet_jax.messages import suggest
from xlnet_jax.storage import files

_KINDS = ("Transformer", "Pooling", "Normalize")
_LIBRARY = "sentence_transformers."
_PROMPTS = "config_sentence_transformers.json"
_TEXTS = [f"sentence_{name}_config.json"
          for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")]  # fmt: skip
"""Names of one file; the first that is there is read."""

_OF_TEXTS = {
    "transformer_task": "feature-extraction", "module_output_name": "token_embeddings",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "tokenizer_name_or_path": None, "query_length": None, "document_length": None, "query_expansion": None,
    **dict.fromkeys(("processing_kwargs", "model_args", "tokenizer_args", "config_args", "model_kwargs",
                     "processor_kwargs", "config_kwargs"), {}),
}  # fmt: skip
"""Fields with the only value that can be imported; so also below."""
_OF_NORMALIZE = dict.fromkeys(("module_input_name", "module_output_name"), "sentence_embedding")
_OF_POOLING = {
    "pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max", "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}  # fmt: skip
"""A key for each pooling, as all versions read them, and the value of `pooling_mode` in its place since 2026."""


class Modules(NamedTuple):
    """What such a folder says beside its model."""

    keys: Mapping[str, Any] = {}
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
        MODULES: [{"idx": number, "name": str(number), "path": path, "type": f"{_LIBRARY}models.{kind}"}
                  for number, (path, kind) in enumerate(modules)],
        _TEXTS[0]: {"max_seq_length": config.data.segment_len, "do_lower_case": False},
        "1_Pooling/config.json": {"word_embedding_dimension": config.model.d_model,
                                  **{key: name == chosen for key, name in _OF_POOLING.items()}},
    }  # fmt: skip


def read(folder: str, listed: Collection[str], model: Mapping[str, Any]) -> Modules:
    """What the files beside the model say; `model` has its keys. Raises BadInput for what would make other vectors."""
    pooling, normalize = _paths(folder)
    texts = next((os.path.join(folder, name) for name in _TEXTS if name in listed), None)
    of_texts = _read(texts, _OF_TEXTS, "max_seq_length", "do_lower_case", "unpad_inputs") if texts else {}
    files.check_types(of_texts, {"max_seq_length": int, "do_lower_case": bool}, texts or "")
    if normalize:
        path = os.path.join(folder, normalize)
        if "config.json" in files.listing(path):
            _read(os.path.join(path, "config.json"), _OF_NORMALIZE)
    prompts: dict[str, Any] = {}
    if _PROMPTS in listed:
        only = {"model_type": "SentenceTransformer", "default_prompt_name": None}
        prompts = _read(os.path.join(folder, _PROMPTS), only, "prompts", "similarity_fn_name", "__version__",
                        "requirements")  # fmt: skip
    files.check_types(prompts, {"prompts": dict, "similarity_fn_name": str}, _PROMPTS)
    similarity = prompts.get("similarity_fn_name")
    said = {"prompts": {name: text for name, text in (prompts.get("prompts") or {}).items() if text},
            "similarity_fn_name": None if similarity == "cosine" else similarity}  # fmt: skip
    length = of_texts.get("max_seq_length")
    return Modules(
        {"finetune.pooling": _pooling(os.path.join(folder, pooling, "config.json"), model),
         "finetune.normalize": normalize is not None, **({"data.segment_len": length} if length else {})},
        bool(of_texts.get("do_lower_case")),
        [f"{key}={value!r:.60}" for key, value in said.items() if value],
    )  # fmt: skip


def check_case(folder: str, modules: Modules, tokenizer: Tokenizer) -> None:
    """Raises BadInput if the case of a text makes a difference here and none there."""
    upper, lower = (tokenizer.encode(" ".join(text)) for text in (string.ascii_uppercase, string.ascii_lowercase))
    if modules.lowers and not np.array_equal(upper, lower):
        raise BadInput(
            f"{folder}: do_lower_case=true beside a tokenizer that keeps the case; only false can be imported"
        )


def _paths(folder: str) -> tuple[str, str | None]:
    """The folders of the pooling, and of the module that gives vectors the length 1 if there is one."""
    path = os.path.join(folder, MODULES)
    with files.translate_errors(path):
        found = files.parse_json(files.read(path), path)
    modules = found if isinstance(found, list) else [found]
    modules = [module if isinstance(module, dict) else {"type": module} for module in modules]
    kinds = [str(module.get("type")) for module in modules]
    kinds = [kind.rpartition(".")[2] if kind.startswith(_LIBRARY) else kind for kind in kinds]
    paths = [str(module.get("path", "")) for module in modules]
    if tuple(kinds) not in (_KINDS[:2], _KINDS) or paths[0] or any(module.get("kwargs") for module in modules):
        raise BadInput(f"{path}: the modules are {', '.join(kinds)[:200]}; only {', '.join(_KINDS[:2])} and perhaps "
                       f"{_KINDS[2]} can be imported, the first in the folder itself, without kwargs")  # fmt: skip
    return paths[1], paths[2] if paths[2:] else None


def _pooling(path: str, model: Mapping[str, Any]) -> str:
    """The value of `finetune.pooling`."""
    found = _read(path, {"include_prompt": True}, "embedding_dimension", "word_embedding_dimension", "pooling_mode",
                  *_OF_POOLING)  # fmt: skip
    width = found.get("embedding_dimension", found.get("word_embedding_dimension", model["model.d_model"]))
    if width != model["model.d_model"]:
        raise BadInput(f"{path}: vectors have {width} elements, and those of the model {model['model.d_model']}")
    named = found.get("pooling_mode") or [name for key, name in _OF_POOLING.items() if found.get(key)] or ["mean"]
    poolings = _poolings(FAMILIES[model["model.architecture"]])
    ours = [name for name, theirs in poolings.items() if named in (theirs, [theirs])]
    if not ours:
        known = ", ".join(dict.fromkeys(poolings.values()))
        raise BadInput(f"{path}: pooling_mode is {str(named)[:80]}; only one of {known} can be imported")
    return ours[0]


def _read(path: str, only: Mapping[str, Any], *carried: str) -> dict[str, Any]:
    """The content of a file of such a folder. Raises BadInput for another value of `only`, and for an unknown field."""
    found = files.read_json_object(path)
    check_only({key: value for key, value in found.items() if value is not None}, only, path)
    if strange := sorted(found.keys() - only.keys() - {*carried}):
        raise BadInput(f"{path}: the field {strange[0]!r} is unknown here and may change the vectors"
                       f"{suggest(strange[0], [*only, *carried])}")  # fmt: skip
    return found
