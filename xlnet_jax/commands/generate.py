"""`xlnet-jax generate`: continues texts, with a left-to-right model or, in any order, with a permutation one."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console

from xlnet_jax import messages
from xlnet_jax.commands.display import Display, on_terminal
from xlnet_jax.commands.inputs import gathered, read_lines
from xlnet_jax.infer.options import Generate
from xlnet_jax.library import on_all_devices


def generate(
    workdir: str, *, texts: Sequence[str] = (), prompt: Sequence[str] = (), input: str | None = None,
    step: int | None = None, batch_size: int = 16, console: Console | None = None, overrides: Sequence[str] = (),
    **options: Any,
) -> list[dict[str, Any]]:  # fmt: skip
    """Continues every prompt by `tokens` tokens; from left to right at most to the end of a document.

    Args:
      texts, prompt: to continue, in this order; an empty one is the start of a document.
      input: a file with more, one per line; `-` = stdin. Empty lines are left out.
      step, batch_size, overrides: see `score.score`.
      console: a terminal on which the texts also come about.
      options: see `infer.options.Generate`.

    Returns:
      `prompt` and `text`, which follows it, of each, in their order; of a permutation model also `exact`: false if
      tokens were drawn in parallel.

    Raises:
      BadInput: no model or good checkpoint in `workdir`, a model that continues no text, no prompt, or a number that
        cannot be.
    """
    asked, model = Generate(**options), on_all_devices(workdir, overrides, step, batch_size)
    prompts = gathered([*texts, *prompt], input, _read)
    as_written = console is not None and asked.order == "left"
    display, listener = Display(console, model.tokenizer, "writing"), Terminal(prompts) if as_written else None
    watched = model if as_written else dataclasses.replace(model, watch=display.watch)
    continued = watched.generate(prompts, listener=listener, **options)
    display.finish()
    exact = {"exact": asked.tokens_per_step == 1} if model.config.data.objective == "plm" else {}
    return [{"prompt": before, "text": text, **exact} for before, text in zip(prompts, continued, strict=True)]


show_or_return = functools.partial(on_terminal, generate)
"""What the command line calls."""


def _read(path: str) -> Iterator[str]:
    return (line for line in read_lines(path) if line.strip())


class Terminal:
    """Prints texts in the order of the prompts: one while it is made, the next when that has ended."""

    def __init__(self, prompts: Sequence[str]) -> None:
        self._waiting, self._ended, self._at = list(prompts), set[int](), 0

    def __call__(self, number: int, text: str, ended: bool) -> None:
        """A `TextListener`."""
        self._waiting[number] += text
        self._ended |= {number} if ended else set()
        while self._at in self._ended | {number}:
            text, self._waiting[self._at] = self._waiting[self._at], ""
            print(messages.printable_lines(text), end="", flush=True)
            if self._at not in self._ended:
                break
            self._at += 1
            print("\n" if self._at < len(self._waiting) else "")
