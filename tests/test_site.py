"""The pages of docs/: their figures, notebooks, words, Python, and the names that api.md shows."""

import ast
import importlib
import json
import os
import re
import runpy
import shutil
import subprocess
import sys

import pages
import pytest
import tiny

import xlnet_jax as xj

DOCS = tiny.ROOT / "docs"
FIGURES = sorted((DOCS / "figures").glob("[a-z]*.py"))
NAVIGATION = (
    (tiny.ROOT / "mkdocs.yml")
    .read_text(encoding="utf-8")
    .partition("\nnav:")[2]
    .partition("markdown_extensions:")[0]
)
NUMBER = r"-?\d+\.\d+"


@pytest.mark.parametrize("script", FIGURES, ids=lambda script: script.stem)
def test_a_figure_is_what_its_script_draws(script, monkeypatch):
    monkeypatch.syspath_prepend(script.parent)
    assert (
        script.with_suffix(".svg").read_text(encoding="utf-8")
        == runpy.run_path(str(script))["draw"]()
    )


@pytest.mark.parametrize("page", pages.PAGES, ids=pages.name)
def test_the_python_of_a_page_imports_names_that_exist(page):
    text = page.read_text(encoding="utf-8")
    for program in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        for node in ast.walk(ast.parse(program)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("xlnet_jax"):
                module = importlib.import_module(str(node.module))
                assert all(hasattr(module, name.name) for name in node.names), ast.unparse(node)


@pytest.mark.parametrize("page", pages.PAGES, ids=pages.name)
def test_a_page_names_programs_and_targets_that_exist(page):
    """Beside `xlnet-jax`, which tests/commands has: `python FILE` and `make TARGET` in a block."""
    text, makefile = (
        page.read_text(encoding="utf-8"),
        (tiny.ROOT / "Makefile").read_text(encoding="utf-8"),
    )
    for program in re.findall(r"^(?: {4})?(?:\$ )?python (\S+\.py)", text, re.MULTILINE):
        assert (tiny.ROOT / program).exists(), program
    for target in re.findall(r"^(?: {4})?make ([a-z-]+)(?: +#.*)?$", text, re.MULTILINE):
        assert f"\n{target}: " in makefile, target


def test_the_python_of_a_page_that_needs_no_model_prints_what_it_shows():
    sessions = pages.sessions((DOCS / "examples.md").read_text(encoding="utf-8"))
    assert len(sessions) == 1 and [pages.printed(program, {}) for program, _ in sessions] == [
        sessions[0][1]
    ]


def test_the_navigation_has_four_groups_and_every_page_once():
    listed = re.findall(r": ((?:ko/|zh/)?\w+\.md)$", NAVIGATION, re.MULTILINE)
    pages_there = [*DOCS.glob("*.md"), *pages.TRANSLATIONS]
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in pages_there)
    groups = re.findall(r"^  - ([\w ]+):$", NAVIGATION, re.MULTILINE)
    assert groups == ["Tutorials", "How to", "Explanation", "Reference"]


def test_every_public_name_is_on_its_page():
    shown = re.findall(
        r"^::: xlnet_jax\.(\w+)$", (DOCS / "api.md").read_text("utf-8"), re.MULTILINE
    )
    assert sorted(shown) == sorted(xj.__all__)


def books(folder):
    """By name what the cells of each notebook print."""
    cells = {
        path.name: json.loads(path.read_text("utf-8"))["cells"] for path in folder.glob("*.ipynb")
    }
    return {
        name: [
            ["".join(output["text"]) for output in cell["outputs"]]
            for cell in book
            if "outputs" in cell
        ]
        for name, book in cells.items()
    }


@pytest.mark.slow
def test_the_notebooks_print_what_they_show(tmp_path):
    """A minute. Numbers with a point may differ from machine to machine."""
    shutil.copytree(DOCS / "notebooks", tmp_path / "notebooks")
    env = os.environ | {"PYTHONPATH": str(tiny.ROOT), "JAX_PLATFORMS": "cpu"}
    ended = subprocess.run(
        [sys.executable, "notebooks"], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    before, now = (
        {
            name: re.sub(rf" *{NUMBER}", " #", json.dumps(outputs))
            for name, outputs in books(folder).items()
        }
        for folder in (DOCS / "notebooks", tmp_path / "notebooks")
    )
    assert before == now and "the old cat drinks milk in the barn" in now["quickstart.ipynb"]
