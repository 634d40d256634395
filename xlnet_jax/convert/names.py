"""Our tree of parameters under the names of other programs: one table for each, read in both directions.

Our tree stacks the layers on a leading axis L. `TENSORFLOW` has the names of the original's checkpoints: one variable
for each layer, except for the three attention biases and the segment embedding, which are stacked there as well.
`HUGGINGFACE` has those of `transformers`: everything for each layer, and dense kernels as [out, in]. Parameters are
counted under the original's names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import traverse_util

from xlnet_jax.errors import BadInput
from xlnet_jax.finetune.tasks import TASKS


class Entry(NamedTuple):
    """One parameter on both sides."""

    ours: str
    """Path in our tree. Below `layers/` it has the leading axis L."""
    theirs: str
    """Name there; `{}` stands for the number of a layer, which then has an array of its own."""
    form: str = ""
    """`transposed`: the axes of a matrix change places; `1,1,D`: two leading axes of length 1 there."""

    @property
    def per_layer(self) -> bool:
        """Whether each layer has its own array there."""
        return "{}" in self.theirs

    def to_theirs(self, leaf: Any) -> Any:
        """One array in their form: a view, if it is a numpy array."""
        return leaf.T if self.form == "transposed" else leaf.reshape(1, 1, -1) if self.form else leaf

    def to_ours(self, array: np.ndarray) -> np.ndarray:
        """The inverse of `to_theirs`."""
        return array.T if self.form == "transposed" else array.reshape(-1) if self.form else array


Table = tuple[Entry, ...]


class Arrays(NamedTuple):
    """The arrays of a file or folder, which are read one by one."""

    where: str
    """For messages."""
    forms: Mapping[str, jax.ShapeDtypeStruct]
    """Shape and dtype by name."""
    read: Callable[[str], np.ndarray]

    @classmethod
    def of(cls, where: str, arrays: Mapping[str, np.ndarray]) -> Arrays:
        """Those of a dictionary."""
        forms = {name: jax.ShapeDtypeStruct(np.shape(array), array.dtype) for name, array in arrays.items()}
        return cls(where, forms, arrays.__getitem__)


_ROOT = "model/transformer"
_BIASES = {"content_bias": "r_w_bias", "position_bias": "r_r_bias", "segment_bias": "r_s_bias"}
_PROJECTIONS = {"query": "q", "key": "k", "value": "v", "position": "r", "output": "o"}
_DENSE = {"feed_forward/inner": "ff{}layer_1", "feed_forward/outer": "ff{}layer_2"}
_NORMS = {"attention/norm": "rel_attn", "feed_forward/norm": "ff"}

TENSORFLOW: Table = (
    Entry("word_embedding", f"{_ROOT}/word_embedding/lookup_table"),
    Entry("mask_embedding", f"{_ROOT}/mask_emb/mask_emb", "1,1,D"),
    Entry("lm_head/bias", "model/lm_loss/bias"),
    Entry("layers/attention/segment_embedding", f"{_ROOT}/seg_embed"),
    # One set for all layers, or one for each; a model has either.
    *(Entry(f"{scope}/{ours}", f"{_ROOT}/{name}")
      for scope in ("biases", "layers/attention") for ours, name in _BIASES.items()),
    *(Entry(f"layers/attention/{ours}", f"{_ROOT}/layer_{{}}/rel_attn/{name}/kernel")
      for ours, name in _PROJECTIONS.items()),
    *(Entry(f"layers/{ours}/{part}", f"{_ROOT}/layer_{{}}/{name.format('/')}/{part}")
      for ours, name in _DENSE.items() for part in ("kernel", "bias")),
    *(Entry(f"layers/{ours}/{part}", f"{_ROOT}/layer_{{}}/{name}/LayerNorm/{theirs}")
      for ours, name in _NORMS.items() for part, theirs in (("scale", "gamma"), ("bias", "beta"))),
)  # fmt: skip
"""The original's variables (zihangdai/xlnet)."""

_LAYER = "transformer.layer.{}"
HUGGINGFACE: Table = (
    Entry("word_embedding", "transformer.word_embedding.weight"),
    Entry("mask_embedding", "transformer.mask_emb", "1,1,D"),
    Entry("lm_head/bias", "lm_loss.bias"),
    Entry("layers/attention/segment_embedding", f"{_LAYER}.rel_attn.seg_embed"),
    # There is no single set for all layers there; copies are the same function until they are fine-tuned.
    *(Entry(f"{scope}/{ours}", f"{_LAYER}.rel_attn.{name}")
      for scope in ("biases", "layers/attention") for ours, name in _BIASES.items()),
    *(Entry(f"layers/attention/{ours}", f"{_LAYER}.rel_attn.{name}") for ours, name in _PROJECTIONS.items()),
    *(Entry(f"layers/{ours}/{part}", f"{_LAYER}.{name.replace('{}', '.')}.{theirs}", form)
      for ours, name in _DENSE.items()
      for part, theirs, form in (("kernel", "weight", "transposed"), ("bias", "bias", ""))),
    *(Entry(f"layers/{ours}/{part}", f"{_LAYER}.{name}.layer_norm.{theirs}")
      for ours, name in _NORMS.items() for part, theirs in (("scale", "weight"), ("bias", "bias"))),
)  # fmt: skip
"""The state dict of `XLNetLMHeadModel` in `transformers`. `lm_loss.weight` is not in it: it is the word embedding."""


_PARTS = (("kernel", "weight", "transposed"), ("scale", "weight", ""), ("bias", "bias", ""))
"""Of a dense layer or a LayerNorm; a layer has some of them."""


def of_huggingface(task: str) -> Table:
    """`HUGGINGFACE` with the head of a `finetune.task`. Raises BadInput for a task whose head has no names there."""
    if task == "none":
        return HUGGINGFACE
    if task not in TASKS:
        raise BadInput(f"finetune.task={task}: Hugging Face's XLNet has no such head; use --format=orbax")
    layers = TASKS[task].export.tensors.items()
    return HUGGINGFACE + tuple(Entry(f"head/{ours}/{part}", f"{theirs}.{name}", form)
                               for ours, theirs in layers for part, name, form in _PARTS)  # fmt: skip


def from_ours(params: Mapping[str, Any], arrays: Arrays) -> dict[str, Any]:
    """`from_foreign` of a program that has our tree, such as Orbax."""
    table = tuple(Entry(path, path) for path in traverse_util.flatten_dict(dict(params), sep="/"))
    return from_foreign(table, params, arrays)


def to_foreign(table: Table, params: Mapping[str, Any]) -> dict[str, Any]:
    """Our tree as the arrays of a table.

    Args:
      params: the unboxed tree of `XLNet` with its head. Of numpy arrays the result has views. To count parameters
        without computing them, use `jax.eval_shape(functools.partial(to_foreign, table), params)`.

    Raises:
      BadInput: all layers share one set of parameters, which no other program can hold; or the table lacks a parameter.
    """
    flat: dict[str, Any] = dict(traverse_util.flatten_dict(dict(params), sep="/"))
    query = flat["layers/attention/query"]
    if query.ndim == 3 and any(entry.per_layer for entry in table):
        raise BadInput("model.share_layers=True: the original's checkpoints have parameters of each layer")
    layers = query.shape[0]
    used = [entry for entry in table if entry.ours in flat]
    if unknown := flat.keys() - {entry.ours for entry in used}:
        raise BadInput(f"the other library has no name for {', '.join(sorted(unknown))}")
    return {name: entry.to_theirs(leaf) for entry in used for name, leaf in _split(entry, flat[entry.ours], layers)}


def _split(entry: Entry, leaf: Any, layers: int) -> Iterator[tuple[str, Any]]:
    """The arrays of one entry, in our form."""
    if not entry.per_layer:
        yield entry.theirs, leaf
        return
    for layer in range(layers):
        yield entry.theirs.format(layer), leaf[layer] if entry.ours.startswith("layers/") else leaf


def from_foreign(table: Table, params: Mapping[str, Any], arrays: Arrays) -> dict[str, Any]:
    """The inverse of `to_foreign`: our tree of numpy arrays, filled array by array.

    Args:
      params: the unboxed tree of the model, for shapes and dtypes; leaves may be abstract.

    Raises:
      BadInput: arrays that are missing, left over, or of another shape or dtype: one line with all of them.
    """
    wanted = jax.eval_shape(lambda tree: to_foreign(table, tree), params)
    check(wanted, arrays)
    flat: dict[str, Any] = dict(traverse_util.flatten_dict(dict(params), sep="/"))
    found = {}
    for entry in (entry for entry in table if entry.ours in flat):
        leaf = flat[entry.ours]
        if entry.per_layer and entry.ours.startswith("layers/"):
            found[entry.ours] = np.empty(leaf.shape, leaf.dtype)
            for layer, stacked in enumerate(found[entry.ours]):
                stacked[...] = entry.to_ours(arrays.read(entry.theirs.format(layer)))
        elif entry.per_layer:
            raise BadInput(
                f"{arrays.where} has {entry.ours.split('/')[1]} of each layer; use model.biases_per_layer=True"
            )
        else:
            found[entry.ours] = np.ascontiguousarray(entry.to_ours(arrays.read(entry.theirs)))
    return traverse_util.unflatten_dict(found, sep="/")


def check(wanted: Mapping[str, jax.ShapeDtypeStruct], arrays: Arrays) -> None:
    """Raises BadInput unless the arrays are exactly those wanted."""
    there = arrays.forms
    both = sorted(wanted.keys() & there.keys())
    shapes = [f"{name} is {list(there[name].shape)} and must be {list(wanted[name].shape)}"
              for name in both if there[name].shape != wanted[name].shape]  # fmt: skip
    dtypes = [f"{name} is {there[name].dtype} and must be {wanted[name].dtype}"
              for name in both if there[name].dtype != wanted[name].dtype]  # fmt: skip
    problems = {
        "missing": sorted(wanted.keys() - there.keys()),
        "left over": sorted(there.keys() - wanted.keys()),
        "of another shape": shapes,
        "of another dtype": dtypes,
    }
    if any(problems.values()):
        listed = "; ".join(f"{kind} ({len(names)}): {', '.join(names)}" for kind, names in problems.items() if names)
        raise BadInput(f"{arrays.where} does not hold the arrays of this model. {listed}")
