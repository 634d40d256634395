"""From texts to ids and back: what `xlnet_jax.load(...)` and the commands `generate`, `fill` and `score` share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from xlnet_jax.data import offsets
from xlnet_jax.data.tokenizer import Tokenizer
from xlnet_jax.errors import BadInput

MARK = re.compile(r"\[MASK(:[^\]]*)?\]|<mask>")
"""A gap in a text; see `infer.infill`. The same for every vocabulary, also of characters or bytes, whose texts may hold
these letters: read as letters here and as a gap there, nobody would notice. As ids they are letters (`log_prob`)."""


def refuse_gap(text: str, number: int, why: str) -> None:
    """Raises BadInput, with the reason, for a text with a gap where that makes no sense."""
    if mark := MARK.search(text):
        raise BadInput(f"text {number}: {mark[0]} is a gap, and {why}")


def prompt_ids(tokenizer: Tokenizer, prompts: Sequence[str]) -> list[list[int]]:
    """The ids of texts that are continued. Raises BadInput for one with a gap."""
    for number, text in enumerate(prompts, 1):
        refuse_gap(text, number, "a text is continued only at its end; use `fill` (in Python `infill`)")
    return [tokenizer.encode(text).tolist() for text in prompts]


def text_after(tokenizer: Tokenizer, before: list[int], new: list[int]) -> str:
    """The text of the new ids as it follows the others: with the space before a word that starts there."""
    start, whole = tokenizer.decode(before), tokenizer.decode([*before, *new])
    return whole[len(start) :] if whole.startswith(start) else tokenizer.decode(new)


def ids_of_parts(tokenizer: Tokenizer, parts: Sequence[str]) -> list[list[int]]:
    """The ids of the parts of one text between its gaps, as they are where nothing of the text is missing.

    By itself a part would lose the space at its end, and SentencePiece would put one before it: `un[MASK]able` would
    become the pieces of ` able`. A space before a gap is part of the gap, whose first piece may start a word; a space
    after it is part of what follows. Characters and bytes keep both, words have none.

    Raises BadInput for what the tokenizer does not know, or if it has no symbol `<eop>`.
    """
    # Stands for a gap, which is no space: spaces at both of its sides stay.
    text = "".join(parts)
    mark = next(character for character in map(chr, range(0xE000, 0xF900)) if character not in text)
    first, *later = tokenizer.normalized(mark.join(parts)).split(mark)
    if tokenizer.level != "sentencepiece":
        return [tokenizer.encode_normalized([part])[0].tolist() for part in (first, *later)]
    all_ids, eop = [tokenizer.encode_normalized([first])[0].tolist()], tokenizer.special.eop
    for part in later:
        # A symbol that is a piece of its own in any text: what follows it is not at the start of a text.
        ids = tokenizer.encode_normalized([tokenizer.pieces[eop] + part])[0].tolist()
        if eop not in ids[:2]:
            raise BadInput(f"tokenizer {tokenizer.path}: <eop> is no symbol of texts; texts with gaps need one that "
                           "`xlnet-jax prepare` trained, or that of a released XLNet")  # fmt: skip
        all_ids.append(ids[ids.index(eop) + 1 :])
    for ids in all_ids[:-1]:
        while ids and tokenizer.pieces[ids[-1]] == "▁":
            ids.pop()
    return all_ids


class Passage(NamedTuple):
    """A text to score, between texts that are given. Spaces between them belong to one of them."""

    text: str
    before: str = ""
    after: str = ""


def pieces_of(tokenizer: Tokenizer, passage: Passage, number: int) -> tuple[list[int], list[bool]]:
    """The ids of a whole passage, and which of them are given; a piece that is partly of the text is not.

    Raises BadInput if the text has no piece, or for a gap.
    """
    for part in passage:
        refuse_gap(part, number, "a likelihood is that of words; `fill` (in Python `infill`) fills it and says how "
                   "likely that is")  # fmt: skip
    if not len(tokenizer.encode(passage.text)):
        raise BadInput(f"text {number}, {passage.text!r}, has no pieces; give at least one word to score")
    if tokenizer.level != "sentencepiece":
        # Every piece is a part of the text as it was.
        parts = [(passage.before, True), (passage.text, False), (passage.after, True)]
        # A text without neighbours has no space at its ends.
        parts = [(part, known) for part, known in parts if part]
        all_ids = ids_of_parts(tokenizer, [part for part, _ in parts])
        return sum(all_ids, []), [known for ids, (_, known) in zip(all_ids, parts, strict=True) for _ in ids]
    pieces = offsets.encode(tokenizer, "".join((passage.before, passage.text, passage.after)))
    first, last = pieces.covering(len(passage.before), len(passage.before) + len(passage.text))
    return pieces.tokens_N.tolist(), [not first <= at <= last for at in range(len(pieces.tokens_N))]
