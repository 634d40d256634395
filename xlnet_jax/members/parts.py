"""The parts of a network: a module takes a part, never the name of a member.

Keys of `model` choose the word embedding with its head, and the place of the norms. A new part is a
value of a field and a case in the module that has the part.
"""

from __future__ import annotations

from typing import NamedTuple


class Parts(NamedTuple):
    """The parts of a transformer; the defaults are XLNet's. Their sizes are in `ModelConfig`."""

    positions: str = "relative"
    """relative: distances in every score (Transformer-XL); per_layer: learned vectors, added at
    every layer (Vanilla); input: learned vectors, added to the word embedding; sinusoids: fixed
    vectors, added to the word embedding (Transformer); rotary: each layer turns queries and keys
    by their positions (Su et al. 2021, arXiv 2104.09864).
    """
    segments: str = "relative"
    """relative: whether query and key are of one segment, in every score; input: learned vectors,
    added to the word embedding; none.
    """
    streams: int = 2
    """Number of streams; with 2 a query stream starts with a learned vector."""
    targets: str = "query"
    """The stream that predicts the targets, query or content: `Member.parts_of` sets it by the
    objective.
    """
    embedding_norm: bool = False
    """Whether the sum of the embeddings is normalised before its dropout."""
    projected: bool = False
    """Whether a dense layer projects the sum of the embeddings to D (ALBERT)."""
    biases: bool = False
    """Whether queries, keys, values and the output of attention have biases."""
    layer_biases: bool = True
    """Whether LayerNorm, feed-forward and the dense layer of the head have biases."""
    gated: bool = False
    """Whether a second product multiplies the activations of the feed-forward layer (GeGLU, Shazeer
    2020, arXiv 2002.05202).
    """
    first_norm: bool = True
    """Whether the first layer normalises the input of its attention, with pre-norm."""
    final_norm: bool = False
    """Whether the output of the last layer is normalised."""
    output_dropout: bool = True
    """Whether the vectors that predict have a dropout."""
    scaled_init: bool = False
    """Whether weights before a residual sum, and the layer of the head, start smaller by a factor
    of sqrt(2 L) (GPT-2, ModernBERT).
    """
    head: str = "bias"
    """The head before the softmax. dense: a layer with activation and LayerNorm; dense_erf: the
    same with erf gelu, whatever the activation of the layers; bias: nothing; bare: nothing, and the
    softmax has no bias.
    """
    summary: str = "tanh"
    """The head of a task before its logits. tanh: tanh(W h + b) of the vector of CLS, for outputs
    of a sequence; head: the layers of the dense head, in all tasks (ModernBERT).
    """
    sentence_dropout: float = 0.0
    """Dropout rate of the vector that the loss of a pair of sentences reads."""
