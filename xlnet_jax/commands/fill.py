"""`xlnet-jax fill`: fills the gaps of texts with a permutation language model, in any order."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console

from xlnet_jax import messages
from xlnet_jax.commands.display import Display, progress
from xlnet_jax.commands.inputs import read_rows
from xlnet_jax.commands.score import restored
from xlnet_jax.data.tokenizer import Tokenizer
from xlnet_jax.errors import BadInput
from xlnet_jax.infer import infill
from xlnet_jax.infer.decoder import Decoder, Listener, check, fillable
from xlnet_jax.infer.orders import checked, warn_of_law
from xlnet_jax.infer.sampling import Sampling
from xlnet_jax.run import workdir as workdirs


def fill(
    workdir: str, *, texts: Sequence[str] = (), input: str | None = None, order: str = "left", tokens_per_step: int = 1,
    speculative: int = 0, temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0, seed: int = 0,
    samples: int = 1, step: int | None = None, batch_size: int = 16, console: Console | None = None,
    overrides: Sequence[str] = (),
) -> list[dict[str, Any]]:  # fmt: skip
    """Fills the gaps of every text; see `infer.infill` for how a gap is written.

    Args:
      texts: with `[MASK]` where something is missing.
      input: a file with more, one per line, or JSON objects with `text` if its name ends in .jsonl; `-` = stdin.
      order, tokens_per_step, speculative: see `Decoder`.
      temperature: 0, the most probable piece, unless another is asked for.
      top_k, top_p, seed: see `Sampling`.
      samples: of every text; they differ by their draws.
      step: the checkpoint; None = the newest good one.
      batch_size: texts at a time.
      console: a terminal on which the texts also come about.
      overrides: elastic or free config keys to change.

    Returns:
      For each text, or sample of it in the order of the texts: the fields of `infer.infill.Infilled`, and `sample` if
      there are several.

    Raises:
      BadInput: no run or good checkpoint in `workdir`, a model that cannot fill, a text without a gap, or a number that
        cannot be.
    """
    config = workdirs.load_config(workdir, list(overrides))
    model = fillable(config, workdir)
    sampling = Sampling(temperature, top_k, top_p, seed)
    sampling.check(1)
    if temperature == 0 and (top_k or top_p < 1):
        raise BadInput("--top_k and --top_p change nothing with --temperature=0, the default; give --temperature=1")
    rows = [*texts, *(_read(input) if input else ())]
    if not rows:
        raise BadInput(f"--input={input} has no text" if input else "no text; give texts, or --input=FILE")
    certain = temperature == 0 and order != "random"
    if samples > 1 and certain and not any(infill.is_drawn(text, number) for number, text in enumerate(rows, 1)):
        raise BadInput(f"--samples={samples} of the most probable pieces are alike; give --temperature=1")
    tokenizer = workdirs.tokenizer(workdir)
    # Sample after sample: text n has number n, and what becomes of it does not depend on how many samples there are.
    asked = [infill.gapped(tokenizer, text, number, seed, sample)
             for sample in range(samples) for number, text in enumerate(rows, 1)]  # fmt: skip
    tokens, known = [text.ids for text in asked], [text.known for text in asked]
    check(model, order, tokens_per_step, speculative)
    checked(model, config.data.segment_len, tokens[: len(rows)], known[: len(rows)])
    warn_of_law(config, known, order)
    with restored(config, workdir, step, repr(rows)) as (config, params), _heard(console, tokenizer, asked) as heard:
        decoder = Decoder(fillable(config, workdir), params, config.data.segment_len, batch_size)
        filled = decoder(tokens, known, sampling, order, tokens_per_step, speculative, listener=heard)
    found = [infill.result(tokenizer, text, one, tokens_per_step == 1) for text, one in zip(asked, filled, strict=True)]
    if isinstance(heard, Display):
        heard.finish(found)
    of_text = [(sample, found[sample * len(rows) + row]) for row in range(len(rows)) for sample in range(samples)]
    return [({"sample": sample + 1} if samples > 1 else {}) | as_object(one) for sample, one in of_text]


def as_object(found: infill.Infilled) -> dict[str, Any]:
    """For JSON."""
    return found._asdict() | {"gaps": [gap._asdict() for gap in found.gaps]}


def show_or_return(**options: Any) -> list[dict[str, Any]]:
    """On a terminal the texts come about there; elsewhere, and with --json, they are returned."""
    if messages.as_json() or not sys.stdout.isatty():
        return fill(**options)
    fill(**options, console=Console())
    return []


@contextlib.contextmanager
def _heard(console: Console | None, tokenizer: Tokenizer, texts: Sequence[infill.Gapped]) -> Iterator[Listener]:
    """The display, or without a console for it a bar on stderr."""
    if console is not None:
        with Display(console, tokenizer, texts) as display:
            yield display
        return
    ended = 0
    with progress("filling", len(texts)) as done:

        def count(number: int, pairs: list[tuple[int, int]], last: bool) -> None:
            nonlocal ended
            ended += last
            done(ended)

        yield count


def _read(path: str) -> Iterator[str]:
    for where, row in read_rows(path):
        if isinstance(row, dict) and (row.keys() != {"text"} or not isinstance(row["text"], str)):
            raise BadInput(f"{where}: give an object with one string, `text`, and nothing else")
        yield row["text"] if isinstance(row, dict) else row
