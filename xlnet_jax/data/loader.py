"""Grain reads, builds and prefetches; what is built is a function of the step alone.

A loader is an index-addressable Grain dataset whose element i is one whole dispatch (K stacked batches). It has no
state to save: a resumed run opens it at the step it has reached. Threads, worker processes and prefetch depth change
when a batch is built, never what is in it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import grain
import numpy as np
from absl import flags

from xlnet_jax.batch import Batch
from xlnet_jax.config import Config
from xlnet_jax.data import examples
from xlnet_jax.data.corpus import Corpus
from xlnet_jax.data.stream import Plan, SinglePass, Stream
from xlnet_jax.errors import BadInput


@dataclasses.dataclass(frozen=True)
class TrainDispatches:
    """Dispatch number i of a run: the batches of up to K consecutive steps, cut at multiples of K.

    Attributes:
      rows: the rows of the global batch to build (those this host feeds).
      start, stop: the first step, and the step before which to stop.
    """

    corpus: Corpus
    config: Config
    plan: Plan
    rows: np.ndarray
    start: int
    stop: int

    def __len__(self) -> int:
        size = self.config.train.steps_per_dispatch
        return -(-self.stop // size) - self.start // size if self.stop > self.start else 0

    def steps(self, index: int) -> range:
        """The steps of dispatch number `index`."""
        size = self.config.train.steps_per_dispatch
        first = (self.start // size + index) * size
        return range(max(first, self.start), min(first + size, self.stop))

    def __call__(self, index: int) -> Batch:
        """Batch with a leading axis over the steps of the dispatch."""
        return stack([self.batch(step) for step in self.steps(index)])

    def batch(self, step: int) -> Batch:
        """The rows' Batch of one step."""
        where = train_stream(self.corpus, self.config).locate(step, self.rows, self.plan)
        word_start = self.corpus.tokenizer.word_start
        return examples.build(self.corpus, word_start, self.config, where, name="train", step=step, rows=self.rows)


@dataclasses.dataclass(frozen=True)
class HeldoutDispatches:
    """Dispatch number i of an evaluation: all W windows of `rows` blocks; every draw is keyed by (window, block)."""

    corpus: Corpus
    config: Config
    blocks: int
    batch_size: int
    rows: np.ndarray

    def __len__(self) -> int:
        return -(-self.blocks // self.batch_size)

    def __call__(self, index: int) -> Batch:
        """Batch with a leading axis over the W windows."""
        single = heldout_pass(self.corpus, self.config)
        word_start = self.corpus.tokenizer.word_start
        blocks = index * self.batch_size + self.rows
        batches = []
        for window in range(self.config.data.windows_per_block):
            where = single.locate(blocks, window)
            where = dataclasses.replace(where, exists_B=where.exists_B & (blocks < self.blocks))
            batches.append(
                examples.build(self.corpus, word_start, self.config, where, name="heldout", step=window, rows=blocks)
            )
        return stack(batches)


def open_corpus(config: Config, split: str = "train") -> Corpus:
    """Opens a split of `data.corpus` and checks the vocabulary. Raises BadInput."""
    if not config.data.corpus:
        raise BadInput("data.corpus is empty; give the folder that `xlnet-jax prepare` wrote: --config.data.corpus=DIR")
    corpus = Corpus(config.data.corpus, split)
    if corpus.tokenizer.vocab_size != config.model.vocab_size:
        raise BadInput(
            f"model.vocab_size={config.model.vocab_size}, but the tokenizer of {config.data.corpus} has "
            f"{corpus.tokenizer.vocab_size} pieces; set --config.model.vocab_size={corpus.tokenizer.vocab_size}"
        )
    return corpus


def train_stream(corpus: Corpus, config: Config) -> Stream:
    """The training stream of a corpus under a configuration."""
    data = config.data
    return Stream(
        tokens=corpus.tokens,
        window=data.reuse_len,
        windows_per_block=data.windows_per_block,
        bidirectional=data.bidirectional,
        seed=config.seeds.data,
        both_directions=config.compat.on("both_directions"),
    )


def heldout_pass(corpus: Corpus, config: Config) -> SinglePass:
    """The single pass over a held-out split."""
    return SinglePass(corpus.tokens, config.data.reuse_len, config.data.windows_per_block)


def stack(batches: list[Batch]) -> Batch:
    """K batches as one with a leading axis."""
    names = [field.name for field in dataclasses.fields(Batch)]
    return Batch(**{name: np.stack([getattr(batch, name) for batch in batches]) for name in names})


def prefetched(dispatches: TrainDispatches | HeldoutDispatches, config: Config) -> Iterator[Batch]:
    """All dispatches in order, built ahead by threads or, with `data.workers`, by processes."""
    data = config.data
    dataset = grain.MapDataset.range(len(dispatches)).map(dispatches)
    if not data.workers:
        options = grain.ReadOptions(num_threads=data.read_threads, prefetch_buffer_size=data.prefetch)
        return iter(dataset.to_iter_dataset(options))
    if not flags.FLAGS.is_parsed():
        # Grain's workers read an absl flag; this program parses its own command line.
        flags.FLAGS.mark_as_parsed()
    options = grain.MultiprocessingOptions(num_workers=data.workers, per_worker_buffer_size=data.prefetch)
    return iter(dataset.to_iter_dataset(grain.ReadOptions(num_threads=1)).mp_prefetch(options))
