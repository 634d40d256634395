"""Which files, which documents, which sentences."""

import os

import data_fixtures as data
import pytest

from xlnet_jax.data import text
from xlnet_jax.data.tokenizer import Normalization
from xlnet_jax.errors import BadInput


def _documents(tmp_path, content, document="blank_line", sentences="line", errors="strict"):
    path = tmp_path / "a.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    reader = text.TextReader(document, sentences, Normalization(), errors)
    return list(reader.documents(text.Part(str(path), 0, path.stat().st_size))), reader


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ("blank_line", [["a b", "c"], ["d"]]),
        ("file", [["a b", "c", "d"]]),
        ("line", [["a b"], ["c"], ["d"]]),
    ],
)
def test_document_rules(tmp_path, document, expected):
    content = "\n \na  b\nc\r\n\n\t\n\n d"
    assert _documents(tmp_path, content, document)[0] == expected


def test_old_mac_lines_and_byte_order_mark(tmp_path):
    assert _documents(tmp_path, b"\xef\xbb\xbfa\rb\r\rc")[0] == [["a", "b"], ["c"]]


@pytest.mark.parametrize(
    ("line", "sentences"),
    [
        ("One. Two! Three? Four", ["One.", " Two!", " Three?", " Four"]),
        ('He said "no." Then he left.', ['He said "no."', " Then he left."]),
        ("It cost 3.50 or so, e.g. this one.", ["It cost 3.50 or so, e.g. this one."]),
        ("Wait... what? Yes.", ["Wait... what?", " Yes."]),
        ("「はい。」そう！だ", ["「はい。」", "そう！", "だ"]),
        ("No end", ["No end"]),
        ("End. ", ["End."]),
    ],
)
def test_sentences_by_punctuation(line, sentences):
    assert list(text.split_sentences(line)) == sentences


def test_punctuation_is_used_and_normalised(tmp_path):
    assert _documents(tmp_path, "One.  Two\n\nÉ. F", sentences="punctuation")[0] == [["One.", "Two"], ["E.", "F"]]


def test_bytes_that_are_not_utf8(tmp_path):
    for content, place in ((b"ab\ncd\xffe\n", 5), (b"\xef\xbb\xbfab\xff\n", 5), (b"ok\n\xe2\x82", 3)):
        with pytest.raises(BadInput, match=f"a.txt: not UTF-8 at byte {place}; .*--errors=replace"):
            _documents(tmp_path, content)
    documents, reader = _documents(tmp_path, "ab\ncd�".encode() + b"\xffe\xfe\n", errors="replace")
    assert documents == [["ab", "cd\ufffd\ufffde\ufffd"]] and reader.replaced == 2


@pytest.mark.parametrize("errors", ["strict", "replace"])
def test_binary_file(tmp_path, errors):
    with pytest.raises(BadInput, match="a.txt: a NUL byte at byte 4") as error:
        _documents(tmp_path, b"ab\nc\0d", errors=errors)
    assert error.value.exit_code == 2


def test_document_that_is_too_long(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "LONGEST_DOCUMENT", 10)
    assert len(_documents(tmp_path, "abcdef\n\nabcdef\n")[0]) == 2
    with pytest.raises(BadInput, match="a document of more than 10 characters by --document=blank_line"):
        _documents(tmp_path, "abcdef\nabcdef\n")
    with pytest.raises(BadInput, match="a line of more than 10 bytes at byte 2; break it up"):
        _documents(tmp_path, "a\nabcdefghijk\n")


def test_file_that_became_shorter(tmp_path):
    (tmp_path / "a.txt").write_text("abc\n")
    reader = text.TextReader("line", "line", Normalization(), "strict")
    with pytest.raises(BadInput, match="6 bytes shorter"):
        list(reader.documents(text.Part(str(tmp_path / "a.txt"), 0, 10)))


def test_find_sources(tmp_path):
    for name in ("b.txt", "a.txt", "c.text", "below/d.txt"):
        os.makedirs((tmp_path / name).parent, exist_ok=True)
        (tmp_path / name).write_text(name)
    folder = str(tmp_path)
    names = [os.path.relpath(source.path, folder) for source in text.find_sources([folder, f"{folder}/a.txt"])]
    assert names == ["a.txt", "b.txt", "below/d.txt"]
    assert [source.bytes for source in text.find_sources([f"{folder}/*.text"])] == [6]
    for bad in (f"{folder}/none", f"{folder}/*.csv"):
        with pytest.raises(BadInput, match="no such file, folder or pattern"):
            text.find_sources([bad])
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="holds no .*txt file"):
        text.find_sources([f"{folder}/empty"])
    with pytest.raises(BadInput, match="no input"):
        text.find_sources([])


@pytest.mark.parametrize("document", ["blank_line", "line"])
@pytest.mark.parametrize("unit_bytes", [1, 100, 2000, 10**9])
def test_plan_cuts_between_documents(document, unit_bytes):
    sources = text.find_sources([data.text_folder()])
    reader = text.TextReader(document, "line", Normalization(), "strict")
    whole = [each for s in sources for each in reader.documents(text.Part(s.path, 0, s.bytes))]
    units = text.plan(sources, unit_bytes, document)
    assert len(units) == 1 if unit_bytes == 10**9 else len(units) > 3
    parts = [part for unit in units for part in unit]
    assert sum(part.end - part.start for part in parts) == sum(source.bytes for source in sources)
    assert [each for part in parts for each in reader.documents(part)] == whole
    if unit_bytes == 2000:
        assert max(sum(part.end - part.start for part in unit) for unit in units) < 3000


def test_plan_keeps_a_file_that_is_a_document_whole():
    sources = text.find_sources([data.text_folder()])
    assert all(len(unit) == 1 for unit in text.plan(sources, 1, "file"))
    assert len(text.plan(sources, 1, "file")) == len(sources)
