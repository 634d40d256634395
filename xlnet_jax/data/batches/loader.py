"""Grain reads, builds and prefetches batches; the content of a batch is a function of the step
alone.

A loader is a random-access Grain dataset whose element i is one whole dispatch (K stacked batches).
It has no state to save: a resumed run opens it at the run's current step. Threads, worker
processes and prefetch depth change when a batch is built, never its content.
"""

from __future__ import annotations

import atexit
import dataclasses
import errno
import functools
import multiprocessing
import signal
from collections.abc import Generator
from typing import Any, Protocol

import grain
import numpy as np
from absl import flags

from xlnet_jax.batch import stack
from xlnet_jax.config import Config
from xlnet_jax.data.batches.mixture import Mixture
from xlnet_jax.data.batches.stream import Plan, SinglePass, Stream, Windows
from xlnet_jax.data.tokenizer import Tokenizer
from xlnet_jax.data.workers import cores, die_with_parent
from xlnet_jax.errors import BadInput, RestartMe, summary

SEGMENTS = 8
"""Largest number of segments of a stream in one dispatch of an evaluation."""


class TrainingData(Protocol):
    """Training data of a run: a `Mixture` of corpora, or the examples of a task."""

    @property
    def names(self) -> tuple[str, ...]:
        """Corpus names for logs and metrics."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of all corpora."""
        ...

    @property
    def sha256(self) -> str:
        """The hash of all data; frozen on resume."""
        ...

    @property
    def path(self) -> str:
        """The folders or files of the data, for messages."""
        ...

    def stream(self, config: Config) -> Stream:
        """Returns the stream: which windows of which corpus the rows of each step read."""
        ...

    def build(
        self, config: Config, where: Windows, *, name: str, step: int, rows: np.ndarray
    ) -> Any:
        """Builds the batch that `where` describes: a pytree of numpy arrays with rows first."""
        ...


class Dispatches(Protocol):
    """A sequence of stacked batches, each built from its number alone."""

    def __len__(self) -> int: ...

    def __call__(self, index: int) -> Any:
        """Builds dispatch number `index`: a pytree of numpy arrays [K, B, ...]."""
        ...


@dataclasses.dataclass(frozen=True)
class TrainDispatches:
    """The dispatches of a run: batches of up to K consecutive steps, cut at multiples of K.

    This host feeds `rows` of the global batch; `stop` is the first step that is not built.
    """

    data: TrainingData
    config: Config
    plan: Plan
    rows: np.ndarray
    start: int
    stop: int

    @functools.cached_property
    def stream(self) -> Stream:
        """The windows that the rows of each step read."""
        return self.data.stream(self.config)

    def __len__(self) -> int:
        size = self.config.train.steps_per_dispatch
        return -(-self.stop // size) - self.start // size if self.stop > self.start else 0

    def steps(self, index: int) -> range:
        """Returns the steps of dispatch number `index`."""
        size = self.config.train.steps_per_dispatch
        first = (self.start // size + index) * size
        return range(max(first, self.start), min(first + size, self.stop))

    def __call__(self, index: int) -> Any:
        """Builds the Batch with a leading axis over the steps of the dispatch."""
        return stack([self.batch(step) for step in self.steps(index)])

    def batch(self, step: int) -> Any:
        """Builds the Batch of one step."""
        where = self.stream.locate(step, self.rows, self.plan)
        return self.data.build(self.config, where, name="train", step=step, rows=self.rows)


@dataclasses.dataclass(frozen=True)
class HeldoutDispatches:
    """The dispatches of an evaluation: windows of `batch_size` rows. (window, block) is the key of
    every draw.

    A dispatch has whole blocks, or up to `SEGMENTS` segments of each stream; the memory of streams
    is carried to the next dispatch. Each group of `batch_size` rows ends before the next group
    starts. This host feeds `rows` of each group.
    """

    mixture: Mixture
    config: Config
    reading: SinglePass
    batch_size: int
    rows: np.ndarray

    @functools.cached_property
    def parts(self) -> list[tuple[int, int]]:
        """The first row and the first window of every dispatch."""
        lengths = self.reading.rows_S3[:, 2]
        return [
            (group, first)
            for group in range(0, len(lengths), self.batch_size)
            for first in range(0, lengths[group : group + self.batch_size].max(), self.windows)
        ]

    @property
    def windows(self) -> int:
        """The number of windows of a dispatch."""
        most = SEGMENTS if self.config.reads_streams else self.config.data.windows_per_block
        return min(most, int(self.reading.rows_S3[:, 2].max()))

    def __len__(self) -> int:
        return len(self.parts)

    def corpus_of(self, index: int) -> np.ndarray:
        """Returns the corpus of every row of a dispatch, int [batch_size]; -1 past the end."""
        corpus = self.reading.rows_S3[self.parts[index][0] :][: self.batch_size, 0]
        return np.pad(corpus, (0, self.batch_size - len(corpus)), constant_values=-1)

    def __call__(self, index: int) -> Any:
        """Builds the Batch with a leading axis over the windows."""
        group, first = self.parts[index]
        batches = []
        for window in range(first, first + self.windows):
            where = self.reading.locate(group + self.rows, window)
            batch = self.mixture.build(
                self.config, where, name="heldout", step=window, rows=where.block_B
            )
            if self.config.reads_streams:
                # Text wraps around, so the last segment reads past its end: targets there get
                # weight 0.
                targets_B = np.array(self.reading.tokens)[where.corpus_B] - 1 - where.cursor_B
                weights_BP = batch.target_weights * (batch.target_positions < targets_B[:, None])
                batch = dataclasses.replace(batch, target_weights=weights_BP)
            batches.append(batch)
        return stack(batches)


def start_worker(*_: int) -> None:
    """Makes a worker ignore signals to the whole process group, because the trainer needs its
    workers until it has saved a checkpoint.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    die_with_parent()


def kill_workers() -> None:
    """Kills the workers when the process ends, because they ignore multiprocessing's SIGTERM."""
    for worker in multiprocessing.active_children():
        worker.kill()


def prefetched(dispatches: Dispatches, config: Config) -> Generator[Any, None, None]:
    """Yields all dispatches in order, built ahead by threads or, with `data.workers`, by processes.

    Raises BadInput: a shard is damaged, or the shared memory for batches is full. RestartMe: a
    worker was killed.
    """
    data = config.data
    workers = data.workers if data.workers >= 0 else min(8, cores() // 4)
    if not isinstance(dispatches, TrainDispatches):
        workers = 0  # starting workers for every evaluation would cost more time than they save
    dataset = grain.MapDataset.range(len(dispatches)).map(dispatches)
    if not workers:
        options = grain.ReadOptions(
            num_threads=data.read_threads, prefetch_buffer_size=data.prefetch
        )
        yield from dataset.to_iter_dataset(options)
        return
    if not flags.FLAGS.is_parsed():
        # Grain's workers read an absl flag, but absl does not parse the command line here.
        flags.FLAGS.mark_as_parsed()
    atexit.register(kill_workers)
    options = grain.MultiprocessingOptions(
        num_workers=workers, per_worker_buffer_size=data.prefetch
    )
    try:
        yield from dataset.to_iter_dataset(grain.ReadOptions(num_threads=1)).mp_prefetch(
            options, start_worker
        )
    except (RuntimeError, OSError) as error:
        # If /dev/shm cannot be written, creating a semaphore raises an OSError, and a worker that
        # writes a batch gets SIGBUS.
        refused = getattr(error, "errno", None) in (errno.ENOSPC, errno.EROFS, errno.ENOSYS)
        if refused or f"exit code -{signal.SIGBUS:d}." in str(error):
            raise BadInput(
                "/dev/shm, through which data workers pass batches, is full or cannot be written "
                f"({summary(error)}); give it more room (docker: --shm-size; Kubernetes: an "
                "emptyDir of medium Memory), or set a smaller "
                f"data.prefetch={data.prefetch}, or data.workers=0"
            ) from error
        if "terminated unexpectedly" not in str(error):
            raise
        raise RestartMe(
            f"a data worker was killed (out of memory?): {summary(error)}; rerun the same command "
            f"to resume, with fewer than data.workers={workers} if memory is short"
        ) from error
