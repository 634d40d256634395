"""Metrics on disk: cut back on resume, whole lines only."""

import json
import math

import numpy as np

from xlnet_jax.run import goodput, metrics, workdir
from xlnet_jax.train.evaluation import scores


def test_no_step_appears_twice_after_a_resume(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert metrics.read_jsonl(str(path)) == []
    writer = metrics.MetricsWriter(str(tmp_path), 0, tensorboard=True)
    for step in range(1, 8):
        writer.write("metrics", {"step": step, "loss": 1.0 / step, "mfu": None})
    writer.write("evaluations", {"step": 4, "loss": 2.0})
    writer.write("evaluations", {"step": 6, "loss": 1.5})
    writer.close()
    with open(path, "a", encoding="utf-8") as file:
        file.write('{"step": 8, "lo')  # what a crash leaves
    assert [line["step"] for line in metrics.read_jsonl(str(path))] == [1, 2, 3, 4, 5, 6, 7]
    resumed = metrics.MetricsWriter(str(tmp_path), 5, tensorboard=False)
    resumed.write("metrics", {"step": 6, "loss": 0.5})
    resumed.close()
    lines = metrics.read_jsonl(str(path))
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert lines[-1]["loss"] == 0.5
    assert [line["step"] for line in metrics.read_jsonl(str(tmp_path / "evaluations.jsonl"))] == [4]


def test_a_line_with_text_for_a_number_is_damaged(tmp_path, caplog):
    path = tmp_path / "time.jsonl"
    good = goodput.Goodput().line(2)
    lines = [good, {**good, "time": "noon"}, {**good, "seconds": {**good["seconds"], "device": "x"}},
             {**good, "seconds": "many"}, {"step": 3, "loss": [1]}]  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": ' * 100_000 + "\n")
    assert metrics.read_jsonl(str(path)) == [good] and caplog.text.count("is damaged and is ignored") == 5
    less = [{**good, "seconds": None}, {**good, "seconds": {"device": 1.0}}, {**good, "time": None}]
    assert goodput.last_complete([good, *less]) == good
    again = goodput.Goodput()
    again.resume_from([good, *less])
    assert again.seconds["restarts"] > 0
    path = tmp_path / "runs.jsonl"
    path.write_text('{"step": 0, "time": "noon"}\n')
    assert metrics.read_jsonl(str(path)) == [{"step": 0, "time": "noon"}]


def test_only_finite_losses_decide_which_checkpoint_is_best(tmp_path):
    counts = np.ones(3, np.int64)
    result = scores(np.array([[math.nan, 5600.0, 7.0]]), ("",), counts, counts)
    assert result["heldout_loss"] is None and result["perplexity"] is None and result["loss_without_memory"] == 800.0
    assert scores(np.array([[5600.0, 5600.0, 7.0]]), ("",), counts, counts)["perplexity"] is None
    (tmp_path / "evaluations.jsonl").write_text(
        '{"step": 2, "loss": NaN}\n{"step": 4, "loss": null}\n{"step": 6, "loss": 0.5}\n'
        '{"step": 8, "heldout_loss": 0.4}\n{"step": 10, "loss": 0.3, "rank": -0.9}\n'
    )
    # An older version called it `loss`; a task has its rank.
    assert workdir.losses(str(tmp_path)) == {6: 0.5, 8: 0.4, 10: -0.9}
