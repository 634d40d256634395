"""Reads checkpoints of the original XLNet: TensorFlow's files, with `xlnet_config.json` beside
them. Requires the extra `tf`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from xlnet_jax.convert import names
from xlnet_jax.convert.formats import Source, fit_vocabulary, make_config
from xlnet_jax.data.tokenizer import Tokenizer
from xlnet_jax.errors import BadInput, summary
from xlnet_jax.members.xlnet import TENSORFLOW
from xlnet_jax.storage import files
from xlnet_jax.storage.files import Json

log = logging.getLogger("xlnet_jax")

CONFIG = "xlnet_config.json"
_SIZES = {
    "vocab_size": "n_token",
    "layers": "n_layer",
    "d_model": "d_model",
    "heads": "n_head",
    "head_dim": "d_head",
    "d_ff": "d_inner",
    "activation": "ff_activation",
    "biases_per_layer": "untie_r",
}
_NOT_PARAMETERS = (
    "/adam_m",
    "/adam_v",
    "/Adam",
    "/Adam_1",
    "global_step",
    "beta1_power",
    "beta2_power",
)
"""Ends of the names of optimizer slots and counters."""


def is_checkpoint(source: str, listed: Collection[str]) -> bool:
    """Returns whether `source` is a checkpoint of TensorFlow: a folder with the names `listed`, or
    the common prefix of the files.
    """
    if listed:
        return CONFIG in listed or any(name.endswith(".index") for name in listed)
    return os.path.isfile(source.removesuffix(".index") + ".index")


def prefix_of(source: str) -> str:
    """Returns the common prefix of a checkpoint's files: `source` itself, or the prefix of the only
    checkpoint in the folder `source`. Raises BadInput if the folder has no or several checkpoints.
    """
    if not os.path.isdir(source):
        return source.removesuffix(".index")
    found = sorted(
        name.removesuffix(".index") for name in os.listdir(source) if name.endswith(".index")
    )
    if len(found) != 1:
        raise BadInput(
            f"{source} holds {len(found)} TensorFlow checkpoints "
            f"({', '.join(found) or 'none'}); name one: {source}/NAME"
        )
    return os.path.join(source, found[0])


def read_model(folder: str) -> Json:
    """Returns the keys of `model` from `xlnet_config.json`, whose "gelu" is the tanh form, as here.
    Raises BadInput.
    """
    path = os.path.join(folder, CONFIG)
    found = files.read_json_object(path)
    if missing := [name for name in _SIZES.values() if name not in found]:
        raise BadInput(
            f"{path} has no {', '.join(missing)}; "
            "use the file that was released with the checkpoint"
        )
    if found["ff_activation"] not in ("gelu", "relu"):
        raise BadInput(f"{path}: ff_activation={found['ff_activation']!r} is not one of gelu, relu")
    return {f"model.{ours}": found[theirs] for ours, theirs in _SIZES.items()}


def open_checkpoint(prefix: str) -> names.Arrays:
    """Opens the variables of a checkpoint, without optimizer slots and counters.

    Raises BadInput if TensorFlow is not installed, or if a file is missing or damaged;
    `Arrays.read` may raise it too.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        import tensorflow as tf  # pyright: ignore[reportMissingModuleSource]
    except ImportError as error:
        raise BadInput(
            f"{prefix}: a TensorFlow checkpoint needs tensorflow; install the extra `tf`"
        ) from error
    damaged = (tf.errors.OpError, IndexError, ValueError, RuntimeError)

    def guarded(read: Callable[[str], Any], name: str) -> Any:
        try:
            return read(name)
        except damaged as error:
            raise BadInput(
                f"{prefix}: TensorFlow cannot read it ({summary(error)}); copy it again"
            ) from error

    reader = guarded(tf.train.load_checkpoint, prefix)
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    forms = {
        name: jax.ShapeDtypeStruct(tuple(shape), np.dtype(dtypes[name].as_numpy_dtype))
        for name, shape in shapes.items()
        if not name.endswith(_NOT_PARAMETERS)
    }
    if len(forms) < len(shapes):
        log.info(
            "%s: %d optimizer slots and counters are not imported", prefix, len(shapes) - len(forms)
        )
    return names.Arrays(prefix, forms, functools.partial(guarded, reader.get_tensor))


def recognise(path: str, listed: Collection[str]) -> bool:
    """Returns whether a checkpoint has the configuration of an XLNet beside it."""
    return is_checkpoint(path, listed) and os.path.exists(os.path.join(_folder(path), CONFIG))


@contextlib.contextmanager
def read(path: str, tokenizer: str | None, overrides: Sequence[str]) -> Iterator[Source]:
    """Opens a checkpoint. By default the tokenizer is the file `spiece.model` beside it."""
    config, assumed = make_config(path, read_model(_folder(path)), overrides, {})
    opened = Tokenizer(tokenizer or os.path.join(_folder(path), "spiece.model"))
    config = fit_vocabulary(config, opened)
    convert = functools.partial(names.from_foreign, TENSORFLOW)
    yield Source(
        path, "tensorflow", config, opened, open_checkpoint(prefix_of(path)), convert, assumed
    )


def _folder(path: str) -> str:
    return path if os.path.isdir(path) else os.path.dirname(path)
