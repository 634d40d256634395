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
    """A file on disk."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115
        self._end = self._file.seek(0, os.SEEK_END)
        self._data = b""

    def append(self, data: bytes, step: int) -> None:
        """Adds the data of a step."""
        del step
        self._data += data
        if len(self._data) >= FILE_BYTES:
            try:
                self._write()
            except OSError as error:
                # `flush` tries again, and raises.
                log.warning("%s: %s", self._file.name, error)

    def _write(self) -> None:
        """All or nothing: on a full disk the part that was written is cut off, and all data stay in memory."""
        try:
            rest = memoryview(self._data)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            with contextlib.suppress(OSError):
                self._file.truncate(self._end)
            raise
        self._end += len(self._data)
        self._data = b""

    def flush(self) -> None:
        """Writes to the disk, with fsync."""
        self._write()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file; unflushed data are lost."""
        self._file.close()


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

    def close(self) -> None:
        """Does nothing: no file is open. Unflushed data are lost."""
