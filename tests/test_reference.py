"""The reference is complete: commands, options, exit codes, metrics and files, each with its line.

Keys are held by tests/test_config.py, public names by tests/test_site.py, files of a run by
tests/train/test_loop.py.
"""

import re
import runpy
import shlex

import pytest
import tiny

from xlnet_jax import cli, errors
from xlnet_jax import config as configs
from xlnet_jax.command_list import COMMANDS, TOPICS
from xlnet_jax.run.metrics import MetricsWriter

DOCS = tiny.ROOT / "docs"


def test_the_page_of_the_commands_is_the_code():
    page = runpy.run_path(str(DOCS / "cli.py"))["page"]()
    assert page == (DOCS / "cli.md").read_text(encoding="utf-8"), "run docs/cli.py"
    for command in COMMANDS:
        section = page.split(f"\n### {command.name}\n")[1].split("\n### ")[0]
        for option in command.options:
            assert re.search(
                rf"^\| `{re.escape(option.name)}[=`].* \| [^|]+ \|$", section, re.MULTILINE
            ), option.name


def test_help_lists_every_command_once_by_topic():
    listed = [name for names in TOPICS.values() for name in names]
    assert sorted(listed) == sorted({command.name.split()[0] for command in COMMANDS})
    shown = cli.make_parser().format_help()
    assert re.findall(r"^(\w+):$", shown, re.MULTILINE) == ["options", *TOPICS]
    assert re.findall(r"^  (\w+) +[A-Z]", shown, re.MULTILINE) == listed


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_example_of_the_help_can_be_run(command, monkeypatch):
    monkeypatch.chdir(tiny.ROOT)
    lines = re.findall(r"xlnet-jax [^\n]+", command.example.split("\n\n")[0])
    assert lines
    for line in lines:
        args, others = cli.make_parser().parse_known_args(shlex.split(line)[1:])
        assert args.chosen is command
        for file in [
            getattr(args, "config", None),
            *(getattr(args, "configs", None) or "").split(","),
        ]:
            assert not file or configs.load(file, others)


def test_every_exit_code_has_its_line():
    page = (
        (DOCS / "cli.md")
        .read_text(encoding="utf-8")
        .split("\n## Exit codes\n")[1]
        .split("\n## ")[0]
    )
    codes = {
        0,
        errors.XLNetError.exit_code,
        cli.OUTPUT_CLOSED,
        *(x.exit_code for x in errors.XLNetError.__subclasses__()),
    }
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)} == codes
    said = re.findall(r"^ {4}(\d+)|  (\d+)  +\w", errors.__doc__, re.MULTILINE)
    assert {int(code) for pair in said for code in pair if code} == codes - {cli.OUTPUT_CLOSED}


def test_a_run_cannot_write_a_name_without_its_line(tmp_path):
    """Every test that trains is held to it; see `documented`."""
    writer = MetricsWriter(str(tmp_path), 0, tensorboard=False)
    writer.write("metrics", {"step": 1, "loss/books": 2.0})
    for file, values in (
        ("metrics", {"books": 2.0}),
        ("evaluations", {"lr": 1.0}),
        ("time", {"seconds": {"lost": 1}}),
    ):
        with pytest.raises(AssertionError, match=f"docs/metrics.md, {file}.jsonl, lacks"):
            writer.write(file, {"step": 1, **values})
