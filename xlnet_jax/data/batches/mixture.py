"""The corpora of a run: one, or several with weights that divide the rows of every batch."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from typing import Any

import numpy as np

from xlnet_jax import compat
from xlnet_jax.batch import Batch, combine
from xlnet_jax.config import Config
from xlnet_jax.data.batches import documents, examples
from xlnet_jax.data.batches.cycle import ONE, Cycle, from_weights
from xlnet_jax.data.batches.examples import ExampleBuilder
from xlnet_jax.data.batches.packing import Packing
from xlnet_jax.data.batches.stream import ShuffledBlocks, SinglePass, Stream, Windows
from xlnet_jax.data.corpus.corpus import Corpus
from xlnet_jax.data.corpus.manifest import warn_of_unknown
from xlnet_jax.data.tokenizer import Tokenizer
from xlnet_jax.data.vocabulary import check_pieces
from xlnet_jax.errors import BadInput
from xlnet_jax.messages import quantity

PAGE_CACHE_BYTES = 256_000_000
"""Maximum bytes of decoded pages that a process keeps in memory, for all corpora together."""


@dataclasses.dataclass(frozen=True)
class Mixture:
    """One split of every corpus of a run. The corpora share a tokenizer; all text of a row comes
    from one of them.
    """

    corpora: tuple[Corpus, ...]
    names: tuple[str, ...] = ("",)
    cycle: Cycle = ONE
    first_window: int = 0
    """See `ShuffledBlocks`."""
    packings: dict[Any, tuple[Packing, ...]] = dataclasses.field(
        default_factory=dict, compare=False, repr=False
    )
    """Rows of whole documents of each corpus, by their shape; `packed` fills it. Worker processes
    get it with the mixture.
    """

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of all corpora."""
        return self.corpora[0].tokenizer

    @property
    def sha256(self) -> str:
        """The hash of the corpus; for several corpora, the hash of their hashes in order."""
        first, *others = hashes = [corpus.sha256 for corpus in self.corpora]
        return hashlib.sha256(json.dumps(hashes).encode()).hexdigest() if others else first

    @property
    def path(self) -> str:
        """The folders, in the form of `data.corpus`."""
        return ",".join(corpus.path for corpus in self.corpora)

    @property
    def token_counts(self) -> np.ndarray:
        """int64 [V]: how often each piece occurs in all splits together."""
        return np.sum([corpus.token_counts for corpus in self.corpora], axis=0)

    def split_names(self) -> list[str]:
        """Names of the split of each corpus, for messages."""
        return [f"the {corpus.split} split of {corpus.path}" for corpus in self.corpora]

    def check(self, config: Config) -> None:
        """Raises BadInput if a corpus is too short for one example, or cannot be packed."""
        if config.data.whole_documents:
            self.packed(config)
            return
        for corpus, name in zip(self.corpora, self.split_names(), strict=True):
            examples.check_length(corpus, config, name)

    def packed(self, config: Config) -> tuple[Packing, ...]:
        """Returns the rows of whole documents of each corpus. Raises BadInput."""
        shape = documents.shape(config)
        if shape not in self.packings:
            self.packings[shape] = tuple(
                documents.pack_corpus(corpus, config) for corpus in self.corpora
            )
        return self.packings[shape]

    def stream(self, config: Config) -> Stream:
        """Returns the training stream."""
        data = config.data
        static, rows_per_block = compat.blocks(config.compat)
        sizes, window = self._sizes(config)
        blocks = tuple(
            ShuffledBlocks(
                size,
                window,
                data.windows_per_block,
                config.seeds.data,
                static,
                data.shuffle_len,
                self.first_window,
                documents.shape(config),
            )
            for size in sizes
        )
        cycle = from_weights(data.weight_list()) if data.weights else self.cycle
        return Stream(blocks, data.bidirectional, cycle, rows_per_block)

    def single_pass(self, config: Config, streams: int = 0, limit: int = 0) -> SinglePass:
        """Returns a pass over all text, or over `limit` blocks of every corpus. A left-to-right
        model reads each corpus in `streams` rows; 0 = at most `train.batch_size` rows.
        """
        data, windows = config.data, limit * config.data.windows_per_block
        sizes, window = self._sizes(config)
        if not config.reads_streams:
            return SinglePass.of_blocks(sizes, window, data.windows_per_block, windows)
        reach = config.model.memory_len + data.segment_len
        return SinglePass.of_streams(
            sizes, data.segment_len, streams, reach, config.train.batch_size, windows
        )

    def _sizes(self, config: Config) -> tuple[tuple[int, ...], int]:
        """Returns the number of tokens of each corpus, and of a window. With whole documents it
        returns the number of rows of each corpus, and 1.
        """
        if config.data.whole_documents:
            return tuple(each.rows for each in self.packed(config)), 1
        return tuple(corpus.tokens for corpus in self.corpora), config.data.reuse_len

    def build(
        self, config: Config, where: Windows, *, name: str, step: int, rows: np.ndarray
    ) -> Batch:
        """Builds the Batch that `where` describes; see `examples.ExampleBuilder`."""
        order = [np.flatnonzero(where.corpus_B == number) for number in range(len(self.corpora))]
        parts = []
        for number, (corpus, own) in enumerate(zip(self.corpora, order, strict=True)):
            of_rows = where.take(own), name, step, rows[own]
            builder = ExampleBuilder(corpus, self.tokenizer, config, *of_rows)
            if own.size:
                parts.append(self._build(number, builder))
        # Row i of the joined parts is row order[i] of the batch.
        back = np.argsort(np.concatenate(order))
        return combine(parts, lambda arrays: np.concatenate(arrays)[back])

    def _build(self, number: int, builder: ExampleBuilder) -> Batch:
        """Builds the rows of one corpus."""
        if not builder.config.data.whole_documents:
            return examples.build(builder)
        packed = self.packed(builder.config)
        first_number = sum(each.groups.pieces for each in packed[:number])
        return documents.build(builder, packed[number], first_number)


def open_mixture(
    config: Config, split: str = "train", weighted: bool = True, opened: Mixture | None = None
) -> Mixture:
    """Opens a split of every corpus in `data.corpus` and checks that they are compatible.

    Args:
      weighted: whether `data.weights` apply; False in an evaluation, which may have other corpora.
      opened: the other split of the same corpora, if it is open; see `Corpus`.

    Raises BadInput: there is no corpus, one is damaged, or they do not fit the model, the weights
    or each other. RestartMe: a bucket does not answer.
    """
    data = config.data
    paths = data.folders()
    if not paths:
        raise BadInput(
            "data.corpus is empty; give the folder that `xlnet-jax prepare` "
            "wrote: --config.data.corpus=DIR"
        )
    if len(set(paths)) < len(paths) or "" in paths:
        raise BadInput(
            f"data.corpus={data.corpus} names a folder twice or has an empty name; separate "
            "different folders by commas"
        )
    others = opened.corpora if opened else [None] * len(paths)
    corpora = tuple(
        Corpus(path, split, PAGE_CACHE_BYTES // len(paths), other)
        for path, other in zip(paths, others, strict=True)
    )
    for corpus in corpora:
        if corpus.tokenizer.vocab_size != config.model.pieces:
            raise BadInput(
                f"model.vocab_size={config.model.vocab_size} does not match the tokenizer of "
                f"{corpus.path}; set --config.model.vocab_size="
                f"{corpus.tokenizer.vocab_size + config.model.spare_rows}"
            )
        check_pieces(corpus.tokenizer, config, corpus.path)
        if opened is None:
            warn_of_unknown(corpus.manifest, corpus.path)
        mine, first = corpus.tokenizer, corpora[0].tokenizer
        if (mine.sha256, mine.normalization) != (first.sha256, first.normalization):
            raise BadInput(
                f"{corpus.path} and {corpora[0].path} have different tokenizers or normalisation; "
                "prepare one again with the options of the other and with its "
                f"{mine.file_name} as --tokenizer"
            )
    weights = data.weight_list() if weighted else [1] * len(corpora)
    parts = [part.data for part in config.parts]
    for part in parts * weighted:
        if part.weights and len(part.weight_list()) != len(corpora):
            raise BadInput(
                f"data.weights={part.weights} has {quantity(len(part.weight_list()), 'number')} "
                f"for {len(corpora)} corpora; give one per corpus"
            )
    lengths = {part.reuse_len * part.windows_per_block for part in parts}
    cycle = from_weights(weights or [corpus.tokens for corpus in corpora])
    return Mixture(corpora, _names(paths), cycle, parts[0].reuse_len if len(lengths) == 1 else 0)


def _names(paths: list[str]) -> tuple[str, ...]:
    """Returns the base names of the folders; the full path where two base names are equal."""
    names = [os.path.basename(path.rstrip("/")) for path in paths]
    return tuple(
        name if names.count(name) == 1 else path for name, path in zip(names, paths, strict=True)
    )
