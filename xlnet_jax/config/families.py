"""What differs between families of models outside of the network: objectives, where special pieces stand, positions.

    model.architecture     objectives       an example                      padding
    xlnet                  plm clm mlm mdm  A SEP B SEP CLS                 left
    bert, albert           mlm mdm          CLS A SEP B SEP                 right
    roberta                mlm mdm          CLS A SEP SEP B SEP             right
    gpt2, transformer      clm              A B                             right

The parts of their networks are the rows of `model.architectures`.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Family(NamedTuple):
    """A value of `model.architecture`."""

    objectives: tuple[str, ...]
    """The values of `data.objective` that it is trained by, the usual one first."""
    cls: str
    """Where CLS stands: last, first; none."""
    separators: int
    """SEP between A and B: 1, 2; 0 = none, nor one at the end."""
    absolute: bool
    """Whether positions are added at the input, learned ones or sinusoids, `model.max_positions` of them: no text is
    longer, and there is no memory."""
    segments: int = 0
    """Rows of the table of segment embeddings; 0 = none is learned at the input."""
    first_position: int = 0
    """Row of the table of positions that is the first of a text; the row before it is that of padding."""
    padding_row: int = -1
    """Row of the word embedding for padding: 0 at the start, and a lookup gives it no gradient; -1 = none."""

    vocabulary: str = "sentencepiece"
    """The level that `prepare --family` makes for it. ALBERT's own SentencePiece model has other special pieces."""
    pairs: str = "next"
    """The usual `data.pairs`."""
    share_layers: bool = False
    norm: str = "post"
    scale_embedding: bool = False
    activation: str = "gelu"
    layer_norm_epsilon: float = 1e-12

    @property
    def padding_left(self) -> bool:
        """Whether examples of a task are padded on the left: what a head reads is last."""
        return self.cls == "last"


FAMILIES = {
    "xlnet": Family(("plm", "clm", "mlm", "mdm"), "last", 1, absolute=False),
    "bert": Family(("mlm", "mdm"), "first", 1, absolute=True, segments=2, padding_row=0,
                   vocabulary="wordpiece", activation="gelu_erf"),
    "roberta": Family(("mlm", "mdm"), "first", 2, absolute=True, segments=1, first_position=2, padding_row=1,
                      vocabulary="bytebpe", pairs="none", activation="gelu_erf", layer_norm_epsilon=1e-5),
    "albert": Family(("mlm", "mdm"), "first", 1, absolute=True, segments=2, padding_row=0,
                     vocabulary="wordpiece", pairs="order",
                     share_layers=True),
    "gpt2": Family(("clm",), "none", 0, absolute=True, vocabulary="bytebpe", norm="pre", layer_norm_epsilon=1e-5),
    "transformer": Family(("clm",), "none", 0, absolute=True, scale_embedding=True, activation="relu",
                          layer_norm_epsilon=1e-5),
}  # fmt: skip
"""By `model.architecture`."""


def usual(name: str, segment_len: int, objective: str | None = None) -> dict[str, dict[str, Any]]:
    """Keys by section of a model without memory, whatever its size: what the network of its family needs, and examples
    of T = `segment_len` tokens for an objective (None = the usual one), without the loss of sentences: of a masked
    model with 15 % of targets, of `clm` and `mdm` with any of the text."""
    family, T = FAMILIES[name], segment_len
    objective = objective or family.objectives[0]
    pairs = "none" if objective == "mdm" and family.absolute else family.pairs
    of_text = objective == "clm" or (objective == "mdm" and not family.absolute)
    special = 0 if of_text else 2 if pairs == "none" else 3
    of_family = ("norm", "scale_embedding", "share_layers", "activation", "layer_norm_epsilon")
    model = {"architecture": name, "max_positions": T, "memory_len": 0,
             **{key: getattr(family, key) for key in of_family}}  # fmt: skip
    data = {"objective": objective, "bidirectional": False, "windows_per_block": 1, "segment_len": T,
            "reuse_len": T - special, "num_predict": max(1, T * 3 // 20) if objective == "mlm" else T - special,
            "pairs": pairs, "spans": "words" if name == "albert" else "random"}  # fmt: skip
    return {"model": model, "data": data}
