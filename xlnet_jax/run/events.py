"""TensorBoard event files: in a folder, or written on this machine and copied to a bucket.

tensorboardX appends to files, which a bucket cannot do; there, every flush copies the complete file, until it has
`FILE_BYTES` and the next one starts.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

from xlnet_jax.storage import files

FILE_BYTES = 4 << 20
"""An event file in a bucket with this many bytes is complete: some thousand steps."""


class Events:
    """The folder `tensorboard/` of a work directory.

    Args:
      step: the step that the run resumes from; TensorBoard drops the later steps of earlier files.
    """

    def __init__(self, workdir: str, step: int) -> None:
        self._to = os.path.join(workdir, "tensorboard")
        self._stack = contextlib.ExitStack()
        self._folder = self._to
        self._sends = not files.at(workdir).appends
        if self._sends:
            files.sweep(workdir)  # removes leftovers of killed runs on this machine
            self._folder = self._stack.enter_context(files.scratch(self._to))
        self._count = 0
        self._dirty = False
        self._writer = self._new_file(purge_step=step + 1)

    def _new_file(self, purge_step: int | None) -> Any:
        from tensorboardX import SummaryWriter

        # Without a suffix two files of the same second would have the same name.
        ending = f".{self._count}" if self._sends else ""
        self._count += 1
        return SummaryWriter(self._folder, purge_step=purge_step, filename_suffix=ending)

    def add(self, name: str, value: float, step: int) -> None:
        """One value of a curve."""
        self._writer.add_scalar(name, value, step)
        self._dirty = True

    def flush(self) -> None:
        """Writes to the disk or the bucket."""
        self._writer.flush()
        if self._sends and self._dirty:
            self._send()

    def _send(self) -> None:
        (name,) = os.listdir(self._folder)
        path = os.path.join(self._folder, name)
        full = os.path.getsize(path) >= FILE_BYTES
        if full:
            self._writer.close()  # before it is sent for the last time: the writer has a queue
        files.move(path, f"{self._to}/{name}")
        self._dirty = False
        if full:
            os.remove(path)
            self._writer = self._new_file(purge_step=None)

    def close(self) -> None:
        """Closes the file; in a bucket, unflushed values are lost."""
        self._writer.close()
        self._stack.close()
