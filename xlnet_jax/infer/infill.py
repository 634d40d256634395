"""Texts with gaps, prompts and passages: from strings to ids, and back after the gaps are filled.

    [MASK] or <mask>     one unknown piece
    [MASK:5]             five unknown pieces
    [MASK:2-8]           two to eight unknown pieces; the length is drawn uniformly, from the seed
                         and the numbers of text and sample

A prompt is a text with one gap at its end.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from xlnet_jax.data import offsets
from xlnet_jax.data.tokenizer import Tokenizer
from xlnet_jax.data.vocabulary import Vocabulary
from xlnet_jax.errors import BadInput
from xlnet_jax.infer.decoder import Filled, Listener
from xlnet_jax.infer.options import LONGEST
from xlnet_jax.messages import quantity

log = logging.getLogger("xlnet_jax")

MARK = re.compile(r"\[MASK(:[^\]]*)?\]|<mask>")
"""The mark of a gap in a text. It is a gap for every vocabulary, also of characters or bytes, so
that no model silently reads it as letters. To give these letters as text, give ids (`log_prob`).
"""

TextListener = Callable[[int, str, bool], None]
"""Function that is called with the number of a prompt, the new text since the last call, and
whether the text has ended.
"""

_LENGTH = re.compile(r":(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


class Gapped(NamedTuple):
    """The N ids of a text with gaps."""

    ids: list[int]
    """The ids, with MASK in gaps."""
    known: list[bool]
    gaps: list[tuple[int, int]]
    """The positions [start, end) of each gap."""
    parts: list[str]
    """The given texts before, between and after the gaps."""
    drawn: bool = False
    """Whether the length of a gap was drawn."""


class Gap(NamedTuple):
    """A filled gap of n pieces."""

    text: str
    """The text that fills the gap, without the space before a word."""
    log_prob: float
    """The sum of `log_probs`, nats."""
    pieces: list[str]
    log_probs: list[float]
    """Log-probability of each piece, given all tokens known when it was filled."""
    order: list[int]
    """Place of each piece in the order in which all gaps of the text were filled, from 1."""


class Infilled(NamedTuple):
    """A text whose gaps were filled."""

    text: str
    """The given text with its gaps filled."""
    log_prob: float
    """Nats: if `exact`, log p(gaps | the rest) in the order in which the gaps were filled."""
    gaps: list[Gap]
    calls: int
    """Forward passes that predicted a piece of the text."""
    exact: bool
    """False if several pieces were drawn at a time, independently of each other."""


class Passage(NamedTuple):
    """A text to score between given texts. The space between two texts may be in either of them."""

    text: str
    before: str = ""
    after: str = ""


def gapped(
    tokenizer: Tokenizer, text: str, number: int, seed: int = 0, row: int = 0, needed: bool = True
) -> Gapped:
    """Reads a text with gaps. Drawn lengths depend on `number` (from 1), `seed` and `row`.

    Raises BadInput for a malformed gap, for a text without a gap if gaps are `needed`, and for
    characters that the tokenizer does not know.
    """
    marks = list(MARK.finditer(text))
    if needed and not marks:
        raise BadInput(
            f"text {number}, {_shortened(text)}, has no gap; write [MASK] for a piece that is "
            "missing, [MASK:5] for five"
        )
    if marks and tokenizer.special.mask is None:
        raise BadInput(
            f"text {number}: the vocabulary of this model has no piece for {marks[0][0]}; use "
            "`generate`, which continues a text"
        )
    # The draws of orders have other keys.
    random = np.random.default_rng((seed, number, 1, row))
    bounds = [_bounds(mark, number) for mark in marks]
    lengths = [int(random.integers(*pair, endpoint=True)) for pair in bounds]
    parts = MARK.split(text)[::2]  # the odd items are the group of each mark
    ids, *later = ids_of_parts(tokenizer, parts)
    known, gaps = [True] * len(ids), []
    for length, part in zip(lengths, later, strict=True):
        gaps.append((len(ids), len(ids) + length))
        ids += [tokenizer.special.mask] * length + part
        known += [False] * length + [True] * len(part)
    return Gapped(ids, known, gaps, parts, any(fewest < most for fewest, most in bounds))


def with_hidden_words(
    tokenizer: Tokenizer, ids: Sequence[int], alone: bool = False
) -> Gapped | None:
    """Hides every fifth word of a text, or if `alone` one word of one piece; None if no word can be
    hidden.
    """
    starts = [*np.flatnonzero(tokenizer.word_start[np.asarray(ids)]).tolist(), len(ids)]
    words = list(itertools.pairwise(starts))[2:]
    gaps = [pair for pair in words if pair[1] == pair[0] + 1][:1] if alone else words[::5]
    bounds = [0, *itertools.chain(*gaps), len(ids)]
    parts = texts_of(tokenizer, ids, list(zip(bounds[::2], bounds[1::2], strict=True)))
    known_N = np.ones(len(ids), bool)
    for gap in gaps:
        known_N[slice(*gap)] = False
    masked_N = np.where(known_N, ids, tokenizer.special.mask)
    return Gapped(masked_N.tolist(), known_N.tolist(), gaps, parts) if gaps else None


def texts_of(
    tokenizer: Tokenizer, ids: Sequence[int] | np.ndarray, spans: Sequence[tuple[int, int]]
) -> list[str]:
    """Returns the text of each span of ids, with the space before it."""
    ids = list(ids)
    return [text_after(tokenizer, ids[:start], ids[start:end]) for start, end in spans]


def prompt(
    tokenizer: Tokenizer,
    text: str,
    number: int,
    tokens: int,
    longest: int | None = None,
    special: int = 0,
) -> Gapped:
    """Returns a text with a gap of `tokens` pieces at its end, or fewer if the text may have only
    `longest` tokens, with `special` ones around it. Raises BadInput for another gap, or if
    `longest` leaves no room.
    """
    refuse_gap(text, number, "a text is continued only at its end; use `fill`")
    ids = tokenizer.encode(text).tolist()
    # An empty text follows at least an end of document, which takes one position.
    if longest is not None and tokens > (room := longest - max(len(ids) + special, 1)):
        limit = f"the model reads {longest} tokens at most"
        if room < 1:
            raise BadInput(
                f"text {number} has {len(ids)} tokens, and {limit}, new and special ones included; "
                "shorten it"
            )
        log.warning("text %d ends after %s: %s", number, quantity(room, "new token"), limit)
        tokens = room
    end = len(ids) + tokens
    # The vocabulary of a left-to-right model may have no mask; no token reads the id in the gap.
    unknown = [tokenizer.special.mask or 0] * tokens
    return Gapped(
        [*ids, *unknown], [True] * len(ids) + [False] * tokens, [(len(ids), end)], [text, ""]
    )


def _bounds(mark: re.Match[str], number: int) -> tuple[int, int]:
    """Returns the fewest and most pieces of a gap. Raises BadInput for a malformed mark."""
    if mark[1] is None:
        return 1, 1
    length = _LENGTH.fullmatch(mark[1])
    fewest, most = (int(length[1]), int(length[2] or length[1])) if length else (0, 0)
    if not 1 <= fewest <= most <= LONGEST:
        raise BadInput(
            f"text {number}: {_shortened(mark[0])} is no gap; write [MASK], [MASK:5] or "
            f"[MASK:2-8], of 1 to {LONGEST:,} pieces"
        )
    return fewest, most


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def refuse_gap(text: str, number: int, why: str) -> None:
    """Raises BadInput, with the reason, for a text with a gap."""
    if mark := MARK.search(text):
        raise BadInput(f"text {number}: {mark[0]} is a gap, and {why}")


def require_one_unknown(texts: Sequence[Gapped], why: str) -> None:
    """Raises BadInput, with the reason, unless every text has exactly one unknown piece."""
    for number, text in enumerate(texts, 1):
        if (unknown := text.known.count(False)) != 1:
            raise BadInput(f"text {number} has {unknown} unknown pieces: {why}")


def ids_of_parts(tokenizer: Tokenizer, parts: Sequence[str]) -> list[list[int]]:
    """Returns the ids of the parts of one text between its gaps, as in a text without gaps.

    Encoded alone, a part would lose the space at its end, and SentencePiece would put a space
    before it: `un[MASK]able` would become the pieces of ` able`. A space before a gap is part of
    the gap, whose first piece may start a word; a space after a gap is part of the text that
    follows. Vocabularies of characters, bytes and patterns keep both spaces; words and WordPiece
    have no spaces.

    Raises BadInput for characters that the tokenizer does not know, and for a SentencePiece
    tokenizer without a symbol such as `<eop>`.
    """
    # A character that is not a space stands for each gap, so that the spaces beside it are kept.
    text = "".join(parts)
    mark = next(character for character in map(chr, range(0xE000, 0xF900)) if character not in text)
    first, *later = tokenizer.normalized(mark.join(parts)).split(mark)
    if tokenizer.level != "sentencepiece":
        split = [first, *later]
        if tokenizer.level == "bytebpe":
            split = [*(part.rstrip(" ") for part in split[:-1]), split[-1]]
        return [tokenizer.encode_normalized([part])[0].tolist() for part in split]
    # A symbol that is a separate piece in any text (for ALBERT a full stop) goes before each part,
    # so that the part does not become the start of a text.
    all_ids = [tokenizer.encode_normalized([first])[0].tolist()]
    name = "." if tokenizer.special.eop is None else "<eop>"
    symbol = tokenizer.processor.piece_to_id(name)
    for part in later:
        ids = tokenizer.encode_normalized([tokenizer.pieces[symbol] + part])[0].tolist()
        if symbol not in ids[:2]:
            raise BadInput(
                f"tokenizer {tokenizer.path}: {name} is not a symbol in texts; texts with gaps "
                "need the tokenizer of a released XLNet or ALBERT, or one from `xlnet-jax prepare`"
            )
        all_ids.append(ids[ids.index(symbol) + 1 :])
    for ids in all_ids[:-1]:
        while ids and tokenizer.pieces[ids[-1]] == "▁":
            ids.pop()
    return all_ids


def check_texts(tokenizer: Tokenizer, texts: Sequence[Any]) -> Sequence[Any]:
    """Returns the texts unchanged. Raises BadInput for a text that is no string or passage, and for
    a single text in place of a list.
    """
    if isinstance(texts, (str, bytes, Passage)):
        raise BadInput("one text where a list of texts is expected; put it into a list")
    # For a vocabulary of bytes a lone surrogate stands for a byte that is not UTF-8.
    errors = "surrogateescape" if tokenizer.level == "bytes" else "strict"
    for number, text in enumerate(texts, 1):
        for part in text if isinstance(text, Passage) else (text,):
            if not isinstance(part, str):
                raise BadInput(f"text {number}: {type(part).__name__} where a string is expected")
            try:
                part.encode(errors=errors)
            except UnicodeEncodeError as error:
                raise BadInput(
                    f"text {number}: a lone surrogate, which is no character; decode the text again"
                ) from error
    return texts


def ids_of_passage(
    tokenizer: Tokenizer, passage: Passage, number: int
) -> tuple[list[int], list[bool]]:
    """Returns the ids of a whole passage, and whether each is known. A piece with a character of
    `text` is unknown.

    Raises BadInput for a gap, and for a text without pieces.
    """
    for part in passage:
        refuse_gap(
            part,
            number,
            "only words have a likelihood; `fill` fills it and gives the likelihood",
        )
    if not len(tokenizer.encode(passage.text)):
        raise BadInput(
            f"text {number}, {passage.text!r}, has no pieces; give at least one word to score"
        )
    if isinstance(tokenizer, Vocabulary):
        # Every piece is a part of the original text. Empty parts would get a space beside them.
        parts = {"before": passage.before, "text": passage.text, "after": passage.after}
        names = [name for name, part in parts.items() if part]
        all_ids = ids_of_parts(tokenizer, [parts[name] for name in names])
        return sum(all_ids, []), [
            name != "text" for name, ids in zip(names, all_ids, strict=True) for _ in ids
        ]
    pieces = offsets.encode(tokenizer, "".join((passage.before, passage.text, passage.after)))
    first, last = pieces.covering(len(passage.before), len(passage.before) + len(passage.text))
    return pieces.tokens_N.tolist(), [not first <= at <= last for at in range(len(pieces.tokens_N))]


def infilled(tokenizer: Tokenizer, text: Gapped, filled: Filled, exact: bool) -> Infilled:
    """Returns the filled text and its gaps as strings."""
    turn_N, log_prob_N = np.zeros(len(text.ids), int), np.zeros(len(text.ids))
    turn_N[filled.position_U] = 1 + np.arange(len(filled.position_U))
    log_prob_N[filled.position_U] = filled.log_prob_U
    ids, gaps, whole = filled.token_N.tolist(), [], text.parts[0]
    for (start, end), part in zip(text.gaps, text.parts[1:], strict=True):
        cut = slice(start, end)
        whole, new = join_at_gap(tokenizer, whole, text_after(tokenizer, ids[:start], ids[cut]))
        whole += new + part
        pieces, log_prob_n = [tokenizer.pieces[id] for id in ids[cut]], log_prob_N[cut]
        gaps.append(
            Gap(new, float(log_prob_n.sum()), pieces, log_prob_n.tolist(), turn_N[cut].tolist())
        )
    return Infilled(whole, float(filled.log_prob_U.sum()), gaps, filled.calls, exact)


def join_at_gap(tokenizer: Tokenizer, before: str, new: str) -> tuple[str, str]:
    """Returns the text before a gap and the text that fills it, with at most one space between
    them, at the end of `before`.

    A space before a gap is part of the gap: if `new` starts without a space, the texts form one
    word.
    """
    if tokenizer.level in ("characters", "bytes", "pattern"):
        return before, new
    stripped = before.rstrip()
    if tokenizer.level != "words" and stripped and not new.startswith(" "):
        return stripped, new
    return stripped + (before[len(stripped) :] or " " * bool(stripped)), new.removeprefix(" ")


def text_after(tokenizer: Tokenizer, before: list[int], new: list[int]) -> str:
    """Returns the text of `new` after `before`, with a space in front if `new` starts a word."""
    start, whole = tokenizer.decode(before), tokenizer.decode([*before, *new])
    return whole[len(start) :] if whole.startswith(start) else tokenizer.decode(new)


def continuation(tokenizer: Tokenizer, prompt: Gapped, new: list[int]) -> str:
    """Returns the text of new ids after a prompt, without the end of a document."""
    known = prompt.ids[: prompt.gaps[0][0]]
    return text_after(tokenizer, known, [id for id in new if id != tokenizer.special.eod])


def as_text(
    tokenizer: Tokenizer, prompts: Sequence[Gapped], listener: TextListener, as_written: bool
) -> Listener:
    """Returns a listener for a decoder. It passes the new text of each prompt to `listener`: after
    each dispatch if `as_written`, otherwise once at the end.
    """
    new = [dict[int, int]() for _ in prompts]
    told = [""] * len(prompts)

    def hear(number: int, pairs: list[tuple[int, int]], ended: bool) -> None:
        new[number] |= pairs
        if as_written or ended:
            ids = [token for _, token in sorted(new[number].items())]
            text = continuation(tokenizer, prompts[number], ids)
            if not ended:
                text = text.rstrip("\ufffd")  # an incomplete character
            listener(number, text[len(told[number]) :], ended)
            told[number] = text

    return hear
