"""The commands and the Python of README.md and docs/."""

import contextlib
import io
import re

import tiny

PAGES = [tiny.ROOT / "README.md", *sorted((tiny.ROOT / "docs").glob("*.md"))]


def commands(text):
    """Every `xlnet-jax` line of a page's blocks, whole, without what is said of it beside it."""
    joined = re.sub(r"\\\n\s*", "", text)
    lines = re.findall(r"^(?: {4})?\s*(?:\$ )?(xlnet-jax [^\n]*)", joined, re.MULTILINE)
    return [re.split(r"\s+#|\s+[|&>;]|\s{3,}", line)[0] for line in lines]


def sessions(text):
    """Every block of Python that is followed by its output: both."""
    return re.findall(
        r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL
    )


def printed(program, names):
    """What a block prints; `names` are those that earlier blocks left."""
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        exec(program, names)  # our own documentation
    return shown.getvalue()
