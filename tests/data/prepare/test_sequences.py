"""Sequences of a FASTA, and documents that are lines: SMILES and log lines, by characters and by a
pattern; what is refused with its line.
"""

import gzip
import random
import re

import data_fixtures as data
import pytest
from special_ids import EOD

from xlnet_jax.cli import main
from xlnet_jax.data.corpus.corpus import Corpus
from xlnet_jax.data.patterns import SMILES
from xlnet_jax.data.prepare.sources import Part, find_sources, plan
from xlnet_jax.data.prepare.text import Request, TextReader
from xlnet_jax.data.tokenizer import Normalization
from xlnet_jax.errors import BadInput
from xlnet_jax.storage import files

RNG = random.Random(0)
SEQUENCES = ["".join(RNG.choices("ACDEFGHIKLMNPQRSTVWYacgt", k=k)) for k in range(1, 60)]


def fasta():
    """Lines of several widths and ends, blank lines, and `*` at some ends."""
    text = ""
    for number, sequence in enumerate(SEQUENCES):
        width = 1 + number % 25
        rows = [sequence[start : start + width] for start in range(0, len(sequence), width)]
        rows[-1] += "*" * (number % 3 == 1)
        ends = "\r\n" if number % 5 == 2 else "\n"
        text += ends.join([f">s{number} of > something", *rows, *[""] * (1 + number % 2)])
    return text


def reader(errors="strict"):
    return TextReader(Request("blank_line", "line", Normalization(), 0.0, errors, 64, "text"))


def documents(path, content, unit_bytes=10**9, of=None):
    """Also compares the hashes of the parts."""
    path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())
    of = of or reader()
    parts = [part for unit in plan(find_sources([str(path)]), unit_bytes, "file") for part in unit]
    found = [document for part in parts for document in of.documents(part)]
    assert [each["sha256"] for each in of.read] == [of.digest(part) for part in parts]
    return found, parts


@pytest.mark.parametrize("name", ["a.fasta", "a.FA", "a.faa", "a.fna.gz"])
@pytest.mark.parametrize("unit_bytes", [1, 100, 10**9])
def test_a_sequence_is_a_document_wherever_the_file_is_cut(tmp_path, name, unit_bytes):
    content = fasta()
    found, parts = documents(tmp_path / name, content, unit_bytes)
    assert found == [[[sequence]] for sequence in SEQUENCES]
    if name.endswith("gz"):
        assert len(parts) == 1
    else:
        assert (len(parts) == 1) == (unit_bytes > len(content)) and len(parts) < 60
        assert all(content.encode()[part.start :].startswith(b">") for part in parts)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("\nMKV\n>a\nMKV\n", "line 2: a sequence without a name; it needs a line >NAME before it"),
        (">a\nMKV\n> \nMKV\n", "line 3: a sequence without a name"),
        (
            ">a\nMKV\n\n>b c\nMKV\nM1V\n",
            "line 6: '1' in the sequence 'b c'; remove all but letters",
        ),
        (">a\nMK-V\n", "line 2: '-' in the sequence 'a'"),
        (">a\nMK.V\n", r"line 2: '\.' in the sequence 'a'"),
        (">a\nMK V\n", "line 2: ' ' in the sequence 'a'"),
        (";made by x\n>a\nMKV\n", "line 1: .* a line >NAME before it, and comments are not read"),
        (">a\nMKé\n", "line 2: 'é' in the sequence 'a'"),
        (">a\nMK*\nV\n", r"line 3: '\*' in the sequence 'a'"),
        (">a\nMK**\n", r"line 2: '\*' in the sequence 'a'"),
        (">a\nMKV\n>b\n\n>c\nMKV\n", "line 3: the sequence 'b' is empty; leave such sequences out"),
        (">a\nMKV\n>b\n*\n", "line 3: the sequence 'b' is empty"),
    ],
)
@pytest.mark.parametrize("name", ["a.fasta", "a.fasta.gz"])
def test_what_is_no_sequence_is_refused_with_its_line_in_the_file(tmp_path, name, content, message):
    with pytest.raises(BadInput, match=f"^{tmp_path}/{name}, {message}"):
        documents(tmp_path / name, content, unit_bytes=1)


def test_lines_of_an_old_mac_end_with_a_carriage_return(tmp_path):
    of = reader("replace")
    found, _ = documents(tmp_path / "a.fa", ">a\rMKV\rLL*\r>b\r\rMK\r", of=of)
    assert found == [[["MKVLL"]], [["MK"]]]
    found, _ = documents(tmp_path / "a.jsonl", '{"text": "MK",\r "n": 1}\n')
    assert found == [[["MK"]]], "in JSON it is a space"


def test_empty_sequences_may_be_left_out(tmp_path):
    of = reader("replace")
    found, _ = documents(tmp_path / "a.fa", ">a\n>b\nMKV\n>c\n*\n", of=of)
    assert (found, of.empty) == ([[["MKV"]]], 2)
    of = reader("replace")
    found, _ = documents(tmp_path / "b.fa", "\n\n", of=of)
    assert not found and not of.empty, "a file without a name has no sequence, also no empty one"


def corpora_of(folder, lines, **settings):
    """The same documents as lines, as a column and, if they have letters alone, as a FASTA."""
    content = {
        "lines.txt": "\n\n\n".join(lines),
        "table.tsv": "\n".join(["n\ts", *map("1\t{}".format, lines)]),
    }
    if "".join(lines).isalpha():
        content["s.fasta"] = "".join(f">{number}\n{line}*\n" for number, line in enumerate(lines))
    for name, text in content.items():
        (folder / name).write_text(text)
        made = folder / name.partition(".")[0]
        options = {"tokenizer": None, "document": "line", "field": "s", "heldout": 0.3}
        data.make_corpus(made, [str(folder / name)], **{**options, **settings})
        yield [Corpus(str(made), split) for split in ("train", "heldout")]


LOG = [f"{n % 4} GET  /a{n}?q='' é" for n in range(40)]


@pytest.mark.parametrize("lines", [SEQUENCES + SEQUENCES[20:30], LOG], ids=["sequences", "log"])
def test_every_character_of_a_document_and_no_other_is_in_the_corpus(tmp_path, lines):
    tokens = []
    for corpora in corpora_of(tmp_path, lines, vocabulary="characters"):
        found = [corpus.read([0], corpus.tokens)[0][0] for corpus in corpora]
        tokens.append([each.tolist() for each in found])
        tokenizer = corpora[0].tokenizer
        assert "\n" not in tokenizer.pieces and "*" not in tokenizer.pieces
        pieces = [*tokenizer.pieces[:EOD], "|", *tokenizer.pieces[EOD + 1 :]]
        read = ["".join(map(pieces.__getitem__, ids)).split("|")[:-1] for ids in tokens[-1]]
        normal = [Normalization(keep_accents=True)(line) for line in lines]
        assert sorted(read[0] + read[1]) == sorted(normal)
        assert read[0] and read[1] and not {*read[0]} & {*read[1]}, "equal texts in both splits"
    assert all(each == tokens[0] for each in tokens)


MOLECULES = [
    "CC(=O)Oc1ccccc1C(=O)O",
    "C[C@@H](N)C(=O)O",
    "Clc1ccc2[nH]c(Br)cc2c1",
    "C%12CC%12",
    "O",
]


def test_a_vocabulary_of_a_pattern_has_its_matches(tmp_path, capsys):
    settings = {"vocabulary": "pattern", "pattern": SMILES, "heldout": 0.5}
    for train, _ in corpora_of(tmp_path, MOLECULES, **settings):
        assert {"Cl", "[nH]", "%12", "[C@@H]", "Br"} < {*train.tokenizer.pieces}
        assert train.tokenizer.pieces[9] == "c" and train.tokenizer.level == "pattern"
    made = files.read_json(f"{tmp_path}/lines/prepare.json")["options"]
    assert made["pattern"] == SMILES and made["vocabulary"] == "pattern"
    text = str(tmp_path / "lines.txt")
    with pytest.raises(BadInput, match=r"was begun with pattern=\(.*, not \[A-Z\]\|\[\^A-Z\]; use"):
        next(corpora_of(tmp_path, MOLECULES, **settings | {"pattern": "[A-Z]|[^A-Z]"}))
    given = {"tokenizer": f"{tmp_path}/lines/vocabulary.json", "heldout": 0}
    data.make_corpus(tmp_path / "again", [text], document="line", **given)
    again = Corpus(str(tmp_path / "again"))
    assert again.tokenizer.decode(again.read([0], 10)[0][0]) == "CC(=O)Oc1c"
    with pytest.raises(BadInput, match="--pattern=C needs .* a --tokenizer of the same pattern"):
        data.make_corpus(tmp_path / "b", [text], document="line", pattern="C", **given)
    bad = tmp_path / "bad.txt"
    for line, message in (
        ("C[Xe]", r"piece '\[Xe\]' is not in the vocabulary .*; correct the text, or"),
        ("CXe", "pattern .* does not match 'Xe' of 'CXe'"),
    ):
        bad.write_text(f"CCO\n\nCO\n{line}\nCN\n")
        for document in ("line", "file"):
            with pytest.raises(BadInput, match=f"^{bad}, line 4: {message}"):
                data.make_corpus(
                    tmp_path / f"{line}{document}", [str(bad)], document=document, **given
                )
    words = [
        "prepare",
        f"--input={bad}",
        f"--output={tmp_path}/d",
        "--document=line",
        "--workers=1",
    ]
    assert main([*words, "--vocabulary=pattern", f"--pattern={SMILES}"]) == 2
    assert re.search(r"bad.txt, line 4: pattern .* does not match 'Xe'", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "--vocabulary=pattern needs --pattern=REGEX"),
        ({"pattern": "("}, "does not compile"),
        ({"pattern": ""}, "matches the empty string"),
        ({"pattern": "(?!)"}, "a.txt, line 1: pattern .* does not match 'CC'"),
        ({"pattern": "C", "vocabulary": "characters"}, "--pattern=C needs --vocabulary=pattern"),
        ({"pattern": "C", "vocab_size": 9}, "--vocab_size=9 is too small: this text has 1 pieces"),
    ],
)
def test_patterns_that_cannot_be_used(tmp_path, options, message):
    inputs = data.write(tmp_path, a="CC\n")
    settings = {"tokenizer": None, "vocabulary": "pattern", "heldout": 0} | options
    with pytest.raises(BadInput, match=message):
        data.make_corpus(tmp_path / "c", inputs, **settings)


def test_the_line_of_a_byte_in_any_source(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"one\ntwo\nthree\n" * 20_000))
    assert ", line 50000: x" in str(Part(str(path), 0, 1).bad_line(14 * 16_666 + 4, "x"))
    assert ", row 7: x" in str(Part("a.parquet", 0, 1).bad_line(7, "x"))
