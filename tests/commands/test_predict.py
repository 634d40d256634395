"""How `predict` reads examples and cuts them into batches; `tests/finetune` compares its results
with evaluations.
"""

import json
import os
from types import SimpleNamespace

import data_fixtures
import numpy as np
import pytest
import tiny

from xlnet_jax.cli import main
from xlnet_jax.commands import predict
from xlnet_jax.errors import BadInput
from xlnet_jax.finetune import setup
from xlnet_jax.finetune.task import Example, Row


def test_short_rows_are_in_short_batches_and_come_back_in_their_order():
    """A batch is as long as the longest sequence of each row needs; the shortest has 16 tokens."""
    lengths = [(40,), (3,), (20,), (5, 33), (16,), (17,), (64,)]
    rows = [
        Row(tuple(np.full(n, number) for n in each), (), {}, number)
        for number, each in enumerate(lengths)
    ]
    batches = {}

    def predictor(params, rows, segment_len):
        assert params == "parameters"
        batches[segment_len] = [row.example for row in rows]
        return None, {
            "number": np.array([row.example for row in rows]),
            "tokens": np.array([segment_len] * len(rows)),
        }

    found = predict._by_length(predictor, "parameters", rows, 64, any_length=True)
    assert batches == {16: [1, 4], 32: [2, 5], 64: [0, 3, 6]}
    assert found["number"].tolist() == list(range(7)) and found["tokens"].tolist() == [
        64,
        16,
        32,
        64,
        16,
        32,
        64,
    ]
    batches.clear()
    predict._by_length(predictor, "parameters", rows, 64, any_length=False)
    assert batches == {64: list(range(7))}


LABELS = {"classification": "no,yes", "token_classification": "B-X,O", "text_to_text": ""}
SQUAD = {
    "data": [
        {
            "paragraphs": [
                {
                    "context": "bame dono",
                    "qas": [
                        {
                            "id": "q1",
                            "question": "kiki",
                            "answers": [{"text": "dono", "answer_start": 5}],
                        },
                        {"id": "q2", "question": "lusi", "answers": [], "is_impossible": True},
                        {"id": "q3", "question": "kira"},
                    ],
                }
            ]
        }
    ]
}
RACE = {
    "article": "bame",
    "questions": ["kiki _", "lusi"],
    "options": [["do", "no"], ["ra", "si"]],
    "id": "h1.txt",
}


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Predicts with a run whose model says `no`: what the files and texts become, as rows of text,
    and the results; or the line of an error.
    """

    def ask(task, files=(), columns="", **options):
        labels = {"labels": LABELS[task]} if task in LABELS else {}
        config = tiny.config(
            data={"segment_len": 40},
            model={"memory_len": 0},
            finetune={"task": task, "columns": columns, "max_answer": 9, **labels},
        )
        run, rows_of_all = tmp_path / f"run_{task}_{len(os.listdir(tmp_path))}", []
        tiny.save_run(str(run), config, {"x": np.zeros(1)})
        for name, text in dict(files).items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text if isinstance(text, str) else json.dumps(text))

        def outputs(stored, task, rows, examples, *_):
            rows_of_all.extend(rows)
            return [{"label": "no"} for _ in examples]

        monkeypatch.setattr(predict, "_outputs", outputs)
        if files:
            options["input"] = str(tmp_path / options.get("input", next(iter(files))))
        try:
            results = predict.predict(str(run), **options)
        except BadInput as error:
            return str(error).replace(f"{tmp_path}/", ""), getattr(error, "results", [])
        tokenizer, said = data_fixtures.tokenizer(), []
        for row in rows_of_all:
            tokens = np.concatenate(row.tokens)
            ends = np.isin(tokens, [tokenizer.special.sep, tokenizer.special.cls])
            texts = map(tokenizer.decode, np.split(tokens, np.flatnonzero(ends)))
            said.append([text for text in texts if text])
        return said, results

    return ask


def _lines(*objects):
    return "".join(json.dumps(each) + "\n" for each in objects)


@pytest.mark.parametrize(
    ("task", "files", "columns", "texts", "beside"),
    [
        # In the order in which training reads these fields, whatever that of the file is.
        (
            "classification",
            {
                "a.jsonl": _lines(
                    {"sentence": "bame", "question": "kiki", "label": "yes", "id": "x7"}
                )
            },
            "",
            [["kiki", "bame"]],
            [{"id": "x7", "gold": "yes"}],
        ),
        (
            "regression",
            {"a.jsonl": _lines({"hypothesis": "bame", "premise": "kiki", "score": 2.5})},
            "",
            [["kiki", "bame"]],
            [{"row": 1, "gold": 2.5}],
        ),
        # A field that is no text of the task is none.
        (
            "classification",
            {"a.jsonl": _lines({"text": "bame", "source": "kiki"})},
            "",
            [["bame"]],
            [{"row": 1}],
        ),
        (
            "token_classification",
            {"a.jsonl": _lines({"text": "lusi", "tokens": ["bame", "kiki"]})},
            "",
            [["bame kiki"]],
            [{"row": 1}],
        ),
        # Of several usual names those that training took.
        (
            "classification",
            {"a.jsonl": _lines({"sentence": "kiki", "text": "bame"})},
            "text,label",
            [["bame"]],
            [{"row": 1}],
        ),
        (
            "classification",
            {"a.jsonl": _lines({"label": 0, "body": "bame", "title": "kiki"})},
            "title,body,label",
            [["kiki", "bame"]],
            [{"row": 1, "gold": 0}],
        ),
        (
            "classification",
            {"a.jsonl": _lines({"premise": "bame", "hypothesis": "kiki", "label": "yes"})},
            "sentence1,sentence2,label",
            [["bame", "kiki"]],
            [{"row": 1, "gold": "yes"}],
        ),
        # Tables, sentences of words, SQuAD and RACE.
        (
            "classification",
            {"a.tsv": "index\tsentence\n0\tbame\n1\tkiki\n"},
            "sentence,label",
            [["bame"], ["kiki"]],
            [{"index": "0"}, {"index": "1"}],
        ),
        (
            "token_classification",
            {"a.conll": "bame N O\nkiki N B-X\n\nlusi N O\n"},
            "",
            [["bame kiki"], ["lusi"]],
            [{"row": 1, "gold": ["O", "B-X"]}, {"row": 4, "gold": ["O"]}],
        ),
        (
            "token_classification",
            {"a.conll": "bame\nkiki\n\nlusi\n"},
            "0,-1",
            [["bame kiki"], ["lusi"]],
            [{"row": 1}, {"row": 4}],
        ),
        (
            "question_answering",
            {"a.json": SQUAD},
            "",
            [["bame dono", "kiki"], ["bame dono", "lusi"], ["bame dono", "kira"]],
            [{"id": "q1", "gold": [[5, "dono"]]}, {"id": "q2", "gold": []}, {"id": "q3"}],
        ),
        (
            "multiple_choice",
            {"race/1.txt": RACE, "input": ""},
            "",
            [["bame", "kiki do", "bame", "kiki no"], ["bame", "lusi ra", "bame", "lusi si"]],
            [{"id": "h1.txt", "question": 1}, {"id": "h1.txt", "question": 2}],
        ),
        (
            "embeddings",
            {"a.jsonl": _lines({"text": "bame"}, {"sentence": "kiki", "idx": 9})},
            "",
            [["bame"], ["kiki"]],
            [{"row": 1}, {"idx": 9}],
        ),
        (
            "text_to_text",
            {"a.tsv": "target\tsource\nbame\tkiki\n"},
            "",
            [["kiki"]],
            [{"row": 2, "gold": "bame"}],
        ),
        # What is no label is none; a text in each line, or behind its label.
        (
            "classification",
            {"a.tsv": "idx\tsentence\tlabel\n7\tbame\t-1\n"},
            "",
            [["bame"]],
            [{"idx": "7", "gold": "-1"}],
        ),
        ("classification", {"a.csv": "sentence,label\nbame,\n"}, "", [["bame"]], [{"row": 2}]),
        (
            "classification",
            {"a.txt": "__label__yes bame\nkiki\n"},
            "",
            [["bame"], ["kiki"]],
            [{"row": 1, "gold": "yes"}, {"row": 2}],
        ),
        (
            "classification",
            {"a.txt": "bame\n\nkiki\n"},
            "",
            [["bame"], ["kiki"]],
            [{"row": 1}, {"row": 3}],
        ),
        (
            "classification",
            {"a.txt": "bame\tkiki\n"},
            "question,sentence,label",
            [["bame", "kiki"]],
            [{"row": 1}],
        ),
    ],
)
def test_a_file_is_read_as_in_training_and_says_which_example_is_which(
    asked, task, files, columns, texts, beside
):
    """With its gold label if there is one; the fault: the lines of a table as they are, or texts in
    another order.
    """
    files = dict(files)
    options = {"input": "race"} if files.pop("input", None) is not None else {}
    said, results = asked(task, files, columns, **options)
    assert said == texts
    names = {"id", "idx", "index", "guid", "row", "question", "gold"}
    found = [{key: value for key, value in result.items() if key in names} for result in results]
    assert json.loads(json.dumps(found)) == beside


@pytest.mark.parametrize(
    ("task", "files", "columns", "said"),
    [
        (
            "classification",
            {"a.jsonl": _lines({"sentence": "bame", "label": "yes"})},
            "question,sentence,label",
            "a.jsonl, row 1: no column 'question', but 'sentence', 'label'; set finetune.columns",
        ),
        (
            "classification",
            {"a.tsv": "text\nbame\n"},
            "question,sentence,label",
            "a.tsv, row 2: the number of texts is 1, and in training it was 2 (question, sentence)",
        ),
        (
            "classification",
            {"a.csv": "body,title\nbame,kiki\n"},
            "text,label",
            "a.csv, row 2: no text under a usual name among 'body', 'title'; set finetune.columns",
        ),
    ],
)
def test_another_number_of_texts_than_in_training_is_refused(asked, task, files, columns, said):
    told, results = asked(task, files, columns)
    assert said in told
    assert [result.keys() - {"row"} for result in results] == [{"error"}]


def test_positional_texts_keep_their_order_and_have_no_names(asked):
    said, results = asked("classification", columns="question,sentence,label", texts=["kiki\tbame"])
    assert said == [["kiki", "bame"]] and results == [{"label": "no"}]


def test_columns_of_another_file_are_named_at_the_command(asked):
    said, _ = asked(
        "classification",
        {"a.csv": "body,title\nbame,kiki\n"},
        "text,label",
        overrides=["--config.finetune.columns=title,label"],
    )
    assert said == [["kiki"]]


BAD = [
    ("classification", {"a.txt": "bame\n\u200b\nkiki\n"}, 2, "a text is empty after normalisation"),
    (
        "classification",
        {"a.jsonl": '{"text": "bame"}\n{"text": \n{"text": "kiki"}\n'},
        2,
        "not JSON",
    ),
    (
        "classification",
        {"a.tsv": "text\tid\nbame\t1\nno\nkiki\t3\n"},
        3,
        "columns: 1, but the first row has 2",
    ),
    ("text_to_text", {"a.txt": "bame\n\nkiki\n"}, 2, "a text is empty"),
]


@pytest.mark.parametrize(("task", "files", "row", "said"), BAD)
def test_a_bad_row_does_not_end_a_prediction(asked, task, files, row, said, caplog):
    told, results = asked(task, files)
    assert ["error" in result for result in results] == [False, True, False]
    assert f"row {row}: " in results[1]["error"] and said in results[1]["error"]
    assert (
        told.startswith("1 of 3 examples could not be used: ")
        and f"row {row}: " in told
        and "--skip_bad" in told
    )
    texts, again = asked(task, files, skip_bad=True)
    assert texts == [["bame"], ["kiki"]] and again == results
    assert "1 of 3 examples could not be used: " in caplog.text


def test_the_command_prints_all_rows_before_the_error(asked, tmp_path, capsys):
    """Exit code 2, and 0 with --skip_bad; the fault: one text of U+200B loses the other four."""
    asked("classification", texts=["bame"])
    (run,) = tmp_path.glob("run*")
    (tmp_path / "five.txt").write_text("bame\nkiki\nlusi\nbame\n\u200b\n")
    words = ["predict", f"--workdir={run}", f"--input={tmp_path}/five.txt"]
    assert main(words) == 2
    out, err = capsys.readouterr()
    lines = [json.loads(line) for line in out.splitlines()]
    assert [("label" in line, "error" in line) for line in lines] == [(True, False)] * 4 + [
        (False, True)
    ]
    assert "xlnet-jax predict: 1 of 5 examples could not be used: " in err
    assert main([*words, "--skip_bad"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == lines


def test_a_character_that_is_not_in_the_vocabulary_is_said_with_its_row():
    task = SimpleNamespace(texts=(1, 2))
    vocabulary = data_fixtures.tokenizer_of("characters")
    task.encode = lambda number, example: vocabulary.encode(example.texts[0])
    example = Example(("\U0001f600",), None, "a.jsonl, row 1")
    said = "^a.jsonl, row 1: character .* is not in the vocabulary .*; correct the row"
    with pytest.raises(BadInput, match=said):
        setup.rows_of(task, [example])  # type: ignore[arg-type]
