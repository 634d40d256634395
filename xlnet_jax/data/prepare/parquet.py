"""One column of strings of a Parquet file, read as a stream: a row group of it may not fit in memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from xlnet_jax.data.prepare.tfds import no_field
from xlnet_jax.errors import BadInput, summary
from xlnet_jax.storage import files

_BUFFER, _SMALL_BLOCK = 1 << 20, 1 << 16
_ROWS = 64  # read at once: a row may be a whole book


def row_group_bytes(path: str) -> list[int]:
    """The uncompressed size of every row group. Raises BadInput if this is no Parquet file."""
    with _opened(path) as table:
        return [table.metadata.row_group(index).total_byte_size for index in range(table.num_row_groups)]


def strings(path: str, start: int, end: int, field: str) -> Iterator[tuple[int, bytes | None]]:
    """A column of the row groups [start, end), every value with its row in the file; None where it is null.

    Raises BadInput: no such column, one that is not text, or a file that is damaged.
    """
    import pyarrow

    where: list[str] = []
    with _opened(path, where) as table:
        names = table.schema_arrow.names
        if names.count(field) > 1:
            raise BadInput(f"{path}: {names.count(field)} columns are named {field!r}; rename one")
        if field not in names:
            raise BadInput(f"{path}: {no_field(field, names)}")
        if table.num_row_groups < end:
            raise BadInput(f"{path}: {end - table.num_row_groups} row groups shorter than it was; start over")
        row = sum(table.metadata.row_group(index).num_rows for index in range(start))
        for group in range(start, end):
            where[:] = [f" row group {group}:"]
            after = row + table.metadata.row_group(group).num_rows
            for batch in table.iter_batches(_ROWS, row_groups=[group], columns=[field], use_threads=False):
                # Bytes, because nothing has checked that a string is UTF-8; Arrow's own error would name no row.
                try:
                    values = batch.column(0).cast(pyarrow.large_binary())
                except pyarrow.ArrowNotImplementedError as error:
                    kind = batch.column(0).type
                    message = f"field {field!r} is {kind}, not a string; choose another with --field"
                    raise BadInput(f"{path}: {message}") from error
                for value in values:
                    yield row, value.as_py()
                    row += 1
            if row != after:
                raise BadInput(
                    f"{path}: row group {group} is damaged: {after - row} rows are missing; replace the file"
                )


@contextlib.contextmanager
def _opened(path: str, where: Sequence[str] = ()) -> Iterator[Any]:
    """A Parquet file. Errors name the place that `where` holds when they happen."""
    import pyarrow
    from pyarrow import parquet

    try:
        with files.open_to_read(path, _SMALL_BLOCK) as file:
            table = parquet.ParquetFile(file, buffer_size=_BUFFER, pre_buffer=False, page_checksum_verification=True)
            rows = sum(table.metadata.row_group(index).num_rows for index in range(table.num_row_groups))
            if rows != table.metadata.num_rows:
                raise pyarrow.ArrowInvalid(f"its row groups have {rows} rows of {table.metadata.num_rows}")
            yield table
    except (OSError, UnicodeDecodeError, pyarrow.ArrowException) as error:
        if getattr(error, "strerror", None):
            raise
        reason = f"damaged or too large ({summary(error)}); replace the file"
        raise BadInput(f"{path}:{''.join(where)} {reason}") from error
