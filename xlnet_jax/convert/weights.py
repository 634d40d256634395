"""Arrays in a folder's safetensors files: one, or several with an index, as Hugging Face writes and reads them."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from xlnet_jax.convert.names import Arrays
from xlnet_jax.errors import BadInput
from xlnet_jax.storage import files

SHARD_BYTES = 5 * 10**9
"""Size from which weights are split into several files, as Hugging Face does."""
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64"}
"""BF16 is a dtype that numpy lacks; all but float32 are refused anyway."""


def write(folder: str, tensors: Mapping[str, np.ndarray], shard_bytes: int = SHARD_BYTES) -> None:
    """Writes files of at most `shard_bytes`, or of one array, beside a config.json that is there."""
    shards: list[list[str]] = [[]]
    room = shard_bytes
    for name, tensor in tensors.items():
        if tensor.nbytes > room and shards[-1]:
            shards.append([])
            room = shard_bytes
        shards[-1].append(name)
        room -= tensor.nbytes
    weight_map = {}
    for number, shard in enumerate(shards, 1):
        file_name = f"model-{number:05}-of-{len(shards):05}.safetensors" if len(shards) > 1 else _WEIGHTS
        # The package writes from the address of each array, into a file that only its owner may read.
        arrays = {name: np.ascontiguousarray(tensors[name], np.dtype("<f4")) for name in shard}
        save_file(arrays, os.path.join(folder, file_name), {"format": "pt"})
        shutil.copymode(os.path.join(folder, "config.json"), os.path.join(folder, file_name))
        weight_map |= dict.fromkeys(shard, file_name)
    if len(shards) > 1:
        size = sum(tensor.nbytes for tensor in tensors.values())
        index = {"metadata": {"total_size": size}, "weight_map": weight_map}
        files.write(os.path.join(folder, _INDEX), files.to_json(index))


@contextlib.contextmanager
def read(folder: str) -> Iterator[Arrays]:
    """The arrays of a folder, which may be in a bucket. Raises BadInput."""
    listed, shards = files.listing(folder), [_WEIGHTS]
    if _INDEX in listed:
        index = files.read_json_object(os.path.join(folder, _INDEX)).get("weight_map")
        if not isinstance(index, dict) or not all(isinstance(name, str) for name in index.values()):
            raise BadInput(f"{folder}/{_INDEX}: its weight_map does not name the file of each array")
        shards = sorted(set(index.values()))
    if missing := [name for name in shards if name not in listed]:
        raise BadInput(f"{folder} has no {', '.join(missing)}; save the model in safetensors")
    paths: dict[str, str] = {}
    forms: dict[str, jax.ShapeDtypeStruct] = {}
    with contextlib.ExitStack() as stack:
        for shard in shards:
            path = stack.enter_context(files.local_copy(os.path.join(folder, shard)))
            try:
                with safe_open(path, "numpy") as file:
                    stored: dict[str, Any] = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
                    for name, array in stored.items():
                        dtype = np.dtype(_DTYPES.get(array.get_dtype(), "uint8"))
                        forms[name] = jax.ShapeDtypeStruct(array.get_shape(), dtype)
            except (SafetensorError, KeyError) as error:
                raise BadInput(f"{folder}/{shard}: not a safetensors file ({error}); copy it again") from error
            paths |= dict.fromkeys(stored, path)

        def array_of(name: str) -> np.ndarray:
            # Opened each time: an open file keeps what was read in memory.
            with safe_open(paths[name], "numpy") as file:
                return file.get_tensor(name)

        yield Arrays(folder, forms, array_of)
