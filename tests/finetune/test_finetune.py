"""`xlnet-jax finetune`: learns, keeps its best, ends early, and a run cut anywhere ends with the same bits."""

import hashlib
import os
import shutil

import pytest

from xlnet_jax.checkpoint.store import Checkpoints
from xlnet_jax.commands.finetune import finetune
from xlnet_jax.run.metrics import read_jsonl


STEPS = 16


def fingerprint(workdir, step=STEPS):
    """The checksums of all saved arrays, what every step and evaluation measured, and the predictions."""
    with Checkpoints(str(workdir)) as checkpoints:
        record = checkpoints.record(step)
    lines = {name: read_jsonl(os.path.join(workdir, f"{name}.jsonl")) for name in ("metrics", "evaluations")}
    steps = [[line[key] for key in ("step", "loss", "grad_norm", "learning_rate")] for line in lines["metrics"]]
    scores = [{key: value for key, value in line.items() if key != "seconds"} for line in lines["evaluations"]]
    with open(os.path.join(workdir, "predictions.jsonl"), "rb") as file:
        predictions = hashlib.sha256(file.read()).hexdigest()
    return record["checksums"], record["plan"], steps, scores, predictions


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return tmp_path_factory.mktemp("finetune") / "run"


def test_a_task_is_learned_and_a_killed_run_ends_with_the_same_bits(tmp_path, settings, undisturbed):
    result = finetune(settings(), str(undisturbed))
    assert result.keys() == {"task", "step", "metric", "score", "scores", "spread", "workdir"}
    whole = fingerprint(undisturbed)
    _, _, steps, scores, _ = whole
    assert len(steps) == STEPS and [line["step"] for line in scores] == [4, 8, 12, 16]
    # The majority class is 10 of 19.
    assert result["score"] == max(line["accuracy"] for line in scores) > 0.8
    assert result["step"] == next(line["step"] for line in scores if line["score"] == result["score"])
    # Stopped after 8 steps; then as a kill leaves it: steps and evaluations that no checkpoint has.
    killed = tmp_path / "killed"
    finetune(settings(), str(killed), stop_at=12)
    shutil.rmtree(killed / "checkpoints" / "12")
    assert finetune(settings(), str(killed)) == result | {"workdir": str(killed)}
    assert fingerprint(killed) == whole
    assert [line["step"] for line in read_jsonl(str(killed / "runs.jsonl"))] == [0, 8]
    # Again: nothing is left to do.
    assert finetune(settings(), str(killed)) == result | {"workdir": str(killed)}
