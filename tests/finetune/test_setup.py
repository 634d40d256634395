"""What a task takes from the run that it starts from: the whole architecture, and nothing of how it was trained."""

import dataclasses

import flax.linen as nn
import jax
import numpy as np
import pytest
import tiny

from xlnet_jax import config as configs
from xlnet_jax.checkpoint import restore
from xlnet_jax.commands.finetune import finetune
from xlnet_jax.distributed.processes import Session
from xlnet_jax.errors import BadInput
from xlnet_jax.finetune.recipe import task_recipe
from xlnet_jax.finetune.setup import _joined, prepare
from xlnet_jax.train.state import init_params

ARCHITECTURE = dict(
    layers=3, d_model=24, heads=3, head_dim=6, d_ff=20, activation="relu", biases_per_layer=False, norm="pre",
    scale_embedding=True, cutoffs="50,100", div_val=2, d_embed=12, tie_embedding=False, tie_projections="none",
    share_layers=True, clamp_len=7, layer_norm_epsilon=1e-6,
)  # fmt: skip
"""Another value of each key, but for those of the test below and for `vocab_size`, which the tokenizer decides."""
OF_RUN = dict(
    memory_len=5, dropout=0.3, attention_dropout=0.2, activation_dropout=0.1, init_std=0.5, compute_dtype="bfloat16",
    remat="full", attention="xla", unroll="on",
)  # fmt: skip


def test_a_task_has_the_whole_architecture_of_its_source_and_its_own_way_to_train(tmp_path, settings):
    source = str(tmp_path / "run")
    config = tiny.config(model=ARCHITECTURE | OF_RUN)
    tiny.save_run(source, config, tiny.random_params(config))
    asked = settings(checkpoint={"init_from": source}, finetune={"tokenizer": ""})
    of_family = {"architecture", "max_positions"}
    assert set(configs.ARCHITECTURE) == {*ARCHITECTURE, *of_family, "vocab_size", "position_scheme"}
    of_run = {field.name for field in dataclasses.fields(asked.model)} - set(configs.ARCHITECTURE)
    # The first two are for `data.objective=clm`, the last one is of other families.
    assert of_run == {*OF_RUN, "same_length", "layer_losses", "init_truncated"}
    train, _ = prepare(asked, str(tmp_path / "task"))
    found = vars(train.task.config.model)
    assert {name: found[name] for name in ARCHITECTURE} == ARCHITECTURE
    assert {name: found[name] for name in OF_RUN} == {name: getattr(asked.model, name) for name in OF_RUN}
    before = vars(asked.model)
    assert all(before[name] != value for name, value in (ARCHITECTURE | OF_RUN).items())
    # All parameters are taken, but for the head.
    recipe = task_recipe(train.task, train.rows[0], train.task.config)
    leaves = jax.eval_shape(lambda: nn.meta.unbox(init_params(recipe)))
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    leaves = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=one), leaves)
    _, origin = restore.foreign_parameters(source, leaves, Session())
    assert {name.split("/")[1] for name in origin["fresh"]} == {"head"}
    assert {name.split("/")[1] for name in origin["left_over"]} == {"lm_head"}


def test_a_dry_run_looks_at_the_step_of_its_source(tmp_path, settings):
    source = str(tmp_path / "run")
    config = tiny.config()
    tiny.save_run(source, config, tiny.random_params(config))
    asked = settings(checkpoint={"init_from": f"{source}/checkpoints/4"}, finetune={"tokenizer": ""})
    with pytest.raises(BadInput, match="no checkpoint of step 4; there are 3"):
        finetune(asked, str(tmp_path / "task"), dry_run=True)


def test_a_model_that_no_task_can_have_is_refused_in_one_line(tmp_path, settings):
    source = str(tmp_path / "run")
    clm = {"objective": "clm", "reuse_len": 32, "num_predict": 32}
    run = tiny.config(model={"position_scheme": "absolute", "memory_len": 0, "layer_losses": True}, data=clm)
    tiny.save_run(source, run, {"x": np.zeros(1)})
    config = settings(checkpoint={"init_from": source}, finetune={"tokenizer": ""})
    with pytest.raises(BadInput) as raised:
        finetune(config, str(tmp_path / "task"))
    assert str(raised.value) == (
        f"the model of {source} does not fit this task: model.position_scheme=absolute is for pretraining with "
        "data.objective=clm; all else needs relative"
    )
    assert not (tmp_path / "task").exists()


def test_the_page_says_what_the_configuration_decides():
    """docs/finetune.md; all other keys of the model come with the parameters."""
    page = (tiny.ROOT / "docs" / "finetune.md").read_text(encoding="utf-8")
    (row,) = [line for line in page.splitlines() if line.endswith("| the configuration |")]
    named = {name for name in vars(configs.ModelConfig()) if f"`{name}`" in row}
    assert named == set(vars(configs.ModelConfig())) - set(configs.ARCHITECTURE)


RECIPES = sorted((tiny.ROOT / "configs" / "finetune").glob("*.py"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_published_recipe_loads_and_says_how_it_is_run_and_what_to_expect(path):
    config = configs.load(str(path))
    assert config.finetune.task != "none" and config.finetune.train and config.finetune.dev
    assert config.optimizer.warmup_steps < config.train.steps
    assert config.train.steps % config.evaluation.every == 0
    text = path.read_text()
    assert f"--config=configs/finetune/{path.name} " in text and "not measured" in text.replace("\n", " ")
    wanted = "mnli qqp sst2 cola stsb mrpc rte squad2 squad2_base race imdb yelp5"
    assert {path.stem for path in RECIPES} >= set(wanted.split())


def test_a_label_that_cannot_be_a_name():
    for label, message in (("a,b", "the label 'a,b' has a comma, or spaces around it; rename it"),
                           ("x" * 1001, "has 1001 characters; name its column with finetune.columns")):  # fmt: skip
        with pytest.raises(BadInput, match=message):
            _joined({"b", label})
    assert _joined({"10", "9", "b"}) == "b,9,10"
