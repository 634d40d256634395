"""Runs the notebooks of this folder one after the other, in one empty folder, and writes what their
cells print.

python docs/notebooks
"""

import contextlib
import io
import json
import os
import pathlib
import tempfile
from collections.abc import Iterator

FOLDER = pathlib.Path(__file__).parent
NOTEBOOKS = [FOLDER / "quickstart.ipynb", FOLDER / "any_order.ipynb"]
"""The second uses the model of the first."""


def printed(cells: list[dict]) -> Iterator[str]:
    """What each cell of code prints, in the working directory."""
    names: dict[str, object] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            with contextlib.redirect_stdout(io.StringIO()) as shown:
                exec("".join(cell["source"]), names)  # our own documentation
            yield shown.getvalue()


def main() -> None:
    """Rewrites the outputs."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for path in NOTEBOOKS:
            book = json.loads(path.read_text(encoding="utf-8"))
            code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
            for number, (cell, text) in enumerate(
                zip(code, printed(book["cells"]), strict=True), 1
            ):
                stream = {
                    "name": "stdout",
                    "output_type": "stream",
                    "text": text.splitlines(keepends=True),
                }
                cell["execution_count"], cell["outputs"] = number, [stream] * bool(text)
            path.write_text(json.dumps(book, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
