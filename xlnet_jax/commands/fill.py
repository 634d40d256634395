"""`xlnet-jax fill`: fills the gaps of texts with a permutation language model, in any order."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console

from xlnet_jax.commands.display import Display, on_terminal
from xlnet_jax.commands.inputs import gathered, read_rows
from xlnet_jax.errors import BadInput
from xlnet_jax.library import on_all_devices


def fill(
    workdir: str, *, texts: Sequence[str] = (), input: str | None = None, step: int | None = None,
    batch_size: int = 16, console: Console | None = None, overrides: Sequence[str] = (), **options: Any,
) -> list[dict[str, Any]]:  # fmt: skip
    """Fills the gaps of every text; see `infer.infill` for how a gap is written.

    Args:
      texts: with `[MASK]` where something is missing.
      input: a file with more, one per line, or JSON objects with `text` if its name ends in .jsonl; `-` = stdin.
      step, batch_size, overrides: see `score.score`.
      console: a terminal on which the texts also come about.
      options: see `infer.options.Fill`.

    Returns:
      For each text, or sample of it in the order of the texts: the fields of `infer.infill.Infilled`, and `sample` if
      there are several.

    Raises:
      BadInput: no model or good checkpoint in `workdir`, a model that cannot fill, a text without a gap, or a number
        that cannot be.
    """
    model = on_all_devices(workdir, overrides, step, batch_size)
    rows, display = gathered(texts, input, _read), Display(console, model.tokenizer, "filling")
    filled = dataclasses.replace(model, watch=display.watch).infill(rows, **options)
    display.finish(filled)
    several = len(filled) > len(rows)
    return [
        ({"sample": sample} if several else {}) | one._asdict() | {"gaps": [gap._asdict() for gap in one.gaps]}
        for number in range(len(rows)) for sample, one in enumerate(filled[number :: len(rows)], 1)
    ]  # fmt: skip


show_or_return = functools.partial(on_terminal, fill)
"""What the command line calls."""


def _read(path: str) -> Iterator[str]:
    for where, row in read_rows(path):
        if isinstance(row, dict) and (row.keys() != {"text"} or not isinstance(row["text"], str)):
            raise BadInput(f"{where}: give an object with one string, `text`, and nothing else")
        yield row["text"] if isinstance(row, dict) else row
