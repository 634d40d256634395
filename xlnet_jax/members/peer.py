"""What Hugging Face's `transformers` calls a member: its classes, the names of its tensors, the
keys of config.json.

Data alone, read in both directions: `convert.names` turns arrays by these tables, `convert.fields`
configurations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

Json = dict[str, Any]
"""Values by key."""


class Entry(NamedTuple):
    """One parameter on both sides, or several of ours that are one array there."""

    ours: str
    """Path in our tree; several, with spaces, are one array there, side by side on the axis of
    outputs. Below `layers/` a parameter has the leading axis L, unless all layers share it.
    """
    theirs: str
    """Name there; `{}` stands for the number of a layer, which then has an array of its own."""
    form: str = ""
    """`joined`: all axes but the first are one there; `transposed`: and the two change places;
    `flat`: all are one; `swapped`: transposed, with the two outputs of ours in the other order;
    `1,1,D`: two leading axes of length 1.
    """

    @property
    def paths(self) -> list[str]:
        """Those in `ours`."""
        return self.ours.split()

    def places(self, layers: int) -> Iterator[tuple[str, Any]]:
        """Each of their names, with the index of its array in our parameter."""
        if "{}" not in self.theirs:
            yield self.theirs, ...
            return
        for layer in range(layers):
            yield self.theirs.format(layer), layer if self.ours.startswith("layers/") else ...


Table = tuple[Entry, ...]


class Twin(NamedTuple):
    """Why a key of config.json must have the value of another one: here both are one. Null is that
    value, too.
    """

    of: str
    """The other key."""
    default: Any
    """Where a folder does not say it."""
    classes: tuple[str, ...] = ()
    """The classes that read it, without the prefix; () = all."""


class Peer(NamedTuple):
    """A member there."""

    title: str
    """Its name in prose."""
    prefix: str
    """What the names of its classes start with."""
    pretraining: tuple[str, ...]
    """How the name of its class goes on: without a loss of sentences, and with one."""
    table: Table
    """Of the tensors; the first is the word embedding."""
    heads: dict[str, dict[str, str]]
    """By the class of a task: the dense layers and LayerNorms of its head, with their names
    there.
    """
    copies: dict[str, str]
    """Tensors that other writers store again, with the one that each must equal."""
    named: dict[str, tuple[str, Any]]
    """Keys of `ModelConfig` with their names in config.json, and that library's defaults."""
    required: Json
    """What of config.json has one value in our models."""
    only: Json
    """Keys of `ModelConfig` with the only value that the library computes with."""
    card: str
    """How a text is read there, for the model card."""
    ids: dict[str, str] = {}
    """Special pieces of config.json, by their names in `SpecialIds`."""
    kept: Json = {}
    """Keys of config.json that say how the model is used there, with the values for a run of ours.
    A run that starts from an import keeps those of its source.
    """
    of_task: dict[str, str] = {}
    """Keys of config.json that are keys of `FinetuneConfig`."""
    aliases: dict[str, str] = {}
    """Other names of keys of config.json."""
    twins: dict[str, Twin] = {}
    """Keys of config.json that must have the value of another one."""
    ignored: frozenset[str] = frozenset()
    """Keys of config.json that no class here reads, beside `convert.peers.IGNORED`."""
    always: Json = {}
    """Keys of `ModelConfig` that have this value there: the same function, until it is trained
    there.
    """
    summary: Json = {}
    """Our heads, in config.json."""
    why_filled: str = "this is what the model learned."
    """Why the content stream predicts a masked piece there, for the model card."""
    prompt: str = ""
    """Arguments of the tokenizer for `generate` there, for the model card."""


def modules(scope: str, layers: Mapping[str, str], kernel: str = "transposed") -> Table:
    """Dense layers and LayerNorms, which have some of three parts; `kernel` is the form of the
    first.
    """
    parts = (("kernel", "weight", kernel), ("scale", "weight", ""), ("bias", "bias", ""))
    return tuple(
        Entry(f"{scope}{ours}/{part}", f"{theirs}.{name}", form)
        for ours, theirs in layers.items()
        for part, name, form in parts
    )


def heads(pooler: str, logits: str = "classifier") -> dict[str, dict[str, str]]:
    """Those of the tasks, by `Export.name`."""
    classifier = {"summary": pooler, "logits": logits}
    return {
        "ForSequenceClassification": classifier,
        "ForMultipleChoice": classifier,
        "ForTokenClassification": {"logits": "classifier"},
        "ForQuestionAnswering": {"logits": "qa_outputs"},
        "Model": {},
    }
