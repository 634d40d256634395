"""Documents in a column of a .csv or .tsv, and what is refused with its line."""

import gzip

import pytest

from xlnet_jax.data.prepare.sources import find_sources, plan
from xlnet_jax.data.prepare.text import Request, TextReader
from xlnet_jax.data.tokenizer import Normalization
from xlnet_jax.errors import BadInput


def documents(path, content, field="text", errors="strict"):
    """With units of one byte: a table is never cut."""
    path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())
    reader = TextReader(Request("line", "line", Normalization(), 0.0, errors, 64, field))
    ((part,),) = plan(find_sources([str(path)]), 1, "line")
    found = list(reader.documents(part))
    assert [each["sha256"] for each in reader.read] == [reader.digest(part)]
    return found, reader


@pytest.mark.parametrize("name", ["a.csv", "a.CSV.gz"])
def test_a_row_is_a_document_whatever_its_quotes_hold(tmp_path, name):
    content = '\ufeffid,text\r\n1,CCO\r\n\r\n2,"two, ""quoted""\nlines\n\nand a paragraph"\r\n'
    found = documents(tmp_path / name, content)[0]
    assert found == [[["CCO"]], [['two, "quoted"', "lines"], ["and a paragraph"]]]
    assert documents(tmp_path / name, content, "id")[0] == [[["1"]], [["2"]]]


def test_quotes_mean_nothing_in_a_tsv(tmp_path):
    content = 'a\ttext\n1\t"C\n2\tN"'
    assert documents(tmp_path / "a.tsv", content)[0] == [[['"C']], [['N"']]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "id,smiles\n1,CCO\n",
            "line 1: no field 'text', but 'id', 'smiles'; choose one with --field",
        ),
        ("id,text\n1,C\n\n2\n", "line 4: columns: 1, but the first row has 2; correct the row"),
        ('id,text\n1,"C\nC"\n2,C,C\n', "line 4: columns: 3, but the first row has 2"),
        ('id,text\n1,"C"C\n', "row 2: .*; correct its quotes"),
        ('id,text\n1,"CC\n2,C\n', "row 2: unexpected end of data; correct its quotes"),
        ("text,text\n1,C\n", "row 1: two columns are called 'text'; rename one"),
        ("id,text\n1,C\n2, \n", "line 3: an empty document; leave .* --errors=replace"),
    ],
)
@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_bad_rows_are_refused_with_their_line(tmp_path, name, content, message):
    with pytest.raises(BadInput, match=rf"{name}, {message}"):
        documents(tmp_path / name, content)


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_lines_of_an_old_mac_end_with_a_carriage_return(tmp_path, name):
    content = "id,text\r1,CCO\r\r2,CN\r".replace(",", "," if name == "a.csv" else "\t")
    assert documents(tmp_path / name, content)[0] == [[["CCO"]], [["CN"]]]


def test_empty_rows_may_be_left_out(tmp_path):
    found, reader = documents(tmp_path / "a.tsv", "text\tid\n\t1\nC\t2\n", errors="replace")
    assert (found, reader.empty) == ([[["C"]]], 1)
