"""The commands and the Python of README.md and docs/."""

import contextlib
import io
import re

import tiny

QUICKSTART = tiny.ROOT / "docs" / "quickstart.md"
TRANSLATIONS = [tiny.ROOT / "docs" / language / "quickstart.md" for language in ("ko", "zh")]
PAGES = [tiny.ROOT / "README.md", *sorted((tiny.ROOT / "docs").glob("*.md")), *TRANSLATIONS]


def name(page):
    """The path below the root or docs/, for the names of tests."""
    return str(page.relative_to(tiny.ROOT)).removeprefix("docs/")


def commands(text):
    """Every `xlnet-jax` line of a page's blocks, whole, without what is said of it beside it."""
    joined = re.sub(r"\\\n\s*", "", text)
    lines = re.findall(r"^(?: {4})?\s*(?:\$ )?(xlnet-jax [^\n]*)", joined, re.MULTILINE)
    return [re.split(r"\s+#|\s+[|&>;]|\s{3,}", line)[0] for line in lines]


def blocks(text):
    """Every block of commands, programs and output, whole."""
    return re.findall(r"^```.*?^```$|^(?: {4}[^\n]*\n)+", text, re.MULTILINE | re.DOTALL)


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
