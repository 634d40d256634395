"""Files in a bucket, with fsspec. An object appears complete; the bucket can refuse to replace it.

This module uses gcsfs; Orbax uses gcsfs and TensorStore, whose errors differ.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import io
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from typing import IO, Any

from xlnet_jax.errors import BadInput, RestartMe, XLNetError, causes, summary
from xlnet_jax.storage.local import File, Local

_SCRATCH = "xlnet_jax_scratch_"
_SCRATCH_SECONDS = 60  # a younger folder may not be locked yet
_DISK = Local()
# HTTP status by the first word of TensorStore's errors of a bucket; 0 = no answer.
_TENSORSTORE_CODES = {
    "PERMISSION_DENIED": 403,
    "UNAUTHENTICATED": 401,
    "NOT_FOUND": 404,
    "UNAVAILABLE": 503,
    "ABORTED": 0,
    "DEADLINE_EXCEEDED": 0,
    "RESOURCE_EXHAUSTED": 429,
    "CANCELLED": 0,
    "INTERNAL": 500,
    "UNKNOWN": 0,
}
_TENSORSTORE_ERROR = re.compile(f"({'|'.join(_TENSORSTORE_CODES)}): ")


def _use(path: str) -> Any:
    """Makes all libraries of this process access buckets alike; returns fsspec."""
    if not path.startswith("gs://") or not path.removeprefix("gs://").strip("/"):
        raise BadInput(f"{path}: not gs://BUCKET/...; name such an address or a folder")
    try:
        import fsspec
        import fsspec.config
        import gcsfs  # noqa: F401
    except ImportError as error:
        raise BadInput(
            f"{path}: gs:// needs the package gcsfs; install it, or the extra `tpu`"
        ) from error
    # Otherwise TFDS, Orbax and JAX use TensorFlow for buckets if it is installed.
    os.environ.setdefault("EPATH_USE_TF", "false")
    # No cached listings: other processes, and TensorStore in this process, write to the bucket.
    fsspec.config.conf.setdefault("gcs", {}).setdefault("use_listings_cache", False)
    return fsspec


class Bucket:
    """Addresses `gs://BUCKET/...`. Methods work as in `Local`, and also raise:

    BadInput: not a gs:// address, gcsfs is not installed, no credentials, or the bucket refuses.
    RestartMe: the bucket does not answer, which may be temporary.
    """

    appends = locks = False

    @contextlib.contextmanager
    def _connected(self, path: str) -> Iterator[Any]:
        fsspec = _use(path)
        with self.translate_errors(path):
            try:
                yield fsspec.filesystem("gcs", use_listings_cache=False)
            except ValueError as error:
                # The error of gcsfs for the HTTP status "bad request".
                raise BadInput(
                    f"{path}: {summary(error)}; fix this and rerun the same command"
                ) from error

    @contextlib.contextmanager
    def translate_errors(self, path: str) -> Iterator[None]:
        """Turns an error of gcsfs, Orbax or TensorStore into one line, if the bucket refuses or
        does not answer.
        """
        import google.auth.exceptions as auth

        try:
            yield
        except XLNetError:
            raise
        except Exception as error:
            for cause in causes(error):
                # TensorStore adds the complete request and answer in brackets.
                text = summary(cause).partition(" [")[0]
                code = 401 if isinstance(cause, auth.GoogleAuthError) else _answer(cause)
                if code is None:
                    continue
                if 400 <= code < 500 and code not in (408, 429):
                    advice = "fix this and rerun the same command"
                    raise BadInput(f"{path}: the bucket refuses ({text}); {advice}") from error
                raise RestartMe(f"{path}: {text}; rerun the same command to resume") from error
            raise

    def resolve(self, path: str) -> str:
        """Checks the address, and prepares other libraries to use it."""
        _use(path)
        return path.rstrip("/")

    def make_folder(self, path: str) -> None:
        """A bucket has no folders to make."""

    def listing(self, folder: str) -> dict[str, int]:
        """Sends a request every time, since another process may have written."""
        sizes = {}
        above = folder.partition("://")[2].rstrip("/") + "/"
        with self._connected(folder) as remote, contextlib.suppress(FileNotFoundError):
            for entry in remote.ls(folder, detail=True):
                name = entry["name"].removeprefix(above).rstrip("/")
                # Some tools make an empty object with the folder's own name.
                if name and entry["name"].startswith(above):
                    sizes[name + "/" * (entry["type"] == "directory")] = entry["size"] or 0
        return sizes

    def find(self, name: str, suffixes: tuple[str, ...]) -> tuple[list[File], list[str] | None]:
        """A folder exists if it has contents; a name may be a file."""
        with self._connected(name) as remote:
            if glob.has_magic(name):
                entries = remote.glob(name, detail=True)
                is_folder = False
            else:
                entries = remote.find(name, detail=True)
                is_folder = bool(entries) and remote.info(name)["type"] == "directory"
        every = [
            # Whole microseconds, as in a bucket: a float cannot hold the time in nanoseconds.
            File(
                f"gs://{path}", entry["size"], round(entry["mtime"].timestamp() * 1_000_000) * 1000
            )
            for path, entry in entries.items()
            if entry["type"] == "file"
        ]
        if not is_folder:
            return every, None
        others = [file.path for file in every if not file.path.lower().endswith((*suffixes, "/"))]
        return [file for file in every if file.path.lower().endswith(suffixes)], others

    def read(self, path: str) -> bytes:
        """One request."""
        with self._connected(path) as remote:
            return remote.cat_file(path)

    def read_ranges(self, folder: str, ranges: list[tuple[str, int, int]]) -> list[bytes]:
        """Reads bytes [start, end) of files, given as (name, start, end), all
        requested at once. A disk needs no such method.
        """
        if not ranges:
            return []
        names, starts, ends = zip(*ranges, strict=True)
        paths = [f"{folder.rstrip('/')}/{name}" for name in names]
        with self._connected(folder) as remote:
            parts = remote.cat_ranges(paths, list(starts), list(ends), on_error="return")
        for path, each in zip(paths, parts, strict=True):
            if isinstance(each, FileNotFoundError):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from each
            if isinstance(each, Exception):
                with self._connected(path):
                    raise each
        return parts

    @contextlib.contextmanager
    def open_to_read(self, path: str, block: int) -> Iterator[IO[bytes]]:
        """Requests two blocks at a time. A file that cannot be opened raises BadInput here."""
        with self._connected(path) as remote:
            try:
                file = remote.open(path, "rb", block_size=block)
            except OSError as error:
                # Not raised as OSError: for callers an OSError is a decoder's error about damaged
                # data.
                why = (
                    os.strerror(errno.ENOENT)
                    if isinstance(error, FileNotFoundError)
                    else summary(error)
                )
                raise BadInput(f"{path}: {why}") from error
            with file:
                yield io.BufferedReader(file, block)

    @contextlib.contextmanager
    def local_copy(self, path: str) -> Iterator[str]:
        """Copies into the folder for temporary files. Also raises OSError of that disk."""
        with self.scratch(path) as folder:
            copy = os.path.join(folder, os.path.basename(path))
            with self._connected(path) as remote:
                remote.get_file(path, copy)
            yield copy

    def write(self, path: str, data: bytes) -> None:
        """An object always appears complete."""
        with self._connected(path) as remote:
            remote.pipe_file(path, data)

    def write_new(self, path: str, data: bytes) -> bool:
        """The bucket itself refuses to replace an object."""
        with self._connected(path) as remote:
            try:
                remote.pipe_file(path, data, mode="create")
            except FileExistsError:
                return False
            return True

    def rename(self, path: str, to: str) -> None:
        """Moves file by file, not atomically; uploads a file from disk."""
        with self._connected(to) as remote:
            if "://" in path:
                remote.mv(path, to, recursive=True)
            else:
                remote.put_file(path, to)

    def remove(self, path: str) -> None:
        """Removes file by file, not atomically."""
        with self._connected(path) as remote, contextlib.suppress(FileNotFoundError):
            remote.rm(path, recursive=True)

    def locked(self, folder: str, otherwise: str) -> contextlib.AbstractContextManager[None]:
        """Does not exclude other processes."""
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def scratch(self, path: str) -> Iterator[str]:
        """A folder in the system's folder for temporary files, locked so that `sweep` keeps it."""
        with (
            tempfile.TemporaryDirectory(prefix=_SCRATCH, ignore_cleanup_errors=True) as folder,
            _DISK.locked(folder, "in use"),
        ):
            yield folder

    def sweep(self, folder: str) -> None:
        """Removes folders of `scratch` from the system's folder for temporary files."""
        parent = tempfile.gettempdir()
        for path in (
            os.path.join(parent, name) for name in os.listdir(parent) if name.startswith(_SCRATCH)
        ):
            with contextlib.suppress(OSError, BadInput), _DISK.locked(path, "in use"):
                if time.time() - os.stat(path).st_mtime > _SCRATCH_SECONDS:
                    shutil.rmtree(path)

    @contextlib.contextmanager
    def on_disk(self, folder: str) -> Iterator[str]:
        """A folder of `scratch`; uploads its files at the end."""
        with self.scratch(folder) as copy:
            yield copy
            for name in glob.glob("**", root_dir=copy, recursive=True, include_hidden=True):
                if os.path.isfile(path := os.path.join(copy, name)):
                    self.rename(path, f"{folder.rstrip('/')}/{name}")


def is_missing(error: BaseException) -> bool:
    """Whether an error means that an object does not exist."""
    return any(_answer(cause) == 404 for cause in causes(error))


def _answer(error: BaseException) -> int | None:
    """The HTTP status of a bucket's error, 0 if there was no answer; None for other errors."""
    import aiohttp
    import gcsfs.retry
    import requests
    from google.api_core import exceptions as google

    if isinstance(error, aiohttp.ClientError | gcsfs.retry.HttpError | google.GoogleAPICallError):
        return int(getattr(error, "code", None) or 0)
    if isinstance(
        error,
        requests.RequestException | google.RetryError | gcsfs.retry.ChecksumError | TimeoutError,
    ):
        return 0
    if isinstance(error, OSError) and str(error).startswith("Forbidden: "):
        return 403  # gcsfs
    if isinstance(error, ValueError) and (match := _TENSORSTORE_ERROR.match(str(error))):
        return _TENSORSTORE_CODES[match[1]]
    return None
