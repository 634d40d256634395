"""Data as a function of the step: the text that each row of each step reads, and every random draw.

A corpus is one long run of tokens. A *block* is W consecutive windows of R fresh tokens. With B
rows, each row reads

    number = first + ((step - start) // W) * B + row
    epoch  = number // N
    window = (step - start) % W

where N blocks are an epoch and (start, first, B) is the newest entry of the *data plan* at or
before the step. The plan is a list because the batch size may change; it is saved in the
checkpoint. With several corpora a `Cycle` assigns the numbers to them; each has its own blocks and
epochs. Nothing here depends on processes, devices or time, so any host computes any row, and a
resumed run reads the same text as a run that never stopped.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import grain
import numpy as np

from xlnet_jax.data.batches.cycle import ONE, Cycle
from xlnet_jax.errors import BadInput
from xlnet_jax.messages import quantity

SHUFFLE_ROUNDS = 4
"""Rounds of the index permutation; Grain itself uses four for shuffles."""

GOLDEN_SECTION = (5**0.5 - 1) / 2

FULL_LENGTHS = 10
"""Default minimum length of a held-out stream, in units of memory plus segment length: less than a
tenth of its tokens are predicted before the memory is full.
"""


class PlanEntry(NamedTuple):
    """From `step` on, rows read blocks from number `block` on, `batch_size` at a time. In JSON an
    entry is a list.
    """

    step: int
    block: int
    batch_size: int
    read: tuple[int, ...] = ()
    """Tokens of each corpus that earlier phases read: all tokens of whole epochs, and all tokens of
    the begun blocks of the last epoch. The block numbers continue from there. With whole documents
    a row counts as one token.
    """


Plan = tuple[PlanEntry, ...]


def to_json(plan: Plan) -> list[list[Any]]:
    """Returns the plan for a checkpoint: three numbers per entry, and `read` after a phase."""
    return [[*entry[:3], *([[*entry.read]] if entry.read else [])] for entry in plan]


def from_json(plan: Sequence[Sequence[Any]]) -> Plan:
    """The inverse of `to_json`."""
    return tuple(PlanEntry(*entry[:3], *map(tuple, entry[3:])) for entry in plan)


def extend_plan(
    plan: Plan, step: int, batch_size: int, windows_per_block: int, rows_per_block: int = 1
) -> Plan:
    """Returns the plan of a run that resumes at `step` with `batch_size`, the same plan if the
    batch size did not change.

    At a multiple of W steps after the last entry no text is lost. At any other step each row drops
    the rest of its block, at most W - 1 windows, and its memory is emptied. `rows_per_block` is 2
    if each block is read in both directions at once.
    """
    if not plan:
        return (PlanEntry(step, 0, batch_size),)
    last = plan[-1]
    if last.batch_size == batch_size:
        return plan
    begun = -(-(step - last.step) // windows_per_block)
    block = last.block + begun * last.batch_size // rows_per_block
    return (*plan, PlanEntry(step, block, batch_size, last.read))


def enter_phase(plan: Plan, step: int, batch_size: int, before: Stream, after: Stream) -> Plan:
    """Returns the plan of a run that reads the stream `after` from `step` on, the same plan if
    streams and batch sizes are equal.

    Each row drops the rest of its block, and the next blocks start after all begun blocks: no text
    of an epoch is read twice, and each row leaves out at most one block.
    """
    if before == after and batch_size == plan[-1].batch_size:
        return plan
    read = before.read(step, plan)
    if before.corpora[0].packed != after.corpora[0].packed:
        # Other rows share no order with the earlier ones: a new epoch.
        corpora = zip(read, before.corpora, after.corpora, strict=True)
        read = tuple(-(-n // old.tokens) * new.tokens for n, old, new in corpora)
    return (*plan, PlanEntry(step, 0, batch_size, read))


def current(plan: Plan, step: int) -> PlanEntry:
    """Returns the newest entry at or before `step`."""
    return next(entry for entry in reversed(plan) if entry.step <= step)


def uniforms(
    seed: int, name: str, step: int | np.ndarray, rows: np.ndarray, count: int
) -> np.ndarray:
    """Returns `count` uniform draws in [0, 1) for each row, float64 [B, count]; rows may have
    different steps [B].

    Counter-based (Philox): the key is (seed, name), the counter (step, row), so a row's draws do
    not depend on other rows, on the host or on time.
    """
    stream = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    return np.stack(
        [
            np.random.Generator(
                np.random.Philox(counter=[0, 0, int(row), int(at)], key=[seed, stream])
            ).random(count)
            for row, at in zip(rows, np.broadcast_to(step, rows.shape), strict=True)
        ]
    )


class Windows(NamedTuple):
    """The positions that the B rows of one step read, in tokens of the split of each row's
    corpus.
    """

    cursor_B: np.ndarray
    """int64: first token of the reuse window in reading order; a reversed row reads backwards from
    it.
    """
    direction_B: np.ndarray
    """int32: +1 or -1."""
    continues_B: np.ndarray
    """bool: the row's memory holds the text immediately before."""
    exists_B: np.ndarray
    """bool: False for rows past the end of a single pass (evaluation)."""
    corpus_B: np.ndarray
    """int64: index of the corpus."""
    block_B: np.ndarray
    """int64: index of the block in its corpus."""
    epoch_B: np.ndarray
    """int64: number of earlier epochs of the corpus."""
    window: int
    """Index of the window in the block, in reading order."""

    def take(self, rows: np.ndarray) -> Windows:
        """Returns the windows of a subset of the rows."""
        return Windows._make([*(x_B[rows] for x_B in self[:-1]), self.window])


@functools.lru_cache(1 << 16)
def _shuffled(seed: int, epoch: int, index: int, size: int) -> int:
    """Returns the number at `index` of a permutation of `range(size)`; epochs have different
    permutations.

    Cached, because Grain redraws until a number is in the range: with few blocks a call takes
    milliseconds.
    """
    of_epoch = int.from_bytes(
        hashlib.sha256(f"{seed} epoch {epoch}".encode()).digest()[:4], "little"
    )
    return grain.experimental.index_shuffle(index, size - 1, of_epoch, SHUFFLE_ROUNDS)


class ShuffledBlocks(NamedTuple):
    """The blocks of one corpus of `tokens` tokens, in a new order every epoch. With whole documents
    each row of `packing` is a block, and counts as one token.
    """

    tokens: int
    window: int
    """Number of fresh tokens R per example."""
    windows_per_block: int
    seed: int
    static: bool = False
    """Whether every epoch has the same blocks; otherwise each epoch leaves out a different part of
    the text.
    """
    shuffle_len: int = 0
    """Number of tokens in whole blocks that stay together; 0 = one block."""
    first_window: int = 0
    """Window of the first phase; with it, blocks of equal length have the same text in every phase.
    0 = `window`.
    """
    packed: tuple[Any, ...] = ()
    """With whole documents, all that decides which of them share a row."""

    @property
    def block_len(self) -> int:
        """Number of tokens of a block."""
        return self.window * self.windows_per_block

    @property
    def blocks(self) -> int:
        """Number of blocks N of one epoch."""
        return self.tokens // (self.shuffle_len or self.block_len) * self.together

    @property
    def together(self) -> int:
        """Number of consecutive blocks that the epoch shuffles as one."""
        return self.shuffle_len // self.block_len or 1

    @property
    def described(self) -> str:
        """The text of an epoch, for messages."""
        if self.packed:
            return f"{quantity(self.blocks, 'row')} of documents for training"
        blocks = f"{quantity(self.blocks, 'block')} of {self.block_len:,}"
        return f"{self.tokens:,} tokens for training: {blocks}"

    def tokens_before(self, number: int) -> int:
        """Returns the tokens of the epochs and blocks before a block number."""
        epoch, block = divmod(number, self.blocks)
        return epoch * self.tokens + block * self.block_len

    def first_after(self, tokens: int) -> int:
        """Returns the number of the first block after so many tokens of earlier phases."""
        epoch, begun = divmod(tokens, self.tokens)
        return epoch * self.blocks + min(-(-begun // self.block_len), self.blocks)

    def locate(self, numbers_B: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the epoch, the block and the first token of each block number, int64 [B] each."""
        epoch_B, index_B = np.divmod(numbers_B, self.blocks)
        group_B, place_B = np.divmod(index_B, self.together)
        shuffled_B = np.vectorize(_shuffled, [np.int64])(
            self.seed, epoch_B, group_B, self.blocks // self.together
        )
        block_B = shuffled_B * self.together + place_B
        # Tokens that do not fill a block are left out; the offset, which depends on the epoch,
        # determines which tokens.
        most = 0 if self.static else self.tokens - self.blocks * self.block_len
        offset_B = (epoch_B * (self.first_window or self.window)) % (most + 1)
        # With `shuffle_len` the offset does not depend on the window, and successive epochs spread
        # it evenly for any number of left-out tokens.
        if self.shuffle_len:
            offset_B = (epoch_B * GOLDEN_SECTION % 1 * (most + 1)).astype(np.int64)
        return epoch_B, block_B, offset_B + block_B * self.block_len


@dataclasses.dataclass(frozen=True)
class Stream:
    """The endless training stream.

    Attributes:
      corpora: the blocks of each corpus, all of the same shape and seed.
      bidirectional: every second block is read from its end to its start; the next epoch reverses
        the other blocks.
      rows_per_block: 1; or 2 in place of `bidirectional`: rows r and r + B/2 read the same block at
        the same time, row r + B/2 reversed.
    """

    corpora: tuple[ShuffledBlocks, ...]
    bidirectional: bool
    cycle: Cycle = ONE
    rows_per_block: int = 1

    def check(self, batch_size: int, names: Sequence[str]) -> None:
        """Raises BadInput if one batch needs more blocks of a corpus than its epoch has."""
        most = self.cycle.most(batch_size // self.rows_per_block)
        for name, epochs, needed in zip(names, self.corpora, most, strict=True):
            if epochs.tokens < epochs.shuffle_len:
                raise BadInput(
                    f"{name} has {epochs.tokens:,} tokens for training, fewer than "
                    f"data.shuffle_len={epochs.shuffle_len}; use shorter blocks, or more text"
                )
            if epochs.blocks < needed:
                raise BadInput(
                    f"{name} has {epochs.described}, too few for "
                    f"train.batch_size={batch_size}; use a smaller batch"
                    f"{', a smaller data.windows_per_block' * (not epochs.packed)} or more text"
                )

    def deal(self, step: int, rows: np.ndarray, plan: Plan) -> tuple[np.ndarray, np.ndarray]:
        """Returns the corpus that each of `rows` (of the global batch) reads at `step`, and the
        number of its block in this corpus, counted over epochs.
        """
        entry = current(plan, step)
        width = entry.batch_size // self.rows_per_block  # blocks read at the same time
        round_ = (step - entry.step) // self.corpora[0].windows_per_block
        corpus_B, number_B = self.cycle.deal(
            entry.block + round_ * width + rows.astype(np.int64) % width
        )
        return corpus_B, number_B + self._before(entry)[corpus_B]

    def _before(self, entry: PlanEntry) -> np.ndarray:
        """Returns the number of the first block of each corpus that no earlier phase has begun,
        int64 [C].
        """
        read = entry.read or [0] * len(self.corpora)
        return np.array(
            [each.first_after(n) for each, n in zip(self.corpora, read, strict=True)], np.int64
        )

    def read(self, step: int, plan: Plan) -> tuple[int, ...]:
        """Returns the tokens of each corpus read before `step`, for `PlanEntry.read`: a begun block
        counts whole.
        """
        entry = current(plan, step)
        rounds = -(-(step - entry.step) // self.corpora[0].windows_per_block)
        numbers = self._before(entry) + self.cycle.dealt(
            entry.block + rounds * (entry.batch_size // self.rows_per_block)
        )
        return tuple(
            each.tokens_before(n) for each, n in zip(self.corpora, numbers.tolist(), strict=True)
        )

    def locate(self, step: int, rows: np.ndarray, plan: Plan) -> Windows:
        """Returns the windows that `rows` (of the global batch) read at `step`. Rows from the batch
        size on do not exist.
        """
        corpus_B, number_B = self.deal(step, rows, plan)
        blocks, entry = self.corpora[0], current(plan, step)
        window = (step - entry.step) % blocks.windows_per_block
        epoch_B, block_B, first_B = np.zeros((3, len(rows)), np.int64)
        for corpus, epochs in enumerate(self.corpora):
            of_corpus = corpus_B == corpus
            epoch_B[of_corpus], block_B[of_corpus], first_B[of_corpus] = epochs.locate(
                number_B[of_corpus]
            )
        reversed_B = self.bidirectional & ((block_B + epoch_B) % 2 == 1)
        if self.rows_per_block > 1:
            reversed_B = rows >= entry.batch_size // self.rows_per_block
        ahead, last = window * blocks.window, blocks.block_len - 1
        return Windows(
            cursor_B=np.where(reversed_B, first_B + last - ahead, first_B + ahead),
            direction_B=np.where(reversed_B, -1, 1).astype(np.int32),
            continues_B=np.full(len(rows), window > 0),
            exists_B=rows < entry.batch_size,
            corpus_B=corpus_B,
            block_B=block_B,
            epoch_B=epoch_B,
            window=window,
        )

    def epochs(self, step: int, plan: Plan) -> list[float]:
        """Returns the epochs of each corpus read before `step`: 1.73 is in the second epoch."""
        entry = current(plan, step)
        blocks = (
            entry.block
            + (step - entry.step)
            * (entry.batch_size // self.rows_per_block)
            / self.corpora[0].windows_per_block
        )
        parts = zip(self.cycle.shares, self.corpora, self._before(entry).tolist(), strict=True)
        return [(before + blocks * share) / epochs.blocks for share, epochs, before in parts]


class SinglePass(NamedTuple):
    """The held-out splits once, in order, forward. Each row reads consecutive windows of one split.

    A limit keeps the fewest, evenly spread rows that have at least `limit` windows of each split.

    Attributes:
      tokens, window: tokens in the split of each corpus; fresh tokens R of an example.
      rows_S3: int64: the corpus, the first window and the number of windows of every row.
      number_S: int64: the number of every row among all rows of its split; it keys the draws.
    """

    tokens: tuple[int, ...]
    window: int
    rows_S3: np.ndarray
    number_S: np.ndarray

    @classmethod
    def of_blocks(
        cls, tokens: tuple[int, ...], window: int, windows_per_block: int, limit: int = 0
    ) -> SinglePass:
        """Reads a block in each row, whatever the batch size. The last window wraps around, so that
        every token is read.
        """
        cuts = [(-(-each // window), windows_per_block) for each in tokens]
        return cls._cut(tokens, window, cuts, limit)

    @classmethod
    def of_streams(
        cls,
        tokens: tuple[int, ...],
        segment: int,
        streams: int,
        reach: int,
        most: int,
        limit: int = 0,
    ) -> SinglePass:
        """Reads for left-to-right models: a row is a contiguous stream of whole segments of T
        tokens. Every token but the first of a split is predicted once. Only the last segment of a
        split may be shorter.

        Args:
          streams: number of streams per corpus; 0 = one per `FULL_LENGTHS` times `reach` tokens,
            from 1 to `most`.
          reach: tokens that fill the memory and one segment.
        """
        cuts = []
        for each in tokens:
            count = -(-(each - 1) // segment)
            whole = count * segment // (FULL_LENGTHS * reach)
            cuts.append((count, -(-count // (streams or max(1, min(most, whole))))))
        return cls._cut(tokens, segment, cuts, limit)

    @classmethod
    def _cut(
        cls,
        tokens: tuple[int, ...],
        window: int,
        cuts: list[tuple[int, int]],
        limit: int,
    ) -> SinglePass:
        """Cuts each corpus into rows; `cuts` has its number of windows and the windows of a row."""
        rows, numbers = [], []
        for corpus, (count, each) in enumerate(cuts):
            whole = -(-count // each)
            kept = min(-(-limit // each) or whole, whole)
            numbers += [(2 * n + 1) * whole // (2 * kept) for n in range(kept)]
            rows += [(corpus, n * each, min(each, count - n * each)) for n in numbers[-kept:]]
        return cls(tokens, window, np.array(rows, np.int64), np.array(numbers, np.int64))

    def locate(self, rows: np.ndarray, window: int) -> Windows:
        """Returns window number `window` of each row; `exists_B` is False past the end."""
        # Rows past the end read the text of the last row; their weight is 0.
        there_B = np.minimum(rows, len(self.rows_S3) - 1)
        corpus_B, first_B, length_B = self.rows_S3[there_B].T
        return Windows(
            cursor_B=(first_B + window) * self.window % np.array(self.tokens)[corpus_B],
            direction_B=np.ones(len(rows), np.int32),
            continues_B=np.full(len(rows), window > 0),
            exists_B=(window < length_B) & (rows < len(self.rows_S3)),
            corpus_B=corpus_B,
            block_B=self.number_S[there_B],
            epoch_B=np.zeros(len(rows), np.int64),
            window=window,
        )
