"""Files that appear whole or not at all, whatever is killed when."""

from __future__ import annotations

import io
import json
import os
from typing import Any

import numpy as np


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
