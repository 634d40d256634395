"""Hugging Face's class and tensors for a configuration, by the `Peer` of its member."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from xlnet_jax.config import Config, FinetuneConfig, ModelConfig
from xlnet_jax.errors import BadInput
from xlnet_jax.members import MEMBERS
from xlnet_jax.members.peer import Peer, Table, modules
from xlnet_jax.storage.files import Json

SAME: Json = {
    "is_encoder_decoder": False,
    "pruned_heads": {},
    "quantization_config": None,
    "auto_map": None,
}
"""Keys of config.json that no export writes, with the only value that can be imported. `auto_map`
names Python code in the folder.
"""
IGNORED = frozenset(
    {
        "transformers_version",
        "_name_or_path",
        "return_dict",
        "output_hidden_states",
        "output_attentions",
        "chunk_size_feed_forward",
    }
)
"""Keys of config.json that do not change the function of a model."""


class Export(NamedTuple):
    """Hugging Face's form of a model that was fine-tuned on a task."""

    name: str
    """Name of its class without the family, such as `ForSequenceClassification`. `Peer.heads` has
    its tensors.
    """
    problem_type: str = ""
    """Value of the key in config.json; "" = no key."""
    labels: Callable[[FinetuneConfig], Sequence[str]] = lambda _: ()
    """Function that returns the names of the outputs; empty for outputs without names."""
    pools: bool = True
    """Whether the head reads one vector of a sequence."""


EXPORTS = {
    "classification": Export(
        "ForSequenceClassification", "single_label_classification", FinetuneConfig.label_list
    ),
    "multi_label_classification": Export(
        "ForSequenceClassification", "multi_label_classification", FinetuneConfig.label_list
    ),
    "regression": Export("ForSequenceClassification", "regression", lambda _: ["score"]),
    "multiple_choice": Export("ForMultipleChoice"),
    "question_answering": Export("ForQuestionAnswering", pools=False),
    "token_classification": Export(
        "ForTokenClassification", labels=FinetuneConfig.label_list, pools=False
    ),
    "embeddings": Export("Model"),
    # No class of the library has a source that sees itself. No `Peer.heads` has this name, so
    # `huggingface.check` refuses the export.
    "text_to_text": Export("ForTextToText"),
}
"""Exports by `finetune.task`."""

PEERS = {name: member.peer for name, member in MEMBERS.items() if member.peer}
"""Peers by `model.architecture`, for the members that Hugging Face has."""


def peer(model: ModelConfig) -> Peer:
    """Returns the peer of a model. Raises BadInput if there is none."""
    if model.architecture not in PEERS:
        raise BadInput(
            f"model.architecture={model.architecture}: "
            "Hugging Face has no such model; use --format=orbax"
        )
    return PEERS[model.architecture]


def class_of(config: Config) -> str:
    """Returns the name of a model's class in transformers."""
    row, task = peer(config.model), config.finetune.task
    return row.prefix + (
        row.pretraining[config.data.sentence_loss] if task == "none" else EXPORTS[task].name
    )


def of_head(row: Peer, task: str) -> dict[str, tuple[str, Any]]:
    """Returns the keys of `Peer.of_task` for the head of a task, `pooling` only if it pools."""
    export = EXPORTS.get(task)
    if not export or not row.heads.get(export.name):
        return {}
    return {
        theirs: (ours, default)
        for theirs, (ours, default) in row.of_task.items()
        if export.pools or ours != "pooling"
    }


def table(config: Config) -> Table:
    """Returns the tensors of a model, with its head."""
    row, task = peer(config.model), config.finetune.task
    of_pairs = ("pooler/", "sentence_head/") if not config.data.sentence_loss else ()
    head = row.heads[EXPORTS[task].name] if task != "none" else {}
    return (
        *(entry for entry in row.table if not entry.ours.startswith(of_pairs)),
        *modules("head/", head),
    )
