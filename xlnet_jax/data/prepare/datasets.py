"""The published files of enwik8, text8 and WikiText-103, read unchanged and in the published
splits.

    --dataset    vocabulary  --input                         train        valid      test
    enwik8       bytes       the unpacked file               90 million   5 million  5 million
    text8        characters  the unpacked file               90 million   5 million  5 million
    wikitext103  words       wiki.{train,valid,test}.tokens  103,227,021  217,646    245,569

The sizes are bytes; for WikiText-103 they are words and line ends.

Every space and line end counts, so nothing is normalised. The held-out split is `valid`, or `test`
with `NAME:test`. The sizes of WikiText-103 are from its paper (Merity et al., 2016, table 1) and
include one end per line.
"""

from __future__ import annotations

import bisect
import itertools
import os
from collections.abc import Sequence
from typing import NamedTuple

from xlnet_jax.data.prepare import sources
from xlnet_jax.data.prepare.sources import Part, Source, Unit
from xlnet_jax.errors import BadInput

SPLITS = ("train", "valid", "test")


class Dataset(NamedTuple):
    """A published data set and its held-out split."""

    vocabulary: str
    """Level of its vocabulary; see `data.vocabulary`."""
    file: str
    """Name of its file; `{}` stands for the split."""
    sizes: tuple[int, int, int]
    """Sizes of the splits, in the order of `SPLITS`: bytes of the single file, or words and line
    ends of each split's file.
    """
    name: str = ""
    """Name as in the option: `NAME` or `NAME:SPLIT`."""
    heldout: str = "valid"

    def _ends(self) -> tuple[int, ...]:
        """Returns the byte where each split ends in the single file; empty if every split has its
        own file.
        """
        return () if "{}" in self.file else tuple(itertools.accumulate(self.sizes))

    def find(self, inputs: Sequence[str]) -> list[Source]:
        """Finds the files of the data set. Raises BadInput if a file is missing or does not have
        the published size.
        """
        names = sorted(set(map(self.file.format, SPLITS)))
        found = sources.find_sources(inputs, suffixes=tuple(names))
        is_one = bool(self._ends())
        if len(found) != len(names) or not (
            is_one or sorted(os.path.basename(each.path) for each in found) == names
        ):
            raise BadInput(
                f"--dataset={self.name} needs {', '.join(names)} and no other; name it with --input"
            )
        if is_one and (size := found[0].bytes) != (published := sum(self.sizes)):
            raise BadInput(
                f"{found[0].path} has {size:,} bytes, {self.name} has "
                f"{published:,}; unpack it, or fetch it again"
            )
        return found

    def split_of(self, part: Part) -> str:
        """Returns the published split of a part."""
        if ends := self._ends():
            return SPLITS[bisect.bisect(ends, part.start)]
        return next(
            split for split in SPLITS if os.path.basename(part.path) == self.file.format(split)
        )

    def plan(self, found: Sequence[Source], unit_bytes: int, splits: Sequence[str]) -> list[Unit]:
        """Returns the work units of these splits, each of one part. A single file is cut anywhere,
        a split's own file between lines.
        """
        if not (ends := self._ends()):
            files = {self.split_of(Part(source.path, 0, 0)): source for source in found}
            return [
                unit
                for split in SPLITS
                if split in splits
                for unit in sources.plan([files[split]], unit_bytes, "line")
            ]
        return [
            (Part(found[0].path, start, min(start + unit_bytes, end)),)
            for split, size, end in zip(SPLITS, self.sizes, ends, strict=True)
            if split in splits
            for start in range(end - size, end, unit_bytes)
        ]

    def check_words(self, counted: dict[str, int]) -> None:
        """Compares the number of words and line ends of every file, by path, with the published
        number. Raises BadInput.
        """
        published = dict(zip(map(self.file.format, SPLITS), self.sizes, strict=True))
        for path, count in counted.items() if not self._ends() else ():
            if count != (size := published[os.path.basename(path)]):
                raise BadInput(
                    f"{path} has {count:,} words and line ends, {self.name} "
                    f"has {size:,}; fetch it again"
                )


DATASETS = {
    "enwik8": Dataset("bytes", "enwik8", (90_000_000, 5_000_000, 5_000_000)),
    "text8": Dataset("characters", "text8", (90_000_000, 5_000_000, 5_000_000)),
    "wikitext103": Dataset("words", "wiki.{}.tokens", (103_227_021, 217_646, 245_569)),
}


def parse(name: str) -> Dataset:
    """Returns the data set of `NAME` or `NAME:SPLIT`. Raises BadInput for any other name."""
    base, _, split = name.partition(":")
    if base not in DATASETS or (":" in name and split not in SPLITS[1:]):
        raise BadInput(
            f"--dataset={name} must be one of {', '.join(DATASETS)}, "
            "with :test to hold out the test split"
        )
    return DATASETS[base]._replace(name=name, heldout=split or "valid")
