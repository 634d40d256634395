"""What the formats of other programs share: a model as it is stored there, its configuration, one
of ours to write.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import numpy as np

from xlnet_jax import config as configs
from xlnet_jax.config import Config
from xlnet_jax.convert.names import Arrays, Params, by_path
from xlnet_jax.data.tokenizer import Tokenizer
from xlnet_jax.data.vocabulary import check_pieces
from xlnet_jax.errors import BadInput
from xlnet_jax.storage import files
from xlnet_jax.train.recipe import Recipe

ASSUMED = {
    "data.objective",
    "data.segment_len",
    "data.reuse_len",
    "model.memory_len",
    "model.compute_dtype",
}
"""Keys that change what a model makes of a text, and that only an export of ours names all."""
MOST_SPARE = 1024
"""Rows without a piece that a model may have: tables are padded to a multiple of a few hundred at
most.
"""

log = logging.getLogger("xlnet_jax")


class Source(NamedTuple):
    """A model as it is stored elsewhere."""

    path: str
    format: str
    config: Config
    tokenizer: Tokenizer
    arrays: Arrays
    convert: Callable[[Params, Arrays], Params]
    """Our tree of the arrays, given the abstract one."""
    assumed: Sequence[str] = ()
    """KEY=VALUE of `ASSUMED` that neither the source nor the caller says."""
    kept: Mapping[str, Any] = {}
    """`Peer.kept` of a Hugging Face folder, also of the one that an Orbax folder came from."""
    lost: Sequence[str] = ()
    """KEY=VALUE of its configuration that have no place here."""

    def params(self, recipe: Recipe) -> Params:
        """Our tree of numpy arrays. Raises BadInput if any is missing, left over, of another form,
        or not finite.
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
    """A model of ours that is to be written."""

    config: Config
    tokenizer: Tokenizer
    params: Mapping[str, Any]
    """The unboxed tree of the model with its head, numpy arrays."""
    step: int = 0
    """Of its checkpoint."""
    identity: Mapping[str, Any] = {}
    """`config.json` of its work directory."""
    kept: Mapping[str, Any] = {}
    """`Source.kept` of the model that the run started from."""
    losses: Mapping[str, float] = {}
    """Of its step, by the words that describe them."""
    scores: Mapping[str, float] = {}
    """Of the dev set of a task by their names, the one that ranks first."""
    tokens: int | None = None
    """Fresh ones that it has read; None where nobody knows."""


def configured(
    source: str, known: Mapping[str, Any], overrides: Sequence[str], guessed: Mapping[str, Any] = {}
) -> tuple[Config, list[str]]:
    """The configuration of a source from what it says, `known`, and of `ASSUMED` what nothing says.

    The values `guessed` are in place of our defaults.
    """
    try:
        config = configs.from_dict(configs.nested({**guessed, **known}), overrides)
    except BadInput as error:
        raise BadInput(f"{source}: {error}") from error
    said = known.keys() | {word.removeprefix("--config.").partition("=")[0] for word in overrides}
    return config, [
        f"{name}={value}" for name, value in configs.flat(config).items() if name in ASSUMED - said
    ]


def fitted(config: Config, tokenizer: Tokenizer) -> Config:
    """The configuration of a model that is read, whose last rows may have no piece.

    Raises BadInput if there are fewer rows than pieces, or so many more that the tokenizer is that
    of another model.
    """
    spare = config.model.vocab_size - tokenizer.vocab_size
    if 0 <= spare <= MOST_SPARE:
        config = config.changed(model={"spare_rows": spare})
    check_tokenizer(tokenizer, config)
    return config


def check_tokenizer(tokenizer: Tokenizer, config: Config) -> None:
    """Raises BadInput if a tokenizer has not as many pieces as the model, or lacks one that it
    needs.
    """
    if tokenizer.vocab_size != config.model.pieces:
        raise BadInput(
            f"tokenizer {tokenizer.path}: has {tokenizer.vocab_size} pieces, the model "
            f"{config.model.pieces}; use the one that it was trained with "
            f"(`import --tokenizer={tokenizer.file_name}`)"
        )
    check_pieces(tokenizer, config, f"tokenizer {tokenizer.path}")


def check_output(output: str) -> None:
    """Raises BadInput unless a folder can be written there: it does not exist, or is empty."""
    if "://" not in output and os.path.lexists(output) and not os.path.isdir(output):
        raise BadInput(f"export folder {output}: is not a folder; choose another name")
    if files.listing(files.resolve(output)):
        raise BadInput(
            f"export folder {output}: is not empty; choose another, nothing is overwritten"
        )
