"""Writes docs/configuration.md from the documentation that every configuration key carries.

python docs/configuration.py
"""

import os

from xlnet_jax import config as configs

HEAD = """# Configuration

A run is described by a Python file (`configs/`), whose `get_config()` returns a `ConfigDict`; the command line changes
single keys: `--config.train.steps=10`. A key that does not exist is refused with the nearest one that does, and fields
that contradict each other are refused before any device is touched.

What may happen to a key when a run is resumed:

- **frozen**: must be as it was (model, objective, data, seeds; also the corpus and tokenizer, by their hash);
- **elastic**: may change; the data plan and the log take note of it (batch size, mesh);
- **free**: may change at any start.
"""


def main() -> None:
    """Rewrites the page."""
    page, section = [HEAD], ""
    for name, field in configs.fields().items():
        if name.split(".")[0] != section:
            section = name.split(".")[0]
            what = type(getattr(configs.Config(), section)).__doc__
            page.append(f"\n## {section}\n\n{what}\n\n| key | default | on resume | what it is |\n|---|---|---|---|\n")
        page.append(f"| `{name}` | `{field.default!r}` | {field.metadata['resume']} | {field.metadata['doc']} |\n")
    with open(os.path.join(os.path.dirname(__file__), "configuration.md"), "w", encoding="utf-8") as file:
        file.write("".join(page))


if __name__ == "__main__":
    main()
