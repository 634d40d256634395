"""Writes and reads folders for Orbax: `params` with our tree, `config.json` and `tokenizer` as in a
work directory.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Sequence

from xlnet_jax.checkpoint.store import load_parameters, save_parameters
from xlnet_jax.config import Config
from xlnet_jax.convert import names
from xlnet_jax.convert.formats import Source, Trained
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.storage import files

PARAMS = "params"
"""Name of the folder with the arrays."""


def recognise(path: str, listed: Collection[str]) -> bool:
    """Whether a folder is of Orbax."""
    return f"{PARAMS}/" in listed


@contextlib.contextmanager
def read(path: str, tokenizer: str | None, overrides: Sequence[str]) -> Iterator[Source]:
    """Opens a folder; all keys and the tokenizer come from the run."""
    config = workdirs.load_config(path, list(overrides))
    with files.local_copy(os.path.join(path, PARAMS)) as copy:
        arrays = names.Arrays.of(path, load_parameters(os.path.abspath(copy)))
    kept = workdirs.source_config(path)
    yield Source(
        path, "orbax", config, workdirs.tokenizer(path), arrays, names.from_ours, kept=kept
    )


def check(config: Config) -> None:
    """Accepts every model."""


def write(trained: Trained, output: str, shard_bytes: int) -> None:
    """Writes a folder. Ignores `shard_bytes`, because Orbax divides the arrays itself."""
    with files.translate_errors(output), files.new_folder(output) as partial:
        save_parameters(os.path.join(partial, PARAMS), trained.params)
        files.write(os.path.join(partial, "config.json"), files.to_json(trained.identity))
        workdirs.write_tokenizer(partial, trained.tokenizer)
