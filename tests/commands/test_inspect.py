"""Inspect: the masks it draws are the ones the model uses."""

import data_fixtures
import numpy as np
import pytest
import tiny

from xlnet_jax.batch import NEVER
from xlnet_jax.commands.inspect import draw, example, print_example, visible

ONE_WAY = {"objective": "mlm", "bidirectional": False}


def test_masks_of_the_golden_example():
    content, query = visible([-1, 2, 7, -1, 3, -1, 1, 6, 4], [1, 2, 6])
    assert [np.flatnonzero(~row).tolist() for row in content] == [
        [1, 2, 4, 6, 7, 8],
        [2, 4, 7, 8],
        [],
        [1, 2, 4, 6, 7, 8],
        [2, 7, 8],
        [1, 2, 4, 6, 7, 8],
        [1, 2, 4, 7, 8],
        [2],
        [2, 7],
    ]
    assert np.flatnonzero(query.any(axis=1)).tolist() == [1, 2, 6]
    assert np.flatnonzero(~query[1]).tolist() == [1, 2, 4, 7, 8]
    assert np.flatnonzero(~query[2]).tolist() == [2]
    assert np.flatnonzero(~query[6]).tolist() == [1, 2, 4, 6, 7, 8]


@pytest.mark.parametrize(
    ("data", "model", "targets"),
    [
        ({}, {}, 6),
        ({"objective": "clm", "reuse_len": 32, "num_predict": 32}, {}, 32),
        ({"objective": "mlm", "reuse_len": 29, "pairs": "order"}, {"memory_len": 0}, 6),
        (ONE_WAY | {"reuse_len": 29}, {"memory_len": 0, "architecture": "bert"}, 4),
        (
            ONE_WAY | {"reuse_len": 30, "pairs": "none"},
            {"memory_len": 0, "architecture": "roberta"},
            5,
        ),
        (
            ONE_WAY | {"reuse_len": 29, "pairs": "order", "short_rate": 1.0},
            {"memory_len": 0, "architecture": "albert"},
            5,
        ),
    ],
    ids=["plm", "clm", "mlm", "bert", "roberta", "albert"],
)
def test_an_example_of_every_objective_is_shown_as_it_is(data, model, targets, capsys, tmp_path):
    config = tiny.config(data={"corpus": data_fixtures.corpus_path(), **data}, model=model)
    shown = example(config, step=1, row=2)
    print_example(shown)
    printed = capsys.readouterr().out
    assert f"{targets} targets" in " ".join(printed.split())
    assert ("memory" in printed) == (not model)
    padding = shown["rank"].count(NEVER)
    assert padding == shown["pieces"].count("<pad>") == printed.count("padding")
    assert (padding > 0) == ("short_rate" in data)
    assert not visible(shown["rank"], [])[0][:, len(shown["rank"]) - padding :].any(), (
        "padding is seen"
    )
    # Which of two orders is only said where there are two segments.
    labels = {
        "next": ("B follows A", "B is from elsewhere"),
        "order": ("A and B are in order", "are swapped"),
    }
    said = [label in printed for label in labels.get(data.get("pairs", "next"), ())]
    assert sum(said) == (shown["label"] is not None)
    single = shown["pieces"].count("<sep>") < 2
    assert (shown["label"] is None) == single and single == (
        data.get("objective") == "clm" or "short_rate" in data or data.get("pairs") == "none"
    )
    if data.get("objective") == "clm":
        # A position sees itself and what is before it, and predicts the piece after it.
        assert shown["predicted"][:-1] == shown["pieces"][1:]
        assert "9 others" not in printed and "0 others, targets 0 1 2" in " ".join(printed.split())
    draw(shown, str(tmp_path / "mask.png"))
    assert (tmp_path / "mask.png").stat().st_size > 1000
