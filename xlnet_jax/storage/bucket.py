"""Files in a bucket or another store of fsspec. An object appears complete; the store can refuse to
replace it.

This module uses fsspec; Orbax uses gcsfs and TensorStore, whose errors differ.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import glob
import hashlib
import io
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import IO, Any

from xlnet_jax.errors import BadInput, RestartMe, XLNetError, causes, summary
from xlnet_jax.storage.local import File, Local

_STORES = {
    "gs": ("tpu", "log in with `gcloud auth application-default login`"),
    "s3": ("s3", "log in with `aws configure`, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
    "hf": ("hub", "log in with `hf auth login`, or set HF_TOKEN"),
}
"""Our extra with the package of a kind of address, and the remedy for missing credentials."""
_STATUS = {
    "aiohttp.ClientError": None,
    "botocore.BotoCoreError": 401,  # credentials or settings are missing
    "botocore.ClientError": None,
    "botocore.ConnectionError": 0,
    "botocore.HTTPClientError": 0,
    "builtins.TimeoutError": 0,
    "gcsfs.ChecksumError": 0,
    "gcsfs.HttpError": None,
    "google.GoogleAPICallError": None,
    "google.GoogleAuthError": 401,
    "google.RetryError": 0,
    "httpx.TransportError": 0,  # huggingface_hub 1
    "httpx2.TransportError": 0,
    "huggingface_hub.HfHubHTTPError": None,
    "huggingface_hub.LocalTokenNotFoundError": 401,
    "huggingface_hub.OfflineModeIsEnabled": 401,
    "requests.RequestException": 0,
}
"""HTTP status of the errors of a class, named by package and class; 0 = no answer, None = the error
holds its status.
"""
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
    """Makes all libraries of this process access stores alike; returns fsspec's module `core`."""
    import fsspec.config
    import fsspec.core

    kind, _, name = path.partition("://")
    if kind not in fsspec.available_protocols() or not name.strip("/"):
        raise BadInput(
            f"{path}: not gs://BUCKET/... or another address of fsspec; name such an address or a "
            "folder"
        )
    try:
        fsspec.get_filesystem_class(kind)
    except ImportError as error:
        extra = f"the extra `{_STORES[kind][0]}`" if kind in _STORES else "another package"
        raise BadInput(f"{path}: {kind}:// needs {extra} ({error})") from error
    # Otherwise TFDS, Orbax and JAX use TensorFlow for buckets if it is installed.
    os.environ.setdefault("EPATH_USE_TF", "false")
    # No cached listings: other processes, and TensorStore in this process, write to the bucket.
    fsspec.config.conf.setdefault(kind, {}).setdefault("use_listings_cache", False)
    return fsspec.core


class Bucket:
    """Addresses `KIND://...` of fsspec. Methods work as in `Local`, and also raise:

    BadInput: an address that fsspec does not know or cannot use, a package that is not installed,
    no credentials, or the store refuses. RestartMe: it does not answer, which may be temporary.
    """

    appends = locks = False

    @contextlib.contextmanager
    def _connected(self, path: str) -> Iterator[Any]:
        core = _use(path)
        with self.translate_errors(path):
            try:
                yield core.url_to_fs(path, use_listings_cache=False)[0]
            except (ValueError, NotImplementedError) as error:
                # ValueError is the error of gcsfs for the HTTP status "bad request".
                raise BadInput(
                    f"{path}: {summary(error)}; fix this and rerun the same command"
                ) from error

    @contextlib.contextmanager
    def translate_errors(self, path: str) -> Iterator[None]:
        """Turns an error of fsspec, Orbax or TensorStore into one line, if the store refuses or
        does not answer.
        """
        try:
            yield
        except XLNetError:
            raise
        except Exception as error:
            for cause in causes(error):
                code = _answer(cause)
                if code is None:
                    continue
                if isinstance(error, FileNotFoundError | FileExistsError) and code in (404, 412):
                    break
                # TensorStore adds the complete request and answer in brackets, the hub an address
                # about HTTP.
                text = summary(cause).partition(" [")[0]
                text = re.sub(r" For more information check: \S+", "", text)
                if 400 <= code < 500 and code not in (408, 429):
                    known = code == 401 and _STORES.get(path.partition("://")[0])
                    advice = f"{known[1] + ',' if known else 'fix this'} and rerun the same command"
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
        with self._connected(folder) as remote, contextlib.suppress(FileNotFoundError):
            above = remote._strip_protocol(folder).rstrip("/") + "/"
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
                File(remote.unstrip_protocol(path), entry["size"], _changed_ns(entry))
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
                with self.translate_errors(path):
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
                if remote.isdir(path):
                    remote.get(path, copy, recursive=True)
                else:
                    remote.get_file(path, copy)
            yield copy

    def write(self, path: str, data: bytes) -> None:
        """An object always appears complete."""
        with self._connected(path) as remote:
            remote.pipe_file(path, data)

    def write_new(self, path: str, data: bytes) -> bool:
        """The bucket itself refuses to replace an object."""
        with self._connected(path) as remote:
            if _of_hub(path):
                raise NotImplementedError("the hub cannot refuse to replace a file; name a bucket")
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
            paths = {
                f"{folder.rstrip('/')}/{name}": path
                for name in glob.glob("**", root_dir=copy, recursive=True, include_hidden=True)
                if os.path.isfile(path := os.path.join(copy, name))
            }
            if _of_hub(folder):
                self._commit(folder, paths)
            else:
                for to, path in paths.items():
                    self.rename(path, to)

    def _commit(self, folder: str, paths: Mapping[str, str]) -> None:
        """Uploads files by their address to a model repository, a new one if there is none. They
        appear at the same time: `HfApi.upload_folder` may make several commits.
        """
        import huggingface_hub as hub

        api, owner, name = hub.HfApi(), *folder.split("/")[2:4]
        files = [
            hub.CommitOperationAdd(path_in_repo=to.split("/", 4)[4], path_or_fileobj=path)
            for to, path in paths.items()
        ]
        with self._connected(folder) as remote:
            api.create_repo(f"{owner}/{name}", exist_ok=True)
            api.create_commit(f"{owner}/{name}", files, commit_message="Export of xlnet_jax")
            remote.invalidate_cache()


def _of_hub(path: str) -> bool:
    return path.startswith("hf://")


def is_missing(error: BaseException) -> bool:
    """Whether an error means that an object does not exist."""
    return any(_answer(cause) == 404 for cause in causes(error))


def _changed_ns(entry: Mapping[str, Any]) -> int:
    """The time of change of an object; where a store has none, a number that changes with the
    object.
    """
    changed = entry.get("mtime") or entry.get("LastModified")
    if isinstance(changed, datetime.datetime):
        # Whole microseconds, as in a bucket: a float cannot hold the time in nanoseconds.
        return round(changed.timestamp() * 1_000_000) * 1000
    return int(hashlib.sha256(str(entry).encode()).hexdigest()[:12], 16)


def _answer(error: BaseException) -> int | None:
    """The HTTP status of a store's error, 0 if there was no answer; None for other errors."""
    for kind in type(error).__mro__:
        if (name := f"{kind.__module__.partition('.')[0]}.{kind.__name__}") in _STATUS:
            response = getattr(error, "response", None)
            if isinstance(response, dict):  # of botocore
                response = response.get("ResponseMetadata", {})
                held = response.get("HTTPStatusCode")
            else:
                held = getattr(error, "code", None) or getattr(response, "status_code", None)
            status = _STATUS[name]
            return int(held or 0) if status is None else status
    if isinstance(error, OSError) and str(error).startswith("Forbidden: "):
        return 403  # gcsfs
    if isinstance(error, ValueError) and (match := _TENSORSTORE_ERROR.match(str(error))):
        return _TENSORSTORE_CODES[match[1]]
    return None
