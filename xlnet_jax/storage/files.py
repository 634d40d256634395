"""Files that appear whole or not at all, whatever is killed when: on disk, and in a bucket where the path is `gs://`.

On disk a file is written under a temporary name, made durable and renamed. An object in a bucket appears whole by
itself. What a killed process leaves behind on disk, `sweep` removes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from xlnet_jax.errors import BadInput
from xlnet_jax.storage import buckets

_TEMPORARY = re.compile(r"\.\d+\.tmp$")
_SCRATCH = "xlnet_jax_scratch_"
_SCRATCH_SECONDS = 60  # a younger one may not be locked yet
# How ArrayRecord, whose errors carry no number, says that a file cannot be written.
_WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM)


def in_bucket(path: str) -> bool:
    """Whether the path is an address, which is to say in a bucket, and not on disk."""
    return "://" in path


@contextlib.contextmanager
def bucket(path: str) -> Iterator[Any]:
    """The file system (of fsspec) for a `gs://` path.

    Raises:
      BadInput: another address, gcsfs is not installed, or the bucket refuses.
      RestartMe: the bucket does not answer, which may pass.
      OSError: any other failure.
    """
    fsspec = buckets.use(path)
    with buckets.answers(path):
        try:
            yield fsspec.filesystem("gcs", use_listings_cache=False)
        except ValueError as error:
            # What gcsfs makes of the answer "bad request".
            raise BadInput(f"{path}: {buckets.line(error)}; put that right") from error


@contextlib.contextmanager
def one_line(path: str) -> Iterator[None]:
    """Tells of a full disk or a lost permission in one line instead of a traceback.

    Args:
      path: named where the error names no file.

    Raises:
      BadInput: an OSError happened, or ArrayRecord's RuntimeError for the same.
    """
    try:
        yield
    except OSError as error:
        text, path = error.strerror or buckets.line(error), error.filename or path
        raise BadInput(f"{path}: {text}; put that right and give the same command again, it goes on") from error
    except RuntimeError as error:
        if not any(os.strerror(number) in str(error) for number in _WRITE_ERRORS):
            raise
        raise BadInput(f"{path}: {buckets.line(error)}; put that right and give the same command again") from error


@contextlib.contextmanager
def locked(folder: str, otherwise: str) -> Iterator[None]:
    """Keeps a second process out of a folder that exists; BadInput with the reason `otherwise` if one is in it.

    The lock is the system's, so it goes when the process goes, however that ends. A bucket has none: there nobody is
    kept out.
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


def temporary(path: str) -> str:
    """Where to write what `publish` will move to `path`, on disk; another process gets another name."""
    return f"{path}.{os.getpid()}.tmp"


def publish(path: str) -> None:
    """Makes `temporary(path)` durable and gives it its name, in place of what may be there."""
    descriptor = os.open(temporary(path), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(temporary(path), path)


@contextlib.contextmanager
def scratch(path: str) -> Iterator[str]:
    """A new folder on disk to write in before `move` takes the result to `path` or beside it; removed at the end."""
    if not in_bucket(path):
        # On the same disk, so that moving is renaming.
        folder = temporary(path)
        shutil.rmtree(folder, ignore_errors=True)  # of a killed process that had this number
        os.mkdir(folder)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return
    folder = tempfile.mkdtemp(prefix=_SCRATCH)
    # `sweep` leaves alone what is locked. The system's lock ends with the process.
    with locked(folder, "in use"):
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def sweep(folder: str) -> None:
    """Removes what killed processes left of `temporary` and `scratch`. On disk only while the folder is locked."""
    if not in_bucket(folder):
        left = [name for name in os.listdir(folder) if _TEMPORARY.search(name)] if os.path.isdir(folder) else []
        for path in (os.path.join(folder, name) for name in left):
            shutil.rmtree(path, ignore_errors=True)
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                os.remove(path)
        return
    parent = tempfile.gettempdir()
    for path in (os.path.join(parent, name) for name in os.listdir(parent) if name.startswith(_SCRATCH)):
        with contextlib.suppress(OSError, BadInput), locked(path, "in use"):
            if time.time() - os.stat(path).st_mtime > _SCRATCH_SECONDS:
                shutil.rmtree(path)


def make_folder(path: str) -> None:
    """Makes a folder, and those above it; a bucket has none to make."""
    if in_bucket(path):
        return
    if os.path.exists(path) and not os.path.isdir(path):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)  # makedirs says only: File exists
    os.makedirs(path, exist_ok=True)


def listing(folder: str) -> dict[str, int]:
    """What is right in a folder, by name (of a folder: and `/`), with its bytes; nothing if there is no folder."""
    if in_bucket(folder):
        found = {}
        above = folder.partition("://")[2].rstrip("/") + "/"
        with bucket(folder) as remote, contextlib.suppress(FileNotFoundError):
            for entry in remote.ls(folder, detail=True):
                name = entry["name"].removeprefix(above).rstrip("/")
                # Some tools make an empty object of the folder's own name.
                if name and entry["name"].startswith(above):
                    found[name + "/" * (entry["type"] == "directory")] = entry["size"] or 0
        return found
    if not os.path.lexists(folder):
        return {}
    with os.scandir(folder) as entries:
        return {entry.name + "/" * entry.is_dir(): entry.stat(follow_symlinks=False).st_size for entry in entries}


def read(path: str) -> bytes:
    """Reads a whole file; FileNotFoundError if there is none."""
    if in_bucket(path):
        with bucket(path) as remote:
            return remote.cat_file(path)
    with open(path, "rb") as file:
        return file.read()


def read_if_there(path: str) -> bytes | None:
    """Reads a whole file; None if there is none."""
    try:
        return read(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def write(path: str, data: bytes) -> None:
    """Writes a whole file."""
    if in_bucket(path):
        with bucket(path) as remote:
            remote.pipe_file(path, data)
        return
    try:
        with open(temporary(path), "wb") as file:
            file.write(data)
        publish(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.remove(temporary(path))  # a full disk needs the room
        error.filename = path
        raise


def write_new(path: str, data: bytes) -> bool:
    """Writes a file that must not be there yet; returns whether it was so."""
    if in_bucket(path):
        with bucket(path) as remote:
            try:
                remote.pipe_file(path, data, mode="create")
            except FileExistsError:
                return False
            return True
    if os.path.exists(path):
        return False
    write(path, data)
    return True


def move(path: str, to: str) -> None:
    """Takes a finished file from `scratch` to its place."""
    if in_bucket(to):
        with bucket(to) as remote:
            remote.put_file(path, to)
    else:
        os.replace(path, to)


def rename(path: str, to: str) -> None:
    """Gives a file another name in the same folder or bucket, in place of what may be there."""
    if in_bucket(path):
        with bucket(path) as remote:
            remote.mv(path, to)
    else:
        os.replace(path, to)


def move_folder(path: str, to: str) -> None:
    """Moves a folder with all in it; on disk within one file system, at once."""
    if in_bucket(path):
        with bucket(path) as remote:
            remote.mv(path, to, recursive=True)
    else:
        os.rename(path, to)


def remove(path: str) -> None:
    """Removes a file or a folder with all in it; one that is not there is removed already."""
    if in_bucket(path):
        with bucket(path) as remote, contextlib.suppress(FileNotFoundError):
            remote.rm(path, recursive=True)
    elif os.path.isdir(path):
        shutil.rmtree(path)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)


@contextlib.contextmanager
def on_disk(folder: str) -> Iterator[str]:
    """A folder for a library that writes to disks only; what it leaves there is in `folder` in the end."""
    if not in_bucket(folder):
        yield folder
        return
    with scratch(folder) as place:
        yield place
        for above, _, names in os.walk(place):
            for name in names:
                path = os.path.join(above, name)
                move(path, f"{folder.rstrip('/')}/{os.path.relpath(path, place)}")


def append_line(path: str, line: str) -> None:
    """Adds a line to a file; in a bucket the whole is written again, so this is for files of a few lines."""
    if in_bucket(path):
        write(path, (read_if_there(path) or b"") + line.encode())
        return
    with open(path, "a+b") as file:
        # A killed process may have left a line without an end.
        if file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
            file.write(b"\n")
        file.write(line.encode())


def to_json(value: Any, indent: int | None = 1) -> bytes:
    """JSON as it is written to disk; without `indent` it is made five times as fast."""
    return (json.dumps(value, indent=indent, ensure_ascii=False) + "\n").encode()


def read_json(path: str) -> Any:
    """Reads what `to_json` made."""
    return json.loads(read(path))


def array_bytes(array: np.ndarray) -> bytes:
    """A `.npy` file."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def read_array(path: str) -> np.ndarray:
    """Reads what `array_bytes` made."""
    return np.load(io.BytesIO(read(path)))
