"""SIGTERM and Ctrl-C: the first asks for an orderly end between two dispatches, the second ends the process at once."""

from __future__ import annotations

import logging
import os
import signal
import sys
from types import FrameType
from typing import Any

from xlnet_jax.errors import Interrupted

log = logging.getLogger("xlnet_jax")


class StopRequest:
    """Context manager that catches both signals; true once one of them came. The old handlers come back at the end."""

    def __init__(self) -> None:
        self.name: str | None = None
        self._previous: dict[int, Any] = {}

    def __bool__(self) -> bool:
        return self.name is not None

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.name is not None:
            log.error("second %s: ending at once; the newest checkpoint is good", signal.Signals(number).name)
            sys.stderr.flush()
            # Not sys.exit: writers and readers in other threads would hold the process back.
            os._exit(Interrupted.exit_code)
        self.name = signal.Signals(number).name
        log.warning("%s: saving after this dispatch; once more ends at once", self.name)

    def __enter__(self) -> StopRequest:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
