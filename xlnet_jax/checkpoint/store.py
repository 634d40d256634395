"""Checkpoints: named trees of arrays, saved asynchronously, restored exactly.

A checkpoint has named trees and a JSON record. The trees of a run (`train.state.State.split`) and
its record:

    params   optimizer   memory   counters (step, skipped, consecutive_bad, and the running loss)
    record   the data plan, the resolved configuration by dotted key, the corpus hash, the format
             version, the checksum of every array, and a hash of the record itself

Evaluation and export read only the parameters. A save copies the arrays to the host before it
returns, so the training step may donate the arrays while the copies are written. `restore` decides
from which checkpoint a run resumes.

A folder on disk gets its name when it is complete. A bucket cannot rename a folder atomically;
there a checkpoint is complete when its folder has Orbax's `commit_success.txt`. An incomplete
folder of a killed run is no checkpoint, and the next save removes it. A checkpoint is JSON and
arrays of numbers: it contains no code, and reading unpickles nothing.

Only this module and `chunks` import Orbax.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import logging
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath
from orbax.checkpoint import v1 as ocp

from xlnet_jax.checkpoint import checksums, chunks
from xlnet_jax.config import CheckpointConfig
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.errors import BadInput, Diverged, XLNetError, summary
from xlnet_jax.storage import files
from xlnet_jax.storage.bucket import is_missing
from xlnet_jax.storage.files import Json

FORMAT_VERSION = 3

_COMPLETE_IN_BUCKET = "commit_success.txt"
_UNFINISHED = ".orbax-checkpoint-tmp"
"""Part of the name of an incomplete folder on disk."""
_MOVED = (errno.EIO, errno.ENOENT, errno.ENOTDIR, errno.EISDIR)
"""Errors of the operating system that mean damage; other errors (no permission, no memory) do not.
"""

_ROWS_AXIS = {"hidden": 1, "valid": 0}
"""The axis of the rows in the arrays of the memory."""

log = logging.getLogger("xlnet_jax")

Trees = dict[str, Any]


class Damaged(BadInput):
    """A checkpoint cannot be read, or is not as it was saved."""


class Checkpoints(contextlib.AbstractContextManager["Checkpoints"]):
    """The folder `<workdir>/checkpoints`. Nothing is written, moved or removed before the first
    `save`.

    Args:
      keep: rules that select the checkpoints to keep; None for a reader, which does not change the
        folder (a run may be writing to it).
      losses: returns the held-out losses that are known, by step.
    """

    def __init__(
        self,
        workdir: str,
        keep: CheckpointConfig | None = None,
        losses: Callable[[], dict[int, float]] = dict,
    ) -> None:
        files.check_checkpoints(workdir)
        # Orbax only writes to absolute paths, such as the address of a bucket.
        self.workdir = files.resolve(workdir)
        self.path = epath.Path(self.workdir) / "checkpoints"
        self._keep = keep
        self._losses = losses
        # Orbax logs errors in many lines and also raises them; this module reports each error in
        # one line. A failed read leaves unfinished tasks, which asyncio would log later.
        for name in ("absl", "asyncio"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        with files.translate_errors(str(self.path)):
            if keep is None and not self.path.exists():
                raise BadInput(
                    f"{self.path}: no such folder; "
                    "give the --workdir of a run that has saved a checkpoint"
                )
        self._writer: Any = None
        self._pending: Any = None
        self.seconds = 0.0
        """Duration of the last complete save, from the copy to the host until it was on disk; 0 =
        none yet.
        """

    def __enter__(self) -> Checkpoints:
        self._hook = sys.unraisablehook
        sys.unraisablehook = functools.partial(chunks.unless_late, self._hook)
        return self

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Raises BadInput or RestartMe, in one line, for a full disk or a bucket that refuses or
        does not answer.

        Removes the files of a failed save from disk, because these files may fill the disk.
        """
        try:
            with files.translate_errors(str(self.path)):
                yield
        except Exception:
            # Orbax's writer would raise the same error again at the next call. The next save makes
            # a new writer.
            self._writer = None
            # With several processes the others may still write these files; then the run ends, and
            # the next run removes the files.
            if files.at(self.workdir).locks and jax.process_count() == 1:
                for pause in (0.0, 0.2):  # twice: other arrays may still be written
                    time.sleep(pause)
                    for unfinished in self.path.glob(f"*{_UNFINISHED}*"):
                        shutil.rmtree(unfinished, ignore_errors=True)
            raise

    @contextlib.contextmanager
    def _read(self, step: int) -> Iterator[None]:
        """Raises Damaged for all errors of libraries about a damaged file."""
        where = self.path / str(step)
        try:
            with files.at(self.workdir).translate_errors(str(where)):
                yield
        except (MemoryError, jax.errors.JaxRuntimeError):
            raise
        except Exception as error:
            if isinstance(error, XLNetError) and not is_missing(error):
                raise
            refused = isinstance(error, OSError) and error.errno not in (None, *_MOVED)
            if refused or "PERMISSION_DENIED" in str(error):
                file = getattr(error, "filename", None) or where
                raise BadInput(
                    f"{file}: {summary(error)}; fix this and rerun the same command"
                ) from error
            if files.at(self.workdir).locks:
                # For Orbax a folder without read permission is an empty folder.
                with files.translate_errors(str(where)), contextlib.suppress(FileNotFoundError):
                    files.find(str(where), ())
            # Orbax and TensorStore have no specific error for a file that they cannot interpret.
            raise Damaged(f"{where} is damaged: {summary(error.__cause__ or error)}") from error

    def steps(self) -> list[int]:
        """The steps of all complete checkpoints, the newest first. Does not read their contents."""
        folder = str(self.path)
        with files.translate_errors(folder):
            names = files.finished_folders(folder, _COMPLETE_IN_BUCKET)
        # Ignores folders that an operator has renamed, such as 0008.
        return sorted(
            (int(name) for name in names if name.isdecimal() and str(int(name)) == name),
            reverse=True,
        )

    def record(self, step: int) -> Json:
        """The JSON record of a checkpoint. Raises Damaged if it cannot be read or is not as it was
        saved, and BadInput if it has another format.
        """
        where = self.path / str(step)
        with self._read(step):
            record: Any = ocp.checkpointables_metadata(where).custom_metadata
        version = record.get("format_version") if isinstance(record, dict) else None
        if version is None:
            # Orbax treats a missing or broken metadata file as an empty one.
            raise Damaged(
                f"{where} is damaged: its record (_CHECKPOINT_METADATA) "
                "is missing or cannot be read"
            )
        # Records of other formats may have no hash.
        if (version == FORMAT_VERSION or "record_sha256" in record) and record.get(
            "record_sha256"
        ) != _hash(record):
            raise Damaged(f"{where} is damaged: its record is not what was saved")
        if version != FORMAT_VERSION:
            raise BadInput(
                f"{where}: checkpoint format {version!r}, this version reads {FORMAT_VERSION}; "
                "use the xlnet_jax version that wrote it"
            )
        return record

    def save(self, step: int, trees: Trees, record: Json, finite: Sequence[str] = ()) -> None:
        """Waits until the previous checkpoint is complete, and starts to write a new checkpoint.
        The next call raises errors of this write.

        Raises Diverged, and writes nothing, if a tree named in `finite` is not finite.
        """
        sums, bad = sums_of(trees, record)
        bad = [name for name in bad if name.split("/")[0] in finite]
        if bad:
            raise Diverged(
                f"step {step}: {bad[0]} is not finite (and others: {len(bad) - 1}), so no "
                "checkpoint is written; the newest checkpoint is older; "
                "lower optimizer.learning_rate"
            )
        self.wait()
        began = time.perf_counter()
        record = {"format_version": FORMAT_VERSION, "checksums": sums, **record}
        record["record_sha256"] = _hash(record)
        with self._writing():
            if self._writer is None:
                # Not before the first save: the writer removes unfinished checkpoints of killed
                # runs.
                self._writer = ocp.training.Checkpointer(
                    self.path,
                    preservation_policy=self,
                    cleanup_tmp_directories=True,
                    context=chunks.context(),
                )
            self._pending = self._writer.save_checkpointables_async(
                step, trees, force=True, custom_metadata=record
            )
            self._pending.on_complete(
                lambda _: setattr(self, "seconds", time.perf_counter() - began)
            )

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """Whether each checkpoint is kept: if any rule of `keep` selects it. Orbax calls this
        method, with the oldest checkpoint first.

        Orbax's own policy for the best checkpoints is not used: it needs the loss before a
        checkpoint is written.
        """
        del context
        assert self._keep is not None, "a reader does not write"
        keep = self._keep
        losses = self._losses()
        steps = [each.step for each in checkpoints]
        best = sorted(losses.keys() & {*steps}, key=lambda step: (losses[step], step))[
            : keep.keep_best
        ]
        kept = {*steps[-keep.keep :], *best}
        return [
            step in kept or (keep.keep_every > 0 and step % keep.keep_every == 0) for step in steps
        ]

    def wait(self) -> None:
        """Waits until the started save is complete on disk."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            with self._writing():
                pending.result()

    def read(self, step: int, abstract: Trees) -> Trees:
        """Reads the named trees of a checkpoint into the shapes and dtypes of `abstract`, but not
        into its shardings: see `gather`.

        Arrays that are not in `abstract` are not read. Each process reads a part of a replicated
        array. No process waits for another process, which may find damaged files. Raises Damaged.
        """
        where = self.path / str(step)
        me = jax.process_index()
        alone = ocp.options.MultiprocessingOptions(
            primary_host=None, active_processes={me}, barrier_sync_key_prefix=f"read_{me}"
        )
        options: Any = {
            "multiprocessing_options": alone if jax.process_count() > 1 else None,
            "pytree_options": ocp.options.PyTreeOptions(
                loading=ocp.options.PyTreeOptions.Loading(partial_load=True)
            ),
        }
        trees: Trees = {}
        with self._read(step):
            with ocp.Context(**options):
                stored = checksums.by_path(ocp.checkpointables_metadata(where).metadata)
            abstract = jax.tree_util.tree_map_with_path(
                functools.partial(_in_parts, stored), abstract
            )
            # Reads one tree after the other: if one of several reads failed, Orbax would not await
            # the other reads, and Python would warn.
            for name, tree in abstract.items():
                # The memory may have other rows of weight 0: their number depends on the devices.
                loading = ocp.options.ArrayOptions.Loading(
                    enable_padding_and_truncation=name == "memory"
                )
                with ocp.Context(
                    **options, array_options=ocp.options.ArrayOptions(loading=loading)
                ):
                    trees |= ocp.load_checkpointables(where, {name: tree})
        # With `partial_load`, Orbax returns the abstract array for an array that is not in its
        # metadata.
        for name, leaf in checksums.by_path(trees).items():
            if isinstance(leaf, jax.ShapeDtypeStruct):
                raise Damaged(f"{where} is damaged: {name} is missing")
        return trees

    def gather(self, step: int, trees: Trees, abstract: Trees, record: Json) -> Trees:
        """Returns the trees of `read` in the shardings of `abstract`, after a check of the saved
        checksums.

        All processes must call this method together, after each has read without an error. Raises
        Damaged in all processes.
        """
        where = self.path / str(step)
        trees = meshes.placed(trees, jax.tree.map(lambda leaf: leaf.sharding, abstract))
        sums, _ = sums_of(trees, record)
        wrong = [
            name for name, checksum in sums.items() if record["checksums"].get(name) != checksum
        ]
        if wrong:
            raise Damaged(
                f"{where} is damaged: {wrong[0]} is not what was saved (and "
                f"others: {len(wrong) - 1})"
            )
        return trees

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Waits for the save in flight and releases the folder. After an error in one of several
        processes, does not wait: the save may never be complete.

        If an error ends the block, an error of the save in flight is only logged.
        """
        try:
            if error is not None and jax.process_count() > 1:
                return
            self.wait()
            if self._writer is not None:
                with files.translate_errors(str(self.path)):
                    self._writer.close()
        except Exception as late:
            if error is None:
                raise
            log.warning("the save in flight failed as well: %s", summary(late))
        finally:
            sys.unraisablehook = self._hook


def sums_of(trees: Trees, record: Json) -> tuple[dict[str, str], list[str]]:
    """Returns `checksums.of_trees`; the memory is cut to the batch size of the data plan, without
    its rows of weight 0.
    """
    shapes = {}
    for name, array in trees.get("memory", {}).items() if record.get("plan") else ():
        axis = _ROWS_AXIS[name]
        rows = record["plan"][-1][2]
        shapes[f"memory/{name}"] = (*array.shape[:axis], rows, *array.shape[axis + 1 :])
    return checksums.of_trees(trees, shapes)


def _in_parts(stored: Trees, path: Any, leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """The abstract array; replicas are split between the chunks of the stored array."""
    storage = getattr(stored.get(checksums.name_of(path)), "storage_metadata", None)
    if storage is None:
        return leaf
    return leaf.update(sharding=meshes.spread(leaf.sharding, leaf.shape, storage.chunk_shape))


def operations(at_least: int = 0) -> int:
    """Raises the number of Orbax's operations in this process to `at_least`, and returns it.

    The names of Orbax's barriers contain this number. If only one process finds damage, processes
    have different numbers of reads, and would wait for each other at the next save. Uses a private
    function (checked with orbax-checkpoint 0.12.8): no public function sets the number.
    """
    from orbax.checkpoint._src.futures.synchronization import OperationIdGenerator

    while (count := int(OperationIdGenerator.get_current_operation_id())) < at_least:
        OperationIdGenerator.next_operation_id()
    return count


def _hash(record: Json) -> str:
    """The hash of the complete record without `record_sha256`."""
    rest = {name: value for name, value in record.items() if name != "record_sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def save_parameters(folder: str, params: Any) -> None:
    """Writes a tree of arrays as a folder that `orbax.checkpoint.v1.load` reads, without a JSON
    record.
    """
    ocp.save(folder, params)


def load_parameters(folder: str) -> Trees:
    """Reads a folder that Orbax has written: numpy arrays by their path. Raises BadInput."""
    try:
        one = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        stored: Any = ocp.metadata(folder).metadata
        loaded = ocp.load(
            folder,
            jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=one), stored),
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise BadInput(
            f"{folder}: Orbax cannot read it ({summary(error)}); copy it again"
        ) from error
    return {name: np.asarray(array) for name, array in checksums.by_path(loaded).items()}
