"""Examples from every kind of source, and the one line that says what is wrong with it."""

import gzip
import io
import json
from types import SimpleNamespace

import numpy as np
import pyarrow
import pytest
import tensorflow_datasets as tfds
from pyarrow import parquet

from xlnet_jax.config import Config
from xlnet_jax.data.prepare import records
from xlnet_jax.errors import BadInput
from xlnet_jax.finetune import readers
from xlnet_jax.finetune.setup import rows_of
from xlnet_jax.finetune.task import Example


def _examples(reader, columns, source):
    return readers.examples(
        getattr(readers, reader), Config().changed(finetune={"columns": columns}), source
    )


def _read(reader, columns, source):
    """The texts and the label of each example, or the error."""
    try:
        return [(example.texts, example.label) for example in _examples(reader, columns, source)]
    except BadInput as error:
        return str(error)


def _write(folder, name, text):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def _squad(context, *questions):
    qas = [
        {"id": str(number), "question": question, "answers": answers, "is_impossible": not answers}
        for number, (question, answers) in enumerate(questions)
    ]
    return json.dumps({"data": [{"paragraphs": [{"context": context, "qas": qas}]}]})


def test_tables(tmp_path):
    """Quotes mean something in .csv and nothing in .tsv; a row is what a spreadsheet shows."""
    path = _write(tmp_path, "a.csv", '\ufeffsentence,label\n"good, ""very""\nso",pos\nbad,neg\n')
    assert _examples("labelled", "", path) == [
        (('good, "very"\nso',), "pos", f"{path}, row 2"),
        (("bad",), "neg", f"{path}, row 3"),
    ]
    path = _write(
        tmp_path,
        "mrpc.tsv",
        'Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tHe said "no\tNo.\n',
    )
    assert _examples("labelled", "", path) == [(('He said "no', "No."), "1", f"{path}, row 2")]
    path = _write(tmp_path, "cola.tsv", "gj04\t0\t*\tThey drank the pub.\n")
    assert _examples("labelled", "3,1", path) == [(("They drank the pub.",), "0", f"{path}, row 1")]


def test_json_lines_and_several_sources(tmp_path):
    first = _write(tmp_path, "a.jsonl", '{"text": "one", "label": 3}\n\n')
    second = _write(tmp_path, "b.jsonl", '{"text": "two", "label": 0.5}')
    found = _examples("labelled", "", f"{first}, {second}")
    assert [(example.texts, example.label) for example in found] == [(("one",), 3), (("two",), 0.5)]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "genres.csv",
            'text,label\nA film,"Love, deep|Joy"\nB,Drama\nC,"Crime, Drama"\n',
            [("Love, deep", "Joy"), ("Drama",), ("Crime", "Drama")],
        ),
        # As `datasets` writes them.
        (
            "names.jsonl",
            '{"text": "a", "labels": ["joy", "love, deep"]}\n{"text": "b", "labels": []}\n'
            '{"text": "no label", "labels": NaN}',
            [("joy", "love, deep"), (), None],
        ),
        (
            "ids.jsonl",
            '{"text": "a", "labels": [2, 27]}\n{"text": "b", "labels": 3}',
            [("2", "27"), ("3",)],
        ),
        ("floats.jsonl", '{"text": "a", "labels": [0.0, 1.0, 1.0]}', [("1", "2")]),
    ],
)
def test_several_labels_as_people_write_them(tmp_path, name, text, expected):
    found = _read("multi_labelled", "", _write(tmp_path, name, text))
    assert [label for _, label in found] == expected
    assert all(len(texts) == 1 for texts, _ in found)


@pytest.mark.parametrize(
    ("name", "text", "label"),
    [
        ("a.jsonl", '{"text": "a", "labels": [0, 1, 0]}', "'0'"),
        ("a.jsonl", '{"text": "a", "labels": [0.0, 2.0]}', "'0.0'"),
        ("a.csv", "text,label\na,joy||fear\n", "''"),
        ("a.csv", "text,label\na,\"['joy', 'fear']\"\n", "\"['joy'\""),
    ],
)
def test_labels_that_are_none_are_refused(tmp_path, name, text, label):
    said = _read("multi_labelled", "", _write(tmp_path, name, text))
    assert f"{label} is not a label, or occurs twice; give label names with" in said


def test_squad_answers_are_found_again(tmp_path):
    """1 % of the starts in circulation are wrong; the fault: taking the first occurrence, not the
    nearest.
    """
    answers = [{"text": "a cat", "answer_start": 16}, {"text": "cat", "answer_start": 2}]
    path = _write(
        tmp_path,
        "dev.json",
        _squad("a cat sees a dog, a cat and a cat", ("Who?", answers), ("Why?", [])),
    )
    who, why = _examples("question_answering", "", path)
    assert who.texts == ("a cat sees a dog, a cat and a cat", "Who?") and who.label == (
        (18, "a cat"),
        (2, "cat"),
    )
    assert why.label == () and why.where == f"{path}, article 1, paragraph 1, question 1"
    # What is only plausible is no answer.
    question = {
        "context": "a cat",
        "question": "Which dog?",
        "answers": {"text": ["a cat"], "answer_start": [0]},
    }
    path = _write(tmp_path, "v2.jsonl", json.dumps(question | {"is_impossible": True}))
    assert _examples("question_answering", "", path)[0].label == ()


def test_race(tmp_path):
    article = {
        "article": "Text.",
        "questions": ["Q _ ?", "P?"],
        "options": [list("abcd")] * 2,
        "answers": ["B", "D"],
    }
    path = _write(tmp_path, "train/high/1.txt", json.dumps(article))
    _write(tmp_path, "train/middle/0.txt", json.dumps(article | {"answers": ["A", "C"]}))
    found = _examples("multiple_choice", "", str(tmp_path / "train"))
    assert [example.label for example in found] == ["B", "D", "A", "C"]
    assert found[1] == (("Text.", "P?", "a", "b", "c", "d"), "D", f"{path}, question 2")


def test_tags(tmp_path):
    text = "-DOCSTART- -X- O O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\n\nPeter NNP B-NP B-PER\n"
    path = _write(tmp_path, "ner.conll", text)
    assert _examples("token_classification", "", path) == [
        (("EU", "rejects"), ("B-ORG", "O"), f"{path}, row 3"),
        (("Peter",), ("B-PER",), f"{path}, row 7"),
    ]
    assert _examples("token_classification", "0,1", path)[0].label == ("NNP", "VBZ")


@pytest.mark.parametrize(
    ("columns", "text", "sentences"),
    [
        # Comments of MultiCoNER and of CoNLL-U, also with as many columns as the words have.
        ("", "# id 1\tdomain=en\nold\tO\n", ["old/O"]),
        ("", "# sent_id = 1\n#text = Old\n# newpar\nold _ _ O\n", ["old/O"]),
        (
            "",
            (
                "#begin document (a/b); part 000\n"
                "a b O x y\n\n"
                "#end document\n"
                "#begin document (c); part 000\n"
                "c d O x z\n"
            ),
            ["a/y", "c/z"],
        ),
        ("", "#end document\n\n#begin document (a); part 0\n", "has no examples"),
        # Words that begin with the same sign.
        ("", "#\tO\n1\tB-X\n\n5\tO\n#\tO\n", ["#/O 1/B-X", "5/O #/O"]),
        ("", "#Oslo O\nrocks O\n\n#Bergen O\n", ["#Oslo/O rocks/O", "#Bergen/O"]),
        # Ranges and empty nodes of CoNLL-U and of Universal NER; results and decimals.
        (
            "1,3",
            (
                "# text = im Haus\n"
                "1-2\tim\t_\t_\t_\n"
                "1\tin\t_\tADP\t_\n"
                "2\tdem\t_\tDET\t_\n"
                "2.1\tdas\t_\tX\t_\n"
                "3\tHaus\t_\tNOUN\t_\n"
            ),
            ["in/ADP dem/DET Haus/NOUN"],
        ),
        ("", "1\tO\n1-2\tB-SCORE\n1.5\tO\n", ["1/O 1-2/B-SCORE 1.5/O"]),
        # Only tabs, or else only spaces, are between columns.
        ("", "5\u00a0mg a\tB-DOSE\r\ndaily\tO\r\n", ["5\u00a0mg a/B-DOSE daily/O"]),
        ("", "New\u00a0York   O\na\x0bb O\nc\u2028d O\n", ["New\u00a0York/O a\x0bb/O c\u2028d/O"]),
        ("", "Anna\tB-PER\nruns\t\n", "row 2: column 1 is empty; write a tag, such as O, or _"),
        ("", "Anna B-PER\n\n\tO\n", "row 3: column 0 is empty"),
    ],
    ids=[
        "tabs_after_a_comment",
        "conllu_comments",
        "conll_2012",
        "comments_alone",
        "the_word_#",
        "hashtags",
        "ranges",
        "numbers",
        "tabs",
        "spaces",
        "empty_tag",
        "empty_word",
    ],
)
def test_words_in_lines_as_they_are_published(tmp_path, columns, text, sentences):
    found = _read("token_classification", columns, _write(tmp_path, "a.conll", text))
    if isinstance(found, list):
        found = [" ".join(map("/".join, zip(words, tags, strict=True))) for words, tags in found]
    assert sentences in found if isinstance(sentences, str) else found == sentences


ROWS = [(("one",), "a"), (("two",), "b")]
LINES = '{"text": "one", "label": "a"}\n{"text": "two", "label": "b"}\n'
LONG = "word " * 30_000


def _parquet(rows):
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows), buffer)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "data", "found"),
    [
        ("a.csv", f"text,label\n{LONG},a\n", [((LONG,), "a")]),
        ("a.tsv", "text\tlabel\r\none\ra\ta\r\ntwo\tb", [(("one\ra",), "a"), (("two",), "b")]),
        ("a.json", LINES, ROWS),
        ("a.json", '\n{"text": "one", "label": "a"}', ROWS[:1]),
        ("a.json", json.dumps([json.loads(line) for line in LINES.splitlines()], indent=1), ROWS),
        ("a.json", LINES + "{", "a.json, row 3: not JSON"),
        ("a.json", "[3]", "a.json, row 1: holds no JSON object"),
        ("a.parquet", b"PAR1\xff", "a.parquet: damaged or too large"),
        ("a.tsv.gz", gzip.compress(b"text\tlabel\none\ta\ntwo\tb\n"), ROWS),
        ("a.jsonl.zst", pyarrow.Codec("zstd").compress(LINES.encode(), asbytes=True), ROWS),
        ("a.CSV.GZ", gzip.compress(b"text,label\none,a\n")[:-9], "damaged or cut short"),
        (
            "a.xlsx",
            b"PK\xff",
            "a.xlsx: unknown format; the name must end in .csv, .tsv, .jsonl",
        ),
        (
            "a.txt",
            "__label__a one\n\n__label__a __label__b\ttwo\nthree\n",
            [(("one",), "a"), (("two",), ("a", "b")), (("three",), "")],
        ),
        # The second record, in the fourth line.
        ("a.csv", b'text,label\n"one\n\ntwo\xe4",a\n', "a.csv, row 2: not UTF-8 at byte 20"),
    ],
    ids=[
        "long_csv",
        "lone_cr",
        "json_lines",
        "one_json_line",
        "json_array",
        "damaged_line",
        "no_object",
        "damaged_parquet",
        "gz",
        "zst",
        "cut_gz",
        "xlsx",
        "fasttext",
        "records_are_counted",
    ],
)
def test_every_kind_of_file_that_prepare_reads_is_read(tmp_path, name, data, found):
    said = _read("labelled", "", _write(tmp_path, name, data))
    assert found in said if isinstance(found, str) else said == found


def test_a_folder_of_texts_for_each_label(tmp_path):
    """aclImdb: lists of addresses beside the folders, and texts without a label, are no class."""
    for name in ("pos/0_9.txt", "neg/1_1.txt", "unsup/2_0.txt", "urls_pos.txt"):
        _write(tmp_path, f"train/{name}", f"A film,\n{name}.")
    labels = {
        "pos/0_9.txt": "pos",
        "neg/1_1.txt": "neg",
        "unsup/2_0.txt": None,
        "urls_pos.txt": None,
    }
    wanted = {((f"A film,\n{name}.",), label) for name, label in labels.items()}
    assert {*_read("labelled", "", f"{tmp_path}/train/")} == wanted


def test_a_folder_of_files_of_one_data_set(tmp_path):
    for number, label in enumerate("ab"):
        data = _parquet([{"text": ["one", "two"][number], "label": label}])
        _write(tmp_path, f"data/train-0000{number}.parquet", data)
    _write(tmp_path, "data/README.md", "Two files.")
    assert _read("labelled", "", f"{tmp_path}/data") == ROWS


@pytest.mark.parametrize(
    ("columns", "fields"),
    [
        (
            "",
            {
                "article": "C.",
                "question": "Q?",
                "options": ["x", "y"],
                "answer": "B",
                "example_id": "7",
            },
        ),
        ("ctx,q,ends,gold", {"ctx": "C.", "q": "Q?", "ends": ["x", "y"], "gold": "B"}),
        ("0,1,2,3,label", {"0": "C.", "1": "Q?", "2": "x", "3": "y", "label": "B"}),
    ],
)
def test_options_are_a_list_or_columns(tmp_path, columns, fields):
    path = _write(tmp_path, "a.jsonl", json.dumps(fields))
    assert _read("multiple_choice", columns, path) == [(("C.", "Q?", "x", "y"), "B")]


def test_the_short_rows_of_qqp_are_left_out_and_counted(tmp_path, caplog):
    head, row = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n", "1\t2\t3\tone\ttwo\t0\n"
    path = _write(tmp_path, "train.tsv", f"{head}{row}4\t5\tsix\n{row}7\t8\tnine\n")
    assert _read("labelled", "", path) == [(("one", "two"), "0")] * 2
    assert (
        f"{path}: left out 2 rows of fewer than 6 columns, as GLUE's code does; the first is row 3"
        in (caplog.text)
    )
    # A short row of another file may be any mistake.
    path = _write(tmp_path, "a.tsv", "sentence\tlabel\ngood\ta\nbad\n")
    assert "row 3: columns: 1, but the first row has 2" in _read("labelled", "", path)


@pytest.mark.parametrize(
    ("fields", "label"), [({}, None), ({"answers": []}, ()), ({"is_impossible": True}, ())]
)
def test_a_question_without_answers_has_no_label_and_is_not_unanswerable(tmp_path, fields, label):
    question = {"id": "0", "question": "Who?"} | fields
    text = json.dumps({"data": [{"paragraphs": [{"context": "a cat", "qas": [question]}]}]})
    found = _read("question_answering", "", _write(tmp_path, "test.json", text))
    assert found == [(("a cat", "Who?"), label)]


def test_pairs(tmp_path):
    path = _write(tmp_path, "p.tsv", "a\tb\tscore\nx\ty\t2.5\n")
    assert _examples("pairs", "a,b", path) == [(("x", "y"), None, f"{path}, row 2")]
    assert _examples("pairs", "a,b,score", path)[0].label == "2.5"


GOOD = {"text": "cat", "answer_start": 2}
RACE = '{"article": "x", "questions": ["q"], "options": %s, "answers": ["A"]}'


@pytest.mark.parametrize(
    ("reader", "name", "text", "columns", "message"),
    [
        (
            "labelled",
            "a.csv",
            "sentence,label\ngood,1\nbad,0\n",
            "text,label",
            "row 2: no column 'text', but 'sent",
        ),
        (
            "labelled",
            "a.csv",
            "satz,label\ngood,1\n",
            "",
            "row 2: no text under a usual name among 'satz', 'label'",
        ),
        ("labelled", "a.csv", "sentence,label\ngood,1\n ,0\n", "", "row 3: 'sentence' is empty"),
        (
            "labelled",
            "a.csv",
            "sentence,,label,,label\ngood,,1,,2\n",
            "",
            "row 1: two columns are called 'label'",
        ),
        ("labelled", "a.csv", 'sentence,label\n"go"od,1\n', "", "row 2: "),
        (
            "labelled",
            "a.tsv",
            b"sentence\tlabel\ngood\t1\nb\xe4d\t0\n",
            "",
            "row 3: not UTF-8 at byte 23",
        ),
        # Without a mark at its start it would be read as text with a NUL behind each letter.
        (
            "labelled",
            "a.csv",
            "text,label\ngood,1\n".encode("utf-16-le"),
            "",
            "a.csv: a NUL byte, so it is not UTF-8 text; convert the file",
        ),
        ("labelled", "a.csv", "sentence,label\n", "", "has no examples"),
        ("labelled", "a.jsonl", '{"text": 7, "label": 1}', "", "row 1: 'text' is 7, not a text"),
        (
            "labelled",
            "a.jsonl",
            r'{"text": "a\ud800", "label": 1}',
            "",
            "row 1: not JSON ('utf-8' codec can't encode",
        ),
        ("multiple_choice", "a.jsonl", RACE % "[5]", "", "options"),
        (
            "multiple_choice",
            "a.jsonl",
            RACE % "[]",
            "",
            "1 questions, 0 lists of options and 1 answers; they must be equal",
        ),
        (
            "question_answering",
            "a.json",
            _squad("a dog", ("Who?", [GOOD])),
            "",
            "question 0: the answer 'cat'",
        ),
        (
            "question_answering",
            "a.json",
            '{"data": [{"paragraphs": [{"qas": 3}]}]}',
            "",
            "paragraph 1: not as in SQ",
        ),
        (
            "token_classification",
            "a.conll",
            "EU B-ORG\nrejects\n",
            "",
            "row 2: 1 columns, and the row before has 2",
        ),
        (
            "token_classification",
            "a.jsonl",
            '{"tokens": ["a", "b"], "tags": ["O"]}',
            "",
            "row 1: 2 words and 1 tags; every word needs one",
        ),
    ],
)
def test_errors_name_the_file_and_the_row(tmp_path, reader, name, text, columns, message):
    path = _write(tmp_path, name, text)
    said = _read(reader, columns, path)
    assert message in said and path in said and "\n" not in said


def test_a_word_or_an_option_that_is_no_text():
    """A number or null in a list of JSON."""
    with pytest.raises(BadInput, match="a.jsonl, row 1: '5' is not a text"):
        rows_of(SimpleNamespace(texts=(1, 2)), [Example(("a", 5), None, "a.jsonl, row 1")])  # type: ignore[arg-type]


def test_two_files_of_lines_that_do_not_belong_together(tmp_path):
    config = Config().changed(finetune={"task": "text_to_text"})
    one, two = _write(tmp_path, "one.txt", "a\nb\n"), _write(tmp_path, "two.txt", "c\n")
    for source, message in (
        (one, "one.txt: name two files of lines, SOURCES,TARGETS, or"),
        (f"{one},{two}", f"{one} has 2 lines and {two} 1; line n of the one must belong"),
    ):
        with pytest.raises(BadInput, match=message):
            list(readers.records(config, source))


def test_what_is_not_there(tmp_path):
    assert "no such file" in _read("labelled", "", f"{tmp_path}/none.csv")
    # A file that goes away, or may not be read.
    (tmp_path / "link.csv").symlink_to(tmp_path / "none.csv")
    assert "link.csv" in _read("labelled", "", f"{tmp_path}/link.csv")
    (tmp_path / "empty").mkdir()
    assert "holds no *.txt" in _read("multiple_choice", "", f"{tmp_path}/empty")


class XlnetLabelled(tfds.core.GeneratorBasedBuilder):
    """The features of GLUE, SQuAD, RACE and CoNLL in one. TFDS finds a builder's module by its
    name.
    """

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        text, several = tfds.features.Text(), tfds.features.Sequence
        features = {
            "sentence": text,
            "label": tfds.features.ClassLabel(names=["negative", "positive"]),
            "context": text,
            "question": text,
            "answers": several({"text": text, "answer_start": np.int32}),
            "is_impossible": np.bool_,
            "tokens": several(text),
            "tags": several(tfds.features.ClassLabel(names=["O", "B-PER"])),
        }
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict(features), disable_shuffling=True
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples((0, 1)), "test": self._generate_examples((-1,))}

    def _generate_examples(self, labels):
        for number, label in enumerate(labels):
            yield (
                number,
                {
                    "sentence": "né",
                    "label": label,
                    "context": "a cat",
                    "question": "Who?",
                    "answers": {"text": ["cat"], "answer_start": [2]},
                    "is_impossible": False,
                    "tokens": ["Eve", "ran"],
                    "tags": ["B-PER", "O"],
                },
            )


def test_data_sets_of_tfds(tmp_path):
    XlnetLabelled(data_dir=str(tmp_path), file_format="array_record").download_and_prepare()
    folder = f"tfds:{tmp_path}/xlnet_labelled/1.0.0"
    one, two = _examples("labelled", "sentence,label", f"{folder}:train")
    assert one == (("né",), "negative", f"{folder}:train, example 0") and two.label == "positive"
    question, _ = _read("question_answering", "", f"{folder}:train")
    assert question == (("a cat", "Who?"), ((2, "cat"),))
    sentence, _ = _read("token_classification", "", f"{folder}:train")
    assert sentence == (("Eve", "ran"), ("B-PER", "O"))
    # RACE's options. TFDS needs TensorFlow to write them, not to read them.
    nested = tfds.features.Sequence(tfds.features.Sequence(tfds.features.Text()))
    assert records._plain(nested, [np.array([b"a", b"b"], object)]) == [["a", "b"]]
    # -1 is no label.
    assert _read("labelled", "sentence,label", f"{folder}:test") == [(("né",), None)]
