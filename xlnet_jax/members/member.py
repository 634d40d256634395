"""What a member of the family is: all that differs between the values of `model.architecture`."""

from __future__ import annotations

from typing import NamedTuple

from xlnet_jax.members.parts import Parts
from xlnet_jax.members.peer import Json, Peer
from xlnet_jax.objectives import OBJECTIVES
from xlnet_jax.objectives.objective import Objective


class Member(NamedTuple):
    """A value of `model.architecture`."""

    name: str
    """That value."""
    objectives: tuple[str, ...]
    """The values of `data.objective` that it is trained by, the usual one first."""
    parts: Parts
    """Of its network."""
    other_parts: dict[Objective, Parts] = {}
    """Its parts by objective, where they are others."""

    cls: str = "first"
    """Where CLS stands: last, and examples of a task are padded on the left; first; none."""
    separators: int = 1
    """SEP between A and B: 1, 2; 0 = none, nor one at the end."""
    segments: int = 0
    """Rows of the table of segment embeddings; 0 = none is learned at the input."""
    first_position: int = 0
    """Row of the table of positions that is the first of a text; the row before it is that of
    padding.
    """
    padding_row: int = -1
    """Row of the word embedding for padding: 0 at the start, and a lookup gives it no gradient;
    -1 = none.
    """

    required: Json = {}
    """Keys of `model` with the only value that they have."""
    usual_model: Json = {}
    """Usual values of other keys of `model`, where they are not the defaults."""
    usual_data: Json = {"pairs": "next", "spans": "random"}
    """The same of `data`."""
    vocabulary: str = "sentencepiece"
    """The level that `prepare --family` makes for it. ALBERT's own SentencePiece model has other
    special pieces.
    """

    peer: Peer | None = None
    """What `transformers` calls all this; None = it has no such model."""
    xlnet_ids: bool = False
    """Whether its class there needs the special pieces of XLNet's SentencePiece model, with their
    ids.
    """
    dropped_tasks: frozenset[str] = frozenset()
    """Values of `finetune.task` whose head starts with a dropout there. XLNet itself ends with
    one.
    """

    @property
    def positions_at_input(self) -> bool:
        """Whether a position is one of `model.max_positions` places in a text: no text is longer,
        and there is no memory.
        """
        return self.parts.positions not in ("relative", "per_layer")

    def parts_of(self, objective: Objective) -> Parts:
        """The parts of a model that is trained by an objective."""
        return self.other_parts.get(objective, self.parts)._replace(targets=objective.stream)

    def usual(self, segment_len: int, objective: str | None = None) -> dict[str, Json]:
        """Keys by section, whatever the size: what the network needs, and examples of
        T = `segment_len` tokens for an objective of the content stream (None = the usual one),
        without the loss of sentences: with 15 % of targets, or with any of the text where all may
        be predicted. `model.memory_len` is 0, or is left out where there may be a memory: from left
        to right with relative positions.
        """
        T, trained = segment_len, OBJECTIVES[objective or self.objectives[0]]
        framed = trained.framed[self.positions_at_input]
        recurrent = trained.causal and self.parts_of(trained).positions == "relative"
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
