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
from typing import Any

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from xlnet_jax import messages
from xlnet_jax.data.tokenizer import Tokenizer
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
    with messages.progress_bar(what, total) as bar:
        yield lambda done: bar.update(bar.task_ids[0], completed=done)


def on_terminal(command: Callable[..., list[dict[str, Any]]], **options: Any) -> list[dict[str, Any]]:
    """On a terminal the texts of a command come about there; elsewhere, and with --json, they are returned."""
    if messages.as_json() or not sys.stdout.isatty():
        return command(**options)
    command(**options, console=Console())
    return []


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

        coloured = console.color_system is not None and not console.no_color
        text = self._text(lambda at: f"bold {colour(self._turn_N[at])}" if coloured else "bold underline", "_")
        return Group(text, *([self._order(console, colour, coloured)] if self._filled > 1 else []))

    def _order(self, console: Console, colour: Callable[[int], str], coloured: bool) -> Text:
        legend = Text().append("order: ", "dim")
        if coloured:
            shades = list(dict.fromkeys(colour(turn) for turn in range(1, self._filled + 1)))
            block = "■" if console.encoding.startswith("utf") else "#"
            legend.append("first ", "dim")
            for shade in shades:
                legend.append(block, shade)
            return legend.append(" last", "dim")
        by_turn = np.argsort(self._turn_N)[len(self._turn_N) - self._filled :].tolist()
        names = [messages.printable_lines(self._shown([at]).strip()) or "(space)" for at in by_turn[:NAMED]]
        return legend.append(", ".join(names) + (", ..." if self._filled > NAMED else ""))

    def _text(self, look: Callable[[int], str], empty: str) -> Text:
        """Neighbours of one look are decoded together: a character may be several pieces."""
        text = Text(messages.printable_lines(self._given.parts[0]))
        for (start, end), part in zip(self._given.gaps, self._given.parts[1:], strict=True):
            for style, run in itertools.groupby(range(start, end), lambda at: (look(at), self._turn_N[at] == 0)):
                at = list(run)
                new = self._blank(empty) * len(at) if style[1] else self._shown(at)
                if at[0] == start:
                    before, new = seam(self._tokenizer, text.plain, new)
                    if len(text) > len(before):
                        text.right_crop(len(text) - len(before))
                    text.append(before[len(text) :])
                text.append(messages.printable_lines(new), style[0])
            text.append(messages.printable_lines(part))
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
        hidden = set(self._tokenizer.special) - {self._tokenizer.special.unk}
        pieces = [self._tokenizer.pieces[id] for id in ids if id not in hidden]
        return "".join(pieces).replace("▁", " ")


class Display:
    """Shows texts while they come about, one at a time, and at the end all of them. A `decoder.Listener`.

    Args:
      console: a terminal; None: there is only a bar on stderr, which counts the texts that have ended.
      what: is done, for the bar.
      pause: sleeps so many seconds.
    """

    def __init__(
        self, console: Console | None, tokenizer: Tokenizer, what: str = "", pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._console, self._tokenizer, self._what, self._pause = console or Console(), tokenizer, what, pause
        self._hidden, self._left, self._boards = console is None, PAUSES, list[Board]()
        self._at, self._ended, self._line = 0, set[int](), 0
        # A dumb terminal cannot take back what it has shown.
        dumb = console is None or console.is_dumb_terminal
        self._live = None if dumb else Live(console=console, auto_refresh=False, transient=True)

    @contextlib.contextmanager
    def watch(self, texts: Sequence[Any]) -> Iterator[Callable[[int, Any, bool], None]]:
        """While these texts with gaps come about (without a console, any texts): yields the listener."""
        if self._hidden:
            with progress(self._what, len(texts)) as done:

                def count(number: int, new: Any, ended: bool) -> None:
                    self._ended |= {number} if ended else set()
                    done(len(self._ended))

                yield count
            return
        self._boards = [Board(self._tokenizer, text) for text in texts]
        with self._live or contextlib.nullcontext():
            self._show()
            yield self

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
        text = self._in_height(self._boards[self._at].drawn(self._console))
        count = Text(f"{len(self._ended)} of {quantity(len(self._boards), 'text')}", "dim")
        self._live.update(Group(text, *([count] if len(self._boards) > 1 else [])), refresh=True)

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

    def finish(self, filled: Sequence[Infilled] = ()) -> None:
        """Prints all texts whole, each with its gaps if `filled` has them."""
        for number, board in enumerate(self._boards):
            if number:
                self._console.print()
            self._console.print(board.finished(self._console))
            for gap in filled[number].gaps if filled else ():
                self._console.print(Text(described(gap.text, gap.log_prob)))


def described(text: str, log_prob: float) -> str:
    """A filled gap with its probability."""
    return f"  {messages.printable(text)}  {chance(log_prob)}  ({log_prob:.2f} nats)"


def chance(log_prob: float) -> str:
    """exp(log_prob) for people: `12.3 %`, or below one in a thousand `2.1e-05`."""
    probability = math.exp(log_prob)
    return f"{100 * probability:.1f} %" if probability >= 1e-3 else f"{probability:.1e}"
