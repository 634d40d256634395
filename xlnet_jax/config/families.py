"""What differs between families of models outside of the network: objectives, where special pieces stand, positions.

    model.architecture     objectives       an example                      padding
    xlnet                  plm clm mlm      A SEP B SEP CLS                 left
    bert, albert           mlm              CLS A SEP B SEP                 right
    roberta                mlm              CLS A SEP SEP B SEP             right
    gpt2                   clm              A B                             right

The parts of their networks are the rows of `model.architectures`.
"""

from __future__ import annotations

from typing import NamedTuple


class Family(NamedTuple):
    """A value of `model.architecture`."""

    objectives: tuple[str, ...]
    """The values of `data.objective` that it is trained by, the usual one first."""
    cls: str
    """Where CLS stands: last, first; none."""
    separators: int
    """SEP between A and B: 1, 2; 0 = none, nor one at the end."""
    absolute: bool
    """Whether positions are learned at the input, `model.max_positions` of them: no text is longer, and there is no
    memory."""
    segments: int = 0
    """Rows of the table of segment embeddings; 0 = none is learned at the input."""
    first_position: int = 0
    """Row of the table of positions that is the first of a text; the row before it is that of padding."""
    padding_row: int = -1
    """Row of the word embedding for padding: 0 at the start, and a lookup gives it no gradient; -1 = none."""

    @property
    def padding_left(self) -> bool:
        """Whether examples of a task are padded on the left: what a head reads is last."""
        return self.cls == "last"


FAMILIES = {
    "xlnet": Family(("plm", "clm", "mlm"), "last", 1, absolute=False),
    "bert": Family(("mlm",), "first", 1, absolute=True, segments=2, padding_row=0),
    "roberta": Family(("mlm",), "first", 2, absolute=True, segments=1, first_position=2, padding_row=1),
    "albert": Family(("mlm",), "first", 1, absolute=True, segments=2, padding_row=0),
    "gpt2": Family(("clm",), "none", 0, absolute=True),
}
"""By `model.architecture`."""
