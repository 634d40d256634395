"""What terminals show of texts: a bar for many of them, and how a text with gaps comes about.

Empty places are dots, one for each piece, and new pieces are marked. At the end the colours say in which order pieces
were filled, or without colours (`NO_COLOR`, `TERM=dumb`) the line of the order names the pieces.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Self

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from xlnet_jax import messages
from xlnet_jax.data.tokenizer import SPECIAL_PIECES, Tokenizer
from xlnet_jax.infer.infill import Gapped, Infilled, seam
from xlnet_jax.messages import quantity

COLOURS = ("bright_blue", "cyan", "green", "yellow", "magenta", "red")
"""Of pieces, the first filled first. Every terminal with colours has them."""

PAUSE, PAUSES = 0.05, 2.0
"""Seconds that one new piece is shown before the next, which came with it, and of all pauses together: a device fills
many pieces before the host hears of them."""

NEWEST = "reverse"
"""Style of the piece that has just been filled."""

NAMED = 40
"""Pieces in the line of the order."""


@contextlib.contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, if it is a terminal that can show one, for several texts; gone at the end.

    Yields:
      What is called with the number of texts that are done.
    """
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
               TimeRemainingColumn())  # fmt: skip
    hidden = total < 2 or not sys.stderr.isatty() or console.is_dumb_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


class Board:
    """One text while its gaps are filled."""

    def __init__(self, tokenizer: Tokenizer, text: Gapped) -> None:
        self._tokenizer, self._given = tokenizer, text
        self._token_N = np.array(text.ids)
        self._turn_N = np.zeros(len(text.ids), int)
        self._filled = 0

    def put(self, position: int, token: int) -> None:
        """Fills one place."""
        self._filled += 1
        self._token_N[position], self._turn_N[position] = token, self._filled

    def drawn(self, console: Console) -> Text:
        """The text as it is now: the newest piece is marked, those before it are bold, the others are as given."""

        def look(at: int) -> str:
            turn = self._turn_N[at]
            return NEWEST if turn and turn == self._filled else ("bold" if turn else "dim")

        return self._text(look, "·" if console.encoding.startswith("utf") else "_")

    def finished(self, console: Console) -> Group:
        """The whole text in the colours of its order, and the line that explains them."""
        total = max(self._filled, 1)

        def colour(turn: int) -> str:
            return COLOURS[(turn - 1) * len(COLOURS) // total]

        def look(at: int) -> str:
            return f"bold {colour(self._turn_N[at])}" if has_colours(console) else "bold underline"

        lines = [self._text(look, "_")]
        if self._filled > 1:
            lines.append(self._order(console, colour))
        return Group(*lines)

    def _order(self, console: Console, colour: Callable[[int], str]) -> Text:
        legend = Text().append("order: ", "dim")
        if has_colours(console):
            shades = list(dict.fromkeys(colour(turn) for turn in range(1, self._filled + 1)))
            block = "■" if console.encoding.startswith("utf") else "#"
            legend.append("first ", "dim")
            for shade in shades:
                legend.append(block, shade)
            return legend.append(" last", "dim")
        by_turn = np.argsort(self._turn_N)[len(self._turn_N) - self._filled :].tolist()
        names = [_printable(self._shown([at]).strip()) or "(space)" for at in by_turn[:NAMED]]
        return legend.append(", ".join(names) + (", ..." if self._filled > NAMED else ""))

    def _text(self, look: Callable[[int], str], empty: str) -> Text:
        """Neighbours of one look are decoded together: a character may be several pieces."""
        text = Text(_printable(self._given.parts[0]))
        for (start, end), part in zip(self._given.gaps, self._given.parts[1:], strict=True):
            for style, run in itertools.groupby(range(start, end), lambda at: (look(at), self._turn_N[at] == 0)):
                at = list(run)
                new = self._blank(empty) * len(at) if style[1] else self._shown(at)
                if at[0] == start:
                    before, new = seam(self._tokenizer, text.plain, new)
                    if len(text) > len(before):
                        text.right_crop(len(text) - len(before))
                    text.append(before[len(text) :])
                text.append(_printable(new), style[0])
            text.append(_printable(part))
        return text

    def _blank(self, empty: str) -> str:
        return f" {empty}" if self._tokenizer.level in ("sentencepiece", "words") else empty

    def _shown(self, run: list[int]) -> str:
        ids = self._token_N[run].tolist()
        if self._tokenizer.level == "words":
            return " " + self._tokenizer.decode(ids)
        if self._tokenizer.level != "sentencepiece":
            return self._tokenizer.decode(ids)
        # Not decoded: that would take the first space away.
        pieces = [self._tokenizer.pieces[id] for id in ids if id >= len(SPECIAL_PIECES) or id == 0]
        return "".join(pieces).replace("▁", " ")


class Display:
    """Shows texts while they come about, one at a time; a `decoder.Listener`, and a context manager around the filling.

    Args:
      console: a terminal.
      pause: sleeps so many seconds.
    """

    def __init__(
        self, console: Console, tokenizer: Tokenizer, texts: Sequence[Gapped],
        pause: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self._console, self._pause, self._left = console, pause, PAUSES
        self._boards = [Board(tokenizer, text) for text in texts]
        self._at, self._ended, self._line = 0, set[int](), 0
        # A dumb terminal cannot take back what it has shown.
        self._live = None if console.is_dumb_terminal else Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
            self._show()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, number: int, pairs: list[tuple[int, int]], ended: bool) -> None:
        """New pieces of one text; see `decoder.Listener`."""
        if self._at in self._ended:
            self._at = number
        for index, (position, token) in enumerate(pairs):
            self._boards[number].put(position, token)
            if number == self._at:
                self._show()
                if self._live is not None and index < len(pairs) - 1 and self._left > 0:
                    self._pause(min(PAUSE, self._left))
                    self._left -= PAUSE
        if ended:
            self._ended.add(number)
            self._show()

    def _show(self) -> None:
        if self._live is None:
            return
        parts = [self._in_height(self._boards[self._at].drawn(self._console))]
        if len(self._boards) > 1:
            parts.append(Text(f"{len(self._ended)} of {quantity(len(self._boards), 'text')}", "dim"))
        self._live.update(Group(*parts), refresh=True)

    def _in_height(self, text: Text) -> Text:
        """Of a text that is higher than the terminal the lines around the newest piece."""
        lines, room = text.wrap(self._console, self._console.width), max(1, self._console.height - 2)
        if len(lines) <= room:
            return text
        for number, line in enumerate(lines):
            # A piece that is only a space before a word cannot be seen.
            if any(span.style == NEWEST for span in line.spans):
                self._line = number
        first = min(max(0, self._line - room // 2), len(lines) - room)
        return Text("\n").join(lines[first : first + room])

    def finish(self, found: Sequence[Infilled] | None = None) -> None:
        """Prints all texts whole, each with its gaps if `found` has them."""
        for number, board in enumerate(self._boards):
            if number:
                self._console.print()
            self._console.print(board.finished(self._console))
            if found is not None:
                for gap in found[number].gaps:
                    self._console.print(Text(described(gap.text, gap.log_prob)))


def described(text: str, log_prob: float) -> str:
    """A filled gap with its probability."""
    return f"  {messages.printable(text)}  {chance(log_prob)}  ({log_prob:.2f} nats)"


def chance(log_prob: float) -> str:
    """exp(log_prob) for people: `12.3 %`, or below one in a thousand `2.1e-05`."""
    probability = math.exp(log_prob)
    return f"{100 * probability:.1f} %" if probability >= 1e-3 else f"{probability:.1e}"


def has_colours(console: Console) -> bool:
    """Whether colours can say something."""
    return console.color_system is not None and not console.no_color


def _printable(text: str) -> str:
    return "\n".join(map(messages.printable, text.split("\n")))
