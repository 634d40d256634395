"""Batches of one's own for `pretrain(batches=...)`: an iterator with a position.

A run resumes exactly only if its batches do. So each checkpoint keeps the position of the iterator
after its last batch, and a resumed run sets it. The iterators of Grain have these methods.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any, Protocol

import jax

from xlnet_jax.batch import stack
from xlnet_jax.config import Config
from xlnet_jax.data.batches import loader
from xlnet_jax.data.batches.loader import TrainDispatches
from xlnet_jax.data.batches.stream import Stream
from xlnet_jax.errors import BadInput
from xlnet_jax.storage.files import Json
from xlnet_jax.train.step import BuiltStep


class BatchIterator(Protocol):
    """Whole batches of a run, in the order of its steps; every process gets the same."""

    def __next__(self) -> Any:
        """Returns the next `batch.Batch` of numpy arrays, in the shapes of `xlnet_jax.batches`."""
        ...

    def get_state(self) -> Any:
        """Returns the position after the last batch: anything that JSON can hold."""
        ...

    def set_state(self, state: Any) -> None:
        """Moves to a position, so that the same batches follow as there."""
        ...


def check_resumable(batches: BatchIterator | None, config: Config) -> None:
    """Raises BadInput if a run with these batches could not be resumed exactly."""
    if batches is None:
        return
    needed = ("__next__", "get_state", "set_state")
    if missing := [name for name in needed if not hasattr(batches, name)]:
        raise BadInput(
            f"batches={type(batches).__name__} has no {' and no '.join(missing)}, so the run could "
            "not be resumed; give an iterator that has them, such as one of Grain"
        )
    if config.checkpoint.memory == "rebuild":
        raise BadInput(
            "checkpoint.memory=rebuild reads earlier batches again, and batches=... only gives "
            "the next; use checkpoint.memory=all"
        )
    record(batches)


def record(batches: BatchIterator | None) -> Json:
    """Returns the part of a checkpoint's record with a copy of the position. Raises BadInput if
    JSON does not give it back.
    """
    if batches is None:
        return {}
    state = batches.get_state()
    with contextlib.suppress(TypeError, ValueError):
        if (copy := json.loads(json.dumps(state))) == state:
            return {"batches": copy}
    raise BadInput(
        f"batches={type(batches).__name__}: get_state() returns a {type(state).__name__} that JSON "
        "does not give back; use dicts with texts as keys, lists, texts, numbers"
    )


def set_position(batches: BatchIterator | None, saved: Json, where: str) -> None:
    """Moves the iterator to the position in the record of a checkpoint. Raises BadInput if one of
    the two is missing, or the iterator does not arrive.
    """
    if (batches is None) == ("batches" in saved):
        raise BadInput(
            f"{where}: it was saved {'with' if batches is None else 'without'} "
            "xlnet_jax.pretrain(batches=...); resume in the same way, or start a new run"
        )
    if batches is None:
        return
    batches.set_state(saved["batches"])
    if record(batches)["batches"] != saved["batches"]:
        raise BadInput(
            f"batches={type(batches).__name__}: after set_state, get_state returns another position"
        )


def source(
    batches: BatchIterator | None, wanted: TrainDispatches, built: BuiltStep
) -> tuple[Iterator[Any], Stream | None]:
    """Returns the dispatches of a run, and the stream of the corpus if it gives them."""
    if batches is None:
        return loader.prefetched(wanted, wanted.config), wanted.stream
    return _dispatches(batches, wanted, built), None


def _dispatches(
    batches: BatchIterator, wanted: TrainDispatches, built: BuiltStep
) -> Iterator[tuple[Any, Any]]:
    """Yields the batches of each dispatch, stacked, and the position after them. Raises BadInput if
    the iterator ends before the run, or a batch is not one of this step.
    """
    form = _form(built.abstract_batch, 1)
    for index in range(len(wanted)):
        taken = []
        for step in wanted.steps(index):
            who = f"batches={type(batches).__name__}, step {step}"
            if (batch := next(batches, None)) is None:
                raise BadInput(f"{who}: there are no more batches; set a smaller train.steps")
            if wrong := form ^ _form(batch, 0):
                raise BadInput(f"{who}: {max(wrong)} is not as xlnet_jax.batches gives it")
            taken.append(jax.tree.map(lambda x: x[wanted.rows], batch))
        yield stack(taken), record(batches)["batches"]


def _form(tree: Any, leading: int) -> set[str]:
    """Returns name, dtype and shape of each array, without `leading` axes."""
    return {
        f"{jax.tree_util.keystr(path)} {x.dtype.name}{[*x.shape[leading:]]}"
        for path, x in jax.tree_util.tree_leaves_with_path(tree)
    }
