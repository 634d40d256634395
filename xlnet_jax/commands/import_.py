"""`xlnet-jax import`: a model of another program becomes a work directory with a checkpoint of step 0.

The checkpoint has the parameters alone. A new run starts from it with `checkpoint.init_from`; `evaluate`, `export` and
`inspect` take the work directory as it is.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np

from xlnet_jax import config as configs
from xlnet_jax.checkpoint.store import Checkpoints, load_parameters
from xlnet_jax.commands.export import PARAMS
from xlnet_jax.config import CheckpointConfig, Config
from xlnet_jax.convert import huggingface, names, tensorflow
from xlnet_jax.data.tokenizer import Tokenizer
from xlnet_jax.errors import BadInput, check_link
from xlnet_jax.parallel.mesh import available_devices
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.storage import files
from xlnet_jax.train.recipe import make_recipe
from xlnet_jax.train.state import init_params

log = logging.getLogger("xlnet_jax")

_ACTIVATION = {
    "gelu": "the tanh form, TensorFlow's gelu and gelu_new of Hugging Face",
    "gelu_erf": "the erf form, gelu of Hugging Face",
    "relu": "max(x, 0)",
}


class Source(NamedTuple):
    """A model as it is stored elsewhere."""

    format: str
    config: Config
    tokenizer: Tokenizer
    arrays: names.Arrays
    table: names.Table | None
    """None: the names are ours."""


def import_(
    source: str, workdir: str, *, tokenizer: str | None = None, overrides: Sequence[str] = ()
) -> dict[str, Any]:
    """Writes the work directory.

    Args:
      source: a Hugging Face folder; a TensorFlow checkpoint of the original (its folder, or the common part of the
        names of its files); or a folder of `export --format=orbax`.
      workdir: a new folder.
      tokenizer: a SentencePiece model, if it is not in the source.
      overrides: config keys that the source does not set, such as `--config.data.segment_len=128`.

    Returns:
      `arrays`, the number of arrays read, and `workdir`.

    Raises:
      BadInput: the source cannot be read, is another architecture, lacks an array or has others, or its tokenizer is
        that of another model.
    """
    workdirs.check_folder(workdir)
    if workdirs.read_config(workdir) is not None:
        raise BadInput(f"--workdir={workdir} holds a run; name a new folder")
    available_devices()
    with _open(source, tokenizer, overrides) as found:
        return _write(source, workdir, found)


@contextlib.contextmanager
def _open(source: str, tokenizer: str | None, overrides: Sequence[str]) -> Iterator[Source]:
    """Tells the formats apart by the files. Raises BadInput."""
    check_link("SOURCE", source)
    with files.translate_errors(source):
        listed = files.listing(source) if "://" in source or os.path.isdir(source) else {}
    folder = source if listed else os.path.dirname(source)
    if f"{PARAMS}/" in listed:
        config = workdirs.load_config(source, list(overrides))
        arrays = names.Arrays.of(source, load_parameters(files.resolve(os.path.join(source, PARAMS))))
        yield Source("orbax", config, workdirs.tokenizer(source), arrays, None)
    elif "checkpoints/" in listed:
        raise BadInput(f"{source} is a work directory; start from it with --config.checkpoint.init_from={source}")
    elif tensorflow.CONFIG in listed or os.path.isfile(f"{tensorflow.prefix_of(source)}.index" if not listed else ""):
        config = _config(tensorflow.read_model(folder), overrides)
        own = _checked(Tokenizer(tokenizer or os.path.join(folder, "spiece.model")), config, source)
        arrays = tensorflow.open_checkpoint(tensorflow.prefix_of(source))
        yield Source("tensorflow", config, own, arrays, names.TENSORFLOW)
    elif "config.json" in listed:
        config = _config(huggingface.read_model(source), overrides)
        with contextlib.ExitStack() as stack:
            own = _checked(stack.enter_context(huggingface.open_tokenizer(source, tokenizer)), config, source)
            arrays = stack.enter_context(huggingface.open_weights(source))
            yield Source("huggingface", config, own, arrays, names.HUGGINGFACE)
    else:
        raise BadInput(
            f"{source}: no model found; name a Hugging Face folder (config.json, model.safetensors), a TensorFlow "
            f"checkpoint ({tensorflow.CONFIG}, NAME.index), or a folder of `xlnet-jax export --format=orbax`"
        )


def _checked(tokenizer: Tokenizer, config: Config, source: str) -> Tokenizer:
    if tokenizer.vocab_size != config.model.vocab_size:
        raise BadInput(
            f"tokenizer {tokenizer.path}: has {tokenizer.vocab_size} pieces, the model {source} "
            f"{config.model.vocab_size}; name its own with --tokenizer=spiece.model"
        )
    return tokenizer


def _config(model: dict[str, Any], overrides: Sequence[str]) -> Config:
    return configs.override(configs.from_dict({"model": model}), list(overrides))


def _write(source: str, workdir: str, found: Source) -> dict[str, Any]:
    """Reads the arrays and writes the work directory; `config.json` is last, so that a killed import is none."""
    config, arrays = found.config, found.arrays
    abstract = jax.eval_shape(lambda: nn.meta.unbox(init_params(make_recipe(config))))
    params = names.from_foreign(found.table or names.same_names(abstract), abstract, arrays)
    bad = [jax.tree_util.keystr(path, simple=True, separator="/")
           for path, leaf in jax.tree_util.tree_leaves_with_path(params) if not np.isfinite(leaf).all()]  # fmt: skip
    if bad:
        raise BadInput(f"{source}: not finite: {', '.join(bad)}; copy it again")
    identity = {
        "config": {**configs.flat(config), "data.corpus": ""},
        "corpus_sha256": "",  # unknown
        "tokenizer_sha256": found.tokenizer.sha256,
    }
    with files.translate_errors(workdir):
        files.make_folder(workdir)
        with Checkpoints(workdir, CheckpointConfig()) as checkpoints:
            checkpoints.save(0, {"params": params}, identity | {"imported_from": source})
        workdirs.write_tokenizer(workdir, found.tokenizer)
        files.write(os.path.join(workdir, "config.json"), files.to_json(identity))
    log.info(
        "imported %d arrays of %s (%s); model.activation=%s: %s", len(arrays.forms), source, found.format,
        config.model.activation, _ACTIVATION[config.model.activation],
    )  # fmt: skip
    log.info("train it further in a new work directory with --config.checkpoint.init_from=%s %s", workdir,
             " ".join(_changed(config)))  # fmt: skip
    return {"arrays": len(arrays.forms), "workdir": workdir}


def _changed(config: Config) -> list[str]:
    """The model's keys that are not the defaults, as words of the command line."""
    defaults = configs.flat(Config())
    return [f"--config.{name}={value}" for name, value in configs.flat(config).items()
            if name.startswith("model.") and value != defaults[name]]  # fmt: skip
