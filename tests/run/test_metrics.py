"""Metrics on disk: cut back on resume, whole lines only."""

import json
import math
import sys
import time
import types

import jax
import numpy as np
import pytest
import shared

from xlnet_jax.commands.train import train
from xlnet_jax.errors import BadInput
from xlnet_jax.run import goodput, metrics, workdir
from xlnet_jax.train.evaluation import scores


def steps_of(*names):
    return [line["step"] for line in metrics.read_jsonl(*map(str, names))]


def test_no_step_appears_twice_after_a_resume(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert steps_of(path) == []
    writer = metrics.MetricsWriter(str(tmp_path), 0, tensorboard=True)
    for step in range(1, 8):
        writer.write("metrics", {"step": step, "loss": 1.0 / step, "mfu": None})
    writer.write("evaluations", {"step": 4, "loss": 2.0})
    writer.write("evaluations", {"step": 6, "loss": 1.5})
    writer.close()
    with open(path, "a", encoding="utf-8") as file:
        file.write('{"step": 8, "lo')  # what a crash leaves
    assert steps_of(path) == [1, 2, 3, 4, 5, 6, 7]
    resumed = metrics.MetricsWriter(str(tmp_path), 5, tensorboard=False)
    resumed.write("metrics", {"step": 6, "loss": 0.5})
    resumed.close()
    assert steps_of(path) == [1, 2, 3, 4, 5, 6]
    assert metrics.read_jsonl(str(path))[-1]["loss"] == 0.5
    assert steps_of(tmp_path, "evaluations.jsonl") == [4]


def test_a_line_with_text_for_a_number_is_damaged(tmp_path, caplog):
    path = tmp_path / "time.jsonl"
    good = goodput.Goodput().line(2)
    lines = [
        good,
        {**good, "time": "noon"},
        {**good, "seconds": {**good["seconds"], "device": "x"}},
        {**good, "seconds": "many"},
        {"step": 3, "loss": [1]},
    ]
    path.write_text(
        "".join(json.dumps(line) + "\n" for line in lines) + '{"step": ' * 100_000 + "\n"
    )
    assert metrics.read_jsonl(str(path)) == [good]
    assert caplog.text.count("is damaged and is ignored") == 5
    less = [{**good, "seconds": None}, {**good, "seconds": {"device": 1.0}}, {**good, "time": None}]
    assert goodput.last_complete([good, *less]) == good
    again = goodput.Goodput()
    again.resume_from([good, *less])
    assert again.seconds["restarts"] > 0
    path = tmp_path / "runs.jsonl"
    path.write_text('{"step": 0, "time": "noon"}\n')
    assert metrics.read_jsonl(str(path)) == [{"step": 0, "time": "noon"}]


@pytest.mark.slow
def test_weights_and_biases_gets_the_metrics_of_all_starts_as_one_run(
    tmp_path, pytestconfig, monkeypatch
):
    monkeypatch.setenv("WANDB_MODE", "offline")
    settings = shared.settings(
        pytestconfig, evaluation={"every": 4, "blocks": 8}, log={"wandb": "a project"}
    )
    for stop in (4, 8):
        train(settings, str(tmp_path), stop_at=stop)
        time.sleep(1.1)  # the folder of a start has its second in its name
    first, second = sorted((tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))
    assert first.name == second.name
    for path in (first, second):
        content = path.read_bytes()
        # Once for each line, and again where the file says which metrics there are.
        assert all(content.count(name) >= 4 for name in (b"train/loss", b"train/grad_norm"))
        for name in (b"heldout/perplexity", b"a project", b"train.steps"):
            assert name in content
        assert b"train/mfu" not in content


def test_weights_and_biases_is_of_process_0_and_its_package_is_asked_for(tmp_path, monkeypatch):
    assert metrics.open_wandb("", str(tmp_path), {}) is None
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(
        BadInput, match=r"log.wandb=project: run `pip install .*\[wandb\].*, or leave the key empty"
    ):
        metrics.open_wandb("project", str(tmp_path), {})
    monkeypatch.undo()
    refusing = types.SimpleNamespace(
        Error=OSError, Settings=dict, init=lambda **_: (_ for _ in ()).throw(OSError("no"))
    )
    monkeypatch.setitem(sys.modules, "wandb", refusing)
    with pytest.raises(
        BadInput, match="log.wandb=project: no; WANDB_MODE=offline writes to a folder"
    ):
        metrics.open_wandb("project", str(tmp_path), {})
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    assert metrics.open_wandb("project", str(tmp_path), {}) is None


def test_only_finite_losses_decide_which_checkpoint_is_best(tmp_path):
    counts = np.ones(3, np.int64)
    result = scores(np.array([[math.nan, 5600.0, 7.0]]), ("",), counts, counts)
    assert result["heldout_loss"] is result["perplexity"] is None
    assert result["loss_without_memory"] == 800.0
    assert scores(np.array([[5600.0, 5600.0, 7.0]]), ("",), counts, counts)["perplexity"] is None
    (tmp_path / "evaluations.jsonl").write_text(
        '{"step": 2, "loss": NaN}\n{"step": 4, "loss": null}\n{"step": 6, "loss": 0.5}\n'
        '{"step": 8, "heldout_loss": 0.4}\n{"step": 10, "loss": 0.3, "rank": -0.9}\n'
    )
    # A task calls it `loss`, and may have a rank.
    assert workdir.losses(str(tmp_path)) == {6: 0.5, 8: 0.4, 10: -0.9}
