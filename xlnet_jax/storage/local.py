"""Files on disk: found, locked, written in scratch folders, made durable under a temporary name and renamed."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from typing import NamedTuple

from xlnet_jax.errors import BadInput
from xlnet_jax.storage import bucket
from xlnet_jax.storage.bucket import in_bucket

_TEMPORARY = re.compile(r"\.\d+\.tmp$")
_SCRATCH = "xlnet_jax_scratch_"
_SCRATCH_SECONDS = 60  # a younger one may not be locked yet


class File(NamedTuple):
    """A file that was found, with its size and its time of change."""

    path: str
    bytes: int
    mtime_ns: int


def temporary(path: str) -> str:
    """The temporary name on disk from which `publish` renames to `path`; it differs between processes."""
    return f"{path}.{os.getpid()}.tmp"


def publish(path: str) -> None:
    """Makes `temporary(path)` durable and renames it to `path`, replacing any file there."""
    descriptor = os.open(temporary(path), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(temporary(path), path)


@contextlib.contextmanager
def locked(folder: str, otherwise: str) -> Iterator[None]:
    """Keeps a second process out of a folder that exists; BadInput with the reason `otherwise` if one is in it.

    The operating system holds the lock until the process ends. A bucket has no such lock: nobody is kept out.
    """
    if in_bucket(folder):
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BadInput(f"{folder}: {otherwise}; wait for it, or choose another folder") from error
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def scratch(path: str) -> Iterator[str]:
    """A new folder on disk to write in; `rename` moves the result to `path` or beside it. Removed at the end.

    On disk it is beside the path, so that moving is renaming; for a bucket in the folder for temporary files, locked so
    that `sweep` leaves it.
    """
    if not in_bucket(path):
        folder, held = temporary(path), contextlib.nullcontext()
        shutil.rmtree(folder, ignore_errors=True)  # left by a killed process with this process ID
        os.mkdir(folder)
    else:
        folder = tempfile.mkdtemp(prefix=_SCRATCH)
        held = locked(folder, "in use")
    with held:
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def sweep(folder: str) -> None:
    """Removes `temporary` and `scratch` leftovers of killed processes; on disk only while the folder is locked."""
    if not in_bucket(folder):
        for name in os.listdir(folder) if os.path.isdir(folder) else []:
            if _TEMPORARY.search(name):
                shutil.rmtree(path) if os.path.isdir(path := os.path.join(folder, name)) else os.remove(path)
        return
    for path in glob.glob(os.path.join(glob.escape(tempfile.gettempdir()), f"{_SCRATCH}*")):
        with contextlib.suppress(OSError, BadInput), locked(path, "in use"):
            if time.time() - os.stat(path).st_mtime > _SCRATCH_SECONDS:
                shutil.rmtree(path)


@contextlib.contextmanager
def on_disk(folder: str) -> Iterator[str]:
    """A folder for a library that can only write to disks; at the end its files are in `folder`."""
    if not in_bucket(folder):
        yield folder
        return
    with scratch(folder) as place:
        yield place
        with bucket.connected(folder) as remote:
            remote.put(f"{place}/", f"{folder.rstrip('/')}/", recursive=True)


@contextlib.contextmanager
def local_copy(path: str) -> Iterator[str]:
    """A file on disk with the same bytes: itself, or a copy in `scratch`; OSError if that disk is full."""
    if not in_bucket(path):
        yield path
        return
    with scratch(path) as folder:
        copy = os.path.join(folder, os.path.basename(path))
        with bucket.connected(path) as remote:
            remote.get_file(path, copy)
        yield copy


def find(name: str, suffixes: tuple[str, ...]) -> tuple[list[File], bool]:
    """`files.find` on disk."""
    if is_folder := os.path.isdir(name):
        paths = list(_below(name, suffixes))
    else:
        paths = [path for path in glob.glob(name, recursive=True) if os.path.isfile(path)]
        if not paths and not glob.has_magic(name) and os.path.lexists(os.path.dirname(name) or "."):
            with contextlib.suppress(FileNotFoundError):
                os.stat(name)  # raises the reason
    # A file with two names is read once, under the first name.
    stats = {os.path.realpath(path): (os.path.abspath(path), os.stat(path)) for path in sorted(paths, reverse=True)}
    return [File(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats.values()], is_folder


def _below(folder: str, suffixes: tuple[str, ...]) -> Iterator[str]:
    def fail(error: OSError) -> None:
        raise error

    seen: set[str] = set()
    for parent, folders, names in os.walk(folder, onerror=fail, followlinks=True):
        # A link may point to a folder that was already read, or to a parent.
        if (real := os.path.realpath(parent)) in seen:
            folders.clear()
            continue
        seen.add(real)
        folders.sort()
        for name in names:
            if name.lower().endswith(suffixes):
                os.stat(os.path.join(parent, name))
                yield os.path.join(parent, name)
