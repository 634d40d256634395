"""Our tree of parameters under the names of other programs: one table for each, read in both directions.

Our tree stacks the layers on a leading axis L. `TENSORFLOW` has the names of the original's checkpoints: one variable
for each layer, except for the three attention biases and the segment embedding, which are stacked there as well.
`HUGGINGFACE` has those of `transformers`: everything for each layer, and dense kernels as [out, in]. Parameters are
counted under the original's names. Another architecture is another `Table`; those of the other families are in `peers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import traverse_util

from xlnet_jax.errors import BadInput

Params = dict[str, Any]
"""Parameters or arrays: a tree, or by path or foreign name."""


class Entry(NamedTuple):
    """One parameter on both sides, or several of ours that are one array there."""

    ours: str
    """Path in our tree; several, with spaces, are side by side on the last axis there. Below `layers/` a parameter has
    the leading axis L, unless all layers share it."""
    theirs: str
    """Name there; `{}` stands for the number of a layer, which then has an array of its own."""
    form: str = ""
    """`joined`: all axes but the first are one there; `transposed`: and the two change places; `flat`: all are one;
    `swapped`: transposed, with the two outputs of ours in the other order; `1,1,D`: two leading axes of length 1."""

    @property
    def paths(self) -> list[str]:
        """Those in `ours`."""
        return self.ours.split()

    def to_theirs(self, leaf: Any) -> Any:
        """One array in their form: a view, if it is a numpy array."""
        if self.form == "swapped":
            return leaf[..., ::-1].T
        if self.form in ("joined", "transposed"):
            matrix = leaf.reshape(len(leaf), -1)
            return matrix if self.form == "joined" else matrix.T
        return leaf.reshape({"flat": -1, "1,1,D": (1, 1, -1)}[self.form]) if self.form else leaf

    def to_ours(self, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """The inverse of `to_theirs`."""
        if self.form == "swapped":
            return array.T[..., ::-1]
        return (array.T if self.form == "transposed" else array).reshape(shape)

    def places(self, layers: int) -> Iterator[tuple[str, Any]]:
        """Each of their names, with the index of its array in our parameter."""
        if "{}" not in self.theirs:
            yield self.theirs, ...
            return
        for layer in range(layers):
            yield self.theirs.format(layer), layer if self.ours.startswith("layers/") else ...


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


_BIASES = {"content_bias": "r_w_bias", "position_bias": "r_r_bias", "segment_bias": "r_s_bias"}
_SHARED = [(f"{scope}/{ours}", theirs) for scope in ("biases", "layers/attention") for ours, theirs in _BIASES.items()]
"""One set for all layers, or one for each; a model has either."""
_OF_LAYER = (
    ("attention/query", "rel_attn/q/kernel", "rel_attn.q", ""),
    ("attention/key", "rel_attn/k/kernel", "rel_attn.k", ""),
    ("attention/value", "rel_attn/v/kernel", "rel_attn.v", ""),
    ("attention/position", "rel_attn/r/kernel", "rel_attn.r", ""),
    ("attention/output", "rel_attn/o/kernel", "rel_attn.o", ""),
    ("feed_forward/inner/kernel", "ff/layer_1/kernel", "ff.layer_1.weight", "transposed"),
    ("feed_forward/inner/bias", "ff/layer_1/bias", "ff.layer_1.bias", ""),
    ("feed_forward/outer/kernel", "ff/layer_2/kernel", "ff.layer_2.weight", "transposed"),
    ("feed_forward/outer/bias", "ff/layer_2/bias", "ff.layer_2.bias", ""),
    ("attention/norm/scale", "rel_attn/LayerNorm/gamma", "rel_attn.layer_norm.weight", ""),
    ("attention/norm/bias", "rel_attn/LayerNorm/beta", "rel_attn.layer_norm.bias", ""),
    ("feed_forward/norm/scale", "ff/LayerNorm/gamma", "ff.layer_norm.weight", ""),
    ("feed_forward/norm/bias", "ff/LayerNorm/beta", "ff.layer_norm.bias", ""),
)
"""Ours, the original's, and that of `transformers` with its form there."""

TENSORFLOW: Table = (
    Entry("word_embedding", "model/transformer/word_embedding/lookup_table"),
    Entry("mask_embedding", "model/transformer/mask_emb/mask_emb", "1,1,D"),
    Entry("lm_head/bias", "model/lm_loss/bias"),
    Entry("layers/attention/segment_embedding", "model/transformer/seg_embed"),
    *(Entry(ours, f"model/transformer/{theirs}") for ours, theirs in _SHARED),
    *(Entry(f"layers/{ours}", f"model/transformer/layer_{{}}/{theirs}") for ours, theirs, _, _ in _OF_LAYER),
)
"""The original's variables (zihangdai/xlnet)."""
HUGGINGFACE: Table = (
    Entry("word_embedding", "transformer.word_embedding.weight"),
    Entry("mask_embedding", "transformer.mask_emb", "1,1,D"),
    Entry("lm_head/bias", "lm_loss.bias"),
    Entry("layers/attention/segment_embedding", "transformer.layer.{}.rel_attn.seg_embed"),
    # There is no single set for all layers there; copies are the same function until they are fine-tuned.
    *(Entry(ours, f"transformer.layer.{{}}.rel_attn.{theirs}") for ours, theirs in _SHARED),
    *(Entry(f"layers/{ours}", f"transformer.layer.{{}}.{theirs}", form) for ours, _, theirs, form in _OF_LAYER),
)
"""The state dict of `XLNetLMHeadModel` in `transformers`. `lm_loss.weight` is not in it: it is the word embedding."""


def from_ours(params: Mapping[str, Any], arrays: Arrays) -> Params:
    """`from_foreign` of a program that has our tree, such as Orbax."""
    return from_foreign(tuple(Entry(path, path) for path in by_path(params)), params, arrays)


def to_foreign(table: Table, params: Mapping[str, Any]) -> Params:
    """Our unboxed tree of a model with its head as the arrays of a table: of numpy arrays, views.

    Raises BadInput: all layers share one set of parameters, which no other program can hold; or the table lacks one.
    """
    flat = by_path(params)
    query = flat["layers/attention/query"]
    if query.ndim == 3 and any("{}" in entry.theirs for entry in table):
        raise BadInput("model.share_layers=True: the original's checkpoints have parameters of each layer")
    if unknown := flat.keys() - {path for entry in table for path in entry.paths}:
        raise BadInput(f"the other library has no name for {', '.join(sorted(unknown))}")
    found: Params = {}
    for entry in _present(table, flat):
        for name, index in entry.places(len(query)):
            parts = [entry.to_theirs(flat[path] if index is ... else flat[path][index]) for path in entry.paths]
            # Traced arrays are not numpy's.
            found[name] = parts[0] if len(parts) == 1 else parts[0].__array_namespace__().concat(parts, axis=-1)
    return found


def _present(table: Table, flat: Mapping[str, Any]) -> list[Entry]:
    """The entries of the parameters that a model has."""
    return [entry for entry in table if entry.paths[0] in flat]


def from_foreign(table: Table, params: Mapping[str, Any], arrays: Arrays) -> Params:
    """The inverse of `to_foreign`: our tree of numpy arrays, filled array by array.

    `params` is the unboxed tree of the model, for shapes and dtypes; leaves may be abstract. Raises BadInput with all
    arrays that are missing, left over, or of another shape or dtype.
    """
    check(jax.eval_shape(lambda tree: to_foreign(table, tree), params), arrays)
    flat = by_path(params)
    # A head without parameters is an empty dictionary, which stays.
    found: Params = dict(traverse_util.flatten_dict(dict(params), keep_empty_nodes=True, sep="/"))
    for entry in _present(table, flat):
        if "{}" in entry.theirs and not entry.ours.startswith("layers/"):
            name = entry.ours.split("/")[1]
            raise BadInput(f"{arrays.where} has {name} of each layer; use model.biases_per_layer=True")
        leaves = {path: np.empty(flat[path].shape, flat[path].dtype) for path in entry.paths}
        found |= leaves
        for name, index in entry.places(len(leaves[entry.paths[0]])):
            parts = np.split(arrays.read(name), len(leaves), axis=-1)
            for leaf, part in zip(leaves.values(), parts, strict=True):
                leaf[index] = entry.to_ours(part, leaf[index].shape)
    return traverse_util.unflatten_dict(found, sep="/")


def by_path(params: Mapping[str, Any]) -> Params:
    """The parameters by their path."""
    return dict(traverse_util.flatten_dict(dict(params), sep="/"))


def check(wanted: Mapping[str, jax.ShapeDtypeStruct], arrays: Arrays) -> None:
    """Raises BadInput unless the arrays are exactly those wanted."""
    there = arrays.forms
    both = sorted(wanted.keys() & there.keys())
    problems = {
        "missing": sorted(wanted.keys() - there.keys()),
        "left over": sorted(there.keys() - wanted.keys()),
        "of another shape": [f"{name} is {list(there[name].shape)} and must be {list(wanted[name].shape)}"
                             for name in both if there[name].shape != wanted[name].shape],
        "of another dtype": [f"{name} is {there[name].dtype} and must be {wanted[name].dtype}"
                             for name in both if there[name].dtype != wanted[name].dtype],
    }  # fmt: skip
    if any(problems.values()):
        listed = "; ".join(f"{kind} ({len(names)}): {', '.join(names)}" for kind, names in problems.items() if names)
        raise BadInput(f"{arrays.where} does not hold the arrays of this model. {listed}")
