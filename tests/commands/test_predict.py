"""How `predict` reads examples and cuts them into batches; `tests/finetune` compares its results with evaluations."""

import numpy as np
import pytest

from xlnet_jax.commands import predict
from xlnet_jax.errors import BadInput
from xlnet_jax.finetune.task import Row


def test_short_rows_are_in_short_batches_and_come_back_in_their_order():
    """A batch is as long as the longest sequence of each row needs; the shortest has 16 tokens."""
    lengths = [(40,), (3,), (20,), (5, 33), (16,), (17,), (64,)]
    rows = [Row(tuple(np.full(n, number) for n in each), (), {}, number) for number, each in enumerate(lengths)]
    batches = {}

    def predictor(params, rows, segment_len):
        assert params == "parameters"
        batches[segment_len] = [row.example for row in rows]
        return None, {"number": np.array([row.example for row in rows]), "tokens": np.array([segment_len] * len(rows))}

    found = predict._by_length(predictor, "parameters", rows, 64, any_length=True)
    assert batches == {16: [1, 4], 32: [2, 5], 64: [0, 3, 6]}
    assert found["number"].tolist() == list(range(7)) and found["tokens"].tolist() == [64, 16, 32, 64, 16, 32, 64]
    batches.clear()
    predict._by_length(predictor, "parameters", rows, 64, any_length=False)
    assert batches == {64: list(range(7))}


def test_the_texts_of_a_line_and_of_an_object():
    assert predict.example_of("one text\tand another", "here", words=False).texts == ("one text", "and another")
    assert predict.example_of("one  text\tand", "here", words=True).texts == ("one", "text", "and")
    # In the order of the task, whatever that of the fields is.
    for fields, texts in (
        ({"question": "Who?", "context": "A cat."}, ("A cat.", "Who?")),
        ({"options": ["a", "b"], "question": "Q?", "context": "C."}, ("C.", "Q?", "a", "b")),
        ({"sentence2": "two", "sentence1": "one", "label": 3}, ("one", "two")),
    ):
        assert predict.example_of(fields, "here", words=False).texts == texts
    # Those of `finetune.columns` first; a run that was trained on a table may predict from objects with usual names.
    fields = {"en": "A cat.", "es": "Un gato.", "text": "no"}
    assert predict.example_of(fields, "here", words=False, columns=["en"]).texts == ("A cat.",)
    assert predict.example_of({"text": "yes"}, "here", words=False, columns=["0"]).texts == ("yes",)
    for fields in ({"label": 3}, {"text": 5}):
        with pytest.raises(BadInput, match="here: no text under one of the names text, texts"):
            predict.example_of(fields, "here", words=False)
