"""One warning when a question goes beyond the distribution of the training."""

import logging

import pytest
import tiny

from xlnet_jax.infer.orders import _told, warn_of_order

WHOLE = {"segment_len": 32, "reuse_len": 32, "num_predict": 32}
SPANS, UNIFORM = tiny.config(), tiny.config(data={"factorization_order": "uniform", **WHOLE})
LEFT = tiny.config(data={"factorization_order": "left_within", **WHOLE})
ONE_WAY = tiny.config(data={"factorization_order": "left_within", "bidirectional": False, **WHOLE})


def known(length, *unknown):
    return [place not in unknown for place in range(length)]


def warnings(caplog, *question):
    caplog.clear()
    _told.clear()
    with caplog.at_level(logging.WARNING, "xlnet_jax"):
        warn_of_order(*question)
    assert len(caplog.records) <= 1
    return [record.getMessage() for record in caplog.records]


# SPANS has 6 targets in 32 positions and halves of 16.
@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (known(32, *range(16, 25)), []),
        (known(32, *range(16, 26)), ["up to 31 % of a segment is unknown (in training 19 %)"]),
        (known(32, 15), []),
        (
            known(32, 14),
            ["known text is up to 17 tokens right of an unknown position (in training 16)"],
        ),
        (known(32, 0, *range(20, 32)), ["up to 41 %", "up to 19 tokens right"]),
        # The next segment is not on the right: a text is read segment by segment.
        (known(64, 30), []),
        (known(64, *range(32, 64)), ["up to 100 %"]),
    ],
)
def test_spans_has_taught_a_share_and_half_a_segment_on_the_right(caplog, text, parts):
    found = warnings(caplog, SPANS, [known(8, 6), text])
    assert len(found) == bool(parts)
    assert all(part in found[0] for part in parts) and (
        not found or found[0].count(";") == len(parts)
    )


def test_the_line_comes_once_and_names_the_distribution_that_teaches_it(caplog):
    (line,) = warnings(caplog, SPANS, [known(32, *range(32))])
    assert line.startswith(
        "the model was trained with data.factorization_order=spans and "
        "may be poor here: up to 100 %"
    )
    assert line.endswith(
        "data.factorization_order=uniform, or left_within for whole texts from left to right"
    )
    warn_of_order(SPANS, [known(32, 0, *range(20, 32))])
    assert len(caplog.records) == 1
    warn_of_order(LEFT, [known(32, 0, 3, 9)], "random")
    assert len(caplog.records) == 2


def test_uniform_has_taught_everything_and_a_left_to_right_model_is_not_asked(caplog):
    causal = tiny.config(data={"objective": "clm", "reuse_len": 32, "num_predict": 32})
    assert not warnings(caplog, causal, [known(32, *range(32))])
    for order in ("left", "reversed", "random", "confidence", [3, 0]):
        assert not warnings(caplog, UNIFORM, [known(32, *range(32)), known(32, 0)], order)


def test_left_within_has_taught_one_order_or_both_by_reversed_rows(caplog):
    text = [known(32, 0, 3, 9)]
    down, up = [9, 3, 0], (0, 3, 9)
    for config, orders in ((LEFT, ("left", "reversed", up, down)), (ONE_WAY, ("left", up))):
        assert not any(warnings(caplog, config, text, order) for order in orders)
    for config, orders in (
        (LEFT, ("random", "confidence", [3, 0, 9])),
        (ONE_WAY, ("reversed", "random", down)),
    ):
        assert all(warnings(caplog, config, text, order) for order in orders)
    (line,) = warnings(caplog, LEFT, text, [3, 0, 9])
    assert (
        "order=given (in training left or reversed); for such questions train one with data.factor"
        in line
    )
