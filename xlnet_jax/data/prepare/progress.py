"""The progress of `prepare`: a bar on a terminal, otherwise a line of the log from time to time."""

from __future__ import annotations

import logging
import sys
import time

import rich.console
import rich.progress

_LOG_SECONDS = 5.0  # at least, between two lines

_log = logging.getLogger("xlnet_jax")


class Progress:
    """Counts finished units; use it in a `with`.

    The rate and the time left are measured from now on: units of an earlier call do not count.
    """

    def __init__(self, units: int, done: int, console: rich.console.Console | None = None):
        self._units, self._done, self._before, self._tokens = units, done, done, 0
        self._began = self._logged = time.monotonic()
        self._bar = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"), rich.progress.BarColumn(), transient=True,
            console=console or rich.console.Console(stderr=True), disable=not (console or sys.stderr.isatty()),
        )  # fmt: skip
        self._task = self._bar.add_task(self._text(), total=units, completed=done)

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def add(self, tokens: int) -> None:
        """Counts one more finished unit, of so many tokens."""
        self._done += 1
        self._tokens += tokens
        self._bar.update(self._task, completed=self._done, description=self._text())
        now = time.monotonic()
        if self._bar.disable and (now - self._logged >= _LOG_SECONDS or self._done == self._units):
            self._logged = now
            _log.info("%s", self._text())

    def _text(self) -> str:
        spent = max(time.monotonic() - self._began, 1e-6)
        text = f"{self._done:,} of {self._units:,} units"
        if self._done == self._before:
            return text
        left = (self._units - self._done) * spent / (self._done - self._before)
        rate = self._tokens / spent
        per_second = f"{rate / 1e6:.1f} M" if rate >= 1e5 else f"{rate:,.0f}"
        minutes, seconds = divmod(round(left), 60)
        clock = f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
        return f"{text}, {self._tokens:,} tokens, {per_second} tokens/s, {clock} left"
