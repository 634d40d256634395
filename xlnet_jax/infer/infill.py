"""Texts with gaps, prompts and passages: from strings to ids, and back when the gaps are filled.

    [MASK] or <mask>     one unknown piece
    [MASK:5]             five
    [MASK:2-8]           two to eight: drawn uniformly by the seed and the number of the text

A continuation is the same with one gap at the end.
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
"""A gap in a text. The same for every vocabulary, also of characters or bytes, whose texts may hold
these letters: read as letters here and as a gap there, nobody would notice. As ids they are letters
(`log_prob`).
"""

TextListener = Callable[[int, str, bool], None]
"""Called with the number of a prompt, the text that is new since the last call, and whether it has
ended.
"""

_LENGTH = re.compile(r":(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


class Gapped(NamedTuple):
    """The N ids of a text with gaps."""

    ids: list[int]
    """MASK in gaps."""
    known: list[bool]
    gaps: list[tuple[int, int]]
    """The first position of each gap, and the one after its last."""
    parts: list[str]
    """The text before, between and after the gaps, as it was given."""
    drawn: bool = False
    """Whether the seed has decided the length of a gap."""


class Gap(NamedTuple):
    """A filled gap of n pieces."""

    text: str
    """Without the space before a word."""
    log_prob: float
    """Nats: the sum of `log_probs`."""
    pieces: list[str]
    log_probs: list[float]
    """Of each piece given what was known when it was filled."""
    order: list[int]
    """Of each piece, its place among all that were filled in the text, from 1."""


class Infilled(NamedTuple):
    """A text whose gaps were filled."""

    text: str
    """As it was given, but for the gaps."""
    log_prob: float
    """Nats, of all gaps together: log p(gaps | the rest) in the order in which they were filled, if
    `exact`.
    """
    gaps: list[Gap]
    calls: int
    """Forward passes that predicted something of the text."""
    exact: bool
    """False if pieces were drawn in parallel, without knowing of each other."""


class Passage(NamedTuple):
    """A text to score, between texts that are given. Spaces between them belong to one of them."""

    text: str
    before: str = ""
    after: str = ""


def gapped(
    tokenizer: Tokenizer, text: str, number: int, seed: int = 0, row: int = 0, needed: bool = True
) -> Gapped:
    """The ids of a text with gaps, whose drawn lengths depend on its number (from 1), the seed and
    the row.

    Raises BadInput for a gap that is none, for a text without a gap if one is `needed`, or that the
    tokenizer does not know.
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
    # Of other keys than the draws of an order.
    random = np.random.default_rng((seed, number, 1, row))
    bounds = [_bounds(mark, number) for mark in marks]
    lengths = [int(random.integers(*pair, endpoint=True)) for pair in bounds]
    parts = MARK.split(text)[::2]  # between them is the group of each mark
    first, *later = ids_of_parts(tokenizer, parts)
    ids, known, gaps = list(first), [True] * len(first), list[tuple[int, int]]()
    for length, part in zip(lengths, later, strict=True):
        gaps.append((len(ids), len(ids) + length))
        ids += [tokenizer.special.mask] * length + part
        known += [False] * length + [True] * len(part)
    return Gapped(ids, known, gaps, parts, any(fewest < most for fewest, most in bounds))


def hidden(tokenizer: Tokenizer, ids: Sequence[int], alone: bool = False) -> Gapped | None:
    """The ids of a text of which every fifth word is unknown, or `alone` one word of one piece;
    None if none can be.
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
    """The text of each of some spans of ids, with the space before it."""
    ids = list(ids)
    return [text_after(tokenizer, ids[:start], ids[start:end]) for start, end in spans]


def prompt(
    tokenizer: Tokenizer, text: str, number: int, tokens: int, longest: int | None = None
) -> Gapped:
    """A text with one gap of so many pieces at its end, or as many as it may have where it can be
    no longer than `longest`. Raises BadInput for another gap, or if there is no room for one.
    """
    refuse_gap(text, number, "a text is continued only at its end; use `fill`")
    ids = tokenizer.encode(text).tolist()
    # Before an empty text stands an end.
    if longest is not None and tokens > (room := longest - max(len(ids), 1)):
        limit = f"the model has positions for {longest} tokens (model.max_positions)"
        if room < 1:
            raise BadInput(
                f"text {number} has {len(ids)} tokens, and {limit}, new ones included; shorten it"
            )
        log.warning("text %d ends after %s: %s", number, quantity(room, "new token"), limit)
        tokens = room
    end = len(ids) + tokens
    # A vocabulary of a model from left to right may have no mask, and the id there is read by none.
    unknown = [tokenizer.special.mask or 0] * tokens
    return Gapped(
        [*ids, *unknown], [True] * len(ids) + [False] * tokens, [(len(ids), end)], [text, ""]
    )


def _bounds(mark: re.Match[str], number: int) -> tuple[int, int]:
    """The fewest and the most pieces of a gap."""
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
    """Raises BadInput, with the reason, for a text with a gap where that makes no sense."""
    if mark := MARK.search(text):
        raise BadInput(f"text {number}: {mark[0]} is a gap, and {why}")


def check_one(texts: Sequence[Gapped], why: str) -> None:
    """Raises BadInput, with the reason, for a text that has not exactly one unknown piece."""
    for number, text in enumerate(texts, 1):
        if (unknown := text.known.count(False)) != 1:
            raise BadInput(f"text {number} has {unknown} unknown pieces: {why}")


def ids_of_parts(tokenizer: Tokenizer, parts: Sequence[str]) -> list[list[int]]:
    """The ids of the parts of one text between its gaps, as they are where nothing of the text is
    missing.

    By itself a part would lose the space at its end, and SentencePiece would put one before it:
    `un[MASK]able` would become the pieces of ` able`. A space before a gap is part of the gap,
    whose first piece may start a word; a space after it is part of what follows. Characters and
    bytes keep both, words and WordPiece have none.

    Raises BadInput for what the tokenizer does not know, or if it has no symbol of its own, such as
    `<eop>`.
    """
    # Stands for a gap, which is no space: spaces at both of its sides stay.
    text = "".join(parts)
    mark = next(character for character in map(chr, range(0xE000, 0xF900)) if character not in text)
    first, *later = tokenizer.normalized(mark.join(parts)).split(mark)
    if tokenizer.level != "sentencepiece":
        split = [first, *later]
        if tokenizer.level == "bytebpe":
            split = [*(part.rstrip(" ") for part in split[:-1]), split[-1]]
        return [tokenizer.encode_normalized([part])[0].tolist() for part in split]
    # A symbol that is a piece of its own in any text, for ALBERT a full stop: what follows is not
    # at the start of one.
    all_ids = [tokenizer.encode_normalized([first])[0].tolist()]
    name = "." if tokenizer.special.eop is None else "<eop>"
    symbol = tokenizer.processor.piece_to_id(name)
    for part in later:
        ids = tokenizer.encode_normalized([tokenizer.pieces[symbol] + part])[0].tolist()
        if symbol not in ids[:2]:
            raise BadInput(
                f"tokenizer {tokenizer.path}: {name} is no symbol of texts; texts with gaps need "
                "one that `xlnet-jax prepare` trained, or that of a released XLNet or ALBERT"
            )
        all_ids.append(ids[ids.index(symbol) + 1 :])
    for ids in all_ids[:-1]:
        while ids and tokenizer.pieces[ids[-1]] == "▁":
            ids.pop()
    return all_ids


def strings(tokenizer: Tokenizer, texts: Sequence[Any]) -> Sequence[Any]:
    """The same, of strings and passages. Raises BadInput, also for one text in place of a list of
    texts.
    """
    if isinstance(texts, (str, bytes, Passage)):
        raise BadInput("one text where a list of texts is expected; put it into a list")
    # In a text for a vocabulary of bytes they are bytes that are not UTF-8.
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


def pieces_of(tokenizer: Tokenizer, passage: Passage, number: int) -> tuple[list[int], list[bool]]:
    """The ids of a whole passage, and which of them are given; a piece that is partly of the text
    is not.

    Raises BadInput if the text has no piece, or for a gap.
    """
    for part in passage:
        refuse_gap(
            part,
            number,
            "a likelihood is that of words; `fill` fills it and says how likely that is",
        )
    if not len(tokenizer.encode(passage.text)):
        raise BadInput(
            f"text {number}, {passage.text!r}, has no pieces; give at least one word to score"
        )
    if isinstance(tokenizer, Vocabulary):
        # Every piece is a part of the text as it was.
        parts = [(passage.before, True), (passage.text, False), (passage.after, True)]
        # A text without neighbours has no space at its ends.
        parts = [(part, known) for part, known in parts if part]
        all_ids = ids_of_parts(tokenizer, [part for part, _ in parts])
        return sum(all_ids, []), [
            known for ids, (_, known) in zip(all_ids, parts, strict=True) for _ in ids
        ]
    pieces = offsets.encode(tokenizer, "".join((passage.before, passage.text, passage.after)))
    first, last = pieces.covering(len(passage.before), len(passage.before) + len(passage.text))
    return pieces.tokens_N.tolist(), [not first <= at <= last for at in range(len(pieces.tokens_N))]


def result(tokenizer: Tokenizer, text: Gapped, filled: Filled, exact: bool) -> Infilled:
    """The text that `filled` is, and what its gaps have become."""
    turn_N, log_prob_N = np.zeros(len(text.ids), int), np.zeros(len(text.ids))
    turn_N[filled.position_U] = 1 + np.arange(len(filled.position_U))
    log_prob_N[filled.position_U] = filled.log_prob_U
    ids, gaps, whole = filled.token_N.tolist(), list[Gap](), text.parts[0]
    for (start, end), part in zip(text.gaps, text.parts[1:], strict=True):
        cut = slice(start, end)
        whole, new = seam(tokenizer, whole, text_after(tokenizer, ids[:start], ids[cut]))
        whole += new + part
        pieces = [tokenizer.pieces[id] for id in ids[cut]]
        gaps.append(
            Gap(
                new,
                float(log_prob_N[cut].sum()),
                pieces,
                log_prob_N[cut].tolist(),
                turn_N[cut].tolist(),
            )
        )
    return Infilled(whole, float(filled.log_prob_U.sum()), gaps, filled.calls, exact)


def seam(tokenizer: Tokenizer, before: str, new: str) -> tuple[str, str]:
    """The text before a gap and what fills it, in which a space between them stands once: at the
    end of `before`.

    A space before a gap is part of the gap: without a space in `new` there is none.
    """
    if tokenizer.level in ("characters", "bytes"):
        return before, new
    stripped = before.rstrip()
    if tokenizer.level != "words" and stripped and not new.startswith(" "):
        return stripped, new
    return stripped + (before[len(stripped) :] or " " * bool(stripped)), new.removeprefix(" ")


def text_after(tokenizer: Tokenizer, before: list[int], new: list[int]) -> str:
    """The text of the new ids as it follows the others: with the space before a word that starts
    there.
    """
    start, whole = tokenizer.decode(before), tokenizer.decode([*before, *new])
    return whole[len(start) :] if whole.startswith(start) else tokenizer.decode(new)


def continuation(tokenizer: Tokenizer, prompt: Gapped, filled: Filled) -> str:
    """What follows a prompt, without the end of its document."""
    return _written(tokenizer, prompt, filled.token_N[prompt.gaps[0][0] :].tolist())


def _written(tokenizer: Tokenizer, prompt: Gapped, new: list[int]) -> str:
    return text_after(
        tokenizer,
        prompt.ids[: prompt.gaps[0][0]],
        [id for id in new if id != tokenizer.special.eod],
    )


def as_text(
    tokenizer: Tokenizer, prompts: Sequence[Gapped], listener: TextListener, as_written: bool
) -> Listener:
    """A listener of a decoder that tells another one the new text of each prompt: while it comes
    about, or whole.
    """
    new: list[dict[int, int]] = [{} for _ in prompts]
    told = [""] * len(prompts)

    def heard(number: int, pairs: list[tuple[int, int]], ended: bool) -> None:
        new[number] |= pairs
        if as_written or ended:
            text = _written(
                tokenizer, prompts[number], [token for _, token in sorted(new[number].items())]
            )
            if not ended:
                text = text.rstrip("\ufffd")  # a character that has only some of its bytes yet
            listener(number, text[len(told[number]) :], ended)
            told[number] = text

    return heard
