"""Every command of README.md and docs/ is one that the command line understands, and translations
have the same commands.
"""

import shlex

import pages
import pytest

from xlnet_jax import config as configs
from xlnet_jax.cli import make_parser
from xlnet_jax.config import Config

PARSER, KEYS = make_parser(), configs.flat(Config())


@pytest.mark.parametrize("page", pages.PAGES, ids=pages.name)
def test_every_command_can_be_parsed(page):
    for command in pages.commands(page.read_text(encoding="utf-8")):
        args, others = PARSER.parse_known_args(shlex.split(command)[1:])
        for word in others:
            key = word.removeprefix("--config.").partition("=")[0].rpartition("].")[2]
            assert args.chosen.overrides and word.startswith("--config.") and key in KEYS, (
                f"{command}: {word}"
            )


@pytest.mark.parametrize("page", pages.TRANSLATIONS, ids=lambda page: page.parent.name)
def test_a_translation_has_the_commands_and_outputs_of_the_quick_start(page):
    theirs, ours = (
        pages.blocks(each.read_text(encoding="utf-8")) for each in (page, pages.QUICKSTART)
    )
    assert theirs == ours and len(ours) > 9


def test_the_commands_of_the_pages_are_found():
    assert sum(len(pages.commands(page.read_text(encoding="utf-8"))) for page in pages.PAGES) > 60
