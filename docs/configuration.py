"""Writes docs/configuration.md from the documentation that every configuration key carries.

python docs/configuration.py
"""

import inspect
import pathlib

from xlnet_jax import config as configs
from xlnet_jax.errors import LARGEST_INT
from xlnet_jax.keys import allowed

HEAD = """# Configuration

A run is described by a Python file (`configs/`), whose `get_config()` returns a `ConfigDict`; the
command line changes single keys: `--config.train.steps=10`. A key that does not exist is refused
with the nearest one that does, and fields that contradict each other are refused before any device
is touched. `get_config()` starts from all defaults, `config.default()` of `xlnet_jax`, or from
another file: `config.start_from(__file__, "xlnet_large.py")`.

What may happen to a key when a run is resumed:

- **frozen**: must be as it was (model, objective, data, seeds; also the corpus and tokenizer, by
  their hash);
- **elastic**: may change; the data plan and the log take note of it (batch size, mesh);
- **free**: may change at any start.

Keys with **phase** beside it may differ between the [phases](training.md#phases) of a run, `config.phases`.

Upper bounds of a number are far above any run: a typing error shall not take all memory before it
is found.
"""  # noqa: E501


def values(field) -> str:
    """What a key may be: its choices, or its bounds."""
    bounds = {
        name: bound for name, bound in field.metadata["bounds"].items() if bound != LARGEST_INT
    }
    return ", ".join(f"`{choice}`" for choice in field.metadata["choices"]) or allowed(
        field, bounds
    )


def page() -> str:
    """The page."""
    page, section = [HEAD], ""
    for name, field in configs.fields().items():
        if name.split(".")[0] != section:
            section = name.split(".")[0]
            what = inspect.getdoc(type(getattr(configs.Config(), section)))
            page.append(
                f"\n## {section}\n\n{what}\n\n| key | default | values | on resume | what it is |\n"
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
