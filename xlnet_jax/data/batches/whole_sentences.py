"""Segments A and B of whole sentences of one document, for examples that are padded: `data.pairs`
of bert and albert.

    next     B is the text after A (label 1), or text of another document (label 0)
    order    B is the text after A (label 1), or A and B are swapped (label 0; ALBERT's sentence
             order)

As in Google's `create_instances_from_document`, the text of an example ends with the sentence that
reaches the target length, or with the document, and is cut into A and B at the end of a sentence.
The target length is the budget, or with probability `data.short_rate` uniform from 2 to the budget.
Text of one sentence has a B from elsewhere; with `order` it has no B and no label. If A and B do
not fit, the longer segment loses pieces one by one at its front or its end.

Google's code makes examples of all text of each document. Here a row has a window of the corpus and
draws one of the documents in it, with a probability in proportion to its part of the window. The
text begins at the first sentence of that document in the window, and may continue after the window.
An epoch has only some of the short documents. A B from elsewhere starts at a uniform position of
the corpus; Google's code draws its document uniformly. The text that would have followed A is read
in another epoch; in Google's code it is in the next example.
"""

from __future__ import annotations

import numpy as np

from xlnet_jax.config import DataConfig
from xlnet_jax.data.batches import spans
from xlnet_jax.data.batches.sentence_pairs import Pairs
from xlnet_jax.data.batches.stream import Windows
from xlnet_jax.data.corpus.corpus import Corpus
from xlnet_jax.data.corpus.pages import DOCUMENT_START, SENTENCE_START

REACH = 16
"""Number of windows on each side of a row that are searched for the ends of the row's document;
text farther away counts as another document.
"""

_CHOICES = 6


def draws_needed(budget: int) -> int:
    """Returns the number of draws that `choose` takes for each row: A and B together have up to six
    budgets of tokens, and are cut to one budget.
    """
    return _CHOICES + 5 * budget


def choose(
    text: Corpus, where: Windows, budget: int, draws_BX: np.ndarray, data: DataConfig
) -> tuple[Pairs, np.ndarray]:
    """Chooses A and B. Returns the pairs and n = |A| + |B|, int [B]. The tokens of a pair are the
    first n of `tokens_BY`, int [B, budget].
    """
    short_B, length_B, part_B, cut_B, choice_B, elsewhere_B = draws_BX[:, :_CHOICES].T
    target_B = np.where(
        short_B < data.short_rate, 2 + (length_B * (budget - 1)).astype(int), budget
    )
    tokens_BX, flags_BX = text.read_flags(where.cursor_B, 3 * budget)
    first_B = _first(flags_BX[:, :budget], part_B)
    end_B = _end(flags_BX, first_B, target_B)
    columns = np.arange(tokens_BX.shape[1])
    cuts_BX = (
        (flags_BX & SENTENCE_START > 0) & (columns > first_B[:, None]) & (columns < end_B[:, None])
    )
    cuts_B = cuts_BX.sum(axis=1)
    middle_B = spans.drawn_true(cuts_BX, cut_B, end_B)

    follows_B, labelled_B = choice_B < data.positive_pair_rate, np.ones(len(cuts_B), bool)
    begin_2B, end_2B = np.stack([first_B, middle_B]), np.stack([middle_B, end_B])
    if data.pairs == "order":
        labelled_B = cuts_B > 0
        follows_B |= ~labelled_B
        begin_2B = np.where(follows_B, begin_2B, begin_2B[::-1])
        end_2B = np.where(follows_B, end_2B, end_2B[::-1])
    else:
        follows_B &= cuts_B > 0
        rows = np.flatnonzero(~follows_B)
        wanted = np.maximum(1, target_B - middle_B + first_B)[rows]
        others, begin_2B[1, rows], end_2B[1, rows] = _elsewhere(
            text, (where.cursor_B + first_B)[rows], wanted, elsewhere_B[rows], budget
        )
        # The text for a B from elsewhere is appended to the row's own text.
        begin_2B[1, rows] += len(columns)
        end_2B[1, rows] += len(columns)
        tokens_BX = np.pad(tokens_BX, ((0, 0), (0, 3 * budget)))
        tokens_BX[rows, len(columns) :] = others

    # The longer segment (B at a tie) loses pieces until both fit.
    length_2B = end_2B - begin_2B
    a_len_B = np.minimum(length_2B[0], np.maximum(budget - length_2B[1], -(-budget // 2)))
    b_len_B = np.minimum(length_2B[1], budget - a_len_B)
    lost_2B = length_2B - [a_len_B, b_len_B]
    at_front_BX = spans.before(draws_BX[:, _CHOICES:] < 0.5)
    of_a_B, of_both_B = (
        spans.at(at_front_BX, lost[:, None])[:, 0] for lost in (lost_2B[0], lost_2B.sum(axis=0))
    )
    a_B, b_B = begin_2B[0] + of_a_B, begin_2B[1] + of_both_B - of_a_B
    place_BY, a_len_B1 = np.arange(budget)[None, :], a_len_B[:, None]
    from_BY = place_BY + np.where(place_BY < a_len_B1, a_B[:, None], b_B[:, None] - a_len_B1)
    tokens_BY = spans.at(tokens_BX, np.minimum(from_BY, tokens_BX.shape[1] - 1))
    return Pairs(a_len_B, tokens_BY, follows_B, labelled_B), a_len_B + b_len_B


def _first(flags_BR: np.ndarray, part_B: np.ndarray) -> np.ndarray:
    """Returns where the text of each row begins: a random place in the window selects a document,
    and the text begins at the first sentence of this document in the window.
    """
    columns = np.arange(flags_BR.shape[1])
    document_BR = (flags_BR & DOCUMENT_START > 0) & (
        columns <= (part_B * len(columns)).astype(int)[:, None]
    )
    before_B = len(columns) - 1 - document_BR[:, ::-1].argmax(axis=1)
    # If no sentence starts in the window, the text begins with the window.
    return np.where(
        document_BR.any(axis=1), before_B, (flags_BR & SENTENCE_START > 0).argmax(axis=1)
    )


def _end(flags_BX: np.ndarray, begin_B: np.ndarray, wanted_B: np.ndarray) -> np.ndarray:
    """Returns the first sentence end after at least `wanted` tokens, or the end of the document if
    it comes first; X if the text has neither.
    """
    columns, begin_B1 = np.arange(flags_BX.shape[1]), begin_B[:, None]
    end_BX = (flags_BX & DOCUMENT_START > 0) & (columns > begin_B1)
    end_BX |= (flags_BX & SENTENCE_START > 0) & (columns >= begin_B1 + wanted_B[:, None])
    return spans.first_true(end_BX, len(columns))


def _elsewhere(
    text: Corpus, at_R: np.ndarray, wanted_R: np.ndarray, draws_R: np.ndarray, budget: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Reads text of other documents for R positions: int [R, 3 budgets], and where B begins and
    ends in it.
    """
    reach = REACH * budget
    starts = text.read_flags(at_R - reach, 2 * reach)[1] & DOCUMENT_START > 0
    behind, ahead = starts[:, reach::-1], starts[:, reach + 1 :]
    # Distances from the position.
    own_first_R = spans.first_true(behind, reach)
    own_end_R = 1 + spans.first_true(ahead, reach - 1)
    beyond_R = (draws_R * (text.tokens - own_first_R - own_end_R)).astype(np.int64)
    tokens, flags = text.read_flags(at_R + own_end_R + beyond_R - budget, 3 * budget)
    # B begins at the start of its sentence, but at most a budget before the drawn place and not
    # inside the row's own document.
    begin_R = spans.start_before(flags & SENTENCE_START > 0, budget, beyond_R)
    return tokens, begin_R, _end(flags, begin_R, wanted_R)
