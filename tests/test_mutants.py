"""The list of faults is in step with the code, and a fault that was not tried is not called
escaped.
"""

import subprocess
import sys
import types

import mutants
import pytest
import tiny


def test_every_fault_can_be_planted_and_its_tests_exist():
    assert len({mutant.name for mutant in mutants.MUTANTS}) == len(mutants.MUTANTS) >= 38
    for mutant in mutants.MUTANTS:
        source = (tiny.ROOT / mutant.file).read_text(encoding="utf-8")
        assert len(mutants.spans(mutant, source)) == 1, (
            f"{mutant.name}: {mutant.before!r} must stand once in {mutant.file}"
        )
        for test in mutant.tests:
            file, _, name = test.partition("::")
            name = name.partition("[")[0].rstrip("*")
            assert f"def {name}" in (tiny.ROOT / file).read_text(encoding="utf-8"), (
                f"{mutant.name}: no {test}"
            )


def test_a_planted_fault_is_a_program(tmp_path):
    """Fails if the code has other names by now: such a fault would stop every test, and show
    nothing.
    """
    for mutant in mutants.MUTANTS:
        source = (tiny.ROOT / mutant.file).read_text(encoding="utf-8")
        suffix = mutant.file.rpartition(".")[2]  # ruff reads those in Python, not the shell scripts
        (tmp_path / f"{mutant.name}.{suffix}").write_text(
            mutants.planted(mutant, source), encoding="utf-8"
        )
    words = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--isolated",
        "--select=F821",
        "--output-format=concise",
        tmp_path,
    ]
    found = subprocess.run(words, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr


REPORT = '<testsuite><testcase><failure message="{}"/></testcase></testsuite>'


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        (0, None, "escaped"),
        (1, "AssertionError: not close", "caught"),
        (1, "assert 1 == 2", "caught"),
        (1, "TypeError: no such argument", "unfinished"),
        (2, None, "unfinished"),  # an error in collection
        (None, None, "unfinished"),  # a time-out
    ],
)
def test_a_fault_is_caught_or_let_through_or_neither_is_known(
    monkeypatch, tmp_path, code, message, kind
):
    def run(command, **options):
        if code is None:
            raise subprocess.TimeoutExpired(command, options["timeout"])
        (report,) = [word.partition("=")[2] for word in command if word.startswith("--junitxml=")]
        if message:
            with open(report, "w", encoding="utf-8") as file:
                file.write(REPORT.format(message))
        return subprocess.CompletedProcess(command, code, stdout="what pytest said")

    monkeypatch.setattr(
        mutants,
        "subprocess",
        types.SimpleNamespace(run=run, TimeoutExpired=subprocess.TimeoutExpired),
    )
    verdict = mutants.check(mutants.MUTANTS[0], str(tmp_path))
    assert verdict.kind == kind and (kind == "caught") == (not verdict.reason)


def test_one_fault_that_is_not_caught_is_a_failure(monkeypatch):
    kinds = iter(["caught", "escaped"])
    monkeypatch.setattr(mutants, "MUTANTS", mutants.MUTANTS[:2])
    monkeypatch.setattr(mutants, "check", lambda *_: mutants.Verdict(next(kinds), ""))
    monkeypatch.setattr("sys.argv", ["mutants.py", "--jobs=1"])
    assert mutants.main() == 1
