"""README.md, CONTRIBUTING.md and docs/guarantees.md: every place, test and page that they name
exists.
"""

import importlib
import os
import re
import shutil
import subprocess

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


@pytest.mark.parametrize(("what", "where", "test"), ROWS, ids=[row[0] for row in ROWS])
def test_every_place_exists(what, where, test):
    assert (tiny.ROOT / test).exists(), f"{what}: {test}"
    if "/" in where:
        assert (tiny.ROOT / where).exists(), f"{what}: {where}"
    else:
        resolve(where)


def test_the_diffs_are_of_the_files_that_they_name():
    """The lines of a hunk follow each other in the file, and the hunks of a file are in its
    order.
    """
    hunks = 0
    for diff in re.findall(r"^```diff\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL):
        assert not [line for line in diff.splitlines() if line[0] not in "+ "]
        for path, rest in re.findall(
            r"^\+\+\+ ([\w/.]+).*\n((?:(?!\+\+\+ ).*\n)+)", diff, re.MULTILINE
        ):
            source, at = "\n" + (tiny.ROOT / path).read_text(encoding="utf-8"), 0
            for hunk in re.findall(r"(?:^\+.*\n)+", rest, re.MULTILINE):
                lines = "\n" + re.sub(r"^\+", "", hunk, flags=re.MULTILINE)
                at = source.find(lines, at)
                assert at >= 0, f"{path} has no such lines, or not here: {lines}"
                at, hunks = at + len(lines) - 1, hunks + 1
    assert hunks > 25 and len(ROWS) > 20


def test_the_files_that_a_page_names_exist():
    named = 0
    for page in (tiny.ROOT / "CONTRIBUTING.md", *(tiny.ROOT / "docs").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        for path in re.findall(r"`(\w+/[\w/]*\w\.(?:md|py|sh|yml))`", text):
            places = [tiny.ROOT / room / path for room in ("", "xlnet_jax", "configs")]
            assert any(place.exists() for place in places), f"{page.name}: {path}"
            named += 1
    assert named > 200


def test_every_guarantee_names_tests_that_exist():
    page = (tiny.ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if re.match(r"\| (?!guarantee )", line)]
    assert len(rows) > 25
    for row in rows:
        tests = re.findall(r"`(tests/[^`]*|make [a-z]+)`", row.rpartition(" | ")[2])
        assert tests, f"no test is named: {row}"
        assert all(test.startswith("make") or (tiny.ROOT / test).exists() for test in tests), row


def test_ci_runs_every_part_and_names_those_that_fail(tmp_path):
    """With a `make` that only takes notes, and for which the tests fail."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(tiny.ROOT / ".ci" / "run", tmp_path / ".ci")
    (tmp_path / "make").write_text(
        f'#!/bin/sh\necho "make $1" >> {tmp_path}/called\n[ "$1" != test ]\n'
    )
    (tmp_path / "make").chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        [tmp_path / ".ci" / "run"], env=environment, capture_output=True, text=True
    )
    called = (tmp_path / "called").read_text().splitlines()
    assert "make lint" in called and done.returncode == 1
    assert re.findall(r"^(\S+) .* FAILED$", done.stdout, re.MULTILINE) == ["test"], done.stdout
    # All that `make test-ci` has, it has.
    listed = re.search(
        r"^test-ci: (.*) ##", (tiny.ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert {f"make {name}" for name in listed[1].split()} <= {*called}
