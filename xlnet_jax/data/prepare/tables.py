"""Rows of `.csv` and `.tsv` files.

A `.csv` has quotes, as Python's `csv` reads them; a `.tsv` has none, as in GLUE.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator, Sequence

from xlnet_jax.data.prepare.sources import kind_of
from xlnet_jax.errors import BadInput, summary


def csv_rows(lines: Iterable[str], strict: bool = False) -> Iterator[list[str]]:
    """Yields the rows of a `.csv`; `lines` have their ends. Raises csv.Error for other quotes if
    `strict`.
    """
    csv.field_size_limit(sys.maxsize)  # the default limit is 131,072 characters
    return csv.reader(lines, strict=strict)


def rows(
    path: str, lines: Iterable[str], header: bool = True
) -> Iterator[tuple[int, list[str], list[str]]]:
    """Yields the number, the names of the columns and the values of each row that is not empty.

    Rows count from 1 and include the header, as in a spreadsheet. Without a `header` the names are
    0, 1, ... A row may have more or fewer values than names; see `ragged`. Raises BadInput for
    damaged quotes, and for two columns of one name.
    """
    is_csv, names, number = kind_of(path).suffix == ".csv", list[str](), 0
    tabs = (line.rstrip("\r\n").split("\t") for line in lines)
    try:
        for number, row in enumerate(csv_rows(lines, strict=True) if is_csv else tabs, 1):
            if row in ([], [""]):
                continue
            if names or not header:
                names = names or [*map(str, range(len(row)))]
                yield number, names, row
                continue
            names = row
            if twice := [name for name in names if name and names.count(name) > 1]:
                raise BadInput(
                    f"{path}, row {number}: two columns are called {twice[0][:60]!r}; rename one"
                )
    except csv.Error as error:
        raise BadInput(f"{path}, row {number + 1}: {summary(error)}; correct its quotes") from error


def ragged(names: Sequence[str], row: Sequence[str]) -> str:
    """Returns the message for a row with more or fewer values than names."""
    return f"columns: {len(row)}, but the first row has {len(names)}; correct the row"
