"""Files that appear complete or not at all, even if processes are killed. `gs://` in a path means a
bucket.

Functions here are methods of `Local` and of `Bucket`, documented there; callers do not ask which
one a path needs. Where one can do less than the other, `at(path)` has a flag: `appends`, `locks`.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ParamSpec, TypeVar

import numpy as np

from xlnet_jax.errors import BadInput, check_link, summary
from xlnet_jax.storage.bucket import Bucket
from xlnet_jax.storage.local import Local, publish, temporary

__all__ = ["publish", "temporary"]

Json = dict[str, Any]
"""An object of JSON: a record, a line of a log, what a command prints with `--json`."""

_LOCAL, _BUCKET = Local(), Bucket()
# Errors of ArrayRecord and TensorStore have no number, only the text of these.
_WRITE_ERRORS = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EIO,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
)

IN_JSON = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
}

_P = ParamSpec("_P")
_T = TypeVar("_T")


def at(path: str) -> Local | Bucket:
    """The storage of a path."""
    return _BUCKET if "://" in path else _LOCAL


def _by_path(method: Callable[_P, _T]) -> Callable[_P, _T]:
    """A method of `Local` as a function: its first argument selects this method, or the one of
    `Bucket`.
    """

    @functools.wraps(method)
    def function(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        assert isinstance(args[0], str)
        return getattr(at(args[0]), method.__name__)(*args, **kwargs)

    return function


resolve = _by_path(_LOCAL.resolve)
make_folder = _by_path(_LOCAL.make_folder)
listing = _by_path(_LOCAL.listing)
find = _by_path(_LOCAL.find)
read = _by_path(_LOCAL.read)
open_to_read = _by_path(_LOCAL.open_to_read)
local_copy = _by_path(_LOCAL.local_copy)
write = _by_path(_LOCAL.write)
write_new = _by_path(_LOCAL.write_new)
remove = _by_path(_LOCAL.remove)
locked = _by_path(_LOCAL.locked)
scratch = _by_path(_LOCAL.scratch)
sweep = _by_path(_LOCAL.sweep)
on_disk = _by_path(_LOCAL.on_disk)


def check_writable(path: str, option: str) -> None:
    """Raises BadInput, naming the option, unless the folder can be created or written to.

    A bucket shows only at a request what it allows.
    """
    if at(path) is _BUCKET:
        return
    check_link(option, path)
    above = nearest_folder(path)
    if not os.path.isdir(above):
        raise BadInput(f"{option}={path}: {above} is a file; name a new folder, or that of a run")
    if not os.access(above, os.R_OK | os.W_OK | os.X_OK):
        raise BadInput(f"{option}={path}: no permission to write in {above}; choose another folder")


def nearest_folder(path: str) -> str:
    """A path on disk, or the nearest folder above it that exists: there it would be made."""
    path = os.path.abspath(path)
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path


def rename(path: str, to: str) -> None:
    """Renames a file or a folder, or moves a finished file from `scratch` to its place."""
    at(to).rename(path, to)


@contextlib.contextmanager
def translate_errors(path: str) -> Iterator[None]:
    """Turns errors of a disk or a bucket into one line, with `path` if the error names no file.

    Raises BadInput: an OSError, the RuntimeError of ArrayRecord or the ValueError of TensorStore
    for the same, a bucket that refuses. RestartMe: the bucket does not answer, which may be
    temporary.
    """
    try:
        with at(path).translate_errors(path):
            yield
    except (OSError, RuntimeError, ValueError) as error:
        known = [text for text in map(os.strerror, _WRITE_ERRORS) if text in str(error)]
        if not known and not isinstance(error, OSError):
            raise
        where = getattr(error, "filename", None) or path
        # TensorStore's text lists all calls on the way.
        why = known[0] if known and isinstance(error, ValueError) else summary(error)
        raise BadInput(f"{where}: {why}; fix this and rerun the same command") from error


@contextlib.contextmanager
def new_folder(path: str) -> Iterator[str]:
    """A folder on disk to fill; at the end it is at `path`, which must not exist or be empty: on
    disk at once.

    What killed processes have left is removed. Raises BadInput while another process fills the
    folder, on disk.
    """
    if at(path) is _BUCKET:
        sweep(path)
        with on_disk(path) as partial:
            yield partial
        return
    partial = f"{os.path.abspath(path)}.xlnet_jax.tmp"
    make_folder(os.path.dirname(partial))  # its error names the folder that cannot be made
    make_folder(partial)
    with locked(partial, "another process writes it"):
        try:
            for name in os.listdir(partial):
                remove(os.path.join(partial, name))
            yield partial
            rename(partial, path)
        except BaseException:
            remove(partial)  # not after the renaming: it could be that of the next process
            raise


def finished_folders(folder: str, mark: str) -> list[str]:
    """The names of the complete folders in a folder. On disk a folder gets its name when it is
    complete; in a bucket, which cannot rename a folder atomically, the file `mark` is written last.
    """
    names = [name[:-1] for name in listing(folder) if name.endswith("/")]
    return (
        names
        if at(folder) is _LOCAL
        else [name for name in names if mark in listing(f"{folder}/{name}")]
    )


def read_if_there(path: str) -> bytes | None:
    """Reads a whole file; None if there is none."""
    try:
        return read(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def lines(text: str) -> list[str]:
    """The lines of a text without their ends, on any system; what ends the last one begins no
    other.
    """
    return [line.rstrip("\r") for line in text.removesuffix("\n").split("\n")]


def to_json(value: Any, indent: int | None = 1) -> bytes:
    """JSON as it is written to disk; five times faster without `indent`."""
    return (json.dumps(value, indent=indent, ensure_ascii=False) + "\n").encode()


def read_json(path: str) -> Any:
    """Reads a JSON file."""
    return json.loads(read(path))


def read_json_object(path: str) -> Json:
    """Reads a JSON file of another program. Raises BadInput if it is missing or holds no object."""
    with translate_errors(path):
        data = read(path)
    return json_object(data, path)


def read_json_if_listed(path: str) -> Json:
    """`read_json_object` of a file, or {} if its folder lists no such file; one that is a link to
    nothing is listed.
    """
    folder, name = os.path.split(path)
    return read_json_object(path) if name in listing(folder) else {}


def json_object(data: str | bytes, where: str) -> Json:
    """`parse_json` of an object. Raises BadInput."""
    value = parse_json(data, where)
    if not isinstance(value, dict):
        raise BadInput(f"{where}: holds no JSON object")
    return value


def parse_json(data: str | bytes, where: str) -> Any:
    """The value of JSON from elsewhere. Raises BadInput if it is damaged, too deep, or holds half a
    character.
    """
    try:
        value = json.loads(data)
        if "\\u" in (data if isinstance(data, str) else data.decode()):
            to_json(value)  # fails for one half of a pair of surrogates, such as "\\ud800"
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{where}: not JSON ({error})") from error
    return value


def check_types(values: Mapping[str, Any], types: Mapping[str, type], where: str) -> None:
    """Raises BadInput for a value of JSON that has another type than its name asks for; null and no
    value are good.
    """
    for name, kind in types.items():
        value = values.get(name)
        if (
            value is not None
            and type(value) is not kind
            and not (kind is float and type(value) is int)
        ):
            text = json.dumps(value)
            text = text if len(text) <= 60 else f"{text[:57]}..."
            raise BadInput(f"{where}: {name} is {text} and must be {IN_JSON[kind]}")


def array_bytes(array: np.ndarray) -> bytes:
    """A `.npy` file."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def int64_of(data: bytes, length: int) -> np.ndarray:
    """The int64 [length] array whose `array_bytes` these are. Raises ValueError for all other
    bytes.

    `np.load` accepts more than this one form, and cannot be called in threads: it parses the header
    as Python. In Python 3.11 a garbage collection meanwhile, with a callback such as JAX has, lets
    another thread parse, and one of the two gets "SystemError: AST constructor recursion depth
    mismatch".
    """
    empty = array_bytes(np.zeros(length, np.int64))
    header = empty[: len(empty) - 8 * length]
    if len(data) != len(empty) or not data.startswith(header):
        raise ValueError(f"not an int64 array of {length} numbers")
    return np.frombuffer(data, "<i8", length, len(header)).copy()
