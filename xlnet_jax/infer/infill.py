"""Texts with gaps: from `The [MASK] of the union` to ids, and back when the gaps are filled.

    [MASK] or <mask>     one unknown piece
    [MASK:5]             five
    [MASK:2-8]           two to eight: drawn uniformly by the seed and the number of the text

A continuation is the same with one gap at the end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from xlnet_jax.data.tokenizer import Tokenizer
from xlnet_jax.errors import BadInput
from xlnet_jax.infer.decoder import Decoder, Filled, Listener
from xlnet_jax.infer.orders import Order
from xlnet_jax.infer.sampling import PLAIN, Sampling
from xlnet_jax.infer.texts import MARK, ids_of_parts, prompt_ids, text_after

LONGEST = 10_000
"""Pieces of a gap at most."""

TextListener = Callable[[int, str, bool], None]
"""Called with the number of a prompt, the text that is new since the last call, and whether it has ended."""

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
    """Nats, of all gaps together: log p(gaps | the rest) in the order in which they were filled, if `exact`."""
    gaps: list[Gap]
    calls: int
    """Forward passes that predicted something of the text."""
    exact: bool
    """False if pieces were drawn in parallel, without knowing of each other."""


def gapped(tokenizer: Tokenizer, text: str, number: int, seed: int = 0, row: int = 0) -> Gapped:
    """The ids of a text with gaps.

    Args:
      number: of the text, from 1; with `seed` and `row` it decides drawn lengths.

    Raises BadInput for a text without a gap, and as `parsed`.
    """
    if not MARK.search(text):
        raise BadInput(f"text {number}, {_shortened(text)}, has no gap; write [MASK] for a piece that is missing, "
                       "[MASK:5] for five")  # fmt: skip
    return parsed(tokenizer, text, number, seed, row)


def parsed(tokenizer: Tokenizer, text: str, number: int, seed: int = 0, row: int = 0) -> Gapped:
    """As `gapped`, of any text. Raises BadInput for a gap that is none, or a text that the tokenizer does not know."""
    marks = list(MARK.finditer(text))
    # Of other keys than the draws of an order.
    random = np.random.default_rng((seed, number, 1, row))
    lengths = [int(random.integers(*_bounds(mark, number), endpoint=True)) for mark in marks]
    ends = [0, *(mark.end() for mark in marks)]
    starts = [*(mark.start() for mark in marks), len(text)]
    parts = [text[end:start] for end, start in zip(ends, starts, strict=True)]
    first, *later = ids_of_parts(tokenizer, parts)
    ids, gaps = list(first), list[tuple[int, int]]()
    for length, part in zip(lengths, later, strict=True):
        gaps.append((len(ids), len(ids) + length))
        ids += [tokenizer.special.mask] * length + part
    known = [True] * len(ids)
    for start, end in gaps:
        known[start:end] = [False] * (end - start)
    return Gapped(ids, known, gaps, parts)


def is_drawn(text: str, number: int) -> bool:
    """Whether the length of a gap is drawn. Raises BadInput for a gap that is none."""
    return any(fewest < most for fewest, most in (_bounds(mark, number) for mark in MARK.finditer(text)))


def _bounds(mark: re.Match[str], number: int) -> tuple[int, int]:
    """The fewest and the most pieces of a gap."""
    if mark[1] is None:
        return 1, 1
    length = _LENGTH.fullmatch(mark[1])
    fewest, most = (int(length[1]), int(length[2] or length[1])) if length else (0, 0)
    if not 1 <= fewest <= most <= LONGEST:
        raise BadInput(f"text {number}: {_shortened(mark[0])} is no gap; write [MASK], [MASK:5] or [MASK:2-8], of 1 to "
                       f"{LONGEST:,} pieces")  # fmt: skip
    return fewest, most


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def appended(tokenizer: Tokenizer, prompt: Sequence[int], tokens: int, text: str = "") -> Gapped:
    """A prompt, of this text, with one gap of so many pieces at its end. Raises BadInput if they are too many."""
    if not 1 <= tokens <= LONGEST:
        raise BadInput(f"tokens={tokens} must be from 1 to {LONGEST:,}")
    N = len(prompt)
    return Gapped(
        [*prompt, *[tokenizer.special.mask] * tokens], [True] * N + [False] * tokens, [(N, N + tokens)], [text, ""]
    )


def result(tokenizer: Tokenizer, text: Gapped, filled: Filled, exact: bool) -> Infilled:
    """The text that `filled` is, and what its gaps have become."""
    turn_N, log_prob_N = np.zeros(len(text.ids), int), np.zeros(len(text.ids))
    turn_N[filled.position_U] = 1 + np.arange(len(filled.position_U))
    log_prob_N[filled.position_U] = filled.log_prob_U
    ids, gaps, whole = filled.token_N.tolist(), list[Gap](), text.parts[0]
    for (start, end), part in zip(text.gaps, text.parts[1:], strict=True):
        whole, new = seam(tokenizer, whole, text_after(tokenizer, ids[:start], ids[start:end]))
        whole += new + part
        pieces = [tokenizer.pieces[id] for id in ids[start:end]]
        cut = slice(start, start + len(pieces))
        gaps.append(Gap(new, float(log_prob_N[cut].sum()), pieces, log_prob_N[cut].tolist(), turn_N[cut].tolist()))
    return Infilled(whole, float(filled.log_prob_U.sum()), gaps, filled.calls, exact)


def seam(tokenizer: Tokenizer, before: str, new: str) -> tuple[str, str]:
    """The text before a gap and what fills it, in which a space between them stands once: at the end of `before`.

    A space before a gap is part of the gap: without a space in `new` there is none.
    """
    if tokenizer.level not in ("sentencepiece", "words"):
        return before, new
    stripped = before.rstrip()
    if tokenizer.level == "sentencepiece" and stripped and not new.startswith(" "):
        return stripped, new
    return stripped + (before[len(stripped) :] or " " * bool(stripped)), new.removeprefix(" ")


def continue_texts(
    decoder: Decoder, tokenizer: Tokenizer, prompts: Sequence[str], tokens: int, sampling: Sampling = PLAIN,
    order: Order = "left", tokens_per_step: int = 1, speculative: int = 0, listener: TextListener | None = None,
    watch: Listener | None = None,
) -> list[str]:  # fmt: skip
    """What follows each prompt, without the prompt: at most `tokens` tokens.

    From left to right a text ends with its document (`<eod>`); in another order nothing ends it: what is after an end
    would be known before it.

    Args:
      order, tokens_per_step, speculative: see `Decoder`.
      listener: in orders other than `left` it hears of a text when it has ended.
      watch: hears of every piece.

    Raises BadInput for no prompt, and as `prompt_ids`, `Sampling.check` and `Decoder`.
    """
    sampling.check(tokens)
    if not len(prompts):
        raise BadInput("no prompt; give at least one")
    before, stop = prompt_ids(tokenizer, prompts), tokenizer.special.eod if order == "left" else None
    new: list[dict[int, int]] = [{} for _ in prompts]
    shown = [""] * len(prompts)

    def heard(number: int, pairs: list[tuple[int, int]], ended: bool) -> None:
        if watch is not None:
            watch(number, pairs, ended)
        new[number] |= pairs
        if order == "left" or ended:
            ids = [token for _, token in sorted(new[number].items()) if token != stop]
            text = text_after(tokenizer, before[number], ids)
            if not ended:
                text = text.rstrip("\ufffd")  # a character that has only some of its bytes yet
            if listener is not None:
                listener(number, text[len(shown[number]) :], ended)
            shown[number] = text

    asked = [[*ids, *[tokenizer.special.mask] * tokens] for ids in before]
    known = [[True] * len(ids) + [False] * tokens for ids in before]
    decoder(asked, known, sampling, order, tokens_per_step, speculative, stop, heard)
    return shown
