"""The type of a member: all differences between the values of `model.architecture`."""

from __future__ import annotations

from typing import NamedTuple

from xlnet_jax.members.parts import Parts
from xlnet_jax.members.peer import Json, Peer
from xlnet_jax.objectives import OBJECTIVES
from xlnet_jax.objectives.objective import Objective


class Member(NamedTuple):
    """An architecture with its examples, and with its names in other programs."""

    name: str
    """The value of `model.architecture`."""
    objectives: tuple[str, ...]
    """Permitted values of `data.objective`, the usual value first."""
    parts: Parts
    """The parts of the network."""
    other_parts: dict[Objective, Parts] = {}
    """Parts by objective, where they differ from `parts`."""

    bounded: bool = False
    """Whether a position is one of `model.max_positions` places in a text. Then no text is longer,
    and the model has no memory.
    """
    cls: str = "first"
    """Place of CLS: first, none, or last; with last, examples of a task are padded on the left."""
    separators: int = 1
    """Number of SEP between A and B: 1 or 2; 0 = no SEP, also at the end."""
    segments: int = 0
    """Rows of the table of segment embeddings; 0 = no segment is learned at the input."""
    first_position: int = 0
    """Row of the table of positions for the first token of a text; padding has the row before."""
    padding_row: int = -1
    """Row of the word embedding for padding; -1 = no such row. The row starts with zeros, and a
    lookup gives it no gradient.
    """

    required: Json = {}
    """Keys of `model` with their only permitted value."""
    usual_model: Json = {}
    """Usual values of other keys of `model`, where they differ from the defaults."""
    usual_data: Json = {"pairs": "next", "spans": "random"}
    """Usual values of keys of `data`, where they differ from the defaults."""
    vocabulary: str = "sentencepiece"
    """The kind of vocabulary that `prepare --family` makes. ALBERT's own SentencePiece model has
    other special pieces.
    """

    peer: Peer | None = None
    """The same model in `transformers`; None = it has no such model."""
    xlnet_ids: bool = False
    """Whether the class of `transformers` needs the special pieces of XLNet's SentencePiece model,
    with their ids.
    """
    dropped_tasks: frozenset[str] = frozenset()
    """Values of `finetune.task` whose head starts with a dropout in `transformers`. XLNet's heads
    end with a dropout.
    """

    @property
    def types(self) -> bool:
        """Whether the model reads to which text a piece belongs."""
        return self.segments != 1 and self.parts.segments != "none"

    def parts_of(self, objective: Objective) -> Parts:
        """Returns the parts of a model that is trained by an objective."""
        return self.other_parts.get(objective, self.parts)._replace(targets=objective.stream)

    def usual(self, segment_len: int, objective: str | None = None) -> dict[str, Json]:
        """Returns keys by section, for a model of any size: the keys that the network needs, and
        the keys of examples of T = `segment_len` tokens. `objective` is an objective of the content
        stream (None = the usual objective), without the loss of sentences. 15 % of the tokens are
        targets, or all tokens where the objective permits. `model.memory_len` is 0, or left out
        where a memory is possible: from left to right with relative positions.
        """
        T, trained = segment_len, OBJECTIVES[objective or self.objectives[0]]
        framed = trained.framed[self.bounded]
        recurrent = trained.causal and self.parts.positions in ("relative", "rotary")
        pairs = "none" if trained.whole and framed else self.usual_data["pairs"]
        special = 0 if not framed else 2 if pairs == "none" else 3
        model = {
            "architecture": self.name,
            "max_positions": T,
            **({} if recurrent else {"memory_len": 0}),
            **self.required,
            **self.usual_model,
        }
        data = {
            "objective": trained.name,
            "bidirectional": False,
            **({} if recurrent else {"windows_per_block": 1}),
            "segment_len": T,
            "reuse_len": T - special,
            "num_predict": T - special if trained.whole else max(1, T * 3 // 20),
            **self.usual_data,
            "pairs": pairs,
        }
        return {"model": model, "data": data}
