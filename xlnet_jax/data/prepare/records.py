"""Records: the examples of a data set that TFDS has built, and the rows of a Parquet file, as a
stream of texts.

A data set of TFDS is a folder, `DATA_DIR/NAME[/CONFIG]/VERSION`, found by that name and read
without TensorFlow. To find the default configuration, TFDS itself would import the data set's code,
which often imports TensorFlow.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

from xlnet_jax.errors import BadInput, RestartMe, summary
from xlnet_jax.messages import quantity
from xlnet_jax.storage import files
from xlnet_jax.storage.local import File

PREFIX = "tfds:"

_NAME = re.compile(
    r"tfds:(?P<name>(?:gs://)?[^:]+)(?::(?P<version>\d+\.\d+\.\d+))?(?::(?P<split>[^:]+))?"
)
_ROWS = 64  # examples or rows read at once; each may be a whole book
_BUFFER, _SMALL_BLOCK = 1 << 20, 1 << 16  # bytes of Parquet


def find_tfds(source: str, data_dir: str | None) -> File:
    """Resolves `tfds:NAME[:VERSION][:SPLIT]` to `tfds:FOLDER:SPLIT`; NAME may also be the folder of
    a version.

    The default version is the newest, the default split `train`, and the default `data_dir` the
    folder of TFDS. The modification time comes from `dataset_info.json`.

    Raises BadInput: the data set was not built, or not as ArrayRecord, or has no such split.
    RestartMe: the bucket does not answer.
    """
    match = _NAME.fullmatch(source)
    if not match:
        raise BadInput(
            f"input {source} is not tfds:NAME, tfds:NAME:SPLIT or tfds:NAME:VERSION:SPLIT"
        )
    if match["name"].startswith(("/", "gs://")):
        folder = match["name"].rstrip("/")
    else:
        from tensorflow_datasets.core import constants

        name, version = match["name"], match["version"]
        root = files.resolve(os.path.expanduser(data_dir or constants.get_default_data_dir()))
        folder = f"{root}/{name.strip('/')}"
        versions = _versions(folder)
        if not versions:
            configs = [each for each in _subfolders(folder) if _versions(f"{folder}/{each}")]
            if configs:
                raise BadInput(
                    f"input tfds:{name} is built as {', '.join(configs)}; name one, "
                    f"as in tfds:{name}/{configs[0]}"
                )
            command = f"tfds build {name} --file_format=array_record" + (
                f" --data_dir={data_dir}" if data_dir else ""
            )
            raise BadInput(
                f"input tfds:{name} is not built in {root}; "
                f"build it with `{command}`, or give its --data_dir"
            )
        if version and version not in versions:
            raise BadInput(
                f"input tfds:{name}: version {version} is not built in {folder}, "
                f"only {', '.join(versions)}"
            )
        folder = f"{folder}/{version or versions[-1]}"
    path = f"{PREFIX}{folder}:{match['split'] or 'train'}"
    size = int(tfds_split(path).num_bytes)  # first: its errors name what is missing
    (info,), _ = files.find(f"{folder}/dataset_info.json", ())
    return File(path, size, info.mtime_ns)


def _versions(folder: str) -> list[str]:
    """Returns the versions in a folder, oldest first. The folder of an unfinished build has another
    name.
    """
    names = (name for name in _subfolders(folder) if re.fullmatch(r"\d+\.\d+\.\d+", name))
    return sorted(names, key=lambda name: [*map(int, name.split("."))])


def _subfolders(folder: str) -> list[str]:
    return sorted(name.rstrip("/") for name in files.listing(folder) if name.endswith("/"))


def tfds_split(path: str, part: str = "") -> Any:
    """Returns TFDS's description of a split of a data set, or of a part of the split. Raises as
    `find_tfds`.
    """
    builder, name = _dataset(path)
    return builder.info.splits[name + part]


def tfds_rows(path: str) -> Iterator[dict[str, Any]]:
    """Yields all examples of a split, whose path `find_tfds` gave, as Python values: text as `str`,
    classes by their names, None for a missing class. Raises as `find_tfds`, and BadInput for a
    damaged file.
    """
    builder, name = _dataset(path)
    try:
        for example in builder.as_data_source(split=name):
            yield {
                key: _plain(feature, example[key]) for key, feature in builder.info.features.items()
            }
    except RuntimeError as error:
        raise BadInput(f"{path} is damaged ({summary(error)}); build it again") from error


def _plain(feature: Any, value: Any) -> Any:
    """Returns the Python value of a TFDS feature, without bytes and arrays."""
    import tensorflow_datasets as tfds

    if isinstance(feature, tfds.features.ClassLabel):
        return feature.int2str(int(value)) if value >= 0 else None
    if isinstance(feature, tfds.features.Sequence):
        # A sequence of dictionaries is stored as a dictionary of sequences.
        inner = feature.feature
        if isinstance(inner, tfds.features.FeaturesDict):
            return {key: [_plain(inner[key], each) for each in value[key]] for key in inner}
        return [_plain(inner, each) for each in value]
    if isinstance(value, bytes):
        return value.decode()
    return value.item() if hasattr(value, "item") and not getattr(value, "ndim", 0) else value


def _dataset(path: str) -> tuple[Any, str]:
    """Returns TFDS's builder of a data set, and the name of the split. Raises BadInput."""
    import tensorflow_datasets as tfds
    from google.protobuf import json_format

    folder, name = path.removeprefix(PREFIX).rsplit(":", 1)
    files.resolve(folder)  # so that TFDS can read it
    try:
        with files.at(folder).translate_errors(folder):
            builder = tfds.builder_from_directory(folder)
            available = sorted(each.value for each in builder.info.available_file_formats())
            if "array_record" in available:  # perhaps beside another format
                builder.info.set_file_format(
                    "array_record", override=True, override_if_initialized=True
                )
    except (OSError, ValueError, ImportError, json_format.ParseError) as error:
        raise BadInput(
            f"{folder}: no data set that TFDS can read ({summary(error)}); build it again"
        ) from error
    if "array_record" not in available:
        raise BadInput(
            f"{folder} is written as {', '.join(available)}; build it again with "
            "`tfds build --file_format=array_record`"
        )
    if name not in set(builder.info.splits):  # TFDS would accept a slice as a split
        raise BadInput(
            f"{folder} has no split {name!r}, only {', '.join(sorted(builder.info.splits))}"
        )
    return builder, name


def tfds_texts(path: str, start: int, end: int, field: str) -> Iterator[tuple[int, bytes]]:
    """Yields a text field of the examples [start, end) of a split, each with its number.

    Raises BadInput: there is no such field, it is not text, or a file is damaged. RestartMe: the
    bucket does not answer.
    """
    if (count := tfds_split(path).num_examples) < end:
        raise BadInput(
            f"{path}: {quantity(end - count, 'example')} shorter than it was; start over"
        )
    from tensorflow_datasets.proto import tf_example_pb2

    shards = tfds_split(path, f"[{start}:{end}]").file_instructions
    found = (
        _records(os.fspath(shard.filename), shard.skip, shard.skip + shard.take) for shard in shards
    )
    for number, record in enumerate(itertools.chain.from_iterable(found), start):
        fields = tf_example_pb2.Example.FromString(record).features.feature  # pyright: ignore[reportAttributeAccessIssue]
        if field not in fields:
            raise BadInput(f"{path}, example {number}: {no_field(field, fields)}")
        value = fields[field]
        if value.WhichOneof("kind") != "bytes_list" or len(value.bytes_list.value) != 1:
            raise BadInput(
                f"{path}, example {number}: field {field!r} is not one text; "
                "choose another with --field"
            )
        yield number, value.bytes_list.value[0]


def _records(file: str, start: int, end: int) -> Iterator[bytes]:
    from array_record.python import array_record_module  # pyright: ignore[reportAttributeAccessIssue]

    first = start
    try:
        # By default the reader sends a request per record, and the bucket answers with all the rest
        # of the file.
        reader = array_record_module.ArrayRecordReader(
            file, "readahead_buffer_size:1048576,max_parallelism:1"
        )
        for first in range(start, end, _ROWS):
            yield from reader.read(first, min(first + _ROWS, end))
        reader.close()
    except (RuntimeError, IndexError) as error:
        where = f"{file}, record {first} or after it"
        # Google's client retries transient errors itself, then reports this phrase.
        if "Retry policy exhausted" in str(error):
            raise RestartMe(
                f"{where}: the bucket does not answer ({summary(error)}); rerun the same command"
            ) from error
        raise BadInput(f"{where}: damaged or missing ({summary(error)}); build it again") from error


def row_group_bytes(path: str) -> list[int]:
    """Returns the uncompressed size of every row group in bytes. Raises BadInput if the file is not
    Parquet.
    """
    with _table(path) as table:
        return [
            table.metadata.row_group(index).total_byte_size for index in range(table.num_row_groups)
        ]


def parquet_texts(
    path: str, start: int, end: int, field: str
) -> Iterator[tuple[int, bytes | None]]:
    """Yields the values of a column in the row groups [start, end), each after its row in the file;
    None for null.

    Raises BadInput: there is no such column, it is not text, or the file is damaged.
    """
    import pyarrow

    with _table(path) as table:
        if field not in table.schema_arrow.names:
            raise BadInput(f"{path}: {no_field(field, table.schema_arrow.names)}")
        if table.num_row_groups < end:
            lacking = quantity(end - table.num_row_groups, "row group")
            raise BadInput(f"{path}: {lacking} shorter than it was; start over")
        row, after = (
            sum(table.metadata.row_group(index).num_rows for index in range(each))
            for each in (start, end)
        )
        for batch in table.iter_batches(
            _ROWS, row_groups=range(start, end), columns=[field], use_threads=False
        ):
            # Cast to bytes, because nothing has checked that a string is UTF-8, and Arrow's own
            # error would not name the row.
            try:
                values = batch.column(0).cast(pyarrow.large_binary())
            except pyarrow.ArrowNotImplementedError as error:
                kind = batch.column(0).type
                raise BadInput(
                    f"{path}: field {field!r} is {kind}, not a string; choose another with --field"
                ) from error
            for value in values:
                yield row, value.as_py()
                row += 1
        if row != after:
            raise BadInput(f"{path}: it is damaged, rows are missing; replace the file")


def parquet_rows(path: str) -> Iterator[dict[str, Any]]:
    """Yields all rows of a Parquet file as Python values. Raises BadInput for a damaged file."""
    with _table(path) as table:
        for batch in table.iter_batches(_ROWS, use_threads=False):
            yield from batch.to_pylist()


@contextlib.contextmanager
def _table(path: str) -> Iterator[Any]:
    """Opens a Parquet file. Raises BadInput for errors of reading it, also in the caller's `with`
    block.
    """
    import pyarrow
    from pyarrow import parquet

    try:
        with files.open_to_read(path, _SMALL_BLOCK) as file:
            table = parquet.ParquetFile(
                file, buffer_size=_BUFFER, pre_buffer=False, page_checksum_verification=True
            )
            rows = sum(
                table.metadata.row_group(index).num_rows for index in range(table.num_row_groups)
            )
            if rows != table.metadata.num_rows:
                raise pyarrow.ArrowInvalid(
                    f"its row groups have {rows} rows of {table.metadata.num_rows}"
                )
            yield table
    except (OSError, UnicodeDecodeError, pyarrow.ArrowException) as error:
        if getattr(error, "strerror", None):
            raise
        raise BadInput(
            f"{path}: damaged or too large ({summary(error)}); replace the file"
        ) from error


def no_field(field: str, names: Iterable[str]) -> str:
    """Returns the message for a record without the field. It quotes the record's field names,
    because they are data.
    """
    shown = ", ".join(repr(name[:40]) for name in sorted(names)[:20])
    return f"no field {field!r}, but {shown or 'none at all'}; choose one with --field"
