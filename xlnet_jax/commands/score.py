"""`xlnet-jax score`: the probability of texts, or of a part of each given the rest, in any order."""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from xlnet_jax.commands.display import progress
from xlnet_jax.commands.inputs import read_rows
from xlnet_jax.config import Config
from xlnet_jax.distributed.processes import session
from xlnet_jax.errors import BadInput
from xlnet_jax.infer.opened import opened
from xlnet_jax.infer.orders import any_order, warn_of_law
from xlnet_jax.infer.score import Likelihood, Scorer, order_of
from xlnet_jax.infer.texts import Passage, pieces_of
from xlnet_jax.run import workdir as workdirs

log = logging.getLogger("xlnet_jax")


def score(
    workdir: str, *, texts: Sequence[str] = (), input: str | None = None, order: str | None = None, orders: int = 1,
    seed: int = 0, step: int | None = None, batch_size: int = 16, overrides: Sequence[str] = (),
) -> list[dict[str, Any]]:  # fmt: skip
    """The log-likelihood of every text.

    Args:
      texts: each as a whole, with nothing given.
      input: a file with more, one per line; with JSON objects `text`, and `before` and `after` that are given, if its
        name ends in .jsonl; `-` = stdin. Empty lines are left out.
      order: `left`, `reversed` or `random`; None: left for one order, random for several.
      orders: number of orders.
      seed: of random orders.
      step: the checkpoint; None = the newest good one.
      batch_size: texts times orders at a time.
      overrides: elastic or free config keys to change.

    Returns:
      For each text, in nats: `log_prob`, the mean over the orders; with several orders `spread`, their standard
      deviation, and `log_mean_exp`; `pieces`, and the mean `log_probs` of each.

    Raises:
      BadInput: no run or good checkpoint in `workdir`, a model without likelihood, or no text.
    """
    config = workdirs.load_config(workdir, list(overrides))
    model = any_order(config, workdir)
    passages = [*(Passage(text) for text in texts), *(_read(input) if input else ())]
    if not passages:
        raise BadInput(f"--input={input} has no text" if input else "no text; give texts, or --input=FILE")
    tokenizer = workdirs.tokenizer(workdir)
    pairs = [pieces_of(tokenizer, passage, number) for number, passage in enumerate(passages, 1)]
    tokens, known = zip(*pairs, strict=True)
    warn_of_law(config, known, order_of(model, order, orders, seed))
    with restored(config, workdir, step, repr(passages)) as (config, params):
        scorer = Scorer(any_order(config, workdir), params, config.data.segment_len, batch_size)
        with progress("scoring", len(passages) * orders) as done:
            found = scorer.log_prob(tokens, known, order, orders, seed, done)
    return [_result(tokenizer, *one) for one in zip(passages, tokens, found, strict=True)]


@contextlib.contextmanager
def restored(config: Config, workdir: str, step: int | None, inputs: str) -> Iterator[tuple[Config, Any]]:
    """The configuration and the parameters of a run for inference on `inputs`; see `infer.opened.opened`."""
    digest = hashlib.sha256(inputs.encode()).hexdigest()
    equal = {"the texts (sha256)": digest, "--step": step, "--workdir": workdir}
    with session(config, equal) as processes, opened(config, processes) as model:
        params, found = model.restore(workdir, step)
        log.info("computing with step %d, after compiling", found)
        yield model.config, params


def _result(tokenizer: Any, passage: Passage, tokens: Sequence[int], found: Likelihood) -> dict[str, Any]:
    result: dict[str, Any] = {"text": passage.text, "log_prob": float(found.joint_K.mean())}
    if len(found.joint_K) > 1:
        result |= {"spread": float(found.joint_K.std(ddof=1)), "log_mean_exp": found.log_mean_exp}
    pieces = [tokenizer.pieces[tokens[position]] for position in found.position_U]
    return result | {"pieces": pieces, "log_probs": found.log_prob_KU.mean(axis=0).tolist()}


def _read(path: str) -> Iterator[Passage]:
    for where, row in read_rows(path):
        given = {"text": row} if isinstance(row, str) else row
        if "text" not in given or not given.keys() <= set(Passage._fields) or {*map(type, given.values())} != {str}:
            raise BadInput(f"{where}: give an object of strings: `text`, and `before` and `after` if there are any, "
                           "and nothing else")  # fmt: skip
        yield Passage(**given)
