"""Every refusal has a test of its text: `RUN` characters of what a `BadInput` says stand in some
test.
"""

import ast
import functools
import re

import tiny

RUN = 12


@functools.cache
def said_in_tests():
    """The texts in tests/, patterns without their backslashes."""
    trees = [
        ast.parse(path.read_text(encoding="utf-8"))
        for path in tiny.TESTS.rglob("*.py")
        if path.name not in ("mutants.py", "test_refusals.py")
    ]
    texts = [
        re.sub(r"\\(.)", r"\1", node.value)
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return "\n".join(texts)


def untested(source):
    """The lines of the refusals in a source whose own words are in no test; a cause that is only
    quoted has none.
    """
    found = []
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "BadInput"
        ):
            parts = [
                part.value for part in ast.walk(node.args[0]) if isinstance(part, ast.Constant)
            ]
            runs = {
                part[at : at + RUN]
                for part in parts
                if isinstance(part, str)
                for at in range(len(part) - RUN + 1)
            }
            if runs and not any(run in said_in_tests() for run in runs):
                found.append(node.lineno)
    return found


def test_the_words_of_a_refusal_that_no_test_knows_are_found():
    assert untested('raise BadInput(f"{path}: nobody has ever tested " + x)') == [1]
    assert untested('raise BadInput(f"{path}: {summary(error)}")') == []  # words of another program
    assert untested('raise BadInput(f"{path}: no such file")') == []


def test_every_refusal_has_a_test_of_its_text():
    lacking = [
        f"{path.relative_to(tiny.ROOT)}:{line}"
        for path in sorted((tiny.ROOT / "xlnet_jax").rglob("*.py"))
        for line in untested(path.read_text(encoding="utf-8"))
    ]
    assert not lacking
