"""Files on disk or in a bucket (`://` in the path) that appear complete or not at all, even if
processes are killed.

Functions here call the method of `Local` or `Bucket` that the path needs; the methods have the
documentation. The flags `appends` and `locks` of `at(path)` are False where a bucket can do less.
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
"""An object of JSON: a record, a line of a log, the result of a command."""

_LOCAL, _BUCKET = Local(), Bucket()
# Errors of ArrayRecord and TensorStore have the text of these numbers, not the number.
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
    """Returns a method of `Local` as a function; its first argument is a path, which selects
    `Local` or `Bucket`.
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

    A bucket shows its permissions only at a request.
    """
    if at(path) is _BUCKET:
        check_checkpoints(path)
        return
    check_link(option, path)
    above = nearest_folder(path)
    if not os.path.isdir(above):
        raise BadInput(f"{option}={path}: {above} is a file; name a new folder, or that of a run")
    if not os.access(above, os.R_OK | os.W_OK | os.X_OK):
        raise BadInput(f"{option}={path}: no permission to write in {above}; choose another folder")


def check_checkpoints(path: str) -> None:
    """Raises BadInput for a store in which Orbax cannot finish a checkpoint at once."""
    if at(path) is _BUCKET and not path.startswith("gs://"):
        raise BadInput(
            f"{path}: work directories are on disks or gs://, because Orbax makes complete "
            "checkpoints only there; name another folder"
        )


def nearest_folder(path: str) -> str:
    """A path on disk, or the nearest existing folder above it, in which it would be made."""
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

    Raises BadInput if a bucket refuses, for an OSError, and for a RuntimeError of ArrayRecord or a
    ValueError of TensorStore that has the text of an OSError. Raises RestartMe if the bucket does
    not answer, which may be temporary.
    """
    try:
        with at(path).translate_errors(path):
            yield
    except (OSError, RuntimeError, ValueError) as error:
        known = [text for text in map(os.strerror, _WRITE_ERRORS) if text in str(error)]
        if not known and not isinstance(error, OSError):
            raise
        where = getattr(error, "filename", None) or path
        # TensorStore's text lists all calls up to the error.
        why = known[0] if known and isinstance(error, ValueError) else summary(error)
        raise BadInput(f"{where}: {why}; fix this and rerun the same command") from error


@contextlib.contextmanager
def new_folder(path: str) -> Iterator[str]:
    """Yields a folder on disk to fill; at the end the folder is moved to `path`, on disk
    atomically. `path` must be empty or not exist.

    Removes files that killed processes have left. On disk, raises BadInput while another process
    fills the folder.
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
            remove(partial)  # not after `rename`: the next process may already use this name
            raise


def finished_folders(folder: str, mark: str) -> list[str]:
    """Names of the complete folders in a folder. On disk a complete folder is renamed; in a bucket,
    which cannot rename a folder atomically, the file `mark` is written last.
    """
    names = [name[:-1] for name in listing(folder) if name.endswith("/")]
    return (
        names
        if at(folder) is _LOCAL
        else [name for name in names if mark in listing(f"{folder}/{name}")]
    )


def read_if_there(path: str) -> bytes | None:
    """Reads a whole file; None if it does not exist."""
    try:
        return read(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def lines(text: str) -> list[str]:
    """The lines of a text, without the line ends of any system. A line end at the end of the text
    does not begin another line.
    """
    return [line.rstrip("\r") for line in text.removesuffix("\n").split("\n")]


def to_json(value: Any, indent: int | None = 1) -> bytes:
    """JSON for a file; five times faster without `indent`."""
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
    """Returns `read_json_object` of a file, or {} if its folder does not list it; a dangling link
    is listed.
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
    """The value of JSON that another program wrote. Raises BadInput if it is damaged, nested too
    deeply, or has half a surrogate pair.
    """
    try:
        value = json.loads(data)
        if "\\u" in (data if isinstance(data, str) else data.decode()):
            to_json(value)  # fails for one half of a pair of surrogates, such as "\\ud800"
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{where}: not JSON ({error})") from error
    return value


def check_types(values: Mapping[str, Any], types: Mapping[str, type], where: str) -> None:
    """Raises BadInput for a JSON value of another type than its name needs; null and a missing
    value are allowed.
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
    """The bytes of a `.npy` file."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def npy_header(length: int, kind: type) -> bytes:
    """The first bytes of the `.npy` file of an array [length] of this type; its numbers follow."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": np.dtype(kind).str, "fortran_order": False, "shape": (length,)}
    )
    return buffer.getvalue()


def numbers_of(data: bytes, length: int, kind: type = np.int64) -> np.ndarray:
    """The array [length] of this type with these `array_bytes`, a view of them. Raises ValueError
    for other bytes.

    `np.load` accepts other forms, and cannot run in threads, because it parses the header as
    Python. In Python 3.11 a garbage collection during the parse, with a callback such as JAX's,
    lets another thread parse; one thread then gets "SystemError: AST constructor recursion depth
    mismatch".
    """
    header = npy_header(length, kind)
    if len(data) != len(header) + length * np.dtype(kind).itemsize or not data.startswith(header):
        raise ValueError(f"not an {np.dtype(kind)} array of {length} numbers")
    return np.frombuffer(data, kind, length, len(header))
