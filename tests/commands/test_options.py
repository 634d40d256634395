"""An option is declared once, for the command line and as a keyword of the library."""

import dataclasses

import pytest

from xlnet_jax.cli import make_parser
from xlnet_jax.errors import BadInput
from xlnet_jax.infer.options import Fill, Generate, Score

DECLARED = {"fill": Fill, "generate": Generate, "score": Score}


@pytest.mark.parametrize("command", DECLARED)
def test_the_command_line_has_what_is_declared(command):
    options = DECLARED[command]
    parsed = vars(make_parser().parse_args([command, "--workdir=W"]))
    for field in dataclasses.fields(options):
        assert parsed[field.name] == field.default
    assert options(seed=3).seed == 3
    with pytest.raises(TypeError, match="parallel"):
        options(parallel=3)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("seed", -1, "seed=-1 must be at least 0"),
        ("top_k", 1.5, "top_k=1.5 must be a whole number"),
        ("top_p", 0, "top_p=0 must be above 0"),
        ("temperature", "warm", "temperature='warm' must be a number"),
        ("temperature", float("nan"), "temperature=nan must be finite"),
        ("order", "right", "order=right is not one of left, reversed, random, confidence"),
        ("top_k", 3, "top_k and top_p change nothing with temperature=0"),
    ],
)
def test_a_value_out_of_range_is_refused(name, value, message):
    with pytest.raises(BadInput, match=f"^{message}"):
        Fill(**{name: value})
