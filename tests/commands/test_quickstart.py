"""The quick start, whole but with few steps."""

import json
import math
import os
import re

import jax
import pytest
import tiny

from xlnet_jax import config as configs
from xlnet_jax.cli import main
from xlnet_jax.commands.quickstart import CHARACTERS, PROMPT, QUESTIONS, show
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.infer.orders import _told, warn_of_order
from xlnet_jax.run.metrics import read_jsonl

CONFIG = os.path.join(str(tiny.ROOT), "configs", "quickstart.py")
MODERN = os.path.join(str(tiny.ROOT), "configs", "modern", "small_plm.py")
BY_CHARACTERS = os.path.join(str(tiny.ROOT), "configs", "transformer_xl", "quickstart.py")


@pytest.fixture
def one_device(monkeypatch):
    """As most who try it have; eight virtual ones wait for each other."""
    monkeypatch.setattr(meshes, "available_devices", lambda local=False: jax.devices()[:1])


def test_the_filled_texts_are_shown_with_their_probability(capsys):
    gap = {"text": "States\x1b", "log_prob": math.log(0.25)}
    filled = {"question": "The United [MASK:2].", "log_prob": math.log(0.25), "gaps": [gap]}
    show({"heldout_loss": 4.5, "filled": [filled]})
    loss, filled = capsys.readouterr().out.splitlines()
    assert loss.split() == ["heldout_loss", "4.5"]
    assert filled.split(maxsplit=1) == ["filled", "The United [States\\x1b].  25.0 %"]


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_quick_start_asks_what_its_model_was_taught(question, caplog):
    """A word has at least one piece: more would lower the share of what is unknown."""
    before, length, after = re.split(r"\[MASK:?(\d*)\]", question)
    known = [True] * len(before.split()) + [False] * int(length or 1) + [True] * len(after.split())
    _told.clear()
    warn_of_order(configs.load(CONFIG), [known], "random")
    assert not caplog.messages


@pytest.mark.slow
def test_the_quick_start_goes_all_the_way_and_says_done_the_second_time(
    tmp_path, capsys, monkeypatch, one_device
):
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("XLNET_INSTALL_SECONDS", "12.5")
    words = [
        "quickstart",
        f"--config={CONFIG}",
        f"--workdir={tmp_path}",
        "--json",
        "--config.train.steps=100",
        "--config.train.batch_size=8",
        "--config.checkpoint.every=50",
        "--config.optimizer.warmup_steps=20",
        "--config.evaluation.blocks=60",
    ]
    assert main(words) == 0
    result = json.loads(capsys.readouterr().out)
    assert {"seconds", "workdir"} <= result.keys() and result["install_seconds"] == 12.5
    assert result["loss_without_memory"] != result["heldout_loss"] and result["targets"] > 0
    assert result["heldout_loss"] < result["unigram_cross_entropy"] + 0.3, "nothing was learned"
    assert os.path.getsize(result["picture"]) > 5000
    assert os.path.exists(os.path.join(result["export"], "model.safetensors"))
    assert [len(one["gaps"][0]["pieces"]) for one in result["filled"]] == [1, 1, 1, 2]
    for question, one in zip(QUESTIONS, result["filled"], strict=True):
        before, after = re.split(r" \[MASK.*\]", question)
        assert one["question"] == question
        assert one["text"].startswith(before) and one["text"].endswith(after)
        assert -60 < one["log_prob"] < 0
        assert one["log_prob"] == pytest.approx(one["gaps"][0]["log_prob"])
    for name, steps in (("metrics", list(range(1, 101))), ("runs", [0, 50])):
        assert [line["step"] for line in read_jsonl(f"{tmp_path}/run/{name}.jsonl")] == steps
    assert main(words) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["heldout_loss"] == result["heldout_loss"]


@pytest.mark.prove
def test_the_quick_start_by_characters_scores_and_writes_text(tmp_path, capsys, one_device):
    words = [
        "quickstart",
        f"--config={BY_CHARACTERS}",
        f"--workdir={tmp_path}",
        "--json",
        "--config.train.steps=40",
        "--config.checkpoint.every=20",
        "--config.optimizer.warmup_steps=10",
        "--config.evaluation.blocks=100",
    ]
    assert main(words) == 0
    result = json.loads(capsys.readouterr().out)
    # Every target is one character, except for a few ends of documents.
    assert result["bits_per_character"] == pytest.approx(
        result["heldout_loss"] / math.log(2), rel=2e-3
    )
    assert result["heldout_loss"] < result["unigram_cross_entropy"], "nothing was learned at all"
    text = result["text"].removeprefix(PROMPT)
    assert result["text"] == PROMPT + text and 0 < len(text) <= CHARACTERS
    assert "export" not in result
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["text"] == PROMPT + text


@pytest.mark.prove
def test_the_quick_start_of_a_model_that_transformers_lacks_exports_for_orbax(
    tmp_path, capsys, one_device
):
    words = [
        "quickstart",
        f"--config={MODERN}",
        f"--workdir={tmp_path}",
        "--json",
        "--config.train.steps=20",
        "--config.checkpoint.every=20",
        "--config.optimizer.warmup_steps=10",
        "--config.evaluation.blocks=60",
    ]
    assert main(words) == 0
    result = json.loads(capsys.readouterr().out)
    assert os.path.isdir(os.path.join(result["export"], "params"))
    assert len(result["filled"]) == len(QUESTIONS)
