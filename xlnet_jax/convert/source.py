"""All formats of other programs; opens the model at a path in any of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager

from xlnet_jax.convert import huggingface, orbax, tensorflow, transformer_xl
from xlnet_jax.convert.formats import Source
from xlnet_jax.errors import BadInput, check_link
from xlnet_jax.messages import suggest_file
from xlnet_jax.storage import files

FORMATS = (orbax, tensorflow, transformer_xl, huggingface)
"""Modules with two functions, which raise BadInput. The first that recognises a path reads it.

    recognise(path, names)            whether a path holds such a model; `names` lists a folder, and
                                      is empty for another path
    read(path, tokenizer, overrides)  a context with the `Source`; `tokenizer` is a file, or None
                                      for the tokenizer beside the model
"""
WRITERS = {"huggingface": huggingface, "orbax": orbax}
"""Modules by `export --format`, with two more functions.

    check(config)                        refuses a model that the format cannot express, before its
                                         parameters are read
    write(trained, output, shard_bytes)  writes a new folder, with files of weights up to this size
"""


def open_source(
    source: str, tokenizer: str | None = None, overrides: Sequence[str] = ()
) -> AbstractContextManager[Source]:
    """Opens a model, whose format follows from its files. For the arguments see
    `commands.import_`.

    Raises BadInput if the model cannot be read or has another architecture, or if its tokenizer has
    another number of pieces.
    """
    check_link("SOURCE", source)
    with files.translate_errors(source):
        listed = files.listing(source) if "://" in source or os.path.isdir(source) else {}
    format = next((format for format in FORMATS if format.recognise(source, listed)), None)
    if format is None and "checkpoints/" in listed:
        raise BadInput(
            f"{source} is a work directory; start from it with "
            f"--config.checkpoint.init_from={source}"
        )
    if format is None:
        raise BadInput(
            f"{source}: no model found; name a Hugging Face folder (config.json, "
            f"model.safetensors), a TensorFlow checkpoint ({tensorflow.CONFIG}, NAME.index), or a "
            f"folder of `xlnet-jax export --format=orbax`{suggest_file(source)}"
        )
    return format.read(source, tokenizer, overrides)
