"""Every command of README.md and docs/ is one that the command line understands."""

import shlex

import pages
import pytest

from xlnet_jax import config as configs
from xlnet_jax.cli import make_parser
from xlnet_jax.config import Config

PARSER, KEYS = make_parser(), configs.flat(Config())


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.name)
def test_every_command_can_be_parsed(page):
    for command in pages.commands(page.read_text(encoding="utf-8")):
        args, others = PARSER.parse_known_args(shlex.split(command)[1:])
        for word in others:
            key = word.removeprefix("--config.").partition("=")[0].rpartition("].")[2]
            assert args.chosen.overrides and word.startswith("--config.") and key in KEYS, (
                f"{command}: {word}"
            )


def test_the_commands_of_the_pages_are_found():
    assert sum(len(pages.commands(page.read_text(encoding="utf-8"))) for page in pages.PAGES) > 60
