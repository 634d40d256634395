"""Parts that all formats of other programs share: a stored model, its configuration, a model to
write.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import flax.linen as nn
import numpy as np

from xlnet_jax import config as configs
from xlnet_jax.config import Config
from xlnet_jax.convert.names import Arrays, Params, by_path
from xlnet_jax.data.tokenizer import Tokenizer
from xlnet_jax.data.vocabulary import check_pieces
from xlnet_jax.errors import BadInput
from xlnet_jax.storage import files
from xlnet_jax.storage.files import Json
from xlnet_jax.train.recipe import Recipe

ASSUMED = {
    "data.objective",
    "data.segment_len",
    "data.reuse_len",
    "model.memory_len",
    "model.compute_dtype",
}
"""Keys that change the output of a model; only exports of this package name all of them."""
MOST_SPARE = 1024
"""Largest number of table rows without a piece. Other programs pad tables to multiples of a few
hundred.
"""

log = logging.getLogger("xlnet_jax")


class Source(NamedTuple):
    """A model of another program."""

    path: str
    format: str
    config: Config
    tokenizer: Tokenizer
    arrays: Arrays
    convert: Callable[[Params, Arrays], Params]
    """Function of our abstract tree and the arrays that returns our tree."""
    assumed: Sequence[str] = ()
    """KEY=VALUE for each key of `ASSUMED` that neither the source nor the caller sets."""
    kept: Json = {}
    """`Peer.kept` of the Hugging Face folder, which an Orbax folder passes on."""
    lost: Sequence[str] = ()
    """KEY=VALUE in its configuration for which there is no key here."""

    def params(self, recipe: Recipe) -> Params:
        """Returns our tree of numpy arrays. Raises BadInput if an array is missing, left over, of
        another shape or dtype, or not finite.
        """
        params = self.convert(nn.meta.unbox(recipe.abstract_params), self.arrays)
        if bad := [name for name, leaf in by_path(params).items() if not np.isfinite(leaf).all()]:
            raise BadInput(f"{self.path}: not finite: {', '.join(bad)}; copy it again")
        if spare := self.config.model.spare_rows:
            log.warning(
                "tokenizer %s: has %d pieces, the model %d rows; the last %d are kept, and never "
                "predicted (model.spare_rows)",
                self.tokenizer.path,
                self.tokenizer.vocab_size,
                self.config.model.vocab_size,
                spare,
            )
        return params


class Trained(NamedTuple):
    """A model of this package, to be written."""

    config: Config
    tokenizer: Tokenizer
    params: Params
    """Unboxed tree of the model with its head, of numpy arrays."""
    step: int = 0
    """Step of the checkpoint; 0 for imported parameters."""
    identity: Json = {}
    """Content of `config.json` in the work directory."""
    kept: Json = {}
    """`Source.kept` of the model that the run started from."""
    losses: Mapping[str, float] = {}
    """Losses at that step by their descriptions."""
    scores: Mapping[str, float] = {}
    """Scores on the dev set of a task by name, first the score that ranks checkpoints."""
    tokens: int | None = None
    """Number of fresh tokens that the run has read; None = unknown."""


def make_config(
    source: str, known: Json, overrides: Sequence[str], guessed: Json
) -> tuple[Config, list[str]]:
    """Returns the configuration of a source, and KEY=VALUE for the keys of `ASSUMED` that neither
    `known` nor the overrides set.

    `known` has the keys that the source sets; `guessed` replaces our defaults.
    """
    try:
        config = configs.from_dict(configs.nested({**guessed, **known}), overrides)
    except BadInput as error:
        raise BadInput(f"{source}: {error}") from error
    said = known.keys() | {word.removeprefix("--config.").partition("=")[0] for word in overrides}
    return config, [
        f"{name}={value}" for name, value in configs.flat(config).items() if name in ASSUMED - said
    ]


def fit_vocabulary(config: Config, tokenizer: Tokenizer) -> Config:
    """Returns the configuration of an imported model with `spare_rows`, the number of last rows
    without a piece.

    Raises BadInput for fewer rows than pieces, or for more than `MOST_SPARE` rows without a piece,
    because the tokenizer then belongs to another model.
    """
    spare = config.model.vocab_size - tokenizer.vocab_size
    if 0 <= spare <= MOST_SPARE:
        config = config.changed(model={"spare_rows": spare})
    check_tokenizer(tokenizer, config)
    return config


def check_tokenizer(tokenizer: Tokenizer, config: Config) -> None:
    """Raises BadInput if a tokenizer has another number of pieces than the model, or lacks a
    special piece that the model needs.
    """
    if tokenizer.vocab_size != config.model.pieces:
        raise BadInput(
            f"tokenizer {tokenizer.path}: has {tokenizer.vocab_size} pieces, the model "
            f"{config.model.pieces}; use the one that it was trained with "
            f"(`import --tokenizer={tokenizer.file_name}`)"
        )
    check_pieces(tokenizer, config, f"tokenizer {tokenizer.path}")


def check_output(output: str) -> None:
    """Raises BadInput unless the folder is new or empty, but for the first file of the hub."""
    if output.startswith("hf://") and not re.fullmatch(
        "hf://(?!datasets/|spaces/)[^/@]+/[^/@]+(/.*)?", output
    ):
        raise BadInput(f"export folder {output}: is no model of the hub; name hf://OWNER/NAME")
    if "://" not in output and os.path.lexists(output) and not os.path.isdir(output):
        raise BadInput(f"export folder {output}: is not a folder; choose another name")
    if files.listing(files.resolve(output)).keys() - {".gitattributes"}:
        raise BadInput(
            f"export folder {output}: is not empty; choose another, nothing is overwritten"
        )
