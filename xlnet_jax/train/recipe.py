"""From a configuration to everything that computes with it, built once and passed on.

Training, evaluation, export, inspection and the compiler for absent devices take the same Recipe.
To use another model, head, loss or optimizer, change this file; the step and the loop do not
change.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import traverse_util

from xlnet_jax.batch import Auxiliary, Batch, forward_text
from xlnet_jax.config import Config
from xlnet_jax.errors import BadInput
from xlnet_jax.model import flops
from xlnet_jax.model.layers import Declared
from xlnet_jax.model.transformer import XLNet
from xlnet_jax.model.vanilla import AuxiliaryHeads
from xlnet_jax.train.loss import LanguageModel, RowLosses
from xlnet_jax.train.optimizer import make_optimizer, schedule


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The functions of one configuration. Holds no array, and does not depend on a mesh."""

    config: Config
    model: Any
    """The module with its head, and the losses of a segment, which `mean_loss` divides: here a
    `LanguageModel`; a task has its own (`finetune.recipe`).
    """
    learning_rate: optax.Schedule
    """By the number of earlier good steps; the optimizer uses the same."""
    flops_per_step: int
    """FLOPs of one optimizer step of the whole batch."""
    example_batch: Callable[[int], Any]
    """A batch of zeros with this many rows, for tracing."""
    others: tuple[Recipe, ...] = ()
    """Of the other phases: the state has their parameters too, which a step of this one leaves as
    they are.
    """

    def own_params(self) -> Any:
        """Fresh parameters of this model in their boxes."""
        return self.model.init(jax.random.key(self.config.seeds.init), self.example_batch(1))

    def init_params(self) -> Any:
        """Fresh parameters in their boxes (`layers.Declared`). Independent of the batch and of the
        mesh.
        Of several phases those of all; what two have is as in this one.
        """
        flat = {}
        for each in (*self.others, self):
            flat |= traverse_util.flatten_dict(each.own_params(), keep_empty_nodes=True)
        return traverse_util.unflatten_dict(flat)

    @functools.cached_property
    def abstract_params(self) -> Any:
        """The same without numbers. Raises TypeError if a parameter does not say what it is."""
        boxed = jax.eval_shape(self.init_params)
        for path, box in jax.tree_util.tree_leaves_with_path(
            boxed, is_leaf=nn.meta.is_axis_metadata
        ):
            if not isinstance(box, Declared):
                raise TypeError(
                    f"parameter {jax.tree_util.keystr(path)}: declare it by `layers.parameter`"
                )
        return boxed

    @functools.cached_property
    def optimizer(self) -> optax.GradientTransformation:
        """It leaves alone what only other phases use, with its moments."""
        config, params, unused = self.config, self.abstract_params, set()
        if self.others:
            every, own = (
                set(traverse_util.flatten_dict(x))
                for x in (params, jax.eval_shape(self.own_params))
            )
            unused = every - (own - self.model.transformer.frozen)
        return make_optimizer(config.optimizer, config.train.steps, params, config.compat, unused)

    @property
    def first_loss(self) -> str:
        """The name of the loss that is evaluated, and whose targets are counted."""
        return next(iter(self.model.coefficients))

    def empty_memory(self, rows: int) -> Any:
        """What a step hands to the next one, before the first: a `Memory`, or () in a task."""
        return jax.tree.map(
            lambda box: box.value, self.model.carried(rows), is_leaf=nn.meta.is_axis_metadata
        )

    @functools.cached_property
    def row_axes(self) -> Any:
        """The axis of each array of it that has the rows."""
        boxed = jax.eval_shape(lambda: self.model.carried(1))
        return jax.tree.map(
            lambda box: box.names.index("batch"), boxed, is_leaf=nn.meta.is_axis_metadata
        )

    def apart(
        self, rows: tuple[Any, Any, jax.Array], parts: int, which: int
    ) -> tuple[Any, Any, jax.Array]:
        """A batch, its memory and the numbers of its rows in `parts`, along a new first axis:
        consecutive rows together (`which` 0), or every parts-th row (1).
        """

        def split(x: jax.Array, axis: int = 0) -> jax.Array:
            # Not with -1: a memory without slots has no elements.
            sizes = [parts, x.shape[axis] // parts]
            x = x.reshape(*x.shape[:axis], *(sizes[::-1] if which else sizes), *x.shape[axis + 1 :])
            return jnp.moveaxis(x, axis + which, 0)

        batch, memory, rows_B = rows
        return jax.tree.map(split, batch), jax.tree.map(split, memory, self.row_axes), split(rows_B)

    def joined(self, losses: RowLosses, which: int) -> RowLosses:
        """The inverse of `apart`, for what all parts have found."""
        axes = RowLosses(jax.tree.map(lambda _: 0, losses.sums), self.row_axes)
        return jax.tree.map(
            lambda x, axis: jax.lax.collapse(jnp.moveaxis(x, 0, axis + which), axis, axis + 2),
            losses,
            axes,
        )


def make_recipe(config: Config) -> Recipe:
    """The recipe of pretraining; touches no device.

    Raises BadInput if JAX would compute in another precision, or if the configuration is that of a
    task.
    """
    if not config.pretrains:
        raise BadInput(
            f"finetune.task={config.finetune.task} is for `xlnet-jax finetune` and "
            "`predict`; here it must be none"
        )
    return assemble(
        config,
        language_model(config),
        functools.partial(example_batch, config),
        flops.step_flops(config),
    )


def recipes(
    configs: Sequence[Config], make: Callable[[Config], Recipe] = make_recipe
) -> list[Recipe]:
    """The recipes of the phases of a run, whose states have the same parameters and moments: those
    of all.
    """
    made = [make(config) for config in configs]
    return [
        dataclasses.replace(recipe, others=tuple(other for other in made if other is not recipe))
        for recipe in made
    ]


def language_model(config: Config) -> LanguageModel:
    """The transformer of the objective, with its head."""
    return LanguageModel(
        XLNet(config.model, config.data.reuse_len, config.compat, config.objective),
        auxiliary_heads(config),
        config.data.sentence_loss,
        config.train.label_smoothing,
    )


def assemble(
    config: Config, model: Any, example_batch: Callable[[int], Any], flops_per_step: int
) -> Recipe:
    """Adds what all recipes share, the schedule of the configuration, and checks the precision."""
    if config.model.compute_dtype == "float64" and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        raise BadInput(
            "model.compute_dtype=float64 needs 64-bit JAX; "
            "set the environment variable JAX_ENABLE_X64=1"
        )
    return Recipe(
        config, model, schedule(config.optimizer, config.train.steps), flops_per_step, example_batch
    )


def example_batch(config: Config, batch_size: int) -> Batch:
    """A Batch of zeros with the shapes of the configuration."""
    P, B = config.data.num_predict, batch_size
    none_BT = np.zeros((B, config.data.segment_len), np.int32)
    batch = forward_text(none_BT, none_BT, none_BT, np.zeros((B, P), np.int32))
    if not auxiliary_heads(config):
        return batch
    further = config.data.multi_token_prediction - 1
    weights = np.zeros((B, config.model.layers, 1 + further), np.float32)
    return dataclasses.replace(
        batch, auxiliary=Auxiliary(np.zeros((B, further, P), np.int32), weights)
    )


def auxiliary_heads(config: Config) -> AuxiliaryHeads | None:
    """The heads of losses that only training has."""
    further = config.data.multi_token_prediction - 1
    return AuxiliaryHeads(config.model, further) if further or config.model.layer_losses else None
