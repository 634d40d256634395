"""Files in a bucket, by fsspec: an object appears whole by itself; what must be new is written only if there is none.

gcsfs carries single files, Orbax writes with it and with TensorStore, the lock of a run uses Google's own client; each
has errors of its own.
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
_SCRATCH_SECONDS = 60  # a younger one may not be locked yet
_DISK = Local()
# How TensorStore begins what it says of a bucket, and the HTTP status of the same meaning.
_TENSORSTORE_CODES = {
    "PERMISSION_DENIED": 403, "UNAUTHENTICATED": 401, "NOT_FOUND": 404, "UNAVAILABLE": 503, "ABORTED": 0,
    "DEADLINE_EXCEEDED": 0, "RESOURCE_EXHAUSTED": 429, "CANCELLED": 0, "INTERNAL": 500, "UNKNOWN": 0,
}  # fmt: skip
_TENSORSTORE_ERROR = re.compile(f"({'|'.join(_TENSORSTORE_CODES)}): ")


def _use(path: str) -> Any:
    """Makes all libraries of this process go to buckets in one way; returns fsspec."""
    if not path.startswith("gs://") or not path.removeprefix("gs://").strip("/"):
        raise BadInput(f"{path}: of the addresses only gs://BUCKET/... works; otherwise name a folder")
    try:
        import fsspec
        import fsspec.config
        import gcsfs  # noqa: F401
    except ImportError as error:
        raise BadInput(f"{path}: gs:// needs the package gcsfs; install it, or the extra `tpu`") from error
    # Or TFDS, Orbax and JAX would go there with TensorFlow where that is installed.
    os.environ.setdefault("EPATH_USE_TF", "false")
    # Listings are not kept: another process may write there, and so does TensorStore in this one.
    fsspec.config.conf.setdefault("gcs", {}).setdefault("use_listings_cache", False)
    return fsspec


class Bucket:
    """Addresses, of which only `gs://BUCKET/...` works. Methods do as those of `Local`, and raise besides:

    BadInput: another address, gcsfs is not installed, no credentials, or the bucket refuses.
    RestartMe: the bucket does not answer, which may pass.
    """

    appends = locks = seeks = False

    @contextlib.contextmanager
    def _connected(self, path: str) -> Iterator[Any]:
        fsspec = _use(path)
        with self.translate_errors(path):
            try:
                yield fsspec.filesystem("gcs", use_listings_cache=False)
            except ValueError as error:
                # gcsfs for the answer "bad request".
                raise BadInput(f"{path}: {summary(error)}; fix this and rerun the same command") from error

    @contextlib.contextmanager
    def translate_errors(self, path: str) -> Iterator[None]:
        """Tells in one line what gcsfs, Orbax or TensorStore says of a bucket that refuses or does not answer."""
        import google.auth.exceptions as auth

        try:
            yield
        except XLNetError:
            raise
        except Exception as error:
            for cause in causes(error):
                # TensorStore goes on with the whole request and the whole answer in brackets.
                text = summary(cause).partition(" [")[0]
                code = 401 if isinstance(cause, auth.GoogleAuthError) else _answer(cause)
                if code is None:
                    continue
                if 400 <= code < 500 and code not in (408, 429):
                    advice = "fix this and rerun the same command"
                    raise BadInput(f"{path}: the bucket refuses ({text}); {advice}") from error
                raise RestartMe(f"{path}: {text}; rerun the same command to go on") from error
            raise

    def resolve(self, path: str) -> str:
        """Checks the address, and makes other libraries able to use it."""
        _use(path)
        return path.rstrip("/")

    def check_writable(self, path: str, option: str) -> None:
        """Does nothing: only a request shows what the bucket allows."""
        del path, option

    def make_folder(self, path: str) -> None:
        """A bucket has no folders to make."""

    def listing(self, folder: str) -> dict[str, int]:
        """Asks anew every time: another process may have written there."""
        found = {}
        above = folder.partition("://")[2].rstrip("/") + "/"
        with self._connected(folder) as remote, contextlib.suppress(FileNotFoundError):
            for entry in remote.ls(folder, detail=True):
                name = entry["name"].removeprefix(above).rstrip("/")
                # Some tools make an empty object of the folder's own name.
                if name and entry["name"].startswith(above):
                    found[name + "/" * (entry["type"] == "directory")] = entry["size"] or 0
        return found

    def finished_folders(self, folder: str, mark: str) -> list[str]:
        """Those that hold `mark`: no folder can be renamed at once."""
        names = [name[:-1] for name in self.listing(folder) if name.endswith("/")]
        return [name for name in names if mark in self.listing(f"{folder}/{name}")]

    def find(self, name: str, suffixes: tuple[str, ...]) -> tuple[list[File], bool]:
        """A folder is there if something lies in it; a file is found under its own name."""
        with self._connected(name) as remote:
            if glob.has_magic(name):
                entries, is_folder = remote.glob(name, detail=True), False
            else:
                entries = remote.find(name, detail=True)
                is_folder = bool(entries) and remote.info(name)["type"] == "directory"
        return [
            # In whole microseconds, which is all that a bucket has; a float cannot hold the nanoseconds of today.
            File(f"gs://{path}", entry["size"], round(entry["mtime"].timestamp() * 1_000_000) * 1000)
            for path, entry in entries.items()
            if entry["type"] == "file" and (not is_folder or path.lower().endswith(suffixes))
        ], is_folder

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """One request."""
        with self._connected(path) as remote:
            return remote.cat_file(path, start=start or None, end=end)

    @contextlib.contextmanager
    def open_to_read(self, path: str, block: int) -> Iterator[IO[bytes]]:
        """Asks for two blocks at once. A file that cannot be opened is BadInput here already."""
        with self._connected(path) as remote:
            try:
                file = remote.open(path, "rb", block_size=block)
            except FileNotFoundError as error:
                raise BadInput(f"{path}: {os.strerror(errno.ENOENT)}") from error
            except OSError as error:
                # Here, because while reading it would be taken for what a decoder says of damaged data.
                raise BadInput(f"{path}: {summary(error)}") from error
            with file:
                yield io.BufferedReader(file, block)

    @contextlib.contextmanager
    def local_copy(self, path: str) -> Iterator[str]:
        """In the folder for temporary files. Raises also OSError: of that disk."""
        with self.scratch(path) as folder:
            copy = os.path.join(folder, os.path.basename(path))
            with self._connected(path) as remote:
                remote.get_file(path, copy)
            yield copy

    def write(self, path: str, data: bytes) -> None:
        """An object appears whole by itself."""
        with self._connected(path) as remote:
            remote.pipe_file(path, data)

    def write_new(self, path: str, data: bytes) -> bool:
        """The bucket itself refuses a second one."""
        with self._connected(path) as remote:
            try:
                remote.pipe_file(path, data, mode="create")
            except FileExistsError:
                return False
            return True

    def append_line(self, path: str, line: str) -> None:
        """Writes all lines again."""
        try:
            before = self.read(path)
        except FileNotFoundError:
            before = b""
        self.write(path, before + line.encode())

    def move(self, path: str, to: str) -> None:
        """Sends a file from disk."""
        with self._connected(to) as remote:
            remote.put_file(path, to)

    def rename(self, path: str, to: str) -> None:
        """File by file."""
        with self._connected(path) as remote:
            remote.mv(path, to, recursive=True)

    def remove(self, path: str) -> None:
        """File by file."""
        with self._connected(path) as remote, contextlib.suppress(FileNotFoundError):
            remote.rm(path, recursive=True)

    def locked(self, folder: str, otherwise: str) -> contextlib.AbstractContextManager[None]:
        """Keeps nobody out."""
        del folder, otherwise
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def scratch(self, path: str) -> Iterator[str]:
        """In the folder for temporary files; `sweep` leaves it alone while it is locked."""
        del path
        folder = tempfile.mkdtemp(prefix=_SCRATCH)
        with _DISK.locked(folder, "in use"):
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def sweep(self, folder: str) -> None:
        """In the folder for temporary files."""
        del folder
        parent = tempfile.gettempdir()
        for path in (os.path.join(parent, name) for name in os.listdir(parent) if name.startswith(_SCRATCH)):
            with contextlib.suppress(OSError, BadInput), _DISK.locked(path, "in use"):
                if time.time() - os.stat(path).st_mtime > _SCRATCH_SECONDS:
                    shutil.rmtree(path)

    @contextlib.contextmanager
    def on_disk(self, folder: str) -> Iterator[str]:
        """In `scratch`, from where the files are sent."""
        with self.scratch(folder) as place:
            yield place
            for above, _, names in os.walk(place):
                for name in names:
                    path = os.path.join(above, name)
                    self.move(path, f"{folder.rstrip('/')}/{os.path.relpath(path, place)}")


def is_missing(error: BaseException) -> bool:
    """Whether an error means that an object is not there."""
    return any(_answer(cause) == 404 for cause in causes(error))


def _answer(error: BaseException) -> int | None:
    """The HTTP status that an error of a bucket stands for, 0 where there was no answer; None if it is none."""
    import aiohttp
    import gcsfs.retry
    import requests
    from google.api_core import exceptions as google

    if isinstance(error, aiohttp.ClientError | gcsfs.retry.HttpError | google.GoogleAPICallError):
        return int(getattr(error, "code", None) or 0)
    if isinstance(error, requests.RequestException | google.RetryError | gcsfs.retry.ChecksumError | TimeoutError):
        return 0
    if isinstance(error, OSError) and str(error).startswith("Forbidden: "):
        return 403  # gcsfs
    if isinstance(error, ValueError) and (match := _TENSORSTORE_ERROR.match(str(error))):
        return _TENSORSTORE_CODES[match[1]]
    return None
