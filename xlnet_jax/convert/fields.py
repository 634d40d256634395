"""Where each key of our configuration goes in a folder of Hugging Face `transformers`, and where it comes from again.

    config.json      what that library has a name for
    xlnet_jax.json   what it has no name for: the lengths and the memory of the run, its objective, its computation type
    nowhere          on which machine and text the model was trained

A folder of another program has no `xlnet_jax.json`; where the two disagree, config.json is right.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from xlnet_jax import config as configs
from xlnet_jax.config import Config, FinetuneConfig, ModelConfig
from xlnet_jax.data.tokenizer import XLNET
from xlnet_jax.errors import BadInput
from xlnet_jax.finetune.task import Export
from xlnet_jax.finetune.tasks import TASKS
from xlnet_jax.messages import suggest
from xlnet_jax.storage import files

OWN = "xlnet_jax.json"
"""A file of ours beside config.json: values by dotted key."""


NAMED = {
    "vocab_size": "vocab_size", "layers": "n_layer", "d_model": "d_model", "heads": "n_head", "head_dim": "d_head",
    "d_ff": "d_inner", "activation": "ff_activation", "biases_per_layer": "untie_r", "clamp_len": "clamp_len",
    "dropout": "dropout", "init_std": "initializer_range", "layer_norm_epsilon": "layer_norm_eps",
}  # fmt: skip
"""Keys of `ModelConfig` with their names in config.json. Tied biases are copied to each layer there."""
ONLY = {
    "norm": "post", "scale_embedding": False, "cutoffs": "", "div_val": 1, "d_embed": 0, "tie_embedding": True,
    "share_layers": False, "position_scheme": "relative", "layer_losses": False, "same_length": False,
}  # fmt: skip
"""Keys with the only value that the library computes with."""
NO_PLACE = frozenset({
    "tie_projections",  # there are none without `cutoffs` and `d_embed`
    "memory_len", "attention_dropout", "activation_dropout", "compute_dtype", "remat", "attention", "unroll",
})  # fmt: skip
"""All other keys, which config.json has no place for."""

_TYPES = {
    **{theirs: type(getattr(ModelConfig(), ours)) for ours, theirs in NAMED.items()},
    "attn_type": str, "same_length": bool, "tie_word_embeddings": bool, "architectures": list, "id2label": dict,
    "problem_type": str, "start_n_top": int, "mem_len": int, "reuse_len": int, "bi_data": bool,
    "use_mems_train": bool, "use_mems_eval": bool,
}  # fmt: skip
"""Of the keys of config.json that are read."""

KEPT = {"mem_len": None, "reuse_len": None, "bi_data": False, "use_mems_train": False, "use_mems_eval": True}
"""Keys of config.json that say how the model is used there, with the values for a run of ours: the lengths of
pretraining would change inference and generation there. A run that starts from an import keeps those of its source."""

ACTIVATIONS = {"gelu": "gelu_new", "gelu_erf": "gelu", "relu": "relu"}
"""That library's names for our activations; its plain "gelu" would change logits by 1e-2."""
SUMMARY = {"summary_type": "last", "summary_use_proj": True, "summary_activation": "tanh"}
"""Our classifier, in config.json."""
BOS_EOS_PAD = {"bos_token_id": XLNET.bos, "eos_token_id": XLNET.eos, "pad_token_id": XLNET.pad}

REQUIRED = {"attn_type": "bi", "tie_word_embeddings": True, "same_length": False}
"""What of config.json has one value in our models."""

_IN_CONFIG_JSON = {"finetune.task", "finetune.labels", "finetune.pooling", "finetune.beam"}
_OF_RUN = {"data.weights", "compat.cores", "finetune.columns", "finetune.metric"}
"""Of no use to others, as are all keys that a resume may change but for this one: `finetune.max_answer`."""


def check(model: ModelConfig) -> None:
    """Raises BadInput if that library computes this model in another way, or has no parameters for it."""
    # A projection of the same width is none.
    values = vars(model) | ({"d_embed": 0} if model.d_embed == model.d_model else {})
    if other := [name for name, value in ONLY.items() if values[name] != value]:
        found, wanted = (", ".join(f"model.{name}={of[name]}" for name in other) for of in (values, ONLY))
        raise BadInput(f"{found}: Hugging Face's XLNet has only {wanted}; use --format=orbax")


def own(config: Config) -> dict[str, Any]:
    """The content of `xlnet_jax.json`: values by dotted key."""
    left_out = {f"model.{name}" for name in NAMED | ONLY} | _IN_CONFIG_JSON | _OF_RUN
    left_out |= {name for name, field in configs.fields().items() if field.metadata["resume"] == configs.FREE}
    sections = ("model.", "data.", "compat.", "finetune.")
    return {name: value for name, value in configs.flat(config).items()
            if name.startswith(sections) and name not in left_out - {"finetune.max_answer"}}  # fmt: skip


def read_own(folder: str) -> dict[str, Any]:
    """The values of a folder's `xlnet_jax.json` by dotted key; {} if it has none.

    Raises BadInput for a key that no export writes: the folder may be anyone's, and a key such as
    `log.compilation_cache` would have programs in it run.
    """
    path = os.path.join(folder, OWN)
    found = configs.renamed(files.read_json_object(path)) if OWN in files.listing(folder) else {}
    known = own(Config())
    if strange := sorted(found.keys() - known.keys()):
        raise BadInput(f"{path}: {strange[0]!r} is no key of such a file{suggest(strange[0], known)}")
    return found


def config_json(model: ModelConfig, task: FinetuneConfig, kept: Mapping[str, Any]) -> dict[str, Any]:
    """The content of config.json, with the keys `kept` of the folder that the run started from."""
    export = Export("XLNetLMHeadModel", {}) if task.task == "none" else TASKS[task.task].export
    labels = export.labels(task)
    return {
        "architectures": [export.architecture],
        "model_type": "xlnet",
        "dtype": "float32",  # it has no working half-precision two-stream attention
        **{theirs: getattr(model, ours) for ours, theirs in NAMED.items()},
        "ff_activation": ACTIVATIONS[model.activation],
        "untie_r": True,
        **REQUIRED,
        **{theirs: kept.get(theirs, value) for theirs, value in KEPT.items()},
        **SUMMARY,
        "summary_last_dropout": model.dropout,
        "start_n_top": task.beam,
        "end_n_top": task.beam,
        **BOS_EOS_PAD,
        **({"problem_type": export.problem_type} if export.problem_type else {}),
        **({"id2label": {str(i): name for i, name in enumerate(labels)},
            "label2id": {name: i for i, name in enumerate(labels)}} if labels else {}),
    }  # fmt: skip


def read_config_json(folder: str) -> dict[str, Any]:
    """The content of config.json, keys of several names under one. Raises BadInput for a value of a wrong type."""
    other = {"n_token": "vocab_size", "num_hidden_layers": "n_layer", "hidden_size": "d_model",
             "num_attention_heads": "n_head", "torch_dtype": "dtype"}  # fmt: skip
    path = os.path.join(folder, "config.json")
    found = {other.get(name, name): value for name, value in files.read_json_object(path).items()}
    files.check_types(found, _TYPES, path)
    return found


def _check_only(found: Mapping[str, Any], wanted: Mapping[str, Any], path: str) -> None:
    """Raises BadInput for a key that has another value than the only one that is known here."""
    for key, value in wanted.items():
        if (given := found.get(key, value)) != value:
            raise BadInput(f"{path}: {key}={json.dumps(given)}; only {json.dumps(value)} can be imported")


def read_model(folder: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of `model` that the content of config.json sets.

    Raises BadInput if the folder holds another architecture, or an XLNet that this package cannot express.
    """
    path = os.path.join(folder, "config.json")
    if found.get("model_type") != "xlnet":
        raise BadInput(f"{path}: model_type is {found.get('model_type')!r}; only 'xlnet' can be imported")
    _check_only({key: value for key, value in found.items() if value is not None}, REQUIRED, path)
    theirs, ours = found.get("ff_activation", "gelu"), {theirs: ours for ours, theirs in ACTIVATIONS.items()}
    if theirs not in ours:
        raise BadInput(f"{path}: ff_activation={theirs!r} is not one of {', '.join(ours)}")
    values = {f"model.{ours}": found[theirs] for ours, theirs in NAMED.items() if theirs in found}
    # Its default, which follows the width.
    width, heads = (values.get(f"model.{name}", getattr(ModelConfig(), name)) for name in ("d_model", "heads"))
    if "model.head_dim" not in values and all(isinstance(size, int) and size > 0 for size in (width, heads)):
        values["model.head_dim"] = width // heads
    return values | {"model.activation": ours[theirs], "model.biases_per_layer": True}


def read_task(folder: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of `finetune`, and the length, of a folder that `export` wrote of a fine-tuned model; {} of another.

    Raises BadInput if its head computes in another way than ours.
    """
    path, name = os.path.join(folder, "config.json"), (found.get("architectures") or [""])[0]
    tasks = [task for task, kind in TASKS.items() if kind.export.architecture == name]
    if not tasks or (tasks == ["embeddings"] and "modules.json" not in files.listing(folder)):
        return {}
    labels = found.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    if not all(key.isdecimal() and isinstance(x, str) for key, x in labels.items()):
        raise BadInput(f"{path}: id2label={str(labels)[:60]!r} does not name the label of each number")
    names_of = [labels[key] for key in sorted(labels, key=int)]
    # Classification and regression are one class there.
    regression = len(tasks) == 2 and (found.get("problem_type") == "regression" or len(names_of) == 1)
    task = "regression" if regression else tasks[0]
    _check_only(found, SUMMARY, path)
    pooling = {}
    if task == "embeddings":
        pooling = files.read_json_object(os.path.join(folder, "1_Pooling", "config.json"))
    length = files.read_json_object(os.path.join(folder, "tokenizer_config.json")).get("model_max_length")
    return {
        "finetune.task": task,
        "finetune.labels": ",".join(names_of) if "labels" in TASKS[task].options else "",
        "finetune.beam": found.get("start_n_top", FinetuneConfig().beam),
        "finetune.pooling": "cls" if pooling.get("pooling_mode_lasttoken") else "mean",
        # int(1e30) is how transformers writes that there is no limit.
        **({"data.segment_len": length} if isinstance(length, int) and length < int(1e30) else {}),
    }


def read_lengths(found: Mapping[str, Any]) -> dict[str, Any]:
    """The lengths of segments that the content of config.json has, by dotted key."""
    # That library reads a `reuse_len` of 0 as null.
    lengths = {"model.memory_len": found.get("mem_len"), "data.reuse_len": found.get("reuse_len") or None}
    return {name: value for name, value in lengths.items() if value is not None}


def read_kept(found: Mapping[str, Any], config: Config) -> tuple[dict[str, Any], list[str]]:
    """The keys of `KEPT` as config.json has them, and KEY=VALUE of those that are lost: they have no place here."""
    kept = {key: found[key] for key in KEPT if key in found}
    again = config_json(config.model, config.finetune, kept)
    known = {*NAMED.values(), "transformers_version", "_name_or_path"}
    return kept, [f"{key}={value!r:.60}" for key, value in found.items()
                  if value is not None and key not in known and again.get(key) != value]  # fmt: skip
