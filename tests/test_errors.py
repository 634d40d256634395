"""One line for every error, whatever library it comes from."""

import errno

import pytest

from xlnet_jax.errors import SUMMARY_LENGTH, BadInput, causes, summary


def caused(error, cause):
    error.__cause__ = cause
    return error


FULL = OSError(errno.ENOSPC, "No space left on device", "/run/metrics.jsonl")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("one\n  two\n"), "one two"),
        (ValueError(), "ValueError"),
        (KeyError("a"), "KeyError: a"),
        (KeyError('no "a"; did you mean "b"?'), 'no "a"; did you mean "b"?'),
        (FULL, "No space left on device"),
        # The deepest one says most.
        (
            caused(ValueError("Error reading x"), caused(RuntimeError("while reading"), FULL)),
            "No space left on device",
        ),
        (caused(ValueError("Error reading x"), ValueError()), "Error reading x"),
        (ExceptionGroup("save", [caused(ValueError("x"), FULL)]), "No space left on device"),
        # Unless an outer one quotes it, or is for people.
        (
            caused(ValueError("--steps=x: invalid literal"), ValueError("invalid literal")),
            "--steps=x: invalid literal",
        ),
        (caused(ValueError("x"), caused(BadInput("run: fix this"), FULL)), "run: fix this"),
        (ValueError("INTERNAL: cut short [tensorstore_spec='{...}']"), "INTERNAL: cut short"),
    ],
)
def test_summary(error, expected):
    assert summary(error) == expected


def test_a_long_summary_keeps_both_ends():
    text = summary(ValueError("begin " + "x" * 10_000 + " end"))
    assert len(text) <= SUMMARY_LENGTH and text.startswith("begin") and text.endswith("end")


def test_causes_of_a_group():
    inner = caused(ValueError("a"), FULL)
    group = ExceptionGroup("both", [inner, TypeError("b")])
    assert list(causes(group)) == [group, inner, FULL, group.exceptions[1]]
