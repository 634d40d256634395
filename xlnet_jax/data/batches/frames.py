"""The special pieces around a document that is an example by itself (`data.documents=whole`).

    plm  text SEP CLS    with factorization_order=spans; else the text alone
    clm  EOD text        each piece of a cut document; the piece after its last token is EOD
    mlm  CLS text SEP
    mdm  CLS text SEP    if texts end at `model.max_positions`; else the text alone

All of them have segment 0. `examples` builds windows of a stream. Windows of mdm, and windows of
plm without spans, have the same pieces around them as documents.
"""

from __future__ import annotations

from xlnet_jax.config import Config
from xlnet_jax.data.batches.orders import DISTRIBUTIONS
from xlnet_jax.data.tokenizer import SpecialIds


def frame(config: Config) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the names of the pieces before and behind the text of a document; fields of
    `SpecialIds`.
    """
    objective = config.objective
    if objective.causal:
        return ("eod",), ()
    if objective.framed[config.model.member.bounded]:
        return ("cls",), ("sep",)
    whole = objective.masks or DISTRIBUTIONS[config.data.factorization_order].whole
    return (), () if whole else ("sep", "cls")


def around(config: Config, special: SpecialIds) -> tuple[list[int], list[int]]:
    """Returns the ids of the pieces that `frame` names."""
    before, behind = ([getattr(special, name) for name in names] for names in frame(config))
    return before, behind


def ids(config: Config, special: SpecialIds) -> tuple[list[int], list[int]] | None:
    """Returns the ids of the pieces that `frame` names; None with `data.documents=joined`."""
    return around(config, special) if config.data.whole_documents else None


def pieces_around(config: Config) -> int:
    """Returns the number of special pieces that a trained model reads around each text. A model of
    windows of a stream has no pieces around a text that it reads without masks.
    """
    framed = config.data.whole_documents or config.objective.masks
    return sum(map(len, frame(config))) * framed
