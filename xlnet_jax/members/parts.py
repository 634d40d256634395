"""The parts that a network is made of: a module takes a part, never the name of a member.

The word embedding with its head, and where the norms stand, are chosen by keys of `model`. A new
part is a value of a field and a case in the module that has the part.
"""

from __future__ import annotations

from typing import NamedTuple


class Parts(NamedTuple):
    """The parts of a transformer; the defaults are XLNet's. Their sizes are in `ModelConfig`."""

    positions: str = "relative"
    """relative: distances in every score (Transformer-XL); per_layer: learned ones, added at every
    layer (Vanilla); input: learned ones, added to the word embedding; sinusoids: the same with
    fixed ones (Transformer).
    """
    segments: str = "relative"
    """relative: whether both are of one segment, in every score; input: learned ones, added to the
    word embedding; none.
    """
    streams: int = 2
    """2: there is a learned vector that query streams start with."""
    targets: str = "query"
    """The stream that predicts the targets: query, or content; that of the objective
    (`Member.parts_of`).
    """
    embedding_norm: bool = False
    """The sum of the embeddings is normalised, then dropped."""
    projected: bool = False
    """A dense layer after that, from the width of the embeddings to D (ALBERT)."""
    biases: bool = False
    """Queries, keys, values and the output of attention have biases."""
    final_norm: bool = False
    """The output of the last layer is normalised."""
    output_dropout: bool = True
    """The vectors that predict are dropped once more."""
    scaled_init: bool = False
    """What is added to the residual stream starts smaller by sqrt(2 L) (GPT-2)."""
    head: str = "bias"
    """Before the softmax: dense, a layer with activation and LayerNorm; dense_erf, the same with
    erf gelu whatever the activation of the layers is. bias: nothing; bare: nothing, and the softmax
    has no bias.
    """
    sentence_dropout: float = 0.0
    """Of the vector that the loss of a pair of sentences reads."""
