"""The Recipe of a task: the content stream of the pretrained transformer, and the head of the task.

    segment 1 .. S-1  ->  memory, no gradient          (`finetune.segments`)
    segment S         ->  Hidden  ->  losses of the head  ->  sum / number of rows

No position predicts a token, so batches have no target slots and the model no query stream. Every
position of a text sees all other positions, or, in a member without CLS, all earlier positions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xlnet_jax.batch import NEVER, Batch, Memory, forward_text
from xlnet_jax.config import Config
from xlnet_jax.finetune.heads import dropout_rate
from xlnet_jax.finetune.task import Hidden, Row, Task, TaskBatch
from xlnet_jax.finetune.text_to_text import TextToText, TextToTextModel
from xlnet_jax.model import flops
from xlnet_jax.model.heads import weighed
from xlnet_jax.model.layers import Dropout
from xlnet_jax.model.transformer import Output, XLNet, empty_memory
from xlnet_jax.objectives import PREFIX
from xlnet_jax.train.loss import RowLosses
from xlnet_jax.train.recipe import Recipe


@dataclasses.dataclass(frozen=True)
class TaskModel:
    """A transformer and the head of a task, with the methods of a `train.loss.LanguageModel`.

    The parameters are the tree of the transformer, and `head`. The tree keeps the unused vector of
    the query stream, so that an export is complete.
    """

    transformer: XLNet
    head: Any
    task: Task

    def init(self, key: jax.Array, batch: TaskBatch) -> dict[str, Any]:
        """Returns the initial parameters in Flax's boxes. The parameters of the head do not depend
        on the transformer.
        """
        inputs, config = self._segment(batch, 0), self.transformer.config
        memory = empty_memory(config, len(inputs.tokens), 0)
        params = self.transformer.init(key, inputs, memory)["params"]
        h_NTD = jnp.zeros((*inputs.tokens.shape, config.d_model), config.compute_dtype)
        hidden = self._as_hidden(batch, h_NTD, jnp.arange(len(batch.tokens)))
        key = jax.random.fold_in(key, 1)
        variables = self.head.init(key, hidden, batch.labels, method="losses")
        # A head that only pools has no parameters.
        return {**params, "head": variables.get("params", {})}

    @property
    def coefficients(self) -> Mapping[str, float]:
        """The weight of the only loss."""
        return {"task": 1.0}

    def divisors(self, batch: TaskBatch) -> dict[str, jax.Array]:
        """Returns the number of real rows."""
        return {"task": batch.weight.sum()}

    def carried(self, rows: int) -> tuple[()]:
        """Returns nothing, because examples do not follow each other."""
        return ()

    def row_losses(
        self,
        params: Any,
        batch: TaskBatch,
        memory: tuple[()],
        dropout_key: jax.Array | None = None,
        rows_B: jax.Array | None = None,
    ) -> RowLosses:
        """Returns the losses of a batch; `rows_B` numbers its rows in the whole batch."""
        hidden = self.hidden(params, batch, dropout_key, rows_B)
        loss_B = self._losses(params, hidden, batch, dropout_key)
        weight_B = batch.weight.astype(loss_B.dtype)
        return RowLosses({"task": (weighed(loss_B, weight_B), weight_B)}, memory)

    def evaluate(self, params: Any, batch: TaskBatch) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Returns loss_B and the predictions of the head without dropout, also for rows of weight
        0.
        """
        hidden = self.hidden(params, batch)
        predictions = self.head.apply({"params": params["head"]}, hidden, method="predictions")
        return self._losses(params, hidden, batch), predictions

    def _losses(
        self, params: Any, hidden: Hidden, batch: TaskBatch, dropout_key: jax.Array | None = None
    ) -> jax.Array:
        return self.head.apply(
            {"params": params["head"]},
            hidden,
            batch.labels,
            method="losses",
            rngs=_dropout(dropout_key, 2),
        )

    def hidden(
        self,
        params: Any,
        batch: TaskBatch,
        dropout_key: jax.Array | None = None,
        rows_B: jax.Array | None = None,
    ) -> Hidden:
        """Reads all segments of every sequence, and returns the vectors of the last segment."""
        (B, C, S, _), config = batch.tokens.shape, self.transformer.config
        rows_B = jnp.arange(B) if rows_B is None else rows_B
        rows_N = (rows_B[:, None] * C + jnp.arange(C)[None]).reshape(-1)

        def run(params: Any, segment: int, memory: Memory) -> Output:
            # Every segment has its own dropout masks.
            return self.transformer.apply(  # type: ignore[return-value]
                {"params": params},
                self._segment(batch, segment),
                memory,
                rows_N,
                rngs=_dropout(dropout_key, 3 + segment),
            )

        slots = config.memory_len if S > 1 else 0
        memory = empty_memory(config, B * C, slots)
        for segment in range(S - 1 if slots else 0):
            filled = jax.lax.stop_gradient(
                run(jax.lax.stop_gradient(params), segment, memory).memory
            )
            # Padding before a text fills the left end of the memory; these slots are not valid.
            real_N = self._is_text(batch.tokens[:, :, : segment + 1]).sum(axis=(2, 3)).reshape(-1)
            assert isinstance(filled, Memory)
            memory = Memory(filled.hidden_LBMD, jnp.minimum(filled.valid_B, real_N))
        dropped = (
            self.transformer.parts.output_dropout
            or self.task.config.finetune.task in config.member.dropped_tasks
        )
        drop = Dropout(dropout_rate(config) if dropped else 0.0)
        h_NTD = drop.apply(
            {}, run(params, S - 1, memory).hidden_BTD, rows_N, rngs=_dropout(dropout_key, 1)
        )
        return self._as_hidden(batch, h_NTD, rows_B)  # type: ignore[arg-type]

    def _is_text(self, tokens: Any) -> Any:
        return tokens != self.task.tokenizer.special.pad

    def _segment(self, batch: TaskBatch, segment: int) -> Batch:
        """Returns a segment of all sequences as input of the transformer, [B * C, T]."""
        tokens, kinds = (
            x[:, :, segment].reshape(-1, x.shape[-1]) for x in (batch.tokens, batch.segments)
        )
        none, member = np.zeros((len(tokens), 0), np.int32), self.transformer.config.member
        if member.segments == 1:
            kinds = jnp.zeros_like(kinds)
        # A text without CLS is read from left to right.
        rank_T = np.arange(tokens.shape[1], dtype=np.int32) if member.cls == "none" else 0
        return forward_text(
            tokens,
            jnp.where(self._is_text(tokens), rank_T, NEVER),
            kinds,
            none,
            continues=segment > 0,
        )

    def _as_hidden(self, batch: TaskBatch, h_NTD: jax.Array, rows_B: jax.Array) -> Hidden:
        B, C, _, T = batch.tokens.shape
        last, kinds = (x[:, :, -1] for x in (batch.tokens, batch.segments))
        h_BCTD = h_NTD.reshape(B, C, T, h_NTD.shape[-1])
        return Hidden(
            h_BCTD, self._is_text(last), kinds, rows_B, self.transformer.config.member.cls
        )


def _dropout(key: jax.Array | None, number: int) -> dict[str, jax.Array] | None:
    """Returns `rngs` of `apply`: without a key dropout is off; every use has a different
    `number`.
    """
    return None if key is None else {"dropout": jax.random.fold_in(key, number)}


def task_recipe(task: Task, row: Row, config: Config) -> Recipe:
    """Returns the recipe of a task. `row`, any row of the task, gives the number of sequences and
    the shapes of the labels.
    """
    if isinstance(task, TextToText):
        objective = config.objective
        transformer = XLNet(
            config.model, None, config.compat, objective if objective.causal else PREFIX
        )
        model: Any = TextToTextModel(transformer, label_smoothing=config.train.label_smoothing)
    else:
        model = TaskModel(XLNet(config.model, None, config.compat), task.head(config.model), task)

    def example_batch(batch_size: int) -> TaskBatch:
        return jax.tree.map(np.zeros_like, task.batch([row], batch_size))

    # A step has the FLOPs of masked language modelling without memory, which computes the content
    # stream only. Most tasks have no targets.
    predicted = config.data.segment_len if isinstance(task, TextToText) else 0
    alone = config.changed(
        model={"memory_len": 0}, data={"num_predict": predicted, "objective": "mlm"}
    )
    # A segment that only fills the memory needs no backward pass.
    bare = config.changed(data={"num_predict": 0, "objective": "mlm"})
    forward = config.train.batch_size * sum(flops.forward_flops(bare).values())
    work = len(row.tokens) * (flops.step_flops(alone) + (config.finetune.segments - 1) * forward)
    return Recipe(config, model, work, example_batch)
