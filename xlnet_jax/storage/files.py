"""Files that appear complete or not at all, even if processes are killed. `gs://` in a path means a bucket.

Callers do not ask which one a path needs. Where a bucket can do less than a disk, `at(path)` has a flag. Every function
raises for a bucket also what `bucket.translate_errors` does, and BadInput for an address that is not `gs://BUCKET/...`
or if gcsfs is not installed.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from typing import IO, Any, NamedTuple

import numpy as np

from xlnet_jax.errors import BadInput, check_link, summary
from xlnet_jax.storage import bucket, local
from xlnet_jax.storage.bucket import in_bucket
from xlnet_jax.storage.local import File, local_copy, locked, on_disk, publish, scratch, sweep, temporary

__all__ = ["local_copy", "locked", "on_disk", "publish", "scratch", "sweep", "temporary"]

# Errors of ArrayRecord have no number, only the text of these.
_WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM)


class Storage(NamedTuple):
    """A disk (local or mounted), or a bucket."""

    appends: bool
    """Whether a file can grow."""
    locks: bool
    """Whether `locked` excludes other processes."""
    seeks: bool
    """Whether random access and a second read are cheap."""
    translate_errors: Callable[[str], contextlib.AbstractContextManager[Any]]
    """`bucket.translate_errors`; on disk an OSError stays as it is, because it says what is wrong."""


def at(path: str) -> Storage:
    """The storage of a path."""
    disk = not in_bucket(path)
    return Storage(disk, disk, disk, contextlib.nullcontext if disk else bucket.translate_errors)


def resolve(path: str) -> str:
    """The path for other libraries, from any working directory; prepares them to use a bucket."""
    if not in_bucket(path):
        return os.path.abspath(path)
    bucket.use(path)
    return path.rstrip("/")


def check_writable(path: str, option: str) -> None:
    """Raises BadInput, naming the option, unless the folder can be created or written to.

    Does nothing for a bucket: only a request shows what it allows.
    """
    if in_bucket(path):
        return
    check_link(option, path)
    above = os.path.abspath(path)
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    if not os.path.isdir(above):
        raise BadInput(f"{option}={path}: {above} is a file; name a new folder, or that of a run")
    if not os.access(above, os.R_OK | os.W_OK | os.X_OK):
        raise BadInput(f"{option}={path}: no permission to write in {above}; choose another folder")


def make_folder(path: str) -> None:
    """Makes a folder and its parents; a bucket has no folders to make."""
    if not in_bucket(path):
        if os.path.exists(path) and not os.path.isdir(path):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)  # makedirs says only: File exists
        os.makedirs(path, exist_ok=True)


def listing(folder: str) -> dict[str, int]:
    """The names in a folder (of a subfolder: with `/`), each with its bytes; empty if there is no such folder.

    Asks a bucket every time: another process may have written there.
    """
    found: dict[str, int] = {}
    if in_bucket(folder):
        above = folder.partition("://")[2].rstrip("/") + "/"
        with bucket.connected(folder) as remote, contextlib.suppress(FileNotFoundError):
            for entry in remote.ls(folder, detail=True):
                name = entry["name"].removeprefix(above).rstrip("/")
                # Some tools make an empty object with the folder's own name.
                if name and entry["name"].startswith(above):
                    found[name + "/" * (entry["type"] == "directory")] = entry["size"] or 0
    elif os.path.lexists(folder):
        with os.scandir(folder) as entries:
            for entry in entries:
                # Another process may rename or remove an entry while this one reads the folder.
                with contextlib.suppress(FileNotFoundError):
                    # A link has the size of its target; a dangling link has its own.
                    size = entry.stat(follow_symlinks=os.path.exists(entry.path)).st_size
                    found[entry.name + "/" * entry.is_dir()] = size
    return found


def finished_folders(folder: str, mark: str) -> list[str]:
    """The names of the complete folders in a folder: on disk a folder gets its name when it is complete.

    Args:
      mark: the file that is written last in a bucket, which cannot rename a folder atomically.
    """
    names = [name[:-1] for name in listing(folder) if name.endswith("/")]
    return [name for name in names if not in_bucket(folder) or mark in listing(f"{folder}/{name}")]


def find(name: str, suffixes: tuple[str, ...]) -> tuple[list[File], bool]:
    """The files that a name matches, and whether it is a folder.

    Args:
      name: of a file, of a folder (its files with one of `suffixes`, at any depth), or a pattern. In a bucket a folder
        exists if it has contents.

    Raises OSError if one of them cannot be accessed, or a link points to nothing.
    """
    if not in_bucket(name):
        return local.find(name, suffixes)
    with bucket.connected(name) as remote:
        if glob.has_magic(name):
            entries, is_folder = remote.glob(name, detail=True), False
        else:
            entries = remote.find(name, detail=True)
            is_folder = bool(entries) and remote.info(name)["type"] == "directory"
    return [
        # In whole microseconds, as a bucket has them; a float cannot hold today's time in nanoseconds.
        File(f"gs://{path}", entry["size"], round(entry["mtime"].timestamp() * 1_000_000) * 1000)
        for path, entry in entries.items()
        if entry["type"] == "file" and (not is_folder or path.lower().endswith(suffixes))
    ], is_folder


def read(path: str) -> bytes:
    """Reads a file, from a bucket in one request; FileNotFoundError if there is none."""
    if not in_bucket(path):
        with open(path, "rb") as file:
            return file.read()
    with bucket.connected(path) as remote:
        return remote.cat_file(path)


def read_ranges(folder: str, ranges: list[tuple[str, int, int]]) -> list[bytes]:
    """Reads bytes [start, end) of files in a bucket, given as (name, start, end); all requests at the same time."""
    names, starts, ends = (list(column) for column in zip(*ranges, strict=True)) if ranges else ([], [], [])
    paths = [f"{folder.rstrip('/')}/{name}" for name in names]
    with bucket.connected(folder) as remote:
        found = remote.cat_ranges(paths, starts, ends, on_error="return")
    for path, each in zip(paths, found, strict=True):
        if isinstance(each, FileNotFoundError):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from each
        if isinstance(each, Exception):
            with bucket.connected(path):
                raise each
    return found


@contextlib.contextmanager
def open_to_read(path: str, block: int) -> Iterator[IO[bytes]]:
    """A file to read; from a bucket with requests of two blocks, and BadInput if it cannot be opened."""
    if not in_bucket(path):
        with open(path, "rb") as file:
            yield file
        return
    with bucket.connected(path) as remote:
        try:
            file = remote.open(path, "rb", block_size=block)
        except OSError as error:
            # Here, because callers take an OSError while reading for a decoder's error about damaged data.
            why = os.strerror(errno.ENOENT) if isinstance(error, FileNotFoundError) else summary(error)
            raise BadInput(f"{path}: {why}") from error
        with file:
            yield io.BufferedReader(file, block)


def write(path: str, data: bytes) -> None:
    """Writes a whole file."""
    if in_bucket(path):
        with bucket.connected(path) as remote:
            remote.pipe_file(path, data)
        return
    try:
        with open(temporary(path), "wb") as file:
            file.write(data)
        publish(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.remove(temporary(path))  # frees space on a full disk
        error.filename = path
        raise


def write_new(path: str, data: bytes) -> bool:
    """Writes a file unless it exists, which a bucket itself sees to; returns whether it was written."""
    if not in_bucket(path):
        if os.path.exists(path):
            return False
        write(path, data)
        return True
    with bucket.connected(path) as remote:
        try:
            remote.pipe_file(path, data, mode="create")
        except FileExistsError:
            return False
        return True


def append_line(path: str, line: str) -> None:
    """Adds a line to a short file; in a bucket, where files cannot grow, the complete file is written again."""
    if in_bucket(path):
        write(path, (read_if_there(path) or b"") + line.encode())
        return
    with open(path, "a+b") as file:
        # A killed process may have left an incomplete line.
        if file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
            file.write(b"\n")
        file.write(line.encode())


def rename(path: str, to: str) -> None:
    """Renames a file, which replaces one of that name, or a folder: atomically on disk, file by file in a bucket.

    Args:
      path: where `to` is, or a finished file in `scratch`.
    """
    if not in_bucket(to):
        os.replace(path, to)
        return
    with bucket.connected(to) as remote:
        if in_bucket(path):
            remote.mv(path, to, recursive=True)
        else:
            remote.put_file(path, to)


def remove(path: str) -> None:
    """Removes a file or a folder with its contents, if it exists."""
    with contextlib.suppress(FileNotFoundError):
        if in_bucket(path):
            with bucket.connected(path) as remote:
                remote.rm(path, recursive=True)
        elif os.path.isdir(path):
            shutil.rmtree(path)
        else:
            os.remove(path)


@contextlib.contextmanager
def translate_errors(path: str) -> Iterator[None]:
    """Turns errors of a disk or a bucket into one line: a full disk, a lost permission, no answer.

    Args:
      path: named if the error names no file.

    Raises:
      BadInput: it must be repaired; an OSError, ArrayRecord's RuntimeError for the same, a bucket that refuses.
      RestartMe: the bucket does not answer, which may be temporary.
    """
    try:
        with at(path).translate_errors(path):
            yield
    except (OSError, RuntimeError) as error:
        if not isinstance(error, OSError) and not any(os.strerror(number) in str(error) for number in _WRITE_ERRORS):
            raise
        where = getattr(error, "filename", None) or path
        raise BadInput(f"{where}: {summary(error)}; fix this and rerun the same command") from error


def read_if_there(path: str) -> bytes | None:
    """Reads a whole file; None if there is none."""
    try:
        return read(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def to_json(value: Any, indent: int | None = 1) -> bytes:
    """JSON as it is written to disk; five times faster without `indent`."""
    return (json.dumps(value, indent=indent, ensure_ascii=False) + "\n").encode()


def read_json(path: str) -> Any:
    """Reads a JSON file."""
    return json.loads(read(path))


def array_bytes(array: np.ndarray) -> bytes:
    """A `.npy` file."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def read_array(path: str) -> np.ndarray:
    """Reads a `.npy` file."""
    return np.load(io.BytesIO(read(path)))
