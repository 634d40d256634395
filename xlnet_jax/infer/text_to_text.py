"""Targets of the task `text_to_text`: the most probable piece each time, pieces that are drawn, or
by beam search.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from xlnet_jax.errors import BadInput
from xlnet_jax.finetune.evaluation import Write
from xlnet_jax.finetune.task import Row
from xlnet_jax.finetune.text_to_text import TextToText
from xlnet_jax.infer.batching import batches, power_of_two
from xlnet_jax.infer.beam import search
from xlnet_jax.infer.decoder import Decoder
from xlnet_jax.infer.options import Decoding
from xlnet_jax.train.evaluation import NO_HOOKS, Hooks, bar_of, rows_at_once
from xlnet_jax.train.recipe import Recipe

FEWEST = 16
"""Pieces of the shortest sources that are compiled."""

GREEDY = Decoding()


def writer(
    task: TextToText, recipe: Recipe, mesh: Mesh, batch_size: int = 0, asked: Decoding = GREEDY
) -> Write:
    """Makes a function from parameters and rows to `tokens` [N, U], int32, -1 after the end, and
    `log_prob` [N].

    A target has at most U pieces, `finetune.max_answer` and END. With a temperature it is drawn:
    what becomes of text n depends on itself, n and the seed. Else `finetune.beam` hypotheses are
    searched; a beam of 1 is greedy.
    """
    config, model = recipe.config, recipe.model
    T, U, W = config.data.segment_len, config.finetune.max_answer + 1, config.finetune.beam
    size = rows_at_once(config, mesh, batch_size)

    def one_by_one(params: Any, sources: list[np.ndarray], hooks: Hooks) -> dict[str, np.ndarray]:
        decode = Decoder(model, params, task.tokenizer.special, T, size, prefix=True)
        texts = [
            (np.pad(source_N, (0, U)), np.arange(len(source_N) + U) < len(source_N))
            for source_N in sources
        ]
        with bar_of("texts", len(texts), hooks) as bar:

            def drawn(number: int, pairs: Any, ended: bool) -> None:
                bar.advance(bar.task_ids[0], ended)
                hooks.between()

            filled = decode(texts, asked, task.end, drawn)
        written = [
            each.token_N[len(source_N) :] for each, source_N in zip(filled, sources, strict=True)
        ]
        tokens_NU = np.stack(
            [np.pad(each_N, (0, U - len(each_N)), constant_values=-1) for each_N in written]
        )
        return {
            "tokens": tokens_NU,
            "log_prob": np.array([each.log_prob_U.sum() for each in filled]),
        }

    def searched(params: Any, sources: list[np.ndarray], hooks: Hooks) -> dict[str, np.ndarray]:
        B, groups = batches([len(source_N) for source_N in sources], size)
        tokens_NU, log_prob_N = np.full((len(sources), U), -1, np.int32), np.zeros(len(sources))
        with bar_of("texts", len(sources), hooks) as bar:
            for group, numbers in enumerate(groups):
                Q = min(T, power_of_two(max(len(sources[number]) for number in numbers), FEWEST))
                tokens_BQ, length_B = np.zeros((B, Q), np.int32), np.ones(B, np.int32)
                for b, number in enumerate(numbers):
                    length_B[b] = len(sources[number])
                    tokens_BQ[b, : length_B[b]] = sources[number]
                with contextlib.nullcontext() if group else hooks.compiling():
                    found = search(
                        model,
                        params,
                        tokens_BQ,
                        length_B,
                        T,
                        W,
                        U,
                        task.end,
                        config.finetune.length_penalty,
                    )
                    tokens_BU, log_prob_B, _ = jax.device_get(found)
                tokens_NU[numbers], log_prob_N[numbers] = (
                    tokens_BU[: len(numbers)],
                    log_prob_B[: len(numbers)],
                )
                bar.advance(bar.task_ids[0], len(numbers))
                hooks.between()
        if not np.isfinite(log_prob_N).all():
            raise BadInput("a likelihood is not finite; the parameters are damaged")
        return {"tokens": tokens_NU, "log_prob": log_prob_N}

    def write(params: Any, rows: Sequence[Row], hooks: Hooks = NO_HOOKS) -> dict[str, np.ndarray]:
        sources = [row.tokens[0][: row.labels["source"][0]] for row in rows]
        return (one_by_one if asked.temperature > 0 or W == 1 else searched)(params, sources, hooks)

    return write
