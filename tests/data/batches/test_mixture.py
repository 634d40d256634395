"""Several corpora in one run: opened together, read by weight, told apart in metrics and
evaluation.
"""

import os

import data_fixtures
import numpy as np
import pytest
import tiny

from xlnet_jax.commands.evaluate import evaluate
from xlnet_jax.commands.train import train
from xlnet_jax.config import load
from xlnet_jax.data.batches import loader
from xlnet_jax.data.batches.mixture import open_mixture
from xlnet_jax.data.batches.stream import extend_plan
from xlnet_jax.errors import BadInput
from xlnet_jax.run.metrics import read_jsonl

FIVE = os.path.join(str(tiny.ROOT), "configs", "xlnet_large_five_corpora.py")


@pytest.fixture(scope="module")
def second(tmp_path_factory):
    """A corpus of other text with the same tokenizer."""
    folder = tmp_path_factory.mktemp("second")
    inputs = data_fixtures.write(folder, text=data_fixtures.synthetic_text(99, 300))
    data_fixtures.make_corpus(folder / "second", inputs)
    return str(folder / "second")


def both(second, **data):
    return {"corpus": f"{data_fixtures.corpus_path()},{second}", **data}


def test_rows_are_read_from_their_own_corpus_by_weight(second):
    config = tiny.config(data=both(second, weights="1,3"))
    mixture = open_mixture(config)
    assert mixture.names == ("corpus", "second") and mixture.cycle.counts == (1, 3)
    plan = extend_plan((), 0, 8, 4)
    asked = loader.TrainDispatches(mixture, config, plan, np.arange(8), 0, 100)
    seen = np.zeros(2)
    for step in range(0, 40, 4):
        where = mixture.stream(config).locate(step, np.arange(8), plan)
        seen += np.bincount(where.corpus_B, minlength=2)
        for row, tokens in enumerate(asked.batch(step).tokens):
            corpus, direction = mixture.corpora[where.corpus_B[row]], where.direction_B[row]
            start = where.cursor_B[row] - (15 if direction < 0 else 0)
            text = corpus.read(np.array([start]), 16)[0][0]
            np.testing.assert_array_equal(tokens[:16], text[::direction])
    assert seen.tolist() == [20, 60]


def test_without_weights_every_corpus_is_read_as_often_as_the_others(second):
    config = tiny.config(data=both(second))
    mixture = open_mixture(config)
    tokens = np.array([corpus.tokens for corpus in mixture.corpora])
    np.testing.assert_allclose(mixture.cycle.shares, tokens / tokens.sum(), atol=1e-4)
    epochs = mixture.stream(config).epochs(4000, extend_plan((), 0, 8, 4))
    assert epochs[0] == pytest.approx(epochs[1], rel=0.05)


@pytest.mark.parametrize(
    ("corpus", "weights", "message"),
    [
        ("{0},{1}", "1", "data.weights=1 has 1 number for 2 corpora"),
        ("{1},{1}", "", "names a folder twice or has an empty name"),
        ("{1},", "", "names a folder twice or has an empty name"),
        ("{0},{1}", "1,0", "data.weights=.* must be positive numbers"),
        ("{0},{1}", "1,inf", "data.weights=.* must be positive numbers"),
        ("{0},{1}", "a,b", "data.weights=.* must be positive numbers"),
    ],
)
def test_folders_and_weights_that_do_not_fit_are_refused(second, corpus, weights, message):
    with pytest.raises(BadInput, match=message):
        folders = corpus.format(data_fixtures.corpus_path(), second)
        open_mixture(tiny.config(data={"corpus": folders, "weights": weights}))


def test_corpora_of_another_normalisation_are_refused(second, tmp_path):
    other = str(tmp_path / "other")
    data_fixtures.make_corpus(other, uncased=True)
    with pytest.raises(BadInput, match="have different tokenizers or normalisation"):
        open_mixture(tiny.config(data={"corpus": f"{second},{other}"}))


def test_a_corpus_too_small_for_its_share_of_a_batch_is_named(second):
    config = tiny.config(data=both(second, weights="1000,1"), train={"batch_size": 512})
    mixture = open_mixture(config)
    with pytest.raises(
        BadInput, match=r"the train split of .*corpus has .* too few for train.batch_size=512"
    ):
        mixture.stream(config).check(512, mixture.split_names())


@pytest.mark.slow
def test_a_run_tells_its_corpora_apart(second, tmp_path, pytestconfig):
    config = tiny.config(
        data=both(second, weights="1,3"),
        train={"steps": 8},
        evaluation={"every": 8, "blocks": 3},
        log={"compilation_cache": str(pytestconfig.cache.mkdir("xla"))},
    )
    workdir = str(tmp_path / "run")
    train(config, workdir)
    lines = read_jsonl(os.path.join(workdir, "metrics.jsonl"))
    assert len(lines) == 8
    stream, plan = open_mixture(config).stream(config), extend_plan((), 0, 8, 4)
    for line in lines:
        corpus_B = stream.locate(line["step"] - 1, np.arange(8), plan).corpus_B
        # Every row has as many targets, so the mean over targets is the mean over rows.
        of_corpus = np.array([line["loss/corpus"], line["loss/second"]])
        assert of_corpus[corpus_B].mean() == pytest.approx(line["loss"], rel=1e-5)
        assert "epoch" not in line and "loss_B" not in line
    first, other = (epochs.blocks for epochs in stream.corpora)
    assert lines[-1]["epoch/corpus"] == pytest.approx(4 / first)
    assert lines[-1]["epoch/second"] == pytest.approx(12 / other)

    scored = evaluate(workdir, blocks=3)
    low, high = sorted((scored["heldout_loss/corpus"], scored["heldout_loss/second"]))
    assert low < scored["heldout_loss"] < high
    alone = evaluate(workdir, blocks=3, overrides=[f"--config.data.corpus={second}"])
    assert alone["heldout_loss"] == pytest.approx(scored["heldout_loss/second"], rel=1e-6)


def test_the_five_corpora_are_read_in_the_published_proportions():
    data = load(FIVE).data
    assert len(data.folders()) == 5 and data.weight_list() == [2.78, 1.09, 4.75, 4.30, 19.97]
