"""Our tree of parameters under the names of other programs; one table serves both directions.

Our tree stacks the layers on a leading axis L; other programs may have an array per layer, and
dense kernels as [out, in]. The tables are in `members`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import traverse_util

from xlnet_jax.errors import BadInput
from xlnet_jax.members.peer import Entry, Table

Params = dict[str, Any]
"""Parameters or arrays: a tree, or a dictionary by path or by foreign name."""


class Arrays(NamedTuple):
    """The arrays of a file or folder, which are read one by one."""

    where: str
    """The file or folder, for messages."""
    forms: dict[str, jax.ShapeDtypeStruct]
    """Shape and dtype by name."""
    read: Callable[[str], np.ndarray]

    @classmethod
    def of(cls, where: str, arrays: Mapping[str, np.ndarray]) -> Arrays:
        """Wraps the arrays of a dictionary."""
        forms = {
            name: jax.ShapeDtypeStruct(np.shape(array), array.dtype)
            for name, array in arrays.items()
        }
        return cls(where, forms, arrays.__getitem__)


def from_ours(params: Params, arrays: Arrays) -> Params:
    """Calls `from_foreign` for a program that stores our tree, such as Orbax."""
    return from_foreign(tuple(Entry(path, path) for path in by_path(params)), params, arrays)


def to_foreign(table: Table, params: Params) -> Params:
    """Returns our unboxed tree, with its head, as the arrays of a table; numpy arrays give views.

    Raises BadInput if all layers share one set of parameters, which the other program cannot hold,
    or if the table lacks a parameter.
    """
    flat = by_path(params)
    query = flat["layers/attention/query"]
    if query.ndim == 3 and any("{}" in entry.theirs for entry in table):
        raise BadInput(
            "model.share_layers=True: the original's checkpoints have separate parameters for each "
            "layer"
        )
    if unknown := flat.keys() - {path for entry in table for path in entry.paths}:
        raise BadInput(f"the other library has no name for {', '.join(sorted(unknown))}")
    found: Params = {}
    for entry in _present(table, flat):
        for name, index in entry.places(len(query)):
            leaves = [flat[path] if index is ... else flat[path][index] for path in entry.paths]
            found[name] = _joined_form(leaves, entry.form)
    return found


def _joined_form(leaves: list[Any], form: str) -> Any:
    """Joins the arrays of an `Entry` in its form; a single numpy array gives a view."""
    matrix = len(leaves[0]), -1
    shapes = {"joined": matrix, "transposed": matrix, "flat": -1, "1,1,D": (1, 1, -1)}
    parts = [leaf.reshape(shapes.get(form, leaf.shape)) for leaf in leaves]
    # The module of the arrays, numpy or jax.numpy, because the arrays may be traced.
    array = parts[0] if len(parts) == 1 else parts[0].__array_namespace__().concat(parts, axis=-1)
    array = array[..., ::-1] if form == "swapped" else array
    return array.T if form in ("swapped", "transposed") else array


def _present(table: Table, flat: Params) -> list[Entry]:
    """Returns the entries whose parameters the model has."""
    return [entry for entry in table if entry.paths[0] in flat]


def from_foreign(table: Table, params: Params, arrays: Arrays) -> Params:
    """Inverts `to_foreign`: returns our tree of numpy arrays, filled array by array.

    `params` is the unboxed tree of the model, for shapes and dtypes; leaves may be abstract. Raises
    BadInput with all arrays that are missing, left over, or of another shape or dtype.
    """
    check_arrays(jax.eval_shape(lambda tree: to_foreign(table, tree), params), arrays)
    flat = by_path(params)
    # The empty dictionary of a head without parameters is kept.
    found: Params = traverse_util.flatten_dict(params, keep_empty_nodes=True, sep="/")
    for entry in _present(table, flat):
        if "{}" in entry.theirs and not entry.ours.startswith("layers/"):
            name = entry.ours.split("/")[1]
            raise BadInput(
                f"{arrays.where} has {name} of each layer; use model.biases_per_layer=True"
            )
        make = np.ones if entry.first else np.empty
        leaves = {path: make(flat[path].shape, flat[path].dtype) for path in entry.paths}
        found |= leaves
        for name, index in entry.places(len(leaves[entry.paths[0]])):
            array = arrays.read(name)
            array = array.T if entry.form in ("swapped", "transposed") else array
            array = array[..., ::-1] if entry.form == "swapped" else array
            for leaf, part in zip(
                leaves.values(), np.split(array, len(leaves), axis=-1), strict=True
            ):
                leaf[index] = part.reshape(leaf[index].shape)
    return traverse_util.unflatten_dict(found, sep="/")


def by_path(params: Params) -> Params:
    """Returns the parameters by path."""
    return traverse_util.flatten_dict(params, sep="/")


def check_arrays(wanted: Mapping[str, jax.ShapeDtypeStruct], arrays: Arrays) -> None:
    """Raises BadInput unless the arrays have exactly the wanted names, shapes and dtypes."""
    there = arrays.forms
    both = sorted(wanted.keys() & there.keys())
    problems = {
        "missing": sorted(wanted.keys() - there.keys()),
        "left over": sorted(there.keys() - wanted.keys()),
        "of another shape": [
            f"{name} is {list(there[name].shape)} and must be {list(wanted[name].shape)}"
            for name in both
            if there[name].shape != wanted[name].shape
        ],
        "of another dtype": [
            f"{name} is {there[name].dtype} and must be {wanted[name].dtype}"
            for name in both
            if there[name].dtype != wanted[name].dtype
        ],
    }
    if listed := "; ".join(
        f"{kind} ({len(names)}): {', '.join(names)}" for kind, names in problems.items() if names
    ):
        raise BadInput(f"{arrays.where} does not hold the arrays of this model. {listed}")
