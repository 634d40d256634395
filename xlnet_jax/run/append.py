"""Files of a run that grow: one file on disk; in a bucket, which cannot append, a few objects, the parts.

In a bucket every flush writes only the last part again, until it has `part_bytes`; so a long run neither sends all its
data repeatedly nor leaves one object per flush.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable

from xlnet_jax.storage import files

log = logging.getLogger("xlnet_jax")

FILE_BYTES = 1 << 13
"""This many bytes are written to a file on disk without a flush, for users who follow the file."""


class AppendFile:
    """A file on disk, opened for every write: a network disk that was away has another handle when it is back."""

    def __init__(self, path: str) -> None:
        self._path, self._data = path, b""

    def append(self, data: bytes, step: int) -> None:
        """Adds the data of a step."""
        del step
        self._data += data
        if len(self._data) >= FILE_BYTES:
            try:
                self.flush(False)
            except OSError as error:
                # The next `flush` tries again, and raises.
                log.warning("%s: %s", self._path, error)

    def flush(self, sync: bool = True) -> None:
        """Writes to the disk, with fsync if `sync`. All or nothing: on a full disk the written part is cut off."""
        end = os.path.getsize(self._path) if os.path.exists(self._path) else 0
        try:
            with open(self._path, "ab", buffering=0) as file:
                rest = memoryview(self._data)
                while rest:
                    rest = rest[file.write(rest) :]
                if sync:
                    os.fsync(file.fileno())
        except OSError:
            with contextlib.suppress(OSError):
                os.truncate(self._path, end)
            raise
        self._data = b""


class AppendParts:
    """Parts in a bucket.

    Args:
      name: the address of a part whose first data are of this step.
      part_bytes: a part with this many bytes is complete.
      header: what every part starts with.
    """

    def __init__(self, name: Callable[[int], str], part_bytes: int, header: bytes = b"") -> None:
        self._name, self._part_bytes, self._header = name, part_bytes, header
        self._path = ""  # of the current part; "" = the next data start a part
        self._data = bytearray()
        self._changed = False

    def append(self, data: bytes, step: int) -> None:
        """Adds the data of a step."""
        if not self._path:
            self._path, self._data = self._name(step), bytearray(self._header)
        self._data += data
        self._changed = True

    def flush(self) -> None:
        """Writes to the bucket, and starts the next part if this one is full."""
        if self._changed:
            files.write(self._path, bytes(self._data))
            self._changed = False
        if len(self._data) >= self._part_bytes:
            self._path, self._data = "", bytearray()
