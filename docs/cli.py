"""Writes docs/cli.md from what declares the commands: the same table as of `--help`.

python docs/cli.py
"""

import pathlib
import re

from xlnet_jax.command_list import COMMANDS, TOPICS
from xlnet_jax.errors import LARGEST_INT
from xlnet_jax.keys import allowed

HEAD = """# Command line

All commands, as in `xlnet-jax COMMAND --help`. With `--json` stdout has one JSON object, or one
for each text; all other output goes to stderr. Commands with `--config`, `--configs` or `--workdir`
(except `doctor`) take `--config.KEY=VALUE`, which changes a [key](configuration.md). An error is
one line on stderr; with `--json` it is also an object on stdout,
`{"error": "...", "exit_code": 2}`.

## Exit codes

[Signals](resume.md#signals) describes the effect of a signal in each phase of a run.

| exit code | of every command |
|---|---|
"""
EXIT_CODES = {
    0: "done",
    1: "a bug of ours (a traceback)",
    2: (
        "bad input or configuration, or a disk or permission that stays bad: the line says what, "
        "where, and what to do"
    ),
    3: "the run diverged: too many bad steps in a row (non-finite, or spikes)",
    42: (
        "interrupted by a signal, a hang, a lost process or worker, or a silent disk or bucket: "
        "rerun the same command, which resumes from the newest checkpoint"
    ),
    130: (
        "ended at once: the second Ctrl-C of a training run (or a SIGTERM or SIGHUP over ten "
        "seconds after the first signal), or Ctrl-C in a command that "
        "neither computes with a model nor prepares a corpus"
    ),
    141: r"the reader of the output closed it, as in `xlnet-jax ... \| head -1`",
}


SIGNS = {"at least": "≥", "above": ">", "at most": "≤", "below": "<"}


def row(option) -> str:
    """The line of an option or of a word without a name: its default, its values and its help."""
    words = option.keywords
    values = ", ".join(f"`{choice}`" for choice in words.get("choices") or ())
    if option.field and not values:
        bounds = option.field.metadata["bounds"].items()
        values = allowed(
            option.field, {SIGNS[name]: bound for name, bound in bounds if bound != LARGEST_INT}
        ).replace(" and ", ", ")
    name = option.name + (
        f"={words['metavar']}" if "metavar" in words and option.name.startswith("--") else ""
    )
    needed = words.get("required") or not (option.name.startswith("--") or "nargs" in words)
    default = (
        "required"
        if needed
        else f"`{words['default']}`"
        if words.get("default") not in (None, "", [])
        else ""
    )
    # The page has a column for it.
    help = re.sub(r" \(default:? [^)]*\)$", "", words["help"]) if default else words["help"]
    # The head of the page says it of every configuration.
    help = help.replace("; --config.KEY=VALUE changes a key", "")
    return f"| `{name}` | {default} | {values} | {help} |\n"


def page() -> str:
    """The page."""
    page = [HEAD, *(f"| {code} | {meaning} |\n" for code, meaning in EXIT_CODES.items())]
    for topic, names in TOPICS.items():
        page.append(f"\n## {topic.capitalize()}\n")
        for command in [
            command for name in names for command in COMMANDS if command.name.split()[0] == name
        ]:
            example, *more = command.example.split("\n\n")
            page.append(f"\n### {command.name}\n\n{command.help}\n\n```bash\n{example}\n```\n\n")
            page += [f"{each}\n\n" for each in more]
            page.append("| option | default | values | meaning |\n|---|---|---|---|\n")
            page += map(row, command.options)
    return "".join(page)


if __name__ == "__main__":
    pathlib.Path(__file__).with_name("cli.md").write_text(page(), encoding="utf-8")
