"""The special pieces around a document that is an example by itself (`data.documents=whole`).

clm                        <eod> text          predicts the text, then <eod>
plm, spans                 text <sep> <cls>
plm, uniform, left_within  text
mlm                        <cls> text <sep>
mdm                        text; for members with positions at the input <cls> text <sep>
"""

from __future__ import annotations

from typing import NamedTuple

from xlnet_jax.config import Config
from xlnet_jax.data.tokenizer import SpecialIds


class Frame(NamedTuple):
    """Ids of the pieces before and behind a text, and the id that a left-to-right model predicts at
    its end, which is not read.
    """

    before: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()
    end: int | None = None

    def __len__(self) -> int:
        """Number of pieces around a text."""
        return len(self.before) + len(self.behind)


def frame_of(config: Config, special: SpecialIds) -> Frame:
    """Returns the pieces around a document; `vocabulary.check_pieces` refuses a vocabulary that
    lacks them.
    """
    objective = config.objective
    if objective.causal:
        return Frame((special.eod,), end=special.eod)
    if objective.stream == "query" and config.data.factorization_order == "spans":
        return Frame(behind=(special.sep, special.cls))
    if objective.framed[config.model.member.positions_at_input]:
        return Frame((special.cls,), (special.sep,))
    return Frame()
