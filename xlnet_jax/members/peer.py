"""A member in Hugging Face's `transformers`: its classes, the names of its tensors, the keys of
config.json.

Data alone, for both directions: `convert.names` converts arrays by these tables, and
`convert.fields` converts configurations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

Json = dict[str, Any]
"""Values by key."""


class Entry(NamedTuple):
    """One parameter in both programs, or several of ours that are one array in transformers."""

    ours: str
    """Path in our tree. Several paths, with spaces, are one array in transformers, side by side on
    the axis of outputs. Below `layers/` a parameter has the leading axis L, unless all layers share
    it.
    """
    theirs: str
    """Name in transformers; with `{}`, the number of a layer, each layer has its own array."""
    form: str = ""
    """Form of the array in transformers. `joined`: all axes but the first are one axis;
    `transposed`: joined, then the two axes change places; `flat`: all axes are one; `swapped`:
    transposed, with our two outputs in the other order; `1,1,D`: two leading axes of length 1.
    """
    first: int = 0
    """Number of the first layer that has the array in transformers. In earlier layers our parameter
    has no effect, and an import fills it with ones.
    """

    @property
    def paths(self) -> list[str]:
        """The paths in `ours`."""
        return self.ours.split()

    def places(self, layers: int) -> Iterator[tuple[str, Any]]:
        """Yields each name in transformers, with the index of its array in our parameter."""
        if "{}" not in self.theirs:
            yield self.theirs, ...
            return
        for layer in range(self.first, layers):
            yield self.theirs.format(layer), layer if self.ours.startswith("layers/") else ...


Table = tuple[Entry, ...]

NOT_ROTARY: Json = {"window": 0, "global_every": 3, "theta": 10000.0, "theta_local": 10000.0}
"""Keys of `ModelConfig` for rotary positions, with the values of all other models."""


class Twin(NamedTuple):
    """Another key of config.json, whose value a key must have because one key of ours stands for
    both. Null also stands for this value.
    """

    of: str
    """The other key."""
    default: Any
    """The value if config.json does not have the key."""
    classes: tuple[str, ...] = ()
    """The classes that read the key, without the prefix; () = all."""


class Peer(NamedTuple):
    """A member in transformers."""

    title: str
    """The name in prose."""
    prefix: str
    """The start of the names of its classes."""
    pretraining: tuple[str, ...]
    """The rest of the name of its class for pretraining, without and with a loss of sentences."""
    table: Table
    """The tensors; the first is the word embedding."""
    heads: dict[str, dict[str, str]]
    """Dense layers and LayerNorms of a head, with transformers' names, by the class of its task."""
    copies: dict[str, str]
    """Tensors that other writers store twice, with the tensor that each must equal."""
    named: dict[str, tuple[str, Any]]
    """Keys of `ModelConfig` with their names in config.json, and the defaults of transformers."""
    required: Json
    """Keys of config.json with the only value that our models have."""
    only: Json
    """Keys of `ModelConfig` with the only value that transformers can have."""
    card: str
    """How the exported model reads a text, for the model card."""
    ids: dict[str, str] = {}
    """Special pieces of config.json, by their names in `SpecialIds`."""
    kept: Json = {}
    """Keys of config.json for the use of the model in transformers, with the values for our runs. A
    run that starts from an import keeps the values of its source.
    """
    of_task: dict[str, tuple[str, Any]] = {}
    """Keys of config.json that are keys of `FinetuneConfig` for a model with a head, with the
    defaults of transformers.
    """
    aliases: dict[str, str] = {}
    """Other names of keys of config.json."""
    twins: dict[str, Twin] = {}
    """Keys of config.json that must have the value of another key."""
    ignored: frozenset[str] = frozenset()
    """Keys of config.json that no class here reads, beside `convert.peers.IGNORED`."""
    always: Json = {}
    """Keys of `ModelConfig` that always have this value in transformers. It computes the same until
    transformers trains the model.
    """
    summary: Json = {}
    """Keys of config.json that describe our heads."""
    why_filled: str = "this is what the model learned."
    """Why the content stream predicts a masked piece in transformers, for the model card."""
    prompt: str = ""
    """Arguments of the tokenizer for `generate` of transformers, for the model card."""


def modules(scope: str, layers: Mapping[str, str], kernel: str = "transposed") -> Table:
    """Returns entries of dense layers and LayerNorms: kernel, scale and bias, as far as a layer has
    them; `kernel` is the form of a kernel.
    """
    parts = (("kernel", "weight", kernel), ("scale", "weight", ""), ("bias", "bias", ""))
    return tuple(
        Entry(f"{scope}{ours}/{part}", f"{theirs}.{name}", form)
        for ours, theirs in layers.items()
        for part, name, form in parts
    )


def heads(pooler: str, logits: str = "classifier") -> dict[str, dict[str, str]]:
    """Returns `Peer.heads` of the tasks, by `Export.name`."""
    classifier = {"summary": pooler, "logits": logits}
    return {
        "ForSequenceClassification": classifier,
        "ForMultipleChoice": classifier,
        "ForTokenClassification": {"logits": "classifier"},
        "ForQuestionAnswering": {"logits": "qa_outputs"},
        "Model": {},
    }
