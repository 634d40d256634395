"""Every task from files to predictions: it learns a rule, and `predict` gives what the best
evaluation gave.
"""

import json
import random

import numpy as np
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
    return {
        "context": " ".join(_say(draw, 6)),
        "question": "kiki _ .",
        "options": options,
        "label": "ABC"[right],
    }


def _spans(draw):
    """The answer is a number; a third of the paragraphs have none."""
    words, answer = _say(draw, 14), []
    if draw.random() < 0.7:
        words[draw.randrange(14)] = "12"
        answer = [{"text": "12", "answer_start": " ".join(words).index("12")}]
    return {"context": " ".join(words), "question": "lulu", "answers": answer}


def _tokens(draw):
    words = [draw.choice([word, "12"]) for word in _say(draw, 6)]
    return {"tokens": words, "tags": ["B-X" if word == "12" else "O" for word in words]}


def _embeddings(draw):
    words = _say(draw, 4)
    return {"sentence1": " ".join(words), "sentence2": " ".join(words[::-1])}


def _reversal(draw):
    words = _say(draw, draw.randint(1, 6))
    return {"source": " ".join(words), "target": " ".join(words[::-1])}


def _write(folder, make):
    draw, path = random.Random(0), folder / "examples.jsonl"
    path.write_text("".join(json.dumps(make(draw)) + "\n" for _ in range(COUNT)))
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "make", "score", "family"),
    [
        ("multiple_choice", _choice, 0.8, "xlnet"),
        ("question_answering", _spans, 0.8, "xlnet"),
        ("token_classification", _tokens, 0.9, "xlnet"),
        ("embeddings", _embeddings, 0.8, "xlnet"),
        ("question_answering", _spans, 0.8, "bert"),
    ],
)
def test_a_task_from_files_to_predictions(tmp_path, settings, task, make, score, family):
    path = _write(tmp_path, make)
    data = {"task": task, "train": path, "dev": path}
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
    written = tmp_path / "run" / "predictions.jsonl"
    lines = [json.loads(line) for line in written.read_text().splitlines()]
    # They have the texts of their examples, so they are also a file to predict.
    predicted = predict(str(tmp_path / "run"), input=str(written))
    assert [found.pop("row") for found in predicted] == list(range(1, COUNT + 1))
    assert len({str(line.pop("gold")) for line in lines}) > (task != "embeddings")
    for line, found in zip(lines, predicted, strict=True):
        assert line.pop("where") and line.pop("texts")
        assert line.keys() == found.keys()
        for name, value in line.items():
            if name == "vectors":
                np.testing.assert_allclose(found[name], value, atol=1e-4)
            else:
                assert found[name] == pytest.approx(value, abs=1e-4), name


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
    found = []
    changes = {"finetune": {"segments": 2, "dev": ""}, "data": {"segment_len": 8}}
    if task:
        changes["finetune"] = {"task": task, "train": _write(tmp_path, make), "dev": ""}
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
        run = f"{tmp_path}/{number}"
        finetune(settings(**changes, train=train, evaluation={"every": 0}, mesh=mesh), run)
        found.append([line["loss"] for line in read_jsonl(f"{run}/metrics.jsonl")])
    assert len(set(found[0])) == 3
    for other in found[1:]:
        assert other == pytest.approx(found[0], abs=1e-5)
