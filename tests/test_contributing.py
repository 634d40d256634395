"""README.md, CONTRIBUTING.md and docs/guarantees.md: every place, test and page that they name exists."""

import importlib
import re

import pytest
import tiny

TEXT = (tiny.ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| ([^|]+) \| `([^`]+)` \| `([^`]+)` \|$", TEXT, re.MULTILINE)


def resolve(name: str) -> object:
    """The module, class or function behind a dotted name below the package."""
    words = name.split(".")
    for length in range(len(words), 0, -1):
        try:
            named: object = importlib.import_module(".".join(["xlnet_jax", *words[:length]]))
        except ModuleNotFoundError:
            continue
        for word in words[length:]:
            named = getattr(named, word)
        return named
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


def test_the_diffs_are_of_the_files_that_they_name():
    diffs = re.findall(r"^\+\+\+ ([\w/.]+).*\n((?:[+ ](?!\+\+).*\n)+)", TEXT, re.MULTILINE)
    assert len(diffs) > 8
    for path, lines in diffs:
        source = (tiny.ROOT / path).read_text(encoding="utf-8").splitlines()
        missing = [line for line in lines.splitlines() if line.startswith("+") and line[1:] not in source]
        assert not missing, f"{path} has no such line: {missing}"


def test_every_guarantee_names_tests_that_exist():
    page = (tiny.ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if re.match(r"\| (?!guarantee )", line)]
    assert len(rows) > 25
    for row in rows:
        tests = re.findall(r"`(tests/[^`]*|make [a-z]+)`", row.rpartition(" | ")[2])
        assert tests, f"no test is named: {row}"
        assert all(test.startswith("make") or (tiny.ROOT / test).exists() for test in tests), row


def test_readme_is_short_and_its_pages_exist():
    text = (tiny.ROOT / "README.md").read_text(encoding="utf-8")
    pages = re.findall(r"\]\(((?:docs/)?[A-Za-z_]+\.md)", text)
    assert (
        text.count("\n") <= 100
        and len(text.split()) < 900
        and {"docs/guarantees.md", "docs/training.md", "CONTRIBUTING.md"} <= set(pages)
    )
    assert all((tiny.ROOT / page).exists() for page in pages)


def test_the_overview_lists_every_page():
    docs = tiny.ROOT / "docs"
    listed = re.findall(r"\]\((\w+\.md)\)", (docs / "index.md").read_text(encoding="utf-8"))
    assert {"index.md", *listed} == {page.name for page in docs.glob("*.md")}


def test_every_program_that_a_page_names_exists():
    for page in (tiny.ROOT / "docs").glob("*.md"):
        for path in re.findall(r"`(\w+/[\w/]+\.py)`", page.read_text(encoding="utf-8")):
            places = (tiny.ROOT, tiny.ROOT / "xlnet_jax", tiny.ROOT / "configs")
            assert any((folder / path).exists() for folder in places), f"{page.name}: {path}"
