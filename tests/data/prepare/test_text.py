"""Which documents, which paragraphs, which sentences; what is refused, and where."""

import hashlib
import json
import re

import hypothesis
import pytest
from hypothesis import strategies as st

from xlnet_jax.cli import main
from xlnet_jax.data.prepare import sources, text
from xlnet_jax.data.prepare.sources import Part
from xlnet_jax.data.prepare.text import Request, TextReader
from xlnet_jax.data.tokenizer import Normalization
from xlnet_jax.errors import BadInput


def _reader(document, sentences, normalization, errors, field="text"):
    return TextReader(Request(document, sentences, normalization, 0.0, errors, 64, field))


def _documents(
    tmp_path,
    content,
    document="blank_line",
    sentences="line",
    errors="strict",
    suffix="txt",
    **changes,
):
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    reader = _reader(document, sentences, Normalization(**changes), errors)
    return list(reader.documents(Part(str(path), 0, path.stat().st_size))), reader


def test_old_mac_lines_and_byte_order_mark(tmp_path):
    assert _documents(tmp_path, b"\xef\xbb\xbfa\rb\r\rc")[0] == [[["a", "b"]], [["c"]]]
    assert _documents(tmp_path, b'\xef\xbb\xbf{"text": "a\\rb\\r\\rc"}\r\n', suffix="jsonl")[0] == [
        [["a", "b"], ["c"]]
    ]


@pytest.mark.parametrize(
    ("line", "sentences"),
    [
        ("One! Three? Four", ["One!", " Three?", " Four"]),
        ('He said "no." Then he left.', ['He said "no."', " Then he left."]),
        ("It cost 3.50 or so, e.g. this one.", ["It cost 3.50 or so, e.g. this one."]),
        ("Wait... what? Yes.", ["Wait... what?", " Yes."]),
        ("「はい。」そう！だ", ["「はい。」", "そう！", "だ"]),
        ("End. ", ["End."]),
        ("Ein. Éin. éin.", ["Ein.", " Éin. éin."]),
        ("a!.!)\u2003B", ["a!.!)", "\u2003B"]),
    ],
)
def test_sentences_by_punctuation(line, sentences):
    assert list(text.split_sentences(line)) == sentences


@pytest.mark.parametrize(
    ("line", "sentences"),
    [
        ("पुल पुराना है। नदी चौड़ी है।लोग", ["पुल पुराना है।", " नदी चौड़ी है।", "लोग"]),
        ("वह बोला, “हाँ।” फिर गया॥", ["वह बोला, “हाँ।”", " फिर गया॥"]),
        ("أين أنت؟! هنا.", ["أين أنت؟!", " هنا."]),
        ("ሰላም። ደህና፧ አዎ", ["ሰላም።", " ደህና፧", " አዎ"]),
        ("ｱﾒ｡｢ﾊﾚ｡｣ﾕｷ", ["ｱﾒ｡", "｢ﾊﾚ｡｣", "ﾕｷ"]),
        ("長さは３．１４である．次に", ["長さは３．１４である．", "次に"]),
    ],
    ids=["hindi", "danda", "arabic", "ethiopic", "halfwidth", "fullwidth"],
)
def test_sentences_end_as_unicode_says(line, sentences):
    assert list(text.split_sentences(line)) == sentences


def test_wrapped_lines_are_told_from_paragraphs_on_one_line():
    whole = list(text.split_sentences("One and two. “Three?” Four (and 5). Heading"))
    assert len(whole) == 4 and text.wrapped(whole) is None
    assert text.wrapped(["「はい。」", "One", "सच है।", "two"]) is None
    line = text.wrapped(["One", "and two.", "Three", "and four", "“or"])
    assert line and line.startswith("only 20% of the sentences end with punctuation")


@pytest.mark.parametrize("suffix", ["txt", "jsonl"])
def test_wrapped_lines_are_joined(tmp_path, suffix):
    rules = Request(
        "blank_line",
        "punctuation",
        Normalization(keep_accents=True),
        0.0,
        "strict",
        64,
        "text",
        unwrap=True,
    )
    content = (
        "One and\n  two. Three\r\nfour.\n\n今日は\n雨だ。「ﾊﾚ」\nと言う\n\nKlein-\nstadt 1\nund 2\n"
    )
    sentences = [
        ["One and two.", "Three four."],
        ["今日は雨だ。", "「ﾊﾚ」と言う"],
        ["Klein- stadt 1 und 2"],
    ]
    path, documents = tmp_path / f"a.{suffix}", [[each] for each in sentences]
    if suffix == "jsonl":
        content, documents = json.dumps({"text": content}) + "\n", [sentences]
    path.write_bytes(content.encode())
    part = Part(str(path), 0, path.stat().st_size)
    assert list(TextReader(rules).documents(part)) == documents


@pytest.mark.parametrize(
    ("option", "code"), [("--vocabulary=words", 0), ("--document=line", 2), ("--dataset=text8", 2)]
)
def test_unwrap_on_the_command_line(tmp_path, option, code):
    (tmp_path / "a.txt").write_text("One and\ntwo.\nThree.\n")
    words = [f"--input={tmp_path}/a.txt", f"--output={tmp_path}/c", "--unwrap", option]
    options = ["--sentences=punctuation", "--heldout=0", "--workers=1"]
    assert main(["prepare", *words, *options]) == code
    if not code:
        manifest = json.loads((tmp_path / "c" / "manifest.json").read_text())
        assert manifest["splits"]["train"]["sentences"] == 2


@pytest.mark.parametrize("repeated", [".", ".'", "A. ", "।", '।"', "。」"])
def test_sentences_take_linear_time(repeated):
    """A slower rule looks at everything again and again."""
    line = repeated * 150_000 + "a"
    assert sum(map(len, text.split_sentences(line))) == len(line)


# The rules as they are stated, line by line and without a thought for speed.
_END = re.compile(r"[.!?…]+[\"'”’»)\]]*(?=\s)|[。！？]+[」』”’）]*")


def _stated(content, document, sentences, normalization):
    paragraphs = [[]]
    for line in re.split(r"\r*\n|\r", content.rstrip("\r\n") + "\n"):
        ends = [0]
        for end in _END.finditer(line) if sentences == "punctuation" else ():
            rest = line[end.end() :].strip()[:1]
            if line[end.start()] in "。！？" or not rest.islower():
                ends.append(end.end())
        pieces = [line[start:end] for start, end in zip(ends, [*ends[1:], len(line)], strict=True)]
        paragraphs[-1] += filter(None, map(normalization, filter(str.strip, pieces)))
        if document == "line" or not line.strip():
            paragraphs.append([])
    paragraphs = list(filter(None, paragraphs))
    if document == "file":
        return [paragraphs] if paragraphs else []
    return [[paragraph] for paragraph in paragraphs]


_PIECES = st.sampled_from(
    [
        *"aBé.!?…。'\" \t\n\r`)",
        "\n\n",
        "\r\n",
        ". ",
        "? B",
        "''",
        "``",
        "\u0301",
        "\xa0",
        "\u2028",
        "\x1c",
        "ΑΣ",
        "한",
        "\ufffd",
    ]
)


@hypothesis.settings(max_examples=300, deadline=None, derandomize=True)
@hypothesis.given(
    content=st.lists(_PIECES, max_size=30).map("".join),
    document=st.sampled_from(["blank_line", "file", "line"]),
    sentences=st.sampled_from(["line", "punctuation"]),
    normalization=st.builds(
        Normalization, lower=st.booleans(), keep_accents=st.booleans(), nfkc=st.booleans()
    ),
    block=st.sampled_from([1, 3, 1 << 20]),
)
def test_the_rules_as_they_are_stated(
    tmp_path_factory, content, document, sentences, normalization, block
):
    path = tmp_path_factory.getbasetemp() / "stated.txt"
    path.write_bytes(content.encode())
    reader = _reader(document, sentences, normalization, "replace")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "_BLOCK", block)
        documents = list(reader.documents(Part(str(path), 0, path.stat().st_size)))
    assert documents == _stated(content, document, sentences, normalization)
    assert [each["sha256"] for each in reader.read] == [
        hashlib.sha256(content.encode()).hexdigest()
    ]


@pytest.mark.parametrize(
    ("suffix", "content", "place"),
    [
        ("txt", b"ab\ncd\xffe\n", 5),
        ("txt", b"\xef\xbb\xbfab\xff\n", 5),
        ("txt", b"ok\n\xe2\x82", 3),
        ("jsonl", b'{"text": "a"}\n{"text": "\xff"}', 24),
    ],
)
def test_bytes_that_are_not_utf8(tmp_path, suffix, content, place):
    said = f"a.{suffix}, byte {place}: not UTF-8; .*--errors=replace"
    with pytest.raises(BadInput, match=said):
        _documents(tmp_path, content, suffix=suffix)


def test_bytes_are_counted_from_the_start_of_the_file(tmp_path):
    content = b"good\n\n" * 10 + b"bad\xff\n"
    (tmp_path / "a.txt").write_bytes(content)
    reader = _reader("line", "line", Normalization(), "strict")
    with pytest.raises(BadInput, match="a.txt, byte 63: not UTF-8"):
        list(reader.documents(Part(str(tmp_path / "a.txt"), 48, len(content))))


def test_bytes_that_are_replaced_are_counted(tmp_path):
    documents, reader = _documents(tmp_path, "ab\ncd�".encode() + b"\xffe\xfe\n", errors="replace")
    assert documents == [[["ab", "cd\ufffd\ufffde\ufffd"]]] and reader.replaced == 2


@pytest.mark.parametrize("errors", ["strict", "replace"])
def test_binary_file(tmp_path, errors):
    with pytest.raises(BadInput, match="a.txt, byte 4: a NUL byte, so it is not UTF-8"):
        _documents(tmp_path, b"\n\n\nc\0d", errors=errors)


@pytest.mark.parametrize(
    ("rule", "suffix", "content", "place"),
    [
        ("blank_line", "txt", "abcdef\n\nabcdef\nabcdef", 15),
        ("file", "txt", "abcdef\n\nabcdef", 8),
        ("line", "jsonl", '{"text": "a"}\n{"text": "abcdefghijklmn"}', 14),
    ],
)
def test_document_that_is_too_long(tmp_path, monkeypatch, rule, suffix, content, place):
    monkeypatch.setattr(text, "LONGEST_DOCUMENT", 10)
    said = f"byte {place}: a document of more than 10 characters; use"
    with pytest.raises(BadInput, match=said):
        _documents(tmp_path, content, rule, suffix=suffix)


@pytest.mark.parametrize(
    ("document", "content", "line", "documents"),
    [
        ("file", "", 1, 0),
        ("file", "\u0301\n\n", 1, 0),
        ("blank_line", "a\n\n \n\u0301\n\u0301\n\nb\n", 4, 2),
        ("line", "a\n\n\u0301\nb", 3, 2),
        ("line", "a\rb\n\u0301", 2, 2),
    ],
)
@pytest.mark.parametrize("block", [1, 1 << 20])
def test_empty_documents(tmp_path, monkeypatch, document, content, line, documents, block):
    monkeypatch.setattr(sources, "_BLOCK", block)
    with pytest.raises(
        BadInput,
        match=f"a.txt, line {line}: an empty document; leave .* out with --errors=replace",
    ):
        _documents(tmp_path, content, document)
    found, reader = _documents(tmp_path, content, document, errors="replace")
    assert (len(found), reader.empty) == (documents, 1)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1, 2]", "a JSON list; every line must be one JSON object"),
        ("plain text", "not JSON (Expecting value: line 1 column 1 (char 0)); every line must"),
        ("[" * 100_000, "not JSON ("),
        ('{"body": "x", "id": 3}', "no field 'text', but 'body', 'id'; choose one with --field"),
        ("{}", "no field 'text', but none at all; choose one with --field"),
        (
            json.dumps({f"field\n{number}" + "x" * 9999: 1 for number in range(99)}),
            "no field 'text', but 'field\\n0xx",
        ),
        ('{"text": ["x"]}', "field 'text' is list, not a string; choose another with --field"),
        ('{"text": null}', "an empty document; leave such documents out"),
        ('{"text": "\\ud800"}', "a NUL or half a surrogate pair in the text; continue with"),
    ],
)
def test_bad_json(tmp_path, line, message):
    content = f'{{"text": "a"}}\n{line}\n{{"text": "b"}}\n'
    where = "line 2" if "empty" in message else "byte 14"
    with pytest.raises(BadInput, match=re.escape(f"a.jsonl, {where}: {message}")) as error:
        _documents(tmp_path, content, suffix="jsonl")
    assert "\n" not in str(error.value) and len(str(error.value)) < 1500


def test_json_goes_on_with_replace(tmp_path):
    lines = [
        '{"text": ""}',
        '{"text": "a\\u0000b"}',
        "",
        '{"text": "\\ud800x"}',
        '{"text": "\\ud83d\\ude00"}',
    ]
    documents, reader = _documents(tmp_path, "\n".join(lines), errors="replace", suffix="jsonl")
    assert documents == [[["a\ufffdb"]], [["\ufffdx"]], [["\U0001f600"]]]
    assert (reader.replaced, reader.empty) == (2, 1)
    # What is no record at all is no matter of replacing.
    with pytest.raises(BadInput, match="not JSON"):
        _documents(tmp_path, "{", errors="replace", suffix="jsonl")
