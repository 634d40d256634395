"""Inspect: the masks it draws are the ones the model uses."""

import data_fixtures
import numpy as np
import pytest
import tiny

from xlnet_jax.batch import NEVER
from xlnet_jax.commands.inspect import draw, example, print_example, visible

NEXT = {"B follows A", "B is from elsewhere"}
ORDER = {"A and B are in order", "A and B are swapped"}
ONE_WAY = {"objective": "mlm", "bidirectional": False}


def test_masks_of_the_golden_example():
    content, query = visible([-1, 2, 7, -1, 3, NEVER, 1], [1, 2])
    assert ["".join(map(str, row)) for row in content.astype(int)] == [
        "1001000",
        "1101001",
        "1111101",
        "1001000",
        "1101101",
        "1111101",
        "1001001",
    ]
    assert np.flatnonzero(query.any(axis=1)).tolist() == [1, 2]
    assert np.flatnonzero(query[1]).tolist() == [0, 3, 6]
    assert np.flatnonzero(query[2]).tolist() == [0, 1, 3, 4, 6]


@pytest.mark.parametrize(
    ("architecture", "data", "targets", "labels"),
    [
        ("", {}, 6, NEXT),
        ("", {"objective": "clm", "reuse_len": 32, "num_predict": 32}, 32, set()),
        ("xlnet", {"objective": "mlm", "reuse_len": 29, "pairs": "order"}, 6, ORDER),
        ("bert", ONE_WAY | {"reuse_len": 29}, 4, NEXT),
        ("roberta", ONE_WAY | {"reuse_len": 30, "pairs": "none"}, 5, set()),
        ("albert", ONE_WAY | {"reuse_len": 29, "pairs": "order", "short_rate": 1.0}, 5, set()),
    ],
    ids=["plm", "clm", "mlm", "bert", "roberta", "albert"],
)
def test_an_example_of_every_objective_is_shown_as_it_is(
    architecture, data, targets, labels, capsys, tmp_path
):
    """With the name of an architecture it has no memory."""
    model = {"architecture": architecture, "memory_len": 0} if architecture else {}
    config = tiny.config(data={"corpus": data_fixtures.corpus_path(), **data}, model=model)
    shown = example(config, step=1, row=2)
    print_example(shown)
    printed = " ".join(capsys.readouterr().out.split())
    assert f"{targets} targets" in printed and ("memory" in printed) == (not model)
    padding = shown["rank"].count(NEVER)
    assert padding == shown["pieces"].count("<pad>") == printed.count("padding")
    assert (padding > 0) == ("short_rate" in data)
    seen_TT, _ = visible(shown["rank"], [])
    assert not seen_TT[:, len(seen_TT) - padding :].any(), "padding is seen"
    # Which of two orders is only said where there are two segments.
    said = {label for label in NEXT | ORDER if label in printed}
    assert said <= labels and len(said) == (shown["label"] is not None) == bool(labels)
    assert (shown["pieces"].count("<sep>") < 2) == (not labels)
    if data.get("objective") == "clm":
        # A position sees itself and what is before it, and predicts the piece after it.
        assert shown["predicted"][:-1] == shown["pieces"][1:]
        assert "9 others" not in printed and "0 others, targets 0 1 2" in printed
    draw(shown, str(tmp_path / "mask.png"))
    assert (tmp_path / "mask.png").stat().st_size > 1000


@pytest.mark.parametrize("objective", ["plm", "mlm"])
def test_a_document_of_a_row_sees_itself_alone(objective, tmp_path):
    text = data_fixtures.write(tmp_path, text="Bado.\nKilu menora.\n" * 40)
    data_fixtures.make_corpus(tmp_path / "corpus", text, document="line", heldout=0.0)
    whole = {"documents": "whole", "reuse_len": 32, "windows_per_block": 1, "pairs": "none"}
    data = whole | {"objective": objective, "corpus": str(tmp_path / "corpus")}
    shown = example(tiny.config(data=data, model={"memory_len": 0}), step=1, row=2)
    rank, floor = (np.array(shown[name]) for name in ("rank", "floor"))
    used, same = rank < NEVER, floor == floor[:, None]
    assert len(set(floor[used])) > 1
    content, query = visible(shown["rank"], shown["targets"], shown["floor"])
    assert not content[~same].any() and not query[~same].any()
    if objective == "mlm":
        assert (content == same & used & used[:, None]).all()
    print_example(shown)
    draw(shown, str(tmp_path / "mask.png"))
