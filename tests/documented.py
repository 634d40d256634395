"""The names that docs/metrics.md has, and a run that writes another one fails, whatever test it
belongs to.
"""

import functools
import re

import tiny

from xlnet_jax.run.metrics import MetricsWriter


@functools.cache
def names(heading):
    """The names at the start of the list items below a heading, as a pattern: NAME stands for any
    name.
    """
    page = (tiny.ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    section = page.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    cells = re.findall(r"^- (`[^:]+`): ", section, re.MULTILINE)
    rows = [name for cell in cells for name in re.findall("`([^`]+)`", cell)]
    return "|".join(re.escape(row).replace("NAME", ".+") for row in rows)


def unknown(file, values):
    """The keys of a line of a file that the page lacks."""
    keys = [
        *values,
        *(
            f"{key}.{inner}"
            for key, value in values.items()
            if isinstance(value, dict)
            for inner in value
        ),
    ]
    return [key for key in keys if not re.fullmatch(names(f"{file}.jsonl"), key)]


def check_every_line():
    """From here on every line that is written in this process is compared with the page."""
    write = MetricsWriter.write

    def checked(writer, name, values):
        lacking = unknown(name, values)
        assert not lacking, f"docs/metrics.md, {name}.jsonl, lacks {lacking}"
        write(writer, name, values)

    MetricsWriter.write = checked
