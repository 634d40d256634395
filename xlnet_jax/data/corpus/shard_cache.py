"""Copies of a bucket's shards on the local disk, named by their hash, shared by the processes of a machine.

Random reads of pages from a bucket cost one request per page. A copy costs one request per shard and 8 MiB, once.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import shutil
from collections.abc import Iterator
from typing import Any

from xlnet_jax.errors import BadInput
from xlnet_jax.storage import files

_LEFT_FREE = 0.05  # of the disk, if no bound is given
_BLOCK = 8 * 2**20

_log = logging.getLogger("xlnet_jax")


class ShardCache:
    """A folder of copies. Safe to share between threads, cheap to pickle.

    Its files may be removed at any time when no process reads them; other corpora may use the same folder.
    """

    def __init__(self, folder: str, bound: int | None = None):
        """Opens the folder, and creates it if it is missing.

        Args:
          folder: on the local disk.
          bound: maximal bytes in the folder, not counting copies in progress in other processes; None = until the disk
            is nearly full.

        Raises:
          BadInput: the folder cannot be written to.
        """
        if not files.at(folder).seeks:
            raise BadInput(f"shard cache {folder}: it must be on the local disk")
        self._folder, self._bound = folder, bound
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            raise _unusable(folder, error) from error
        self._start()

    def _start(self) -> None:
        self._good: set[str] = set()
        self._told = False

    def __getstate__(self) -> dict[str, Any]:
        return {"_folder": self._folder, "_bound": self._bound}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def get(self, address: str, entry: dict[str, Any]) -> str:
        """Where to read a shard: the path of its copy, made if it is missing; the address if a copy does not fit.

        Args:
          address: `gs://...`
          entry: of the shard in the manifest.

        Raises:
          BadInput: the shard is missing or does not match the manifest, or the folder cannot be written to.
          RestartMe: the bucket does not answer.
        """
        path = os.path.join(self._folder, f"{entry['sha256']}.array_record")
        # Hashed once per process: the machine may have lost power while a copy was written.
        if path in self._good and os.path.exists(path):
            return path
        try:
            with _only_one(f"{path}.part", path) as part:
                if not _is_whole(path, entry):
                    if not self._has_room(entry["bytes"]):
                        return self._full(address)
                    if download(address, part, entry["bytes"]) != entry["sha256"]:
                        raise BadInput(f"{address} does not match its hash in the manifest; copy the corpus again")
                    os.replace(f"{path}.part", path)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                return self._full(address)
            raise _unusable(self._folder, error) from error
        self._good.add(path)
        return path

    def _has_room(self, size: int) -> bool:
        if self._bound is None:
            disk = shutil.disk_usage(self._folder)
            return disk.free - size >= _LEFT_FREE * disk.total
        return _bytes_in(self._folder) + size <= self._bound

    def _full(self, address: str) -> str:
        if not self._told:
            self._told = True
            _log.warning("shard cache %s is full: reading %s and others from the bucket", self._folder, address)
        return address


def _bytes_in(folder: str) -> int:
    total = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # another process has just renamed it
                total += entry.stat(follow_symlinks=False).st_size
    return total


def _unusable(folder: str, error: OSError) -> BadInput:
    return BadInput(f"shard cache {folder}: {error.strerror or error}; choose another folder")


def _is_whole(path: str, entry: dict[str, Any]) -> bool:
    try:
        with open(path, "rb") as file:
            return (
                os.path.getsize(path) == entry["bytes"]
                and hashlib.file_digest(file, "sha256").hexdigest() == entry["sha256"]
            )
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def _only_one(part: str, path: str) -> Iterator[int]:
    """Lets one thread of one process at a time write the file `part`, which becomes `path`; yields its descriptor.

    The kernel drops the lock when the process ends. The leftover of a killed process is overwritten.
    """
    while True:
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            try:
                same = os.path.samestat(os.fstat(descriptor), os.stat(part))
            except FileNotFoundError:
                same = False
            # Otherwise the previous holder of the lock has renamed or removed the file: open it again.
            if same:
                try:
                    yield descriptor
                finally:
                    with contextlib.suppress(FileNotFoundError):
                        if os.path.samestat(os.fstat(descriptor), os.stat(part)):
                            os.remove(part)
                return
        finally:
            os.close(descriptor)


def download(address: str, descriptor: int, size: int) -> str:
    """Copies an object of a bucket to an open file, in bounded memory, and makes the copy durable.

    Returns:
      The SHA-256 of the object.

    Raises:
      BadInput: the object does not exist.
      RestartMe: the bucket does not answer.
      OSError: of the local disk.
    """
    digest = hashlib.sha256()
    os.ftruncate(descriptor, 0)
    with open(descriptor, "wb", closefd=False) as file:
        for first in range(0, size, _BLOCK):
            block = _read_range(address, first, min(first + _BLOCK, size))
            digest.update(block)
            file.write(block)
    os.fsync(descriptor)
    return digest.hexdigest()


def _read_range(address: str, first: int, end: int) -> bytes:
    try:
        return files.read(address, first, end)
    except OSError as error:
        raise BadInput(
            f"{address} cannot be read: {error.strerror or 'it is missing'}; copy the corpus again"
        ) from error
