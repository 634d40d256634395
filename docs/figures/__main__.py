"""Writes the figures of docs/: every script here draws the SVG file of its name.

python docs/figures [NAME...]
"""

import pathlib
import runpy
import sys

FOLDER = pathlib.Path(__file__).parent


def drawn(*names: str) -> dict[pathlib.Path, str]:
    """The figures of these names, or all, by their files."""
    scripts = [
        script for script in sorted(FOLDER.glob("[a-z]*.py")) if not names or script.stem in names
    ]
    return {script.with_suffix(".svg"): runpy.run_path(str(script))["draw"]() for script in scripts}


if __name__ == "__main__":
    for path, text in drawn(*sys.argv[1:]).items():
        path.write_text(text, encoding="utf-8")
