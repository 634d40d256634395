"""Which files, how they are cut, and the raw lines and records in them; every format, on disk and
in a bucket.
"""

import functools
import gzip
import hashlib
import json
import os
import pathlib
import random
import re

import data_fixtures as data
import fake_gcs
import hypothesis
import pyarrow
import pytest
from hypothesis import strategies as st
from pyarrow import parquet

from xlnet_jax.data.prepare import records, sources
from xlnet_jax.data.prepare.sources import Part, Source, find_sources, kind_of, plan
from xlnet_jax.data.prepare.text import Request, TextReader
from xlnet_jax.data.tokenizer import Normalization
from xlnet_jax.errors import BadInput, RestartMe

ZSTD = functools.partial(pyarrow.Codec("zstd").compress, asbytes=True)


def _write(path, content):
    """Writes text by the file's name: a list of records, or for text the lines themselves."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = kind_of(str(path))
    if kind.format == "parquet":
        table = pyarrow.table(
            {"id": list(range(len(content))), "text": pyarrow.array(content, pyarrow.string())}
        )
        parquet.write_table(table, path, row_group_size=7, write_page_checksum=True)
        return str(path)
    if kind.format == "json":
        content = "".join(json.dumps({"id": 1, "text": each}) + "\n" for each in content)
    content = content.encode() if isinstance(content, str) else content
    path.write_bytes({"gzip": gzip.compress, "zstd": ZSTD, None: bytes}[kind.compression](content))
    return str(path)


def _reader(document="blank_line", errors="strict", sentences="line", field="text"):
    return TextReader(Request(document, sentences, Normalization(), 0.0, errors, 64, field))


def _documents(path, reader=None, unit_bytes=10**9, document="blank_line"):
    reader = reader or _reader(document)
    parts = [part for unit in plan(find_sources([path]), unit_bytes, document) for part in unit]
    documents = [each for part in parts for each in reader.documents(part)]
    assert [each["sha256"] for each in reader.read] == [reader.digest(part) for part in parts]
    return documents


RECORDS = [f"Record {number}.\n\nIts é text,\nin lines.\n" for number in range(40)]
RECORD_DOCUMENTS = [[[f"Record {number}."], ["Its e text,", "in lines."]] for number in range(40)]
TEXT = data.synthetic_text(3, 60)
TEXT_DOCUMENTS = [[document.split("\n")] for document in TEXT.strip().split("\n\n")]


@pytest.mark.parametrize(
    "suffix", ["txt", "txt.gz", "txt.zst", "parquet", "ndjson", "json", "JSONL.GZ"]
)
def test_every_format_on_disk_and_in_a_bucket(tmp_path, suffix):
    is_text = suffix.startswith("txt")
    path = _write(tmp_path / f"a.{suffix}", TEXT if is_text else RECORDS)
    expected = TEXT_DOCUMENTS if is_text else RECORD_DOCUMENTS
    on_disk, reader = _reader(), _reader()
    assert _documents(path, on_disk) == expected
    # Compression changes no hash.
    assert not is_text or [each["sha256"] for each in on_disk.read] == [
        hashlib.sha256(TEXT.encode()).hexdigest()
    ]
    with fake_gcs.serve() as server:
        server.objects[f"bucket/below/a.{suffix}"] = pathlib.Path(path).read_bytes()
        address = f"gs://bucket/below/a.{suffix}"
        assert _documents(address, reader) == expected and [
            each["sha256"] for each in reader.read
        ] == [each["sha256"] for each in on_disk.read]
        (source,) = find_sources([address])
        assert (source.path, source.bytes) == (address, os.path.getsize(path))
        assert source.mtime_ns > 1.5e18
        assert _documents(address, unit_bytes=1000) == expected


@pytest.mark.parametrize("place", ["disk", "bucket"])
def test_find_sources(tmp_path, caplog, place):
    names = [
        "a.txt",
        "b.txt.gz",
        "c.txt.zst",
        "d.jsonl",
        "e.jsonl.gz",
        "f.jsonl.zst",
        "g.parquet",
        "sub/h.txt",
    ]
    with fake_gcs.serve() as server:
        for name in [*names, "x.json", "z.parquet.gz", "w.csv", "txt", "other/a.csv"]:
            server.objects[f"bucket/t/{name}"] = b"x"
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(b"x")
        folder = str(tmp_path) if place == "disk" else "gs://bucket/t"
        for given in (folder, f"{folder}/"):
            found = find_sources([given, f"{folder}/a.txt"])
            assert [source.path.removeprefix(f"{folder}/") for source in found] == names
        # A text that is not read must not go unnoticed.
        assert f"are left out: 5, the first is {folder}/other/a.csv;" in caplog.text
        found = find_sources([f"{folder}/*.txt", f"{folder}/**/h.txt"])
        assert [source.path for source in found] == [f"{folder}/a.txt", f"{folder}/sub/h.txt"]
        for bad in ("none", "*.tsv"):
            with pytest.raises(BadInput, match="no such file, folder or pattern"):
                find_sources([f"{folder}/{bad}"])
        with pytest.raises(BadInput, match=r": this folder holds no \*\.txt, .*\*\.parquet file"):
            find_sources([f"{folder}/other"])
    path = f"{tmp_path}/a.txt"
    assert find_sources([path]) == [Source(path, 1, os.stat(path).st_mtime_ns)]
    with pytest.raises(BadInput, match="not gs://BUCKET/"):
        find_sources(["s4://bucket/a.txt"])


@pytest.mark.parametrize("suffix", ["txt", "jsonl.gz", "parquet"])
def test_bucket_that_does_not_answer(tmp_path, suffix):
    path = _write(tmp_path / f"a.{suffix}", TEXT if suffix == "txt" else RECORDS)
    address = f"gs://bucket/a.{suffix}"
    with fake_gcs.serve() as server:
        server.objects[f"bucket/a.{suffix}"] = pathlib.Path(path).read_bytes()
        ((part,),) = plan(find_sources([address]), 10**9, "line")
        server.down = True
        for call in (lambda: find_sources([address]), lambda: list(_reader().documents(part))):
            with pytest.raises(RestartMe, match=address):
                call()
        server.down = False
        server.objects.clear()
        with pytest.raises(BadInput, match=f"{address}: No such file or directory"):
            list(_reader().documents(part))


def test_plan_of_records(tmp_path):
    for name in ("a.jsonl", "b.jsonl.gz", "c.parquet"):
        _write(tmp_path / name, RECORDS)
    found = find_sources([str(tmp_path)])
    units = plan(found, 1, "file")
    # Lines, whole files, and row groups of seven rows.
    assert [len(unit) for unit in units] == [1] * (40 + 1 + 6)
    assert units[40] == (Part(found[1].path, 0, found[1].bytes),)
    # Row groups are gathered while they fit.
    path = found[2].path
    size = parquet.ParquetFile(path).metadata.row_group(0).total_byte_size
    for fits, groups in ((1, 1), (2.5 * size, 2), (10**9, 6)):
        expected = [(Part(path, start, start + groups),) for start in range(0, 6, groups)]
        assert plan(found[2:], int(fits), "line") == expected


def test_links_are_followed_once_and_must_lead_somewhere(tmp_path):
    folder = tmp_path / "text"
    (folder / "below").mkdir(parents=True)
    (folder / "a.txt").write_text("a")
    (folder / "below" / "B.TXT").write_text("b")
    (folder / "below" / "up").symlink_to(folder)
    (folder / "z.txt").symlink_to(folder / "a.txt")
    found = [os.path.basename(each.path) for each in find_sources([str(folder)])]
    assert found == ["a.txt", "B.TXT"]
    (folder / "gone.txt").symlink_to(tmp_path / "nowhere")
    with pytest.raises(BadInput, match="input .*text: No such file"):
        find_sources([str(folder)])


def test_plan_of_empty_files(tmp_path):
    (tmp_path / "a.txt").touch()
    _write(tmp_path / "b.parquet", [])
    (tmp_path / "c.jsonl").touch()
    found = find_sources([str(tmp_path)])
    ((part,),) = plan(found, 100, "line")
    assert part.path == str(tmp_path / "b.parquet") and not list(_reader().documents(part))
    assert Part(str(tmp_path / "a.txt"), 0, 0) in plan(found, 100, "file")[0]


# Lines and records of awkward kinds; a record may not be empty in these tests.
_PIECES = st.sampled_from(
    [
        "a",
        "B. C",
        "é",
        " ",
        "\r\n",
        "\n",
        "\n\n",
        "\n \n",
        "\r",
        "한국",
        "x" * 30,
        "``q''",
        ".",
        "\u2028",
    ]
)
_TEXTS = st.lists(_PIECES, max_size=40).map("".join)


@hypothesis.settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
@hypothesis.given(
    texts=st.lists(_TEXTS, min_size=1, max_size=12),
    suffix=st.sampled_from(["txt", "jsonl", "parquet", "txt.gz", "jsonl.zst"]),
    document=st.sampled_from(["blank_line", "file", "line"]),
    unit_bytes=st.integers(1, 300),
    block=st.sampled_from([1, 7, 1 << 20]),
)
def test_any_cut_gives_the_same_documents(
    tmp_path_factory, texts, suffix, document, unit_bytes, block
):
    path = str(tmp_path_factory.mktemp("cut") / f"a.{suffix}")
    is_text = suffix.startswith("txt")
    _write(path, "".join(texts) if is_text else texts)
    whole_reader, reader = (_reader(document, "replace", "punctuation") for _ in range(2))
    whole = _documents(path, whole_reader, 10**9, document)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "_BLOCK", block)
        patch.setattr(sources, "_SMALL_BLOCK", block)
        assert _documents(path, reader, unit_bytes, document) == whole
    assert reader.empty == whole_reader.empty
    assert is_text or len(whole) + reader.empty == len(texts)


@pytest.mark.parametrize("suffix", ["txt.gz", "txt.zst"])
def test_damaged_compression(tmp_path, suffix):
    path = pathlib.Path(_write(tmp_path / f"a.{suffix}", os.urandom(3000).hex() * 50))
    whole = path.read_bytes()
    part, middle = Part(str(path), 0, len(whole)), len(whole) // 2
    broken = [whole[:-3], whole[:middle], b"no such format"]
    if suffix == "txt.gz":  # this way of writing zstd adds no checksum
        broken.append(whole[:middle] + b"\xff" * 50 + whole[middle + 50 :])
    for content in broken:
        path.write_bytes(content)
        for read in (lambda: list(_reader().documents(part)), lambda: _reader().digest(part)):
            with pytest.raises(BadInput) as error:
                read()
            said = rf".*a.{suffix}, byte \d+ of the decompressed text: damaged or cut short .*"
            assert re.fullmatch(said, str(error.value))
    # Files that were compressed one by one and put together are one text.
    path.write_bytes(whole + whole)
    assert len(list(_reader("line").documents(part))) == 1


def test_lines_before_damage_are_read(tmp_path):
    path = pathlib.Path(_write(tmp_path / "a.txt.gz", os.urandom(30).hex() + "\na" * 100_000))
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(BadInput, match=r"byte [1-9]\d+ of"):
        list(sources.lines(Part(str(path), 0, 1)))


def test_damaged_parquet(tmp_path):
    path = pathlib.Path(_write(tmp_path / "a.parquet", RECORDS))
    whole = path.read_bytes()
    ((part,),) = plan(find_sources([str(path)]), 10**9, "line")
    place = parquet.ParquetFile(path).metadata.row_group(2).column(1).data_page_offset
    path.write_bytes(whole[: place + 60] + b"\xff" * 8 + whole[place + 68 :])
    with pytest.raises(BadInput, match=r"a.parquet: damaged .*; replace the file") as error:
        list(_reader().documents(part))
    assert "\n" not in str(error.value)
    for content in (whole[:-10], b""):
        path.write_bytes(content)
        with pytest.raises(BadInput, match=r"a.parquet: damaged"):
            plan(find_sources([str(path)]), 10**9, "line")
    path.write_bytes(whole)
    with pytest.raises(BadInput, match="2 row groups shorter than it was; start over"):
        list(_reader().documents(Part(str(path), 5, 8)))


def test_a_bit_of_a_parquet_footer_that_flips_is_one_line_or_changes_nothing(tmp_path):
    """Fails if a row group may have fewer rows than the file says, and if a name that is not UTF-8
    is a traceback.
    """
    path = tmp_path / "a.parquet"
    table = pyarrow.table({"text": [f"line {number}" for number in range(300)]})
    parquet.write_table(table, path, row_group_size=100, use_dictionary=False, store_schema=False)
    whole = path.read_bytes()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    rng, refused = random.Random(0), 0
    for place in range(footer, len(whole) - 8):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        try:
            groups = len(records.row_group_bytes(str(path)))
            values = list(records.parquet_texts(str(path), 0, groups, "text"))
        except BadInput as error:
            assert "a.parquet:" in str(error)
            refused += 1
        else:
            assert len(values) == 300, place
    assert refused > 50


@pytest.mark.parametrize(
    "kind",
    [
        pyarrow.large_string(),
        pyarrow.string_view(),
        pyarrow.binary(),
        pyarrow.dictionary(pyarrow.int32(), pyarrow.string()),
    ],
)
def test_parquet_strings(tmp_path, kind):
    table = pyarrow.table({"text": pyarrow.array(["eins é", "zwei"], pyarrow.string()).cast(kind)})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert parquet.read_schema(tmp_path / "a.parquet").field("text").type == kind
    assert _documents(str(tmp_path / "a.parquet")) == [[["eins e"]], [["zwei"]]]


def test_parquet_fields(tmp_path):
    path = _write(tmp_path / "a.parquet", RECORDS)
    for field, message in (
        ("id", "field 'id' is int64, not a string"),
        ("body", "no field 'body', but 'id', 'text'"),
    ):
        with pytest.raises(BadInput, match=f"{message}; choose (another|one) with --field"):
            _documents(path, _reader("line", field=field))


def test_parquet_rows_are_numbered_in_the_file(tmp_path):
    path = _write(tmp_path / "a.parquet", [*RECORDS[:17], "", *RECORDS[:3], None, "x"])
    parts = [part for unit in plan(find_sources([path]), 1, "line") for part in unit]
    for part, row in ((parts[2], 17), (parts[3], 21)):
        with pytest.raises(
            BadInput, match=rf"a.parquet, row {row}: an empty document; .*--errors=replace"
        ):
            list(_reader().documents(part))
    reader = _reader(errors="replace")
    assert len(_documents(path, reader)) == 21 and reader.empty == 2


def test_parquet_that_is_not_utf8(tmp_path):
    path = str(tmp_path / "a.parquet")
    parquet.write_table(pyarrow.table({"text": [b"good", b"b\xffd", b"nul\0"]}), path)
    with pytest.raises(
        BadInput, match="a.parquet, row 1: not UTF-8; continue with --errors=replace"
    ):
        _documents(path)
    reader = _reader(errors="replace")
    assert _documents(path, reader) == [[["good"]], [["b\ufffdd"]], [["nul\ufffd"]]]
    assert reader.replaced == 2


@pytest.mark.parametrize("suffix", ["txt", "txt.gz"])
def test_long_lines(tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(sources, "LONGEST_LINE", 10)
    monkeypatch.setattr(sources, "_BLOCK", 1)
    monkeypatch.setattr(sources, "_SMALL_BLOCK", 1)
    path = _write(tmp_path / f"a.{suffix}", "abcdefghij\nb\n" * 3)
    assert len(_documents(path, document="line")) == 6
    for content in ("a\nabcdefghijklm\n", "a\nabcdefghijklmnopqrstuvwxyz"):
        _write(path, content)
        with pytest.raises(
            BadInput, match=f"a.{suffix}, byte 2.*: a line of more than 10 bytes; break it up"
        ):
            list(_reader("line").documents(Part(path, 0, os.path.getsize(path))))


def test_a_long_line_where_a_file_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "LONGEST_LINE", 10)
    path = _write(tmp_path / "a.txt", "a\n" * 10 + "abcdefghijklmnopqrstuvwxyz\n" * 10)
    with pytest.raises(BadInput, match=r"a.txt, byte \d+: a line of more than 10 bytes"):
        plan(find_sources([path]), 15, "line")


def test_file_that_became_shorter_or_went_away(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("abc\n")
    found, part = find_sources([str(path)]), Part(str(path), 0, 10)
    for read in (lambda: list(_reader().documents(part)), lambda: _reader().digest(part)):
        with pytest.raises(BadInput, match="a.txt: 6 bytes shorter than it was; start over"):
            read()
    path.unlink()
    for read in (lambda: list(_reader().documents(part)), lambda: plan(found, 1, "line")):
        with pytest.raises(FileNotFoundError, match="a.txt"):
            read()
