"""Hugging Face's class of a model, and its tensors: what the `Peer` of a member says for a
configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

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
"""What of config.json has one value in all our models, and is written by none: code of its own is
the last one.
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
"""Keys of config.json that change no function."""


class Export(NamedTuple):
    """How a model is there that was fine-tuned on a task."""

    name: str
    """Of its class, behind that of the family: `ForSequenceClassification`. `Peer.heads` has its
    tensors.
    """
    problem_type: str = ""
    """Key of config.json; "" = none."""
    labels: Callable[[FinetuneConfig], Sequence[str]] = lambda _: ()
    """The names of the outputs; none for a task whose outputs have no names."""


EXPORTS = {
    "classification": Export(
        "ForSequenceClassification", "single_label_classification", FinetuneConfig.label_list
    ),
    "multi_label_classification": Export(
        "ForSequenceClassification", "multi_label_classification", FinetuneConfig.label_list
    ),
    "regression": Export("ForSequenceClassification", "regression", lambda _: ["score"]),
    "multiple_choice": Export("ForMultipleChoice"),
    "question_answering": Export("ForQuestionAnswering"),
    "token_classification": Export("ForTokenClassification", labels=FinetuneConfig.label_list),
    "embeddings": Export("Model"),
    # No such class: a source that sees itself is unknown there.
    "text_to_text": Export("ForTextToText"),
}
"""By `finetune.task`."""

PEERS = {name: member.peer for name, member in MEMBERS.items() if member.peer}
"""By `model.architecture`, of the members that are there."""


def peer(model: ModelConfig) -> Peer:
    """That of a model. Raises BadInput if there is none."""
    if model.architecture not in PEERS:
        raise BadInput(
            f"model.architecture={model.architecture}: "
            "Hugging Face has no such model; use --format=orbax"
        )
    return PEERS[model.architecture]


def class_of(config: Config) -> str:
    """The name of its class there."""
    row, task = peer(config.model), config.finetune.task
    return row.prefix + (
        row.pretraining[config.data.sentence_loss] if task == "none" else EXPORTS[task].name
    )


def table(config: Config) -> Table:
    """All tensors of a model, with its head."""
    row, task = peer(config.model), config.finetune.task
    of_pairs = ("pooler/", "sentence_head/") if not config.data.sentence_loss else ()
    head = row.heads[EXPORTS[task].name] if task != "none" else {}
    return (
        *(entry for entry in row.table if not entry.ours.startswith(of_pairs)),
        *modules("head/", head),
    )
