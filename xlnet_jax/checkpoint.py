"""Checkpoints: the whole State and the data plan, saved asynchronously, restored exactly. The only importer of Orbax.

A checkpoint is four named trees and a JSON record:

    params   optimizer   memory   counters (step, skipped, consecutive_bad, and the running loss)
    record   the data plan, the resolved configuration by dotted key, the corpus hash, the format version

so that evaluation and export read the parameters alone. Saving copies the arrays to the host before it returns; the
training step may then donate them while the writing goes on.

A folder on disk gets its name when it is complete. In a bucket, where nothing can be renamed at once, a checkpoint is
complete when Orbax's `commit_success.txt` is in it; what a killed run left without one is no checkpoint, and the next
start removes it.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import Any

from etils import epath
from orbax.checkpoint import v1 as ocp

from xlnet_jax import buckets, files
from xlnet_jax.batch import Memory
from xlnet_jax.errors import BadInput

FORMAT_VERSION = 1

COUNTERS = ("step", "skipped", "consecutive_bad", "loss_mean", "loss_variance")
"""Scalars of the State."""

log = logging.getLogger("xlnet_jax")

Trees = dict[str, Any]


class Checkpoints:
    """The folder `<workdir>/checkpoints`.

    Args:
      keep: how many of the newest checkpoints stay when others are written; None = this is a reader, which leaves the
        folder as it is (a run may be writing to it).
    """

    def __init__(self, workdir: str, keep: int | None = None) -> None:
        # Orbax writes to absolute paths only; a bucket's address is one.
        absolute = workdir if files.in_bucket(workdir) else os.path.abspath(workdir)
        self.path = epath.Path(absolute) / "checkpoints"
        if files.in_bucket(absolute):
            logging.getLogger("absl").addFilter(_is_not_raised_later)
        with self._told():
            if keep is None and not self.path.exists():
                raise BadInput(f"{self.path}: no such folder; give the --workdir of a run that has saved a checkpoint")
            self._orbax = ocp.training.Checkpointer(
                self.path,
                preservation_policy=ocp.training.preservation_policies.LatestN(keep),  # type: ignore[arg-type]
                cleanup_tmp_directories=keep is not None,
            )
        self._pending: Any = None

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """A bucket that refuses or does not answer is told in one line (BadInput, RestartMe)."""
        if not files.in_bucket(str(self.path)):
            yield
            return
        buckets.use(str(self.path))
        with files.one_line(str(self.path)), buckets.answers(str(self.path)):
            yield

    def latest(self) -> int | None:
        """The newest complete step, or None."""
        with self._told():
            newest = self._orbax.latest
        return None if newest is None else int(newest.step)

    def has(self, step: int) -> bool:
        """Whether there is a complete checkpoint of this step."""
        with self._told():
            return step in {int(found.step) for found in self._orbax.checkpoints}

    def record(self, step: int) -> dict[str, Any]:
        """The JSON record of a checkpoint. Raises BadInput if it is not one of ours or of another format."""
        with self._told():
            metadata = self._orbax.checkpointables_metadata(step)
        record = metadata.custom_metadata
        if not isinstance(record, dict) or record.get("format_version") != FORMAT_VERSION:
            found = record.get("format_version") if isinstance(record, dict) else None
            raise BadInput(
                f"{self.path / str(step)}: checkpoint format {found!r}, this version reads {FORMAT_VERSION}; "
                "use the xlnet_jax version that wrote it"
            )
        return record

    def save(self, step: int, trees: Trees, record: dict[str, Any]) -> None:
        """Starts writing a checkpoint; waits for the one before. Errors of the writer surface at the next call."""
        self.wait()
        record = {"format_version": FORMAT_VERSION, **record}
        with self._told():
            self._pending = self._orbax.save_checkpointables_async(step, trees, force=True, custom_metadata=record)

    def wait(self) -> None:
        """Until everything started is complete on disk."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            with self._told():
                pending.result()

    def restore(self, step: int, abstract: Trees) -> Trees:
        """Reads the named trees of a checkpoint into the shapes, dtypes and shardings of `abstract`."""
        with self._told():
            return self._orbax.load_checkpointables(step, abstract)

    def close(self) -> None:
        """Waits and releases the folder."""
        self.wait()
        with self._told():
            self._orbax.close()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_not_raised_later(record: logging.LogRecord) -> bool:
    """False for the tracebacks that Orbax logs of errors in its threads: it raises them too, and they are told then."""
    return record.levelno < logging.ERROR or "/orbax/" not in record.pathname


def split(state: Any) -> Trees:
    """The named trees of a `train.State` (arrays or abstract). A memory without slots is not written: it is empty."""
    memory = {"hidden": state.memory.hidden_LBMD, "valid": state.memory.valid_B}
    return {
        "params": state.params,
        "optimizer": state.opt_state,
        **({"memory": memory} if state.memory.hidden_LBMD.size else {}),
        "counters": {name: getattr(state, name) for name in COUNTERS},
    }


def join(trees: Trees, kind: type) -> Any:
    """Inverse of `split` for the State class `kind`."""
    memory = Memory(trees["memory"]["hidden"], trees["memory"]["valid"])
    return kind(params=trees["params"], opt_state=trees["optimizer"], memory=memory, **trees["counters"])


def require_latest(checkpoints: Checkpoints, step: int | None) -> int:
    """The wanted or the newest step. Raises BadInput if there is none."""
    found = checkpoints.latest() if step is None else step
    if found is None or not checkpoints.has(found):
        what = "no checkpoint" if step is None else f"no checkpoint of step {step}"
        raise BadInput(f"{checkpoints.path}: {what}; give the --workdir of a run that has saved one")
    return found
