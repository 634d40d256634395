"""Files on disk: written under a temporary name, made durable and renamed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from typing import IO, NamedTuple

from xlnet_jax.errors import BadInput

_TEMPORARY = re.compile(r"\.\d+\.tmp$")


class File(NamedTuple):
    """A file with its size and its time of change."""

    path: str
    bytes: int
    mtime_ns: int


def temporary(path: str) -> str:
    """The temporary name that `publish` renames to `path`; each process has its own."""
    return f"{path}.{os.getpid()}.tmp"


def publish(path: str) -> None:
    """Makes `temporary(path)` durable and renames it to `path`, replacing any file there."""
    with open(temporary(path), "rb") as file:
        os.fsync(file.fileno())
    os.replace(temporary(path), path)


class Local:
    """Paths on local or mounted disks."""

    appends = True
    """Whether files can grow."""
    locks = True
    """Whether `locked` excludes other processes."""

    def translate_errors(self, path: str) -> contextlib.AbstractContextManager[None]:
        """Does not change an OSError: its text already names the fault."""
        return contextlib.nullcontext()

    def resolve(self, path: str) -> str:
        """The absolute path, for other libraries. Raises BadInput for an unusable address."""
        return os.path.abspath(path)

    def make_folder(self, path: str) -> None:
        """Makes a folder and its parents."""
        if os.path.exists(path) and not os.path.isdir(path):
            # `makedirs` would only raise "File exists".
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        os.makedirs(path, exist_ok=True)

    def listing(self, folder: str) -> dict[str, int]:
        """Bytes by name in a folder, names of subfolders with `/`; empty if the folder does not
        exist.
        """
        if not os.path.lexists(folder):
            return {}
        sizes = {}
        with os.scandir(folder) as entries:
            for entry in entries:
                # Another process may rename or remove an entry while this one reads the folder.
                with contextlib.suppress(FileNotFoundError):
                    # A link has the size of its target; a dangling link, or one of a loop of
                    # links, has its own.
                    follow = os.path.exists(entry.path)
                    size = entry.stat(follow_symlinks=follow).st_size
                    sizes[entry.name + "/" * entry.is_dir(follow_symlinks=follow)] = size
        return sizes

    def find(self, name: str, suffixes: tuple[str, ...]) -> tuple[list[File], list[str] | None]:
        """Returns the files that `name` matches, and the paths of the other files of a folder (None
        if `name` is no folder).

        `name` is a file, a folder (its files with `suffixes`, at any depth), or a pattern. Raises
        OSError if a file cannot be accessed, or if the target of a link does not exist.
        """
        others = None
        if os.path.isdir(name):
            every = list(self._below(name))
            paths = [path for path in every if path.lower().endswith(suffixes)]
            others = [path for path in every if not path.lower().endswith(suffixes)]
        else:
            paths = [path for path in glob.glob(name, recursive=True) if os.path.isfile(path)]
            if (
                not paths
                and not glob.has_magic(name)
                and os.path.lexists(os.path.dirname(name) or ".")
            ):
                with contextlib.suppress(FileNotFoundError):
                    os.stat(name)  # raises the reason
                    raise OSError(
                        errno.EINVAL,
                        "a pipe or a device, not a file; copy the text to a file",
                        name,
                    )
        # A file with two names is read once, under the first name.
        stats = {
            os.path.realpath(path): (os.path.abspath(path), os.stat(path))
            for path in sorted(paths, reverse=True)
        }
        return [File(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats.values()], others

    def _below(self, folder: str) -> Iterator[str]:
        def fail(error: OSError) -> None:
            raise error

        seen: set[str] = set()
        for parent, folders, names in os.walk(folder, onerror=fail, followlinks=True):
            # A link may point to a parent or to a folder that was already read.
            if (real := os.path.realpath(parent)) in seen:
                folders.clear()
                continue
            seen.add(real)
            folders.sort()
            yield from (os.path.join(parent, name) for name in names)

    def read(self, path: str) -> bytes:
        """Reads a file; FileNotFoundError if it does not exist."""
        with open(path, "rb") as file:
            return file.read()

    @contextlib.contextmanager
    def open_to_read(self, path: str, block: int) -> Iterator[IO[bytes]]:
        """Opens a file to read; a bucket sends `block` bytes per request."""
        with open(path, "rb") as file:
            yield file

    @contextlib.contextmanager
    def local_copy(self, path: str) -> Iterator[str]:
        """A file on disk with the same bytes, or a folder with the same files."""
        yield path

    def write(self, path: str, data: bytes) -> None:
        """Writes a whole file."""
        try:
            with open(temporary(path), "wb") as file:
                file.write(data)
            publish(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.remove(temporary(path))  # frees space on a full disk
            error.filename = path
            raise

    def write_new(self, path: str, data: bytes) -> bool:
        """Writes a file unless it exists; returns whether it was written."""
        if os.path.exists(path):
            return False
        self.write(path, data)
        return True

    def rename(self, path: str, to: str) -> None:
        """Renames a file, replacing `to`, or a folder with its contents; on disk atomically. `path`
        is in the folder of `to`, or a finished file in `scratch`.
        """
        os.replace(path, to)

    def remove(self, path: str) -> None:
        """Removes a file or a folder with its contents, if it exists."""
        if os.path.isdir(path):
            shutil.rmtree(path)
        else:
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)

    @contextlib.contextmanager
    def locked(self, folder: str, otherwise: str) -> Iterator[None]:
        """Keeps a second process out of an existing folder; BadInput with the reason `otherwise` if
        another process is in it.

        The operating system holds the lock until the process ends. A bucket has no lock.
        """
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise BadInput(
                    f"{folder}: {otherwise}; wait for it, or choose another folder"
                ) from error
            yield
        finally:
            os.close(descriptor)

    def scratch(self, path: str) -> contextlib.AbstractContextManager[str]:
        """A new folder to write in, removed at the end; `rename` moves the result to `path` or
        beside it.

        The folder is on the same disk as `path`, so a move is a renaming.
        """
        above, name = os.path.split(path)
        ending = temporary("")
        return tempfile.TemporaryDirectory(
            ending, f"{name}.", above or os.curdir, ignore_cleanup_errors=True
        )

    def sweep(self, folder: str) -> None:
        """Removes files of `temporary` and folders of `scratch` that killed processes have left. On
        disk the caller holds the lock.
        """
        for name in os.listdir(folder) if os.path.isdir(folder) else []:
            if _TEMPORARY.search(name):
                self.remove(os.path.join(folder, name))

    @contextlib.contextmanager
    def on_disk(self, folder: str) -> Iterator[str]:
        """A folder for a library that only writes to disks; at the end its files are in
        `folder`.
        """
        yield folder
