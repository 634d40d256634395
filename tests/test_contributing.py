"""CONTRIBUTING.md says where to change what: every place and every test that it names exists."""

import importlib
import re

import pytest
import tiny

ROWS = re.findall(
    r"^\| ([^|]+) \| `([^`]+)` \| `([^`]+)` \|$", (tiny.ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE
)


def resolve(name: str) -> object:
    """The module, class or function behind a dotted name below the package."""
    words = name.split(".")
    for length in range(len(words), 0, -1):
        try:
            found: object = importlib.import_module(".".join(["xlnet_jax", *words[:length]]))
        except ModuleNotFoundError:
            continue
        for word in words[length:]:
            found = getattr(found, word)
        return found
    raise AssertionError(f"xlnet_jax.{name} is no module")


def test_the_table_is_read():
    assert len(ROWS) >= 20 and {"the loss", "the span law", "a new head", "a launch flag"} <= {row[0] for row in ROWS}
    with pytest.raises((AssertionError, AttributeError)):
        resolve("train.loss.nothing")
    with pytest.raises(AssertionError):
        resolve("nothing.at_all")


@pytest.mark.parametrize(("what", "where", "test"), ROWS, ids=[row[0] for row in ROWS])
def test_every_place_exists(what, where, test):
    assert (tiny.ROOT / test).exists(), f"{what}: {test}"
    if "/" in where:
        assert (tiny.ROOT / where).exists(), f"{what}: {where}"
    else:
        resolve(where)
