"""The keys of our configuration in a folder of Hugging Face `transformers`, in both directions.

    config.json      keys that have a name in the library; the names are in `members`
    xlnet_jax.json   other keys of the model: lengths and memory of the run, objective, computation
                     type
    not stored       machine and text of the training

A folder of another program has no `xlnet_jax.json`. Where the two files disagree, config.json
counts.
"""

from __future__ import annotations

import json
import math
import os
from typing import Any

from xlnet_jax import config as configs
from xlnet_jax.config import Config, FinetuneConfig, ModelConfig
from xlnet_jax.convert.peers import EXPORTS, IGNORED, PEERS, SAME, class_of, of_head, peer
from xlnet_jax.data.tokenizer import SpecialIds
from xlnet_jax.errors import BadInput
from xlnet_jax.members import MEMBERS
from xlnet_jax.members.peer import Peer
from xlnet_jax.messages import quantity, suggest
from xlnet_jax.storage import files
from xlnet_jax.storage.files import Json

OWN = "xlnet_jax.json"
"""Name of our file beside config.json, with values by dotted key."""

MODULES = "modules.json"
"""Name of the file that only folders of sentence-transformers have."""

_TYPES = {
    "architectures": list,
    "num_labels": int,
    "end_n_top": int,
    "summary_last_dropout": float,
    "embd_pdrop": float,
    "id2label": dict,
    "problem_type": str,
    "start_n_top": int,
    "mem_len": int,
    "reuse_len": int,
    "bi_data": bool,
    "use_mems_train": bool,
    "use_mems_eval": bool,
    "classifier_dropout": float,
    "classifier_dropout_prob": float,
    "reorder_and_upcast_attn": bool,
    "use_cache": bool,
    "classifier_pooling": str,
    "layer_types": list,
    "rope_parameters": dict,
}
"""Types of the keys of config.json that are read and have no value in `Peer`."""

ACTIVATIONS = {"gelu": "gelu_new", "gelu_erf": "gelu", "relu": "relu"}
"""Names of our activations in transformers. Its "gelu" is our "gelu_erf"; with our "gelu" the
logits differ by 1e-2.
"""

_EVERY = "global_attn_every_n_layers"
_ANGLES = {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"}
"""Kinds of layers in `layer_types`, with the older names of the base of their angles."""

_IN_CONFIG_JSON = {
    "finetune.task",
    "finetune.labels",
    "finetune.pooling",
    "finetune.normalize",
    "finetune.beam",
}
_OF_RUN = {"data.weights", "compat.cores", "finetune.metric"}
"""Keys that are left out, because no other program uses them. The keys that a resume may change are
left out too.
"""
_OF_USE = {"finetune.max_answer", "finetune.columns"}
"""Keys that are written although a resume may change them."""


def check_model(model: ModelConfig) -> None:
    """Raises BadInput if that library computes this model differently, or lacks its parameters."""
    row = peer(model)
    # A `d_embed` equal to `d_model` means no projection, as 0 does.
    values = vars(model) | ({"d_embed": 0} if model.d_embed == model.d_model else {})
    if other := [name for name, value in row.only.items() if values[name] != value]:
        found, wanted = (
            ", ".join(f"model.{name}={of[name]}" for name in other) for of in (values, row.only)
        )
        raise BadInput(
            f"{found}: Hugging Face's {row.prefix} has only {wanted}; use --format=orbax"
        )


def own_keys(config: Config) -> Json:
    """Returns the content of `xlnet_jax.json`: values by dotted key."""
    row = peer(config.model)
    named = {f"model.{name}" for name in ("head_dim", *row.named, *row.only)}
    free = {
        name for name, field in configs.fields().items() if field.metadata["resume"] == configs.FREE
    }
    left_out = (named | _IN_CONFIG_JSON | _OF_RUN | free) - _OF_USE
    sections = ("model.", "data.", "compat.", "finetune.")
    return {
        name: value
        for name, value in configs.flat(config).items()
        if name.startswith(sections) and name not in left_out
    }


def read_own(folder: str, architecture: str) -> Json:
    """Reads a folder's `xlnet_jax.json`, values by dotted key; {} without the file. `architecture`
    is the architecture of the model in the folder.

    Raises BadInput for a key that no export writes: a folder may come from anybody, and a key such
    as `log.compilation_cache` would run programs that the folder contains.
    """
    path = os.path.join(folder, OWN)
    found = files.read_json_if_listed(path)
    known = own_keys(Config().changed(model={"architecture": architecture}))
    if strange := sorted(found.keys() - known.keys()):
        raise BadInput(
            f"{path}: {strange[0]!r} is no key of such a file{suggest(strange[0], known)}"
        )
    return found


def config_json(config: Config, special: SpecialIds, kept: Json) -> Json:
    """Returns the content of config.json, with the keys `kept` of the folder that the run started
    from.
    """
    model, task, row = config.model, config.finetune, peer(config.model)
    values = vars(model) | row.always
    values |= {
        "activation": ACTIVATIONS[model.activation],
        "d_embed": model.d_embed or model.d_model,
        "max_positions": model.max_positions + model.member.first_position,
        # Without a window all layers are global, and its size has no effect.
        "window": model.window or 128,
        "global_every": model.global_every if model.window else 1,
    }
    export = EXPORTS.get(task.task)
    written = {
        "architectures": [class_of(config)],
        "model_type": model.architecture,
        "dtype": "float32",  # XLNet's two-stream attention fails in half precision there
        **{theirs: values[ours] for ours, (theirs, _) in row.named.items()},
        **row.required,
        **{theirs: kept.get(theirs, value) for theirs, value in row.kept.items()},
        **row.summary,
        **{theirs: getattr(task, ours) for theirs, (ours, _) in of_head(row, task.task).items()},
        **{theirs: getattr(special, ours) for theirs, ours in row.ids.items()},
    }
    if export:
        if "pad_token_id" not in row.required:  # GPT-2 reads the text before the first padding
            written["pad_token_id"] = special.pad
        if export.problem_type:
            written["problem_type"] = export.problem_type
        if labels := export.labels(task):
            written["id2label"] = {str(i): name for i, name in enumerate(labels)}
            written["label2id"] = {name: i for i, name in enumerate(labels)}
    return {theirs: written[twin.of] for theirs, twin in row.twins.items()} | written


def read_config_json(folder: str) -> Json:
    """Reads config.json; a key with several names gets its first name.

    Raises BadInput for an unknown type of model, and for a value of a wrong type.
    """
    path = os.path.join(folder, "config.json")
    found = files.read_json_object(path)
    row = PEERS.get(str(found.get("model_type")))
    if row is None:
        raise BadInput(
            f"{path}: model_type is {found.get('model_type')!r}; "
            f"only {', '.join(PEERS)} can be imported"
        )
    aliases = {"torch_dtype": "dtype"} | row.aliases
    found = {aliases.get(name, name): value for name, value in found.items()}
    types = {theirs: type(getattr(ModelConfig(), ours)) for ours, (theirs, _) in row.named.items()}
    types |= {name: type(value) for name, value in row.required.items()}
    files.check_types(found, _TYPES | types, path)
    return _by_number(found, row, path) if "theta" in row.named else found


def _by_number(found: Json, row: Peer, path: str) -> Json:
    """Returns config.json with the keys of transformers 4 that number the global layers and have
    the angles, in place of `layer_types` and `rope_parameters` of version 5. A folder may have
    both.

    Raises BadInput if the two disagree, or if there are no such keys for its layers or angles.
    """
    found, usual = dict(found), dict(row.named.values())
    others = ("head_dim", "rope_scaling", "rope_theta", "sliding_window")
    check_only(found, dict.fromkeys(others), path)
    if found.get("local_attention") in (0, 1):
        raise BadInput(
            f"{path}: local_attention={found['local_attention']}; only 2 or more can be imported"
        )
    layers = found.get("num_hidden_layers") or usual["num_hidden_layers"]
    full, local = _ANGLES
    if (kinds := found.pop("layer_types", None)) is not None:
        every = found[_EVERY] = found.get(_EVERY) or [*kinds[1:], full].index(full) + 1
        if len(kinds) != layers or kinds != [
            local if number % every else full for number in range(layers)
        ]:
            raise BadInput(
                f"{path}: layer_types={json.dumps(kinds):.80} with num_hidden_layers={layers} and "
                f"{_EVERY}={every}; only {full} in every n-th layer from the first on, and {local} "
                "in all others, can be imported"
            )
    angles = found.pop("rope_parameters", None) or {}
    files.check_types(angles, dict.fromkeys(_ANGLES, dict), path)
    if angles.keys() - _ANGLES.keys():
        raise BadInput(
            f"{path}: rope_parameters={json.dumps(angles):.200}; only the keys "
            f"{' and '.join(_ANGLES)} can be imported"
        )
    for kind, key in _ANGLES.items():
        given = angles.get(kind) or {}
        theta = found.setdefault(key, given.get("rope_theta", usual[key]))
        if theta is None:
            raise BadInput(f"{path}: {key}, the base of {kind}, is null; write its number")
        one = {"rope_type": "default", "rope_theta": theta}
        if one | given != one:
            raise BadInput(
                f"{path}: {key}={theta} with rope_parameters={json.dumps(angles):.200}; only "
                f"rope_type=default and rope_theta={theta} for {kind} can be imported"
            )
    return found


def check_only(found: Json, wanted: Json, path: str) -> None:
    """Raises BadInput for a key with another value than `wanted`, the only one that is imported."""
    for key, value in wanted.items():
        if (given := found.get(key, value)) != value:
            raise BadInput(
                f"{path}: {key}={json.dumps(given):.80}; only {json.dumps(value)} can be imported"
            )


def read_model(folder: str, found: Json) -> Json:
    """Returns the keys of `model` from the content of config.json, `found`.

    Raises BadInput for a model that this package cannot express.
    """
    path, row = os.path.join(folder, "config.json"), PEERS[found["model_type"]]
    check_only(
        {key: value for key, value in found.items() if value is not None}, row.required | SAME, path
    )
    _check_twins(found, row, path)
    said: Json = {
        ours: default if found.get(theirs) is None else found[theirs]
        for ours, (theirs, default) in row.named.items()
    }
    theirs, activations = said["activation"], {theirs: ours for ours, theirs in ACTIVATIONS.items()}
    if theirs not in activations:
        raise BadInput(
            f"{path}: {row.named['activation'][0]}={theirs!r} is not one "
            f"of {', '.join(activations)}"
        )
    values: Json = said | {"activation": activations[theirs]} | row.only | row.always
    width, heads = values["d_model"], values["heads"]
    if values.get("head_dim") is None:
        values["head_dim"] = max(1, width // max(1, heads))
        if values["head_dim"] * heads != width:
            width_is, heads_are = (
                f"{row.named[key][0]}={values[key]}" for key in ("d_model", "heads")
            )
            raise BadInput(f"{path}: {width_is} is no multiple of {heads_are}")
    if values["d_ff"] is None:
        values["d_ff"] = 4 * width
    if "max_positions" in values:
        values["max_positions"] -= MEMBERS[found["model_type"]].first_position
    return {f"model.{name}": value for name, value in values.items()}


def _check_twins(found: Json, row: Peer, path: str) -> None:
    """Raises BadInput if two keys of config.json that are a single key here differ."""
    defaults = dict(row.named.values())
    for theirs, twin in row.twins.items():
        one = found.get(theirs, twin.default)
        two = found.get(twin.of, defaults.get(twin.of, twin.default))
        read = not twin.classes or _class_in(found) in [row.prefix + name for name in twin.classes]
        if read and one is not None and one != two:
            raise BadInput(
                f"{path}: {theirs}={one} and {twin.of}={two}; only equal values can be "
                "imported; write the value for further training into both keys"
            )


def _class_in(found: Json) -> str:
    """Returns the name of the model's class in torch; "" if config.json has none."""
    return str((found.get("architectures") or [""])[0]).removeprefix("TF").removeprefix("Flax")


def read_usual(model: Json) -> Json:
    """Returns keys for what config.json lacks: the usual objective of the member and the longest
    examples, and its usual values of `model`. `model` has the keys of `read_model`.
    """
    member = MEMBERS[model["model.architecture"]]
    if not member.bounded:
        return {}
    usual = member.usual(model["model.max_positions"])
    return {f"{name}.{key}": value for name in usual for key, value in usual[name].items()}


def read_task(folder: str, found: Json) -> Json:
    """Returns keys by dotted name. A folder with a fine-tuned model gives the keys of `finetune`
    and the lengths; any other folder gives only `data.sentence_loss`.

    Raises BadInput for an unknown class, and if the head differs from ours.
    """
    path, name = os.path.join(folder, "config.json"), _class_in(found)
    listed, row = files.listing(folder), PEERS[found["model_type"]]
    rests = dict.fromkeys((*row.pretraining, *row.heads, "Model"))
    classes = [row.prefix + rest for rest in rests]
    if name not in ("", *classes):
        raise BadInput(
            f"{path}: class {name}; only {', '.join(classes)} can be imported; if the model "
            "computes the same as one of these, write its name into architectures"
        )
    if MODULES in listed and name in ("", *classes[: len(row.pretraining)]):
        name = f"{row.prefix}Model"  # as sentence-transformers reads it
    tasks = [task for task, export in EXPORTS.items() if row.prefix + export.name == name]
    # A bare model lacks the head that predicts pieces, unless that head has no parameters.
    complete = not any(entry.ours.startswith("lm_head/") for entry in row.table)
    if not tasks or (tasks == ["embeddings"] and complete and MODULES not in listed):
        paired = name in classes[1 : len(row.pretraining)]
        check_only(found, row.summary if paired else {}, path)
        return {"data.sentence_loss": paired}
    check_only(found, row.summary, path)
    labels = found.get("id2label") or {
        str(i): f"LABEL_{i}" for i in range(found.get("num_labels") or 2)
    }
    names_of: list[Any] = [labels.get(str(i)) for i in range(len(labels))]
    if not all(isinstance(name, str) for name in names_of) or len({*names_of}) < len(names_of):
        raise BadInput(
            f"{path}: id2label={str(labels)[:60]!r} does not name the label of each "
            "number, or has a name twice"
        )
    task = tasks[0]
    if len(tasks) > 1:
        task = _task_of_problem(found.get("problem_type"), len(names_of), tasks, path)
    labelled = EXPORTS[task].labels is FinetuneConfig.label_list
    keys = {
        "data.sentence_loss": False,
        "finetune.task": task,
        "finetune.labels": configs.join_names(names_of) if labelled else "",
        **_read_head(found, of_head(row, task), path),
    }
    settings = files.read_json_if_listed(os.path.join(folder, "tokenizer_config.json"))
    length = settings.get("model_max_length")
    if isinstance(length, int) and length < int(1e30):  # for transformers int(1e30) is no limit
        theirs, default = row.named.get("max_positions", ("", math.inf))
        longest = (found.get(theirs) or default) - MEMBERS[found["model_type"]].first_position
        keys["data.segment_len"] = min(length, longest)
    return keys


def _read_head(found: Json, of_task: dict[str, tuple[str, Any]], path: str) -> Json:
    """Returns the keys of `finetune` that `of_task` names. Raises BadInput for an unknown value."""
    keys: Json = {}
    for theirs, (ours, default) in of_task.items():
        value = found.get(theirs, default)
        choices = configs.fields()[f"finetune.{ours}"].metadata["choices"]
        if choices and value not in choices:
            raise BadInput(f"{path}: {theirs}={value!r:.60} is not one of {', '.join(choices)}")
        keys[f"finetune.{ours}"] = value
    return keys


def _task_of_problem(given: str | None, outputs: int, tasks: list[str], path: str) -> str:
    """Chooses among the `tasks` of a class. Raises BadInput if the problem, or the number of
    outputs, fits no task.
    """
    problem = given or ("regression" if outputs == 1 else "single_label_classification")
    by_problem = {EXPORTS[task].problem_type: task for task in tasks}
    other_number = problem != "multi_label_classification" and (problem == "regression") != (
        outputs == 1
    )
    if problem not in by_problem or other_number:
        raise BadInput(
            f"{path}: problem_type={problem} with {quantity(outputs, 'label')} in id2label cannot "
            "be imported"
        )
    return by_problem[problem]


def read_lengths(found: Json) -> Json:
    """Returns the lengths in config.json, `found`, by dotted key."""
    # The library reads a `reuse_len` of 0 as null.
    lengths = {
        "model.memory_len": found.get("mem_len"),
        "data.reuse_len": found.get("reuse_len") or None,
    }
    return {name: value for name, value in lengths.items() if value is not None}


def read_kept(found: Json, config: Config, special: SpecialIds) -> tuple[Json, list[str]]:
    """Returns the keys of `Peer.kept` with their values in config.json, and KEY=VALUE of the keys
    that an export would lose.
    """
    row = peer(config.model)
    kept = {key: found[key] for key in row.kept if key in found}
    again = config_json(config, special, kept)
    known = {*(theirs for theirs, _ in row.named.values()), "num_labels"} | IGNORED | row.ignored
    return kept, [
        f"{key}={value!r:.60}"
        for key, value in found.items()
        if value is not None and key not in known and again.get(key) != value
    ]
