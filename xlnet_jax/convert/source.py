"""A model of another program: what is at a path, its configuration, tokenizer and arrays, and our parameters of it."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np
from flax import traverse_util

from xlnet_jax import config as configs
from xlnet_jax.checkpoint.store import load_parameters
from xlnet_jax.config import Config
from xlnet_jax.convert import fields, huggingface, names, tensorflow, transformer_xl
from xlnet_jax.data.tokenizer import Tokenizer
from xlnet_jax.errors import BadInput, check_link
from xlnet_jax.messages import suggest_file
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.storage import files
from xlnet_jax.train.recipe import Recipe
from xlnet_jax.train.state import init_params

PARAMS = "params"
"""The folder with the arrays in an export for Orbax."""
ASSUMED = {"data.objective", "data.segment_len", "data.reuse_len", "model.memory_len", "model.compute_dtype"}
"""Keys that change what a model makes of a text, and that only an export of ours names all."""
NOTHING: Mapping[str, Any] = {}


class Source(NamedTuple):
    """A model as it is stored elsewhere."""

    path: str
    format: str
    config: Config
    tokenizer: Tokenizer
    arrays: names.Arrays
    convert: Callable[[dict[str, Any], names.Arrays], dict[str, Any]]
    """Our tree of the arrays, given the abstract one."""
    assumed: Sequence[str] = ()
    """KEY=VALUE of `ASSUMED` that neither the source nor the caller says."""
    kept: Mapping[str, Any] = NOTHING
    """`fields.KEPT` of a Hugging Face folder, also of the one that an Orbax folder came from."""
    lost: Sequence[str] = ()
    """KEY=VALUE of its configuration that have no place here."""

    def params(self, recipe: Recipe) -> dict[str, Any]:
        """Our tree of numpy arrays, as the model of a recipe has them.

        Raises BadInput if any is missing, left over, of another form, or not finite.
        """
        abstract = jax.eval_shape(lambda: nn.meta.unbox(init_params(recipe)))
        params = self.convert(abstract, self.arrays)
        leaves: dict[str, Any] = traverse_util.flatten_dict(params, sep="/")
        bad = [name for name, leaf in leaves.items() if not np.isfinite(leaf).all()]
        if bad:
            raise BadInput(f"{self.path}: not finite: {', '.join(bad)}; copy it again")
        return params


@contextlib.contextmanager
def open_source(source: str, tokenizer: str | None = None, overrides: Sequence[str] = ()) -> Iterator[Source]:
    """Opens a model; the formats are told apart by their files.

    Args:
      source: a Hugging Face folder; a TensorFlow checkpoint of the original (its folder, or the common part of the
        names of its files); or a folder of `export --format=orbax`.
      tokenizer: a SentencePiece model, if it is not in the source.
      overrides: config keys, such as `--config.data.segment_len=128`.

    Raises:
      BadInput: it cannot be read, is another architecture, or the tokenizer has another number of pieces.
    """
    check_link("SOURCE", source)
    with files.translate_errors(source):
        listed = files.listing(source) if "://" in source or os.path.isdir(source) else {}
    folder = source if listed else os.path.dirname(source)
    if f"{PARAMS}/" in listed:
        config = workdirs.load_config(source, list(overrides))
        arrays = names.Arrays.of(source, load_parameters(files.resolve(os.path.join(source, PARAMS))))
        yield Source(source, "orbax", config, workdirs.tokenizer(source), arrays, names.from_ours,
                     kept=workdirs.source_config(source))  # fmt: skip
    elif "checkpoints/" in listed:
        raise BadInput(f"{source} is a work directory; start from it with --config.checkpoint.init_from={source}")
    elif tensorflow.is_checkpoint(source, listed):
        with contextlib.ExitStack() as stack:
            yield _of_tensorflow(source, folder, tokenizer, overrides, stack)
    elif "config.json" in listed:
        model = {"model": huggingface.read_model(source)}
        lengths, rest, task = fields.read_lengths(source), fields.read_own(source), huggingface.read_task(source)
        config, assumed = _config(source, fields.merged(lengths, rest, model, task), overrides)
        with contextlib.ExitStack() as stack:
            own = _checked(stack.enter_context(huggingface.open_tokenizer(source, tokenizer)), config, source)
            arrays = stack.enter_context(huggingface.open_weights(source))
            convert = functools.partial(names.from_foreign, names.of_huggingface(config.finetune.task))
            yield Source(source, "huggingface", config, own, arrays, convert, assumed,
                         *fields.read_kept(source, config))  # fmt: skip
    else:
        raise BadInput(
            f"{source}: no model found; name a Hugging Face folder (config.json, model.safetensors), a TensorFlow "
            f"checkpoint ({tensorflow.CONFIG}, NAME.index), or a folder of `xlnet-jax export --format=orbax`"
            f"{suggest_file(source)}"
        )


def _of_tensorflow(
    source: str, folder: str, tokenizer: str | None, overrides: Sequence[str], stack: contextlib.ExitStack
) -> Source:
    """An XLNet has its configuration beside it, a Transformer-XL none."""
    if os.path.exists(os.path.join(folder, tensorflow.CONFIG)):
        config, assumed = _config(source, {"model": tensorflow.read_model(folder)}, overrides)
        own = _checked(Tokenizer(tokenizer or os.path.join(folder, "spiece.model")), config, source)
        arrays = tensorflow.open_checkpoint(tensorflow.prefix_of(source))
        convert = functools.partial(names.from_foreign, names.TENSORFLOW)
        return Source(source, "tensorflow", config, own, arrays, convert, assumed)
    arrays = tensorflow.open_checkpoint(tensorflow.prefix_of(source))
    transformer_xl.check(arrays, tensorflow.CONFIG)
    own, ids_N = stack.enter_context(transformer_xl.open_vocabulary(tokenizer, source))
    sizes = transformer_xl.read_model(arrays, ids_N)
    known = {"model": {**sizes, **transformer_xl.CONSTANTS}, "data": transformer_xl.DATA}
    config, assumed = _config(source, known, overrides, guessed={"data": transformer_xl.LENGTHS})
    if changed := [f"model.{key}={value}" for key, value in sizes.items() if getattr(config.model, key) != value]:
        raise BadInput(f"{source} has {', '.join(changed)}; leave these keys out")
    convert = functools.partial(transformer_xl.from_original, config.model, ids_N)
    return Source(source, "tensorflow", config, own, arrays, convert, assumed)


def _checked(tokenizer: Tokenizer, config: Config, source: str) -> Tokenizer:
    if tokenizer.vocab_size != config.model.vocab_size:
        raise BadInput(
            f"tokenizer {tokenizer.path}: has {tokenizer.vocab_size} pieces, the model {source} "
            f"{config.model.vocab_size}; name its own with --tokenizer=spiece.model"
        )
    return tokenizer


def _config(
    source: str, known: Mapping[str, Any], overrides: Sequence[str], guessed: Mapping[str, Any] = NOTHING
) -> tuple[Config, list[str]]:
    """The configuration, and of `ASSUMED` what nothing says.

    Args:
      known, guessed: sections, as the source says them, and in place of our defaults.
    """
    try:
        config = configs.from_dict(fields.merged(guessed, known), list(overrides))
    except BadInput as error:
        raise BadInput(f"{source}: {error}") from error
    said = {f"{section}.{key}" for section, values in known.items() for key in values}
    said |= {word.removeprefix("--config.").partition("=")[0] for word in overrides}
    return config, [f"{name}={value}" for name, value in configs.flat(config).items() if name in ASSUMED - said]
