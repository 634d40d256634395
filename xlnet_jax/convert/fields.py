"""Where each key of our configuration goes in a folder of Hugging Face `transformers`, and where it
comes from again.

    config.json      what that library has a name for
    xlnet_jax.json   what it has no name for: the lengths and the memory of the run, its objective,
                     its computation type
    nowhere          on which machine and text the model was trained

`members` has the names there. A folder of another program has no `xlnet_jax.json`; where the two
disagree, config.json is right.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import Any

from xlnet_jax import config as configs
from xlnet_jax.config import Config, FinetuneConfig, ModelConfig
from xlnet_jax.convert.peers import EXPORTS, IGNORED, PEERS, SAME, class_of, peer
from xlnet_jax.data.tokenizer import SpecialIds
from xlnet_jax.errors import BadInput
from xlnet_jax.members import MEMBERS
from xlnet_jax.members.peer import Peer
from xlnet_jax.messages import quantity, suggest
from xlnet_jax.storage import files
from xlnet_jax.storage.files import Json

OWN = "xlnet_jax.json"
"""A file of ours beside config.json: values by dotted key."""

MODULES = "modules.json"
"""The file that makes a folder one of sentence-transformers."""

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
}
"""Of the keys of config.json that are read, beside those that a `Peer` has a value for."""

ACTIVATIONS = {"gelu": "gelu_new", "gelu_erf": "gelu", "relu": "relu"}
"""That library's names for our activations; its plain "gelu" would change logits by 1e-2."""

_IN_CONFIG_JSON = {
    "finetune.task",
    "finetune.labels",
    "finetune.pooling",
    "finetune.normalize",
    "finetune.beam",
}
_OF_RUN = {"data.weights", "compat.cores", "finetune.metric"}
"""Of no use to others, as are all keys that a resume may change but for `_OF_USE`."""
_OF_USE = {"finetune.max_answer", "finetune.columns"}


def check(model: ModelConfig) -> None:
    """Raises BadInput if that library computes this model in another way, or has no parameters for
    it.
    """
    row = peer(model)
    # A projection of the same width is none.
    values = vars(model) | ({"d_embed": 0} if model.d_embed == model.d_model else {})
    if other := [name for name, value in row.only.items() if values[name] != value]:
        found, wanted = (
            ", ".join(f"model.{name}={of[name]}" for name in other) for of in (values, row.only)
        )
        raise BadInput(
            f"{found}: Hugging Face's {row.prefix} has only {wanted}; use --format=orbax"
        )


def own(config: Config) -> Json:
    """The content of `xlnet_jax.json`: values by dotted key."""
    row = peer(config.model)
    left_out = (
        {f"model.{name}" for name in ("head_dim", *row.named, *row.only)}
        | _IN_CONFIG_JSON
        | _OF_RUN
    )
    left_out |= {
        name for name, field in configs.fields().items() if field.metadata["resume"] == configs.FREE
    }
    sections = ("model.", "data.", "compat.", "finetune.")
    return {
        name: value
        for name, value in configs.flat(config).items()
        if name.startswith(sections) and name not in left_out - _OF_USE
    }


def read_own(folder: str, architecture: str) -> Json:
    """The values of a folder's `xlnet_jax.json` by dotted key; {} if it has none. `architecture`:
    that of its model.

    Raises BadInput for a key that no export writes: the folder may be anyone's, and a key such as
    `log.compilation_cache` would have programs in it run.
    """
    path = os.path.join(folder, OWN)
    found = files.read_json_if_listed(path)
    known = own(Config().changed(model={"architecture": architecture}))
    if strange := sorted(found.keys() - known.keys()):
        raise BadInput(
            f"{path}: {strange[0]!r} is no key of such a file{suggest(strange[0], known)}"
        )
    return found


def config_json(config: Config, special: SpecialIds, kept: Mapping[str, Any]) -> Json:
    """The content of config.json, with the keys `kept` of the folder that the run started from."""
    model, task, row = config.model, config.finetune, peer(config.model)
    export = EXPORTS.get(task.task)
    labels = export.labels(task) if export else ()
    values = (
        vars(model)
        | row.always
        | {
            "activation": ACTIVATIONS[model.activation],
            "d_embed": model.d_embed or model.d_model,
            "max_positions": model.max_positions + model.member.first_position,
        }
    )
    ids = {theirs: getattr(special, ours) for theirs, ours in row.ids.items()}
    if export and "pad_token_id" not in row.required:  # GPT-2's text ends before the first of these
        ids["pad_token_id"] = special.pad
    written = {
        "architectures": [class_of(config)],
        "model_type": model.architecture,
        "dtype": "float32",  # XLNet has no working half-precision two-stream attention there
        **{theirs: values[ours] for ours, (theirs, _) in row.named.items()},
        **row.required,
        **{theirs: kept.get(theirs, value) for theirs, value in row.kept.items()},
        **row.summary,
        **{theirs: getattr(task, ours) for theirs, ours in row.of_task.items()},
        **ids,
        **({"problem_type": export.problem_type} if export and export.problem_type else {}),
        **(
            {
                "id2label": {str(i): name for i, name in enumerate(labels)},
                "label2id": {name: i for i, name in enumerate(labels)},
            }
            if labels
            else {}
        ),
    }
    return {theirs: written[twin.of] for theirs, twin in row.twins.items()} | written


def read_config_json(folder: str) -> Json:
    """The content of config.json, keys of several names under one.

    Raises BadInput for a model of no member here, and for a value of a wrong type.
    """
    path = os.path.join(folder, "config.json")
    found = files.read_json_object(path)
    row = PEERS.get(str(found.get("model_type")))
    if row is None:
        raise BadInput(
            f"{path}: model_type is {found.get('model_type')!r}; "
            f"only {', '.join(PEERS)} can be imported"
        )
    found = {
        ({"torch_dtype": "dtype"} | row.aliases).get(name, name): value
        for name, value in found.items()
    }
    types = {theirs: type(getattr(ModelConfig(), ours)) for ours, (theirs, _) in row.named.items()}
    files.check_types(
        found, _TYPES | types | {name: type(value) for name, value in row.required.items()}, path
    )
    return found


def check_only(found: Mapping[str, Any], wanted: Mapping[str, Any], path: str) -> None:
    """Raises BadInput for a key that has another value than the only one that is known here."""
    for key, value in wanted.items():
        if (given := found.get(key, value)) != value:
            raise BadInput(
                f"{path}: {key}={json.dumps(given):.80}; only {json.dumps(value)} can be imported"
            )


def read_model(folder: str, found: Mapping[str, Any]) -> Json:
    """The keys of `model` that the content of config.json sets.

    Raises BadInput if the folder holds a model that this package cannot express.
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


def _check_twins(found: Mapping[str, Any], row: Peer, path: str) -> None:
    """Raises BadInput for two keys of config.json that are one here, and have two values."""
    defaults = dict(row.named.values())
    for theirs, twin in row.twins.items():
        one = found.get(theirs, twin.default)
        two = found.get(twin.of, defaults.get(twin.of, twin.default))
        read = not twin.classes or _class_in(found) in [row.prefix + name for name in twin.classes]
        if read and one is not None and one != two:
            raise BadInput(
                f"{path}: {theirs}={one} and {twin.of}={two}; only equal ones can be imported: "
                "write the value for further training into both"
            )


def _class_in(found: Mapping[str, Any]) -> str:
    """The name of the model's class; "" if config.json has none."""
    return str((found.get("architectures") or [""])[0])


def read_data(model: Mapping[str, Any]) -> Json:
    """What config.json does not say, for the keys of `read_model`: the usual objective, the longest
    examples.
    """
    member = MEMBERS[model["model.architecture"]]
    if not member.positions_at_input:
        return {}
    return {
        f"data.{key}": value
        for key, value in member.usual(model["model.max_positions"])["data"].items()
    }


def read_task(folder: str, found: Mapping[str, Any]) -> Json:
    """The keys of `finetune`, and the length, of a folder with a fine-tuned model; of another its
    losses.

    Raises BadInput if its head computes in another way than ours.
    """
    path, name, listed = (
        os.path.join(folder, "config.json"),
        _class_in(found),
        files.listing(folder),
    )
    row = PEERS[found["model_type"]]
    if MODULES in listed and name in ("", *(row.prefix + rest for rest in row.pretraining)):
        name = f"{row.prefix}Model"  # as sentence-transformers reads it
    tasks = [task for task, export in EXPORTS.items() if row.prefix + export.name == name]
    # A bare model lacks what predicts pieces; if there are no parameters for that, it lacks
    # nothing.
    complete = not any(entry.ours.startswith("lm_head/") for entry in row.table)
    if not tasks or (tasks == ["embeddings"] and complete and MODULES not in listed):
        paired = name in [row.prefix + rest for rest in row.pretraining[1:]]
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
    task = (
        tasks[0]
        if len(tasks) == 1
        else _of_problem(found.get("problem_type"), len(names_of), tasks, path)
    )
    theirs, default = row.named.get("max_positions", ("", math.inf))
    longest = (found.get(theirs) or default) - MEMBERS[found["model_type"]].first_position
    length = files.read_json_if_listed(os.path.join(folder, "tokenizer_config.json")).get(
        "model_max_length"
    )
    return {
        "data.sentence_loss": False,
        "finetune.task": task,
        "finetune.labels": configs.join_names(names_of)
        if EXPORTS[task].labels is FinetuneConfig.label_list
        else "",
        "finetune.beam": found.get("start_n_top", FinetuneConfig().beam),
        # int(1e30) is how transformers writes that there is no limit.
        **(
            {"data.segment_len": min(length, longest)}
            if isinstance(length, int) and length < int(1e30)
            else {}
        ),
    }


def _of_problem(given: str | None, outputs: int, tasks: list[str], path: str) -> str:
    """The one of several `tasks` of a class. Raises BadInput for another problem or number of
    outputs.
    """
    problem = given or ("regression" if outputs == 1 else "single_label_classification")
    by_problem = {EXPORTS[task].problem_type: task for task in tasks}
    other_number = problem != "multi_label_classification" and (problem == "regression") != (
        outputs == 1
    )
    if problem not in by_problem or other_number:
        what = f"problem_type={problem} with {quantity(outputs, 'label')} in id2label"
        raise BadInput(f"{path}: {what} cannot be imported")
    return by_problem[problem]


def read_lengths(found: Mapping[str, Any]) -> Json:
    """The lengths of segments that the content of config.json has, by dotted key."""
    # That library reads a `reuse_len` of 0 as null.
    lengths = {
        "model.memory_len": found.get("mem_len"),
        "data.reuse_len": found.get("reuse_len") or None,
    }
    return {name: value for name, value in lengths.items() if value is not None}


def read_kept(
    found: Mapping[str, Any], config: Config, special: SpecialIds
) -> tuple[Json, list[str]]:
    """The keys of `Peer.kept` as config.json has them, and KEY=VALUE of those that have no place
    here.
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
