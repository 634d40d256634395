"""The published recipes: each file under configs/finetune is a configuration that `finetune` accepts."""

import pathlib

import pytest
import tiny

from xlnet_jax import config as configs

RECIPES = sorted((tiny.ROOT / "configs" / "finetune").glob("*.py"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_loads_and_says_how_it_is_run_and_what_to_expect(path: pathlib.Path):
    config = configs.load(str(path))
    assert config.finetune.task != "none" and config.finetune.train and config.finetune.dev
    assert config.optimizer.warmup_steps < config.train.steps
    assert config.train.steps % config.evaluation.every == 0
    text = path.read_text()
    assert f"--config=configs/finetune/{path.name} " in text and "not measured" in text.replace("\n", " ")


def test_there_is_one_for_every_published_task():
    wanted = "mnli qqp sst2 cola stsb mrpc rte squad2 squad2_base race imdb yelp5"
    assert {path.stem for path in RECIPES} >= set(wanted.split())
