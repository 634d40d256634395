"""Writes docs/configuration.md from the documentation that every configuration key carries.

python docs/configuration.py
"""

import inspect
import pathlib

from xlnet_jax import config as configs
from xlnet_jax.errors import LARGEST_INT
from xlnet_jax.keys import allowed

HEAD = """# Configuration

A run is described by a Python file (`configs/`), whose `get_config()` returns a `ConfigDict`. It
starts from all defaults, `xlnet_jax.config.default()`, or from another file,
`config.start_from(__file__, "xlnet_large.py")`; the command line changes single keys,
`--config.train.steps=10`. Unknown keys and contradictions are refused before any device is used.

When a run is resumed, a key is

- **frozen**: it must not change (model, objective, data, seeds; corpus and tokenizer by hash);
- **elastic**: it may change, to fit other devices (batch size, mesh); another batch size empties
  the memory;
- **free**: it may change at any resume.

A **phase** key may differ between the [phases](training.md#phases) of a run, `config.phases`.
"""

SIGNS = {"at least": "≥", "above": ">", "at most": "≤", "below": "<"}


def values(field) -> str:
    """What a key may be: its choices, or its bounds."""
    bounds = {
        SIGNS[name]: bound
        for name, bound in field.metadata["bounds"].items()
        if bound != LARGEST_INT
    }
    return ", ".join(f"`{choice}`" for choice in field.metadata["choices"]) or allowed(
        field, bounds
    ).replace(" and ", ", ")


def page() -> str:
    """The page."""
    page, section = [HEAD], ""
    for name, field in configs.fields().items():
        if name.split(".")[0] != section:
            section = name.split(".")[0]
            what = inspect.getdoc(type(getattr(configs.Config(), section)))
            page.append(
                f"\n## {section}\n\n{what}\n\n| key | default | values | on resume | meaning |\n"
            )
            page.append("|---|---|---|---|---|\n")
        about = field.metadata
        resume = about["resume"] + ", phase" * about["phased"]
        page.append(
            f"| `{name}` | `{field.default!r}` | {values(field)} | {resume} | {about['doc']} |\n"
        )
    return "".join(page)


if __name__ == "__main__":
    pathlib.Path(__file__).with_name("configuration.md").write_text(page(), encoding="utf-8")
