"""The table of architectures: each is a row of parts, and a module takes a part, never the name of an architecture.

    objective, positions     plm, relative    mlm, relative    clm, relative     clm, absolute
                                              mdm, relative
                             XLNet            masked XLNet     Transformer-XL    Vanilla Transformer
    positions                relative         relative         relative          per_layer
    segments                 relative         relative         none              none
    streams                  2                2                1                 1
    targets                  query            content          content           content

    model.architecture       bert      roberta     albert      gpt2      transformer
    positions                input     input       input       input     sinusoids
    segments                 input     input       input       none      none
    embedding_norm           yes       yes         narrow      no        no
    biases                   yes       yes         yes         yes       yes
    final_norm               no        no          no          yes       no
    head                     dense     dense, erf  dense       bare      bare

These have one stream, which predicts the targets. The word embedding with its head, and the norm, are chosen by keys of
their own. A new architecture is a row here; a new part is a value of a field and a case in the module that has the
part.
"""

from __future__ import annotations

from typing import NamedTuple

from xlnet_jax.config import ModelConfig


class Architecture(NamedTuple):
    """The parts of a transformer. Their sizes are in `ModelConfig`."""

    positions: str = "relative"
    """relative: distances in every score (Transformer-XL); per_layer: learned ones, added at every layer (Vanilla);
    input: learned ones, added to the word embedding; sinusoids: the same with fixed ones (Transformer)."""
    segments: str = "relative"
    """relative: whether both are of one segment, in every score; input: learned ones, added to the word embedding;
    none."""
    streams: int = 2
    """2: there is a learned vector that query streams start with."""
    targets: str = "query"
    """The stream that predicts the targets: query, or content."""
    norm: str = "post"
    """post: after each residual sum; pre: before attention and feed-forward."""
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
    """Before the softmax: dense, a layer with activation and LayerNorm; dense_erf, the same with erf gelu whatever the
    activation of the layers is. bias: nothing; bare: nothing, and the softmax has no bias."""
    sentence_dropout: float = 0.0
    """Of the vector that the loss of a pair of sentences reads."""


XLNET = Architecture()
TRANSFORMER_XL = Architecture(segments="none", streams=1, targets="content")
BERT = Architecture(
    "input", "input", streams=1, targets="content", embedding_norm=True, biases=True, output_dropout=False, head="dense"
)
FAMILIES = {
    "bert": BERT,
    "roberta": BERT._replace(head="dense_erf"),
    "albert": BERT._replace(projected=True, sentence_dropout=0.1),
    "gpt2": BERT._replace(segments="none", embedding_norm=False, final_norm=True, scaled_init=True, head="bare"),
    "transformer": BERT._replace(positions="sinusoids", segments="none", embedding_norm=False, head="bare"),
}
"""By `model.architecture`, each for the objectives that `config.families` has for it."""
ROWS = {
    ("plm", "relative"): XLNET,
    ("mlm", "relative"): XLNET._replace(targets="content"),
    ("mdm", "relative"): XLNET._replace(targets="content"),
    ("prefix", "relative"): XLNET._replace(targets="content"),
    ("clm", "relative"): TRANSFORMER_XL,
    ("clm", "absolute"): TRANSFORMER_XL._replace(positions="per_layer"),
}
"""Of the family `xlnet`, by `data.objective` and `model.position_scheme`; prefix is the task `text_to_text`."""


def architecture(config: ModelConfig, objective: str) -> Architecture:
    """The parts of a model that is trained by `objective`; `config.model.rules` refuses what has no row."""
    row = FAMILIES.get(config.architecture) or ROWS[objective, config.position_scheme]
    return row._replace(norm=config.norm)
