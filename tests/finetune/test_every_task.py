"""Every task from files to predictions: it learns a rule, and `predict` gives what the best
evaluation gave.
"""

import json
import random

import pytest
from conftest import WORDS

from xlnet_jax.commands.finetune import finetune
from xlnet_jax.commands.predict import predict
from xlnet_jax.run.metrics import read_jsonl

COUNT = 32


def _say(draw, count):
    return [draw.choice(WORDS) for _ in range(count)]


def _choice(draw):
    """The right option is the one with veve."""
    options, right = [" ".join(_say(draw, 2)) for _ in range(3)], draw.randrange(3)
    options[right] += " veve"
    return {"context": " ".join(_say(draw, 6)), "question": "kiki _ .", "options": options}, "ABC"[
        right
    ]


def _spans(draw):
    """The answer is a number; a third of the paragraphs have none."""
    words, answer = _say(draw, 14), []
    if draw.random() < 0.7:
        words[draw.randrange(14)] = "12"
        answer = [{"text": "12", "answer_start": " ".join(words).index("12")}]
    return {"context": " ".join(words), "question": "lulu"}, answer


def _tokens(draw):
    words = [draw.choice([word, "12"]) for word in _say(draw, 6)]
    return {"tokens": words}, ["B-X" if word == "12" else "O" for word in words]


def _embeddings(draw):
    words = _say(draw, 4)
    return {"texts": [" ".join(words), " ".join(words[::-1])]}, None


def _reversal(draw):
    words = _say(draw, draw.randint(1, 6))
    return {"source": " ".join(words)}, " ".join(words[::-1])


def _write(folder, task, examples):
    """A file for training in the form that the task reads, with its columns, and one for
    `predict`.
    """
    (folder / "texts.jsonl").write_text("".join(json.dumps(each) + "\n" for each, _ in examples))
    if task == "question_answering":
        paragraphs = [
            {
                "context": each["context"],
                "qas": [{"id": str(n), "question": each["question"], "answers": label}],
            }
            for n, (each, label) in enumerate(examples)
        ]
        (folder / "dev.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
        return str(folder / "dev.json"), ""
    rows = []
    for each, label in examples:
        texts = (
            [each["tokens"]]
            if task == "token_classification"
            else sum(([value] if isinstance(value, str) else value for value in each.values()), [])
        )
        rows.append(
            {str(place): text for place, text in enumerate(texts)}
            | ({} if label is None else {"label": label})
        )
    (folder / "dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / "dev.jsonl"), ",".join(rows[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "make", "score", "family"),
    [
        ("multiple_choice", _choice, 0.8, "xlnet"),
        ("question_answering", _spans, 0.8, "xlnet"),
        ("token_classification", _tokens, 0.9, "xlnet"),
        ("embeddings", _embeddings, 0.8, "xlnet"),
        pytest.param("multiple_choice", _choice, 0.8, "roberta", marks=pytest.mark.prove),
        ("question_answering", _spans, 0.8, "bert"),
        pytest.param("token_classification", _tokens, 0.9, "bert", marks=pytest.mark.prove),
        pytest.param("embeddings", _embeddings, 0.8, "roberta", marks=pytest.mark.prove),
    ],
)
def test_a_task_from_files_to_predictions(tmp_path, settings, task, make, score, family):
    draw = random.Random(0)
    path, columns = _write(tmp_path, task, [make(draw) for _ in range(COUNT)])
    data = {"task": task, "columns": columns, "train": path, "dev": path}
    data |= {"stride": 8} if task == "question_answering" else {}
    config = settings(
        finetune=data,
        data={"segment_len": 40},
        train={"steps": 48, "batch_size": 16},
        evaluation={"every": 16},
        checkpoint={"every": 16},
        model={"architecture": family} | ({} if family == "xlnet" else {"memory_len": 0}),
    )
    result = finetune(config, str(tmp_path / "run"))
    assert result["task"] == task and result["score"] > score
    lines = [
        json.loads(line)
        for line in (tmp_path / "run" / "predictions.jsonl").read_text().splitlines()
    ]
    golds = [line.pop("gold") for line in lines]
    assert len(lines) == COUNT and all(line.pop("where") and line.pop("texts") for line in lines)
    assert (golds[0] is None) == (task == "embeddings") and len(
        {str(gold) for gold in golds}
    ) >= 1 + (golds[0] is not None)
    predicted = predict(str(tmp_path / "run"), input=str(tmp_path / "texts.jsonl"))
    assert [found.pop("row") for found in predicted] == list(range(1, COUNT + 1))
    for line, found in zip(lines, predicted, strict=True):
        assert line.keys() == found.keys()
        for name, value in line.items():
            exact = (
                isinstance(value, str)
                or (isinstance(value, list) and isinstance(value[0], str))
                or value is None
            )
            flat = sum(value, []) if name == "vectors" else value
            other = sum(found[name], []) if name == "vectors" else found[name]
            assert other == (flat if exact else pytest.approx(flat, abs=1e-4)), name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "make"),
    [
        pytest.param("question_answering", _spans, marks=pytest.mark.prove),
        ("embeddings", _embeddings),
        pytest.param("text_to_text", _reversal, marks=pytest.mark.prove),
        ("", None),
    ],
)
def test_the_loss_of_a_task_does_not_depend_on_the_mesh(tmp_path, settings, task, make):
    """The fault: negatives of one device, or a head's kernel that is cut where it is split; of the
    classes also dropout and gradients of micro-batches and of two segments.
    """
    draw, found = random.Random(0), []
    changes = {"finetune": {"segments": 2, "dev": ""}, "data": {"segment_len": 8}}
    if task:
        path, columns = _write(tmp_path, task, [make(draw) for _ in range(COUNT)])
        changes["finetune"] = {"task": task, "columns": columns, "train": path, "dev": ""}
        changes["data"] = {"segment_len": 40}
    if task == "text_to_text":  # of two lengths, smoothed
        changes |= {"data": {"segment_len": 80}, "model": {"memory_len": 0}}
    for number, mesh in enumerate(
        ({"data": 8}, {"data": 2, "fsdp": 2, "tensor": 2}, {"data": 8, "zero1": True})
    ):
        train = {
            "steps": 3,
            "batch_size": 16,
            "gradient_accumulation_steps": 1 + (not task and number % 2),
        }
        train |= {"label_smoothing": 0.1} if task == "text_to_text" else {}
        finetune(
            settings(**changes, train=train, evaluation={"every": 0}, mesh=mesh),
            str(tmp_path / str(number)),
        )
        found.append(
            [line["loss"] for line in read_jsonl(str(tmp_path / str(number) / "metrics.jsonl"))]
        )
    assert len(set(found[0])) == 3
    for other in found[1:]:
        assert other == pytest.approx(found[0], abs=1e-5)
