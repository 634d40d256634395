"""What terminals show of texts: a bar for many of them, and how a text with gaps comes about.

Empty places are dots, one for each piece. The colours of the others say in which order they were filled.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from xlnet_jax import messages
from xlnet_jax.data.tokenizer import Tokenizer
from xlnet_jax.infer.infill import Gapped, Infilled, seam

COLOURS = ("bright_blue", "cyan", "green", "yellow", "magenta", "red")
"""Of pieces, the first filled first. Every terminal with colours has them."""

PAUSE, PAUSES = 0.05, 2.0
"""Seconds that one new piece is shown before the next, and of all pauses together at most: a device fills many pieces
before the host hears of them."""


@contextlib.contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, if it is a terminal that can show one, for several texts; gone at the end. Yields what is called
    with the number of texts that are done."""
    with messages.progress_bar(what, total) as bar:
        yield lambda done: bar.update(bar.task_ids[0], completed=done)


def on_terminal(command: Callable[..., list[dict[str, Any]]], **options: Any) -> list[dict[str, Any]]:
    """On a terminal the texts of a command come about there; elsewhere, and with --json, they are returned."""
    if messages.as_json() or not sys.stdout.isatty():
        return command(**options)
    command(**options, console=Console())
    return []


def drawn(tokenizer: Tokenizer, text: Gapped, filled: dict[int, int]) -> Text:
    """A text as it is now.

    Args:
      filled: the pieces by their positions, in the order in which they were filled.
    """
    shade = {at: COLOURS[turn * len(COLOURS) // text.known.count(False)] for turn, at in enumerate(filled)}
    spaced = tokenizer.level in ("sentencepiece", "words")
    out = Text(messages.printable_lines(text.parts[0]))
    for (start, end), part in zip(text.gaps, text.parts[1:], strict=True):
        # Neighbours of one colour are decoded together: a character may be several pieces.
        for colour, run in itertools.groupby(range(start, end), shade.get):
            at = list(run)
            new = _shown(tokenizer, [filled[i] for i in at]) if colour else (" ·" if spaced else "·") * len(at)
            if at[0] == start:
                before, new = seam(tokenizer, out.plain, new)
                if len(before) < len(out):
                    out.right_crop(len(out) - len(before))
                out.append(before[len(out) :])
            out.append(messages.printable_lines(new), f"bold {colour}" if colour else "dim")
        out.append(messages.printable_lines(part))
    return out


def _shown(tokenizer: Tokenizer, ids: list[int]) -> str:
    if tokenizer.level != "sentencepiece":
        return " " * (tokenizer.level == "words") + tokenizer.decode(ids)
    # Not decoded: that would take the first space away.
    hidden = set(tokenizer.special) - {tokenizer.special.unk}
    return "".join(tokenizer.pieces[id] for id in ids if id not in hidden).replace("▁", " ")


class Display:
    """Shows texts while they come about, one at a time, and at the end all of them.

    Args:
      console: a terminal; None: there is only a bar on stderr, which counts the texts that have ended.
      what: is done, for the bar.
    """

    def __init__(self, console: Console | None, tokenizer: Tokenizer, what: str) -> None:
        self._console, self._tokenizer, self._what = console, tokenizer, what
        self._texts, self._filled = list[Gapped](), list[dict[int, int]]()

    @contextlib.contextmanager
    def watch(self, texts: Sequence[Any]) -> Iterator[Callable[[int, list[tuple[int, int]], bool], None]]:
        """While these texts with gaps come about (without a console, any texts): yields a `decoder.Listener`."""
        ended = set[int]()
        if self._console is None:
            with progress(self._what, len(texts)) as done:

                def count(number: int, pairs: list[tuple[int, int]], end: bool) -> None:
                    ended.update({number} if end else ())
                    done(len(ended))

                yield count
            return
        self._texts, self._filled = list(texts), [{} for _ in texts]
        total = sum(text.known.count(False) for text in self._texts)
        pause = 0.0 if self._console.is_dumb_terminal else min(PAUSE, PAUSES / total)
        # A dumb terminal cannot take back what it has shown: there is nothing before the end.
        with Live(self._view(0, 0), console=self._console, auto_refresh=False, transient=True) as live:

            def show(number: int, pairs: list[tuple[int, int]], end: bool) -> None:
                at = next((other for other in range(len(texts)) if other not in ended), number)
                for position, token in pairs:
                    self._filled[number][position] = token
                    if number == at:
                        live.update(self._view(at, len(ended)), refresh=True)
                        time.sleep(pause)
                ended.update({number} if end else ())

            yield show

    def _view(self, at: int, ended: int) -> Group:
        many = len(self._texts)
        count = Text(f"{ended} of {messages.quantity(many, 'text')}", "dim")
        return Group(drawn(self._tokenizer, self._texts[at], self._filled[at]), *[count] * (many > 1))

    def finish(self, results: Sequence[Infilled] = ()) -> None:
        """Prints all texts whole, each with its gaps if there are `results`, and what the colours mean."""
        if self._console is None or not self._texts:
            return
        for number, (text, filled) in enumerate(zip(self._texts, self._filled, strict=True)):
            self._console.print(drawn(self._tokenizer, text, filled))
            for gap in results[number].gaps if results else ():
                filler = f"{messages.printable(gap.text)}  {chance(gap.log_prob)}"
                self._console.print(Text(f"  {filler}  ({gap.log_prob:.2f} nats)"))
        if self._console.color_system and not self._console.no_color:
            order = [("order: first ", "dim"), *(("■", colour) for colour in COLOURS), (" last", "dim")]
            self._console.print(Text.assemble(*order))


def chance(log_prob: float) -> str:
    """exp(log_prob) for people: `12.3 %`, or below one in a thousand `2.1e-05`."""
    probability = math.exp(log_prob)
    return f"{100 * probability:.1f} %" if probability >= 1e-3 else f"{probability:.1e}"
