"""One column of strings of a Parquet file, read as a stream: a row group of it may not fit in memory.

A file of a kilobyte may hold gigabytes, which are one string and its number in every row. So Arrow keeps the column as
a dictionary, and one row at a time becomes bytes.
"""

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

    Args:
      path: of the file.
      start: first row group.
      end: row group after the last.
      field: name of the column.

    Raises:
      BadInput: no such column, one that is not text, or a file that is damaged.
    """
    import pyarrow

    with _opened(path) as table:
        _check_column(path, table.schema_arrow, field)
    where: list[str] = []
    with _opened(path, where, [field]) as table:
        if table.num_row_groups < end:
            raise BadInput(f"{path}: {end - table.num_row_groups} row groups shorter than it was; start over")
        row = sum(table.metadata.row_group(index).num_rows for index in range(start))
        for group in range(start, end):
            where[:] = [f" row group {group}:"]
            after = row + table.metadata.row_group(group).num_rows
            for batch in table.iter_batches(_ROWS, row_groups=[group], columns=[field], use_threads=False):
                # Bytes, because nothing has checked that a string is UTF-8; Arrow's own error would name no row.
                words = batch.column(0).dictionary.cast(pyarrow.large_binary())
                for index in batch.column(0).indices.to_pylist():
                    yield row, None if index is None else words[index].as_py()
                    row += 1
            if row != after:
                raise BadInput(
                    f"{path}: row group {group} misses {after - row} of its rows, so it is damaged; replace it"
                )


@contextlib.contextmanager
def _opened(path: str, where: Sequence[str] = (), dictionaries: Sequence[str] = ()) -> Iterator[Any]:
    """A Parquet file. Errors name the place that `where` holds when they happen.

    Args:
      dictionaries: the columns that stay encoded.
    """
    import pyarrow
    from pyarrow import parquet

    try:
        with files.open_to_read(path, _SMALL_BLOCK) as file:
            table = parquet.ParquetFile(
                file, buffer_size=_BUFFER, pre_buffer=False, page_checksum_verification=True,
                read_dictionary=list(dictionaries),
            )  # fmt: skip
            rows = sum(table.metadata.row_group(index).num_rows for index in range(table.num_row_groups))
            if rows != table.metadata.num_rows:
                raise pyarrow.ArrowInvalid(f"its row groups have {rows} rows of {table.metadata.num_rows}")
            yield table
    except MemoryError as error:
        reason = f"needs more memory than there is ({summary(error)}); replace it, or write smaller row groups"
        raise BadInput(f"{path}:{''.join(where)} {reason}") from error
    except (OSError, UnicodeDecodeError, pyarrow.ArrowException) as error:
        broken = not getattr(error, "strerror", None)
        reason = f"damaged ({summary(error)}); replace the file" if broken else summary(error)
        raise BadInput(f"{path}:{''.join(where)} {reason}") from error


def _check_column(path: str, schema: Any, field: str) -> None:
    from pyarrow import types

    if schema.names.count(field) > 1:
        raise BadInput(f"{path}: {schema.names.count(field)} columns are named {field!r}; rename one")
    if field not in schema.names:
        raise BadInput(f"{path}: {no_field(field, schema.names)}")
    kind = schema.field(field).type
    kind = kind.value_type if types.is_dictionary(kind) else kind
    tests = (types.is_string, types.is_large_string, types.is_string_view, types.is_binary, types.is_large_binary)
    if not any(test(kind) for test in tests):
        raise BadInput(f"{path}: field {field!r} is {kind}, not a string; choose another with --field")
