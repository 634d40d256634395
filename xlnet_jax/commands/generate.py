"""`xlnet-jax generate`: continues texts, with a left-to-right model or, in any order, with a permutation one."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console

from xlnet_jax import messages
from xlnet_jax.commands.display import Display, progress
from xlnet_jax.commands.inputs import read_lines
from xlnet_jax.commands.score import restored
from xlnet_jax.errors import BadInput
from xlnet_jax.infer.decoder import Decoder, check, continuable
from xlnet_jax.infer.infill import appended, continue_texts
from xlnet_jax.infer.orders import warn_of_law
from xlnet_jax.infer.sampling import Sampling
from xlnet_jax.infer.texts import prompt_ids
from xlnet_jax.run import workdir as workdirs


def generate(
    workdir: str, *, texts: Sequence[str] = (), prompt: Sequence[str] = (), input: str | None = None, tokens: int = 100,
    order: str = "left", tokens_per_step: int = 1, speculative: int = 0, temperature: float = 1.0, top_k: int = 0,
    top_p: float = 1.0, seed: int = 0, step: int | None = None, batch_size: int = 16, console: Console | None = None,
    overrides: Sequence[str] = (),
) -> list[dict[str, Any]]:  # fmt: skip
    """Continues every prompt by `tokens` tokens; from left to right at most to the end of a document.

    Args:
      texts, prompt: to continue, in this order; an empty one is the start of a document.
      input: a file with more, one per line; `-` = stdin. Empty lines are left out.
      order, tokens_per_step, speculative: of a permutation model; see `Decoder`.
      temperature, top_k, top_p, seed: see `Sampling`.
      step: the checkpoint; None = the newest good one.
      batch_size: texts at a time.
      console: a terminal on which the texts also come about.
      overrides: elastic or free config keys to change.

    Returns:
      `prompt` and `text`, which follows it, of each, in their order; of a permutation model also `exact`: false if
      tokens were drawn in parallel.

    Raises:
      BadInput: no run or good checkpoint in `workdir`, a model that continues no text, no prompt, or a number that
        cannot be.
    """
    config = workdirs.load_config(workdir, list(overrides))
    any_order = config.data.objective == "plm"
    # Refuses before anything is read.
    check(continuable(config, workdir), order, tokens_per_step, speculative)
    sampling = Sampling(temperature, top_k, top_p, seed)
    sampling.check(tokens)
    prompts = [*texts, *prompt, *(line for line in (read_lines(input) if input else ()) if line.strip())]
    if not prompts:
        raise BadInput(f"--input={input} has no text" if input else "no text; give texts, or --input=FILE")
    tokenizer = workdirs.tokenizer(workdir)
    display, ids = None, prompt_ids(tokenizer, prompts)
    if any_order:
        asked = [appended(*pair) for pair in zip(ids, [tokens] * len(ids), prompts, strict=True)]
        warn_of_law(config, [text.known for text in asked], order)
        display = Display(console, tokenizer, asked) if console is not None and order != "left" else None
    bar = progress("writing", len(prompts) if console is None else 0)
    with (
        restored(config, workdir, step, "\n".join(prompts)) as (config, params),
        display or contextlib.nullcontext(),
        bar as done,
    ):
        listener = Terminal(prompts) if console is not None and order == "left" else _Ended(done)
        decoder = Decoder(continuable(config, workdir), params, config.data.segment_len, batch_size)
        texts = continue_texts(decoder, tokenizer, prompts, tokens, sampling, order, tokens_per_step, speculative,
                               listener, display)  # fmt: skip
    if display is not None:
        display.finish()
    exact = {"exact": tokens_per_step == 1} if any_order else {}
    return [{"prompt": before, "text": text, **exact} for before, text in zip(prompts, texts, strict=True)]


def show_or_return(**options: Any) -> list[dict[str, Any]]:
    """On a terminal the texts appear while they are made; elsewhere, and with --json, they are returned."""
    if messages.as_json() or not sys.stdout.isatty():
        return generate(**options)
    generate(**options, console=Console())
    return []


class _Ended:
    """Counts the texts that have ended: a `TextListener`."""

    def __init__(self, done: Callable[[int], None]) -> None:
        self._done, self._number = done, 0

    def __call__(self, number: int, text: str, ended: bool) -> None:
        self._number += ended
        self._done(self._number)


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
            print("\n".join(map(messages.printable, text.split("\n"))), end="", flush=True)
            if self._at not in self._ended:
                break
            self._at += 1
            print("\n" if self._at < len(self._waiting) else "")
