"""`xlnet-jax score`: the probability of texts, or of a part of each given the rest, in any order."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from xlnet_jax.commands.display import progress
from xlnet_jax.commands.inputs import gathered, read_rows
from xlnet_jax.data.tokenizer import Tokenizer
from xlnet_jax.errors import BadInput
from xlnet_jax.infer.infill import Passage, pieces_of
from xlnet_jax.infer.score import Likelihood
from xlnet_jax.library import on_all_devices


def score(
    workdir: str, *, texts: Sequence[str] = (), input: str | None = None, step: int | None = None,
    batch_size: int = 16, overrides: Sequence[str] = (), **options: Any,
) -> list[dict[str, Any]]:  # fmt: skip
    """The log-likelihood of every text.

    Args:
      texts: each as a whole, with nothing given.
      input: a file with more, one per line; with JSON objects `text`, and `before` and `after` that are given, if its
        name ends in .jsonl; `-` = stdin. Empty lines are left out.
      step: the checkpoint; None = the newest good one.
      batch_size: texts (times orders) at a time.
      overrides: elastic or free config keys to change.
      options: see `infer.options.Score`.

    Returns:
      For each text, in nats: `log_prob`, the mean over the orders; with several orders `spread`, their standard
      deviation, and `log_mean_exp`; `pieces`, and the mean `log_probs` of each.

    Raises:
      BadInput: no model or good checkpoint in `workdir`, a model without likelihood, or no text.
    """
    model = on_all_devices(workdir, overrides, step, batch_size)
    passages = gathered(map(Passage, texts), input, _read)
    watched = dataclasses.replace(model, watch=lambda rows: progress("scoring", len(rows)))
    scores = watched.score(passages, **options)
    return [_result(model.tokenizer, number, *pair)
            for number, pair in enumerate(zip(passages, scores, strict=True), 1)]  # fmt: skip


def _result(tokenizer: Tokenizer, number: int, passage: Passage, score: Likelihood) -> dict[str, Any]:
    tokens, _ = pieces_of(tokenizer, passage, number)
    result: dict[str, Any] = {"text": passage.text, "log_prob": float(score.joint_K.mean())}
    if len(score.joint_K) > 1:
        result |= {"spread": float(score.joint_K.std(ddof=1)), "log_mean_exp": score.log_mean_exp}
    pieces = [tokenizer.pieces[tokens[position]] for position in score.position_U]
    return result | {"pieces": pieces, "log_probs": score.log_prob_KU.mean(axis=0).tolist()}


def _read(path: str) -> Iterator[Passage]:
    for where, row in read_rows(path):
        given = {"text": row} if isinstance(row, str) else row
        if "text" not in given or not given.keys() <= set(Passage._fields) or {*map(type, given.values())} != {str}:
            raise BadInput(f"{where}: give an object of strings: `text`, and `before` and `after` if there are any, "
                           "and nothing else")  # fmt: skip
        yield Passage(**given)
