"""The table of architectures: each is a row of parts, and a module takes a part, never the name of an architecture.

    objective, positions     plm, relative    mlm, relative    clm, relative     clm, absolute
                             XLNet            masked XLNet     Transformer-XL    Vanilla Transformer
    positions                relative         relative         relative          per_layer
    segments                 relative         relative         none              none
    streams                  2                2                1                 1
    targets                  query            content          content           content

The word embedding with its head, and the norm, are chosen by keys of their own. A new architecture is a row here; a new
part is a value of a field and a case in the module that has the part.
"""

from __future__ import annotations

import dataclasses

from xlnet_jax.config import ModelConfig


@dataclasses.dataclass(frozen=True)
class Architecture:
    """The parts of a transformer. Their sizes are in `ModelConfig`."""

    positions: str = "relative"
    """relative: distances in every score (Transformer-XL); per_layer: learned ones, added at every layer (Vanilla)."""
    segments: str = "relative"
    """relative: whether both are of one segment, in every score; none."""
    streams: int = 2
    """2: there is a learned vector that query streams start with."""
    targets: str = "query"
    """The stream that predicts the targets: query, or content."""
    norm: str = "post"
    """post: after each residual sum; pre: before attention and feed-forward."""


XLNET = Architecture()
TRANSFORMER_XL = Architecture(segments="none", streams=1, targets="content")
ROWS = {
    ("plm", "relative"): XLNET,
    ("mlm", "relative"): dataclasses.replace(XLNET, targets="content"),
    ("clm", "relative"): TRANSFORMER_XL,
    ("clm", "absolute"): dataclasses.replace(TRANSFORMER_XL, positions="per_layer"),
}
"""By `data.objective` and `model.position_scheme`."""


def architecture(config: ModelConfig, objective: str) -> Architecture:
    """The parts of a model that is trained by `objective`; `config.model.rules` refuses what has no row."""
    return dataclasses.replace(ROWS[objective, config.position_scheme], norm=config.norm)
