"""Files that appear whole or not at all, whatever is killed when."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from xlnet_jax.errors import BadInput


@contextlib.contextmanager
def locked(folder: str, otherwise: str) -> Iterator[None]:
    """Keeps a second process out of a folder that exists; BadInput with the reason `otherwise` if one is in it.

    The lock is the system's, so it goes when the process goes, however that ends.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BadInput(f"{folder}: {otherwise}; wait for it, or choose another folder") from error
        yield
    finally:
        os.close(descriptor)


def temporary(path: str) -> str:
    """Where to write what `publish` will move to `path`; another process gets another name."""
    return f"{path}.{os.getpid()}.tmp"


def publish(path: str) -> None:
    """Makes `temporary(path)` durable and gives it its name, in place of what may be there."""
    descriptor = os.open(temporary(path), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(temporary(path), path)


def write(path: str, data: bytes) -> None:
    """Writes a whole file."""
    with open(temporary(path), "wb") as file:
        file.write(data)
    publish(path)


def to_json(value: Any) -> bytes:
    """JSON as it is written to disk."""
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


def read_json(path: str) -> Any:
    """Reads what `to_json` made."""
    with open(path, "rb") as file:
        return json.load(file)


def write_array(path: str, array: np.ndarray) -> None:
    """Writes a `.npy` file."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    write(path, buffer.getvalue())
