"""Examples from every kind of source, and the one line that says what is wrong with it."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow_datasets as tfds

from xlnet_jax.config import Config
from xlnet_jax.data.prepare import records
from xlnet_jax.errors import BadInput
from xlnet_jax.finetune import readers
from xlnet_jax.finetune.setup import rows_of
from xlnet_jax.finetune.task import Example


def _examples(reader, columns, source):
    return readers.examples(getattr(readers, reader), Config().changed(finetune={"columns": columns}), source)


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
    path = _write(tmp_path, "mrpc.tsv", 'Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tHe said "no\tNo.\n')
    assert _examples("labelled", "", path) == [(('He said "no', "No."), "1", f"{path}, row 2")]
    path = _write(tmp_path, "cola.tsv", "gj04\t0\t*\tThey drank the pub.\n")
    assert _examples("labelled", "3,1", path) == [(("They drank the pub.",), "0", f"{path}, row 1")]


def test_json_lines_and_several_sources(tmp_path):
    first = _write(tmp_path, "a.jsonl", '{"text": "one", "label": 3}\n\n')
    second = _write(tmp_path, "b.jsonl", '{"text": "two", "label": 0.5}')
    found = _examples("labelled", "", f"{first}, {second}")
    assert [(example.texts, example.label) for example in found] == [(("one",), 3), (("two",), 0.5)]


@pytest.mark.parametrize(
    ("name", "text", "columns", "expected"),
    [
        # As GoEmotions is published.
        ("go.tsv", "so happy\t2,27\tab1\nfine\t27\tab2\n", "0,1", [("2", "27"), ("27",)]),
        ("genres.csv", "text,label\nA film,Crime|Drama\n", "", [("Crime", "Drama")]),
        # As Jigsaw's comments are, and as TFDS has GoEmotions.
        ("toxic.csv", "id,text,rude,threat\n1,Go,1,0\n2,Hi,0,0\n", "text,rude|threat", [("rude",), ()]),
        ("go.jsonl", '{"c": "a", "joy": false, "fear": true}', "c,joy|fear", [("fear",)]),
        # As `datasets` writes them.
        ("names.jsonl", '{"text": "a", "labels": ["joy", "love, deep"]}\n{"text": "b", "labels": []}', "",
         [("joy", "love, deep"), ()]),
        ("ids.jsonl", '{"text": "a", "labels": [2, 27]}\n{"text": "b", "labels": 3}', "", [("2", "27"), ("3",)]),
        ("floats.jsonl", '{"text": "a", "labels": [0.0, 1.0, 1.0]}', "", [("1", "2")]),
    ],
)  # fmt: skip
def test_several_labels_as_people_write_them(tmp_path, name, text, columns, expected):
    found = _examples("multi_labelled", columns, _write(tmp_path, name, text))
    assert [example.label for example in found] == expected and all(len(example.texts) == 1 for example in found)


@pytest.mark.parametrize(
    ("name", "text", "columns", "said"),
    [
        (
            "a.jsonl",
            '{"text": "a", "labels": [0, 1, 0]}',
            "",
            "'0' is no label, or there twice; a list with a number for",
        ),
        ("a.jsonl", '{"text": "a", "labels": [0.0, 2.0]}', "", "1 is '2.0' and must be 0 or 1"),
        ("a.jsonl", '{"text": "a", "labels": ["joy", null]}', "", "'None' is no label"),
        ("a.csv", "text,label\na,joy||fear\n", "", "row 2: '' is no label"),
        ("a.csv", "text,label\na,\"['joy', 'fear']\"\n", "", "is no label, or there twice"),
        ("a.csv", "text,rude,mean\na,1,-1\n", "text,rude|mean", "row 2: 'mean' is '-1' and must be 0 or 1"),
        ("a.csv", "text,rude,mean\na,1,0\n", "text,rude|nice", "no column 'nice'"),
    ],
)
def test_labels_that_are_none_are_refused(tmp_path, name, text, columns, said):
    with pytest.raises(BadInput) as error:
        _examples("multi_labelled", columns, _write(tmp_path, name, text))
    assert said in str(error.value)


def test_squad_answers_are_found_again(tmp_path):
    """1 % of the starts in circulation are wrong; the fault: taking the first occurrence, not the nearest."""
    answers = [{"text": "a cat", "answer_start": 16}, {"text": "cat", "answer_start": 2}]
    path = _write(tmp_path, "dev.json", _squad("a cat sees a dog, a cat and a cat", ("Who?", answers), ("Why?", [])))
    who, why = _examples("question_answering", "", path)
    assert who.texts == ("a cat sees a dog, a cat and a cat", "Who?") and who.label == ((18, "a cat"), (2, "cat"))
    assert why.label == () and why.where == f"{path}, article 1, paragraph 1, question 1"
    # What is only plausible is no answer.
    question = {"context": "a cat", "question": "Which dog?", "answers": {"text": ["a cat"], "answer_start": [0]}}
    path = _write(tmp_path, "v2.jsonl", json.dumps(question | {"is_impossible": True}))
    assert _examples("question_answering", "", path)[0].label == ()


def test_race(tmp_path):
    article = {"article": "Text.", "questions": ["Q _ ?", "P?"], "options": [list("abcd")] * 2, "answers": ["B", "D"]}
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


def test_pairs(tmp_path):
    path = _write(tmp_path, "p.tsv", "a\tb\tscore\nx\ty\t2.5\n")
    assert _examples("pairs", "a,b", path) == [(("x", "y"), None, f"{path}, row 2")]
    assert _examples("pairs", "a,b,score", path)[0].label == "2.5"


GOOD = {"text": "cat", "answer_start": 2}
RACE = '{"article": "x", "questions": ["q"], "options": %s, "answers": ["A"]}'


@pytest.mark.parametrize(
    ("reader", "name", "text", "columns", "message"),
    [
        ("labelled", "a.csv", "sentence,label\ngood,1\nbad,0\n", "text,label", "row 2: no column 'text', but 'sent"),
        ("labelled", "a.csv", "satz,label\ngood,1\n", "", "row 2: no text under a usual name among 'satz', 'label'"),
        ("labelled", "a.csv", "sentence,label\ngood,1\n ,0\n", "", "row 3: 'sentence' is empty"),
        ("labelled", "a.csv", "sentence,label\ngood,\n", "", "row 2: 'label' is empty"),
        ("labelled", "a.csv", "sentence,label\ngood,1\nbad\n", "", "row 3: 1 columns, and the first row has 2"),
        ("labelled", "a.csv", "sentence,,label,,label\ngood,,1,,2\n", "", "row 1: two columns are called 'label'"),
        ("labelled", "a.csv", 'sentence,label\n"go"od,1\n', "", "row 2: "),
        ("labelled", "a.csv", b"sentence,label\ngood,1\nb\xe4d,0\n", "", "row 3: not UTF-8 at byte 23"),
        ("labelled", "a.csv", "sentence,label\n", "", "has no examples"),
        ("labelled", "a.jsonl", '{"text": "a", "label": 1}\n{"text"', "", "row 2: not JSON"),
        ("labelled", "a.jsonl", '{"text": 7, "label": 1}', "", "row 1: 'text' is 7, not a text"),
        ("labelled", "a.jsonl", r'{"text": "a\ud800", "label": 1}', "", "row 1: not JSON ('utf-8' codec can't encode"),
        ("labelled", "a.xml", "<a/>", "", "a name that ends in .csv"),
        ("multiple_choice", "a.jsonl", RACE % "[5]", "", "options"),
        (
            "multiple_choice",
            "a.jsonl",
            RACE % "[]",
            "",
            "1 questions, 0 lists of options and 1 answers; they must be equal",
        ),
        ("question_answering", "a.json", _squad("a dog", ("Who?", [GOOD])), "", "question 0: the answer 'cat'"),
        ("question_answering", "a.json", '{"data": [{"paragraphs": [{"qas": 3}]}]}', "", "paragraph 1: not as in SQ"),
        ("token_classification", "a.conll", "EU B-ORG\nrejects\n", "", "row 2: 1 columns, and the row before has 2"),
        (
            "token_classification",
            "a.jsonl",
            '{"tokens": ["a", "b"], "tags": ["O"]}',
            "",
            "row 1: 2 words and 1 tags; every word needs one",
        ),
        ("token_classification", "a.conll", "EU B-ORG\n", "0", "must name the words and the tags"),
    ],
)
def test_errors_name_the_file_and_the_row(tmp_path, reader, name, text, columns, message):
    path = _write(tmp_path, name, text)
    with pytest.raises(BadInput) as error:
        _examples(reader, columns, path)
    assert message in str(error.value) and "\n" not in str(error.value)
    assert path in str(error.value) or "finetune.columns" in str(error.value)


def test_a_word_or_an_option_that_is_no_text():
    """A number or null in a list of JSON."""
    with pytest.raises(BadInput, match="a.jsonl, row 1: '5' is not a text"):
        rows_of(SimpleNamespace(texts=(1, 2)), [Example(("a", 5), None, "a.jsonl, row 1")])  # type: ignore[arg-type]


def test_two_files_of_lines_that_do_not_belong_together(tmp_path):
    config = Config().changed(finetune={"task": "text_to_text"})
    one, two = _write(tmp_path, "one.txt", "a\nb\n"), _write(tmp_path, "two.txt", "c\n")
    for source, message in (
        (one, "one.txt: name two files of lines, SOURCES,TARGETS, or"),
        (f"{one},{two}", f"{one} has 2 lines and {two} 1; line by line they belong together"),
    ):
        with pytest.raises(BadInput, match=message):
            list(readers.records(config, source))


def test_what_is_not_there(tmp_path):
    with pytest.raises(BadInput, match="No such file|no such file"):
        _examples("labelled", "", str(tmp_path / "none.csv"))
    # A file that goes away, or may not be read.
    (tmp_path / "link.csv").symlink_to(tmp_path / "none.csv")
    with pytest.raises(BadInput, match="link.csv"):
        _examples("labelled", "", str(tmp_path / "link.csv"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="holds no .txt file"):
        _examples("multiple_choice", "", str(tmp_path / "empty"))


class XlnetLabelled(tfds.core.GeneratorBasedBuilder):
    """The features of GLUE, SQuAD, RACE and CoNLL in one. TFDS finds a builder's module by its name."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        text, several = tfds.features.Text(), tfds.features.Sequence
        features = {
            "idx": np.int32, "sentence": text, "label": tfds.features.ClassLabel(names=["negative", "positive"]),
            "context": text, "question": text,
            "answers": several({"text": text, "answer_start": np.int32}), "is_impossible": np.bool_,
            "article": text, "questions": several(text),
            "tokens": several(text), "tags": several(tfds.features.ClassLabel(names=["O", "B-PER"])),
        }  # fmt: skip
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict(features), disable_shuffling=True
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples((0, 1)), "test": self._generate_examples((-1,))}

    def _generate_examples(self, labels):
        for number, label in enumerate(labels):
            yield number, {
                "idx": number, "sentence": "né", "label": label, "context": "a cat", "question": "Who?",
                "answers": {"text": ["cat"], "answer_start": [2]}, "is_impossible": False,
                "article": "Text.", "questions": ["Q?"],
                "tokens": ["Eve", "ran"], "tags": ["B-PER", "O"],
            }  # fmt: skip


def test_data_sets_of_tfds(tmp_path):
    XlnetLabelled(data_dir=str(tmp_path), file_format="array_record").download_and_prepare()
    folder = f"tfds:{tmp_path}/xlnet_labelled/1.0.0"
    one, two = _examples("labelled", "sentence,label", f"{folder}:train")
    assert one == (("né",), "negative", f"{folder}:train, example 0") and two.label == "positive"
    assert _examples("question_answering", "", f"{folder}:train")[0][:2] == (("a cat", "Who?"), ((2, "cat"),))
    assert _examples("token_classification", "", f"{folder}:train")[0][:2] == (("Eve", "ran"), ("B-PER", "O"))
    (record, _) = readers.records(Config(), f"{folder}:train")
    assert record.fields["questions"] == ["Q?"]
    # RACE's options. TFDS needs TensorFlow to write them, not to read them.
    nested = tfds.features.Sequence(tfds.features.Sequence(tfds.features.Text()))
    assert records._plain(nested, [np.array([b"a", b"b"], object)]) == [["a", "b"]]
    with pytest.raises(BadInput, match="test, example 0: 'label' is empty"):
        _examples("labelled", "sentence,label", f"{folder}:test")
