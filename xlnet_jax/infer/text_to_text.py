"""Writes the targets of the task `text_to_text`: greedily, by sampling or by beam search."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from xlnet_jax.errors import BadInput
from xlnet_jax.finetune.task import Row
from xlnet_jax.finetune.text_to_text import TextToText
from xlnet_jax.infer.batching import batches, power_of_two
from xlnet_jax.infer.beam import Beam, search
from xlnet_jax.infer.decoder import Decoder
from xlnet_jax.infer.options import Decoding
from xlnet_jax.train.evaluation import NO_HOOKS, Hooks, bar_of, rows_at_once
from xlnet_jax.train.recipe import Recipe

SHORTEST_SOURCE = 16
"""Pieces of the shortest sources that are compiled."""

GREEDY = Decoding()


@dataclasses.dataclass(frozen=True)
class Writer:
    """The `finetune.evaluation.Write` of a task: writes the target of each row.

    A target has at most U pieces: `finetune.max_answer` and END. With a temperature the pieces are
    drawn, and a target depends only on its source, its number and the seed. Otherwise a beam search
    keeps `finetune.beam` prefixes; a beam of 1 is greedy.
    """

    task: TextToText
    recipe: Recipe
    mesh: Mesh
    batch_size: int = 0
    """Rows at a time; 0 = as configured."""
    asked: Decoding = GREEDY

    def __call__(
        self, params: Any, rows: Sequence[Row], hooks: Hooks = NO_HOOKS
    ) -> dict[str, np.ndarray]:
        """Returns `tokens` [N, U], int32 with -1 after the end, and `log_prob` [N] of the N rows.
        Raises BadInput if a likelihood is not finite.
        """
        sources = [row.tokens[0][: row.labels["source"][0]] for row in rows]
        options = self.recipe.config.finetune
        one_by_one = self.asked.temperature > 0 or options.beam == 1
        written = (self._decode if one_by_one else self._search)(
            params, sources, options.max_answer + 1, hooks
        )
        return dict(zip(("tokens", "log_prob"), written, strict=True))

    @property
    def _size(self) -> int:
        """Rows at a time."""
        return rows_at_once(self.recipe.config, self.mesh, self.batch_size)

    def _decode(
        self, params: Any, sources: list[np.ndarray], U: int, hooks: Hooks
    ) -> tuple[np.ndarray, np.ndarray]:
        """Writes targets piece by piece, greedily or by sampling."""
        decode = Decoder(
            self.recipe.model,
            params,
            self.task.tokenizer.special,
            self.recipe.config.data.segment_len,
            self._size,
            prefix=True,
        )
        texts = [
            (np.pad(source_N, (0, U)), np.arange(len(source_N) + U) < len(source_N))
            for source_N in sources
        ]
        with bar_of("texts", len(texts), hooks) as bar:

            def count_text(number: int, pairs: Any, ended: bool) -> None:
                bar.advance(bar.task_ids[0], ended)
                hooks.between()

            filled = decode(texts, self.asked, self.task.end, count_text)
        tokens_NU = np.full((len(sources), U), -1, np.int32)
        for tokens_U, text, source_N in zip(tokens_NU, filled, sources, strict=True):
            target_n = text.token_N[len(source_N) :]
            tokens_U[: len(target_n)] = target_n
        return tokens_NU, np.array([text.log_prob_U.sum() for text in filled])

    def _search(
        self, params: Any, sources: list[np.ndarray], U: int, hooks: Hooks
    ) -> tuple[np.ndarray, np.ndarray]:
        """Writes targets by beam search."""
        config = self.recipe.config
        beam = Beam(config.finetune.beam, U, self.task.end, config.data.segment_len)
        B, groups = batches([len(source_N) for source_N in sources], self._size)
        tokens_NU, log_prob_N = np.full((len(sources), U), -1, np.int32), np.zeros(len(sources))
        with bar_of("texts", len(sources), hooks) as bar:
            for group, numbers in enumerate(groups):
                longest = max(len(sources[number]) for number in numbers)
                Q = min(beam.segment_len, power_of_two(longest, SHORTEST_SOURCE))
                tokens_BQ, length_B = np.zeros((B, Q), np.int32), np.ones(B, np.int32)
                for b, number in enumerate(numbers):
                    length_B[b] = len(sources[number])
                    tokens_BQ[b, : length_B[b]] = sources[number]
                alpha = config.finetune.length_penalty
                with contextlib.nullcontext() if group else hooks.compiling():
                    tokens_BU, log_prob_B, _ = jax.device_get(
                        search(self.recipe.model, beam, params, tokens_BQ, length_B, alpha)
                    )
                tokens_NU[numbers] = tokens_BU[: len(numbers)]
                log_prob_N[numbers] = log_prob_B[: len(numbers)]
                bar.advance(bar.task_ids[0], len(numbers))
                hooks.between()
        if not np.isfinite(log_prob_N).all():
            raise BadInput("a likelihood is not finite; the parameters are damaged")
        return tokens_NU, log_prob_N
