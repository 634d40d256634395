"""The end of a run: the held-out loss, its unigram baseline and the picture, made once whatever happens."""

import logging
import os
import re
import signal
import sys

import data_fixtures
import pytest
import tiny

from xlnet_jax.commands.evaluate import evaluate
from xlnet_jax.commands.train import train
from xlnet_jax.data.batches.mixture import open_mixture
from xlnet_jax.errors import RestartMe
from xlnet_jax.run import loss_curve
from xlnet_jax.run.metrics import read_jsonl
from xlnet_jax.train import evaluation

KEYS = {"heldout_loss", "heldout_share", "unigram_cross_entropy", "picture"}


@pytest.fixture
def settings(pytestconfig):
    """Two steps, which end with an evaluation of one batch of blocks."""
    return tiny.config(
        data={"corpus": data_fixtures.corpus_path()},
        train={"steps": 2},
        optimizer={"warmup_steps": 1},
        evaluation={"final": True, "blocks": 8},
        log={"compilation_cache": str(pytestconfig.cache.mkdir("xla"))},
    )


def evaluated(workdir):
    return [line["step"] for line in read_jsonl(os.path.join(workdir, "evaluations.jsonl"))]


def test_the_end_of_a_run_is_made_once_and_what_is_missing_is_made_again(tmp_path, settings, caplog, monkeypatch):
    pytest.importorskip("matplotlib")
    workdir = str(tmp_path)
    with caplog.at_level(logging.INFO, "xlnet_jax"), monkeypatch.context() as patch:
        patch.setattr(evaluation, "BUSY_SECONDS", 0.0)
        result = train(settings, workdir)
        scores = evaluate(workdir, blocks=8)
    # A part of the split must not pass for all of it, and minutes must not pass in silence.
    assert re.search(r"step 2: held-out loss \d.* over 8 of \d+ blocks in 1 batch\b", caplog.text)
    assert "evaluating step 2 over 8 of" in caplog.text and "evaluated 0 of 1 batch" in caplog.text
    # The same keys and values, wherever the loss of a checkpoint is.
    (line,) = read_jsonl(os.path.join(workdir, "evaluations.jsonl"))
    assert scores == {name: value for name, value in line.items() if name != "seconds"}
    assert {name: result[name] for name in KEYS - {"picture"}} == {name: scores[name] for name in KEYS - {"picture"}}
    assert 0 < scores["heldout_share"] < 1 and scores["targets"] > 0
    shown = re.search(r"over 8 of (\d+) blocks", caplog.text)
    assert shown and scores["heldout_share"] == 8 / int(shown[1])
    assert result["picture"] == os.path.join(workdir, loss_curve.PICTURE)
    with open(result["picture"], "rb") as file:
        assert file.read(8) == b"\x89PNG\r\n\x1a\n"
    assert evaluated(workdir) == [2]
    written = {name: os.path.getmtime(os.path.join(workdir, name)) for name in os.listdir(workdir)}
    again = train(settings, workdir)
    assert {key: again[key] for key in KEYS | {"step", "loss"}} == {key: result[key] for key in KEYS | {"step", "loss"}}
    assert written == {name: os.path.getmtime(os.path.join(workdir, name)) for name in written}

    os.remove(result["picture"])
    with monkeypatch.context() as patch, caplog.at_level(logging.INFO, "xlnet_jax"):
        patch.setitem(sys.modules, "matplotlib.figure", None)
        assert train(settings, workdir)["picture"] is None
    assert sum("--editable '.[quickstart]'" in record.getMessage() for record in caplog.records) == 1
    assert os.path.exists(train(settings, workdir)["picture"])


@pytest.mark.slow
def test_an_evaluation_of_the_last_step_is_not_repeated_and_half_a_run_has_none(tmp_path, settings):
    settings = settings.changed(evaluation={"every": 2})
    longer = settings.changed(train={"steps": 4})
    workdir = str(tmp_path)
    half = train(longer, workdir, stop_at=2)
    assert {half[key] for key in KEYS} == {None} and evaluated(workdir) == [2]
    assert not os.path.exists(os.path.join(workdir, loss_curve.PICTURE))
    assert train(longer, workdir)["heldout_loss"] > 0 and evaluated(workdir) == [2, 4]


def test_a_signal_in_the_last_evaluation_ends_with_42_and_the_next_start_makes_it(tmp_path, settings, monkeypatch):
    score = evaluation.HeldoutLoss.__call__

    def interrupted(self, *arguments):
        os.kill(os.getpid(), signal.SIGTERM)
        return score(self, *arguments)

    with monkeypatch.context() as patch, pytest.raises(RestartMe, match="SIGTERM in the evaluation"):
        patch.setattr(evaluation.HeldoutLoss, "__call__", interrupted)
        train(settings, str(tmp_path))
    assert evaluated(str(tmp_path)) == []
    assert train(settings, str(tmp_path))["heldout_loss"] > 0
    assert evaluated(str(tmp_path)) == [2]
    assert [line["step"] for line in read_jsonl(os.path.join(tmp_path, "metrics.jsonl"))] == [1, 2]


def test_text_without_held_out_documents_is_trained_on_with_one_line(tmp_path, settings, caplog):
    corpus = str(tmp_path / "corpus")
    data_fixtures.make_corpus(corpus, heldout=0.0)
    settings = settings.changed(data={"corpus": corpus})
    with caplog.at_level(logging.INFO, "xlnet_jax"):
        result = train(settings, str(tmp_path / "run"))
    assert result["heldout_loss"] is result["unigram_cross_entropy"] is None
    assert result["picture"] or "matplotlib" in caplog.text
    assert sum("no held-out" in record.getMessage() for record in caplog.records) == 1


def test_a_held_out_split_too_short_for_an_example_is_one_line(settings, caplog):
    long = settings.changed(data={"segment_len": 8192, "reuse_len": 4096})
    train_split = open_mixture(settings)
    with caplog.at_level(logging.INFO, "xlnet_jax"):
        assert evaluation.open_heldout(long, train_split) is None
    assert "there will be no held-out loss: the heldout split" in caplog.text
    assert evaluation.open_heldout(settings, train_split) is not None


@pytest.mark.parametrize(
    ("every", "final", "due", "blocks"),
    [(0, True, [2], 32 * 8), (0, False, [], 32 * 8), (1, True, [1, 2], 0), (1, False, [1, 2], 0)],
)
def test_when_an_evaluation_is_due_and_how_long_it_may_be(settings, every, final, due, blocks):
    settings = settings.changed(evaluation={"every": every, "final": final, "blocks": 0})
    assert [step for step in range(3) if evaluation.due(settings, step)] == due
    assert evaluation.blocks_of(settings) == blocks
    some = settings.changed(evaluation={"blocks": 5})
    assert evaluation.blocks_of(some) == 5
