"""The recipe of a configuration: model, losses, optimizer and example batch, built once and passed
on.

Training, evaluation, export, inspection and compilation for absent devices use the same Recipe.
To use another model, head, loss or optimizer, change this file; the step and the loop stay.
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

from xlnet_jax.batch import Auxiliary, Batch, Documents, forward_text
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
    """Model, optimizer and learning rate of a configuration. Holds no arrays and needs no mesh."""

    config: Config
    model: Any
    """The network with its head and the losses of a segment: a `LanguageModel`, or the `TaskModel`
    of a task (`finetune.recipe`).
    """
    flops_per_step: int
    """FLOPs of an optimizer step of the whole batch."""
    example_batch: Callable[[int], Any]
    """Returns a batch of zeros with this number of rows, for tracing."""
    others: tuple[Recipe, ...] = ()
    """The recipes of the other phases. The state has their parameters too, but a step of this phase
    does not change them.
    """

    def __post_init__(self) -> None:
        """Raises BadInput if JAX cannot compute in `model.compute_dtype`."""
        if self.config.model.compute_dtype == "float64" and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
            raise BadInput(
                "model.compute_dtype=float64 needs 64-bit JAX; "
                "set the environment variable JAX_ENABLE_X64=1"
            )

    @functools.cached_property
    def learning_rate(self) -> optax.Schedule:
        """The learning rate as a function of the number of earlier good steps, as in the
        optimizer.
        """
        return schedule(self.config.optimizer, self.config.train.steps)

    def own_params(self, seed: Any = None) -> Any:
        """Fresh parameters of this model in their boxes; see `init_params`."""
        seed = self.config.seeds.init if seed is None else seed
        return self.model.init(jax.random.key(seed), self.example_batch(1))

    def init_params(self, seed: Any = None) -> Any:
        """Returns fresh parameters of all phases in their boxes (`layers.Declared`). They do not
        depend on the batch or the mesh. Parameters that several phases share get the initial values
        of this phase. The seed is `seeds.init`, or the argument of a program for all seeds.
        """
        flat = {}
        for each in (*self.others, self):
            flat |= traverse_util.flatten_dict(each.own_params(seed), keep_empty_nodes=True)
        return traverse_util.unflatten_dict(flat)

    @functools.cached_property
    def abstract_params(self) -> Any:
        """The shapes and dtypes of `init_params`, in boxes. Raises TypeError if a parameter is not
        declared.
        """
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
        """The optimizer. Parameters that only other phases use keep their values and moments."""
        config = self.config
        params = self.abstract_params
        unused = set()
        if self.others:
            every, own = (
                set(traverse_util.flatten_dict(x))
                for x in (params, jax.eval_shape(self.own_params))
            )
            unused = every - (own - self.model.transformer.frozen)
        return make_optimizer(config.optimizer, config.train.steps, params, config.compat, unused)

    @property
    def first_loss(self) -> str:
        """The name of the loss that evaluations score and whose targets are counted."""
        return next(iter(self.model.coefficients))

    def empty_memory(self, rows: int) -> Any:
        """The memory before the first step: a `Memory`, or () in a task."""
        return jax.tree.map(
            lambda box: box.value, self.model.carried(rows), is_leaf=nn.meta.is_axis_metadata
        )

    @functools.cached_property
    def row_axes(self) -> Any:
        """The axis of the rows in each array of the memory."""
        boxed = jax.eval_shape(lambda: self.model.carried(1))
        return jax.tree.map(
            lambda box: box.names.index("batch"), boxed, is_leaf=nn.meta.is_axis_metadata
        )

    def split_rows(
        self, rows: tuple[Any, Any, jax.Array], parts: int, which: int
    ) -> tuple[Any, Any, jax.Array]:
        """Splits a batch, its memory and the numbers of its rows into `parts`, along a new first
        axis. A part has consecutive rows (`which` 0) or every parts-th row (1).
        """

        def split(x: jax.Array, axis: int = 0) -> jax.Array:
            # Sizes are explicit: reshape cannot infer a -1 for a memory without slots.
            sizes = [parts, x.shape[axis] // parts]
            x = x.reshape(*x.shape[:axis], *(sizes[::-1] if which else sizes), *x.shape[axis + 1 :])
            return jnp.moveaxis(x, axis + which, 0)

        batch, memory, rows_B = rows
        return jax.tree.map(split, batch), jax.tree.map(split, memory, self.row_axes), split(rows_B)

    def join_rows(self, losses: RowLosses, which: int) -> RowLosses:
        """Joins the losses and memories of parts that `split_rows` has made."""
        axes = RowLosses(jax.tree.map(lambda _: 0, losses.sums), self.row_axes)
        return jax.tree.map(
            lambda x, axis: jax.lax.collapse(jnp.moveaxis(x, 0, axis + which), axis, axis + 2),
            losses,
            axes,
        )


def make_recipe(config: Config) -> Recipe:
    """Returns the recipe of pretraining; uses no device.

    Raises BadInput if JAX cannot compute in `model.compute_dtype`, or if the configuration is for a
    task.
    """
    if not config.pretrains:
        raise BadInput(
            f"finetune.task={config.finetune.task} is for `xlnet-jax finetune` and "
            "`predict`; here it must be none"
        )
    example = functools.partial(example_batch, config)
    return Recipe(config, language_model(config), flops.step_flops(config), example)


def recipes(
    configs: Sequence[Config], make: Callable[[Config], Recipe] = make_recipe
) -> list[Recipe]:
    """Returns the recipes of the phases of a run. The state of each phase has the parameters and
    moments of all phases.
    """
    made = [make(config) for config in configs]
    return [
        dataclasses.replace(recipe, others=tuple(other for other in made if other is not recipe))
        for recipe in made
    ]


def language_model(config: Config) -> LanguageModel:
    """The model of pretraining."""
    return LanguageModel(
        XLNet(config.model, config.data.reuse_len, config.compat, config.objective),
        auxiliary_heads(config),
        config.data.sentence_loss,
        config.train.label_smoothing,
    )


def example_batch(config: Config, batch_size: int) -> Batch:
    """A Batch of zeros with the shapes of the configuration."""
    P = config.data.num_predict
    B = batch_size
    none_BT = np.zeros((B, config.data.segment_len), np.int32)
    batch = forward_text(none_BT, none_BT, none_BT, np.zeros((B, P), np.int32))
    if config.data.whole_documents:
        batch = dataclasses.replace(batch, documents=Documents(none_BT, none_BT, none_BT))
    if not auxiliary_heads(config):
        return batch
    further = config.data.multi_token_prediction - 1
    weights = np.zeros((B, config.model.layers, 1 + further), np.float32)
    return dataclasses.replace(
        batch, auxiliary=Auxiliary(np.zeros((B, further, P), np.int32), weights)
    )


def auxiliary_heads(config: Config) -> AuxiliaryHeads | None:
    """The heads of auxiliary losses, or None."""
    further = config.data.multi_token_prediction - 1
    return AuxiliaryHeads(config.model, further) if further or config.model.layer_losses else None
