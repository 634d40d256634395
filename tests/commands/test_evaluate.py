"""`evaluate`: a run under any order distribution, its joint likelihoods by hand, and how far back
models are asked to look.
"""

import contextlib
import json
from types import SimpleNamespace

import data_fixtures
import fake_s3
import numpy as np
import pytest
import shared
import tiny

import xlnet_jax
from xlnet_jax.cli import main
from xlnet_jax.commands import evaluate, joint
from xlnet_jax.commands.evaluate import under_distribution
from xlnet_jax.data.batches.mixture import Mixture
from xlnet_jax.data.corpus.corpus import Corpus
from xlnet_jax.errors import BadInput
from xlnet_jax.objectives import CLM
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.storage import files
from xlnet_jax.train import evaluation
from xlnet_jax.train.sliding import windows

CAUSAL = tiny.config(data={"objective": "clm", "reuse_len": 32, "num_predict": 32})
WHOLE = (
    "--config.data.factorization_order=uniform",
    "--config.data.reuse_len=32",
    "--config.data.num_predict=32",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Four steps, and four more after a stop."""
    workdir = tmp_path_factory.mktemp("distributions") / "run"
    for words in (["--stop_at=4"], ["--stop_at=8"]):
        assert main(shared.train_words(workdir, *WHOLE, *words)) == 0
    return str(workdir)


def evaluated(capsys, run, *words, code=0):
    assert main(["evaluate", f"--workdir={run}", "--json", *words]) == code
    captured = capsys.readouterr()
    return json.loads(captured.out) if code == 0 else captured.err


@pytest.mark.slow
def test_a_run_is_evaluated_under_any_law(run, capsys):
    found = {
        distribution: evaluated(capsys, run, "--blocks=16", f"--factorization_order={distribution}")
        for distribution in ("spans", "uniform", "left_within")
    }
    own = evaluated(capsys, run, "--blocks=16", "--batch_size=16")
    assert own["heldout_loss"] == pytest.approx(found["uniform"]["heldout_loss"], rel=1e-6)
    assert own["bits_per_byte"] > 0 and own["targets"] == found["left_within"]["targets"]
    assert found["left_within"]["heldout_loss"] != found["uniform"]["heldout_loss"]
    # 16 blocks of 4 windows, or what there is, with 5 targets each (a sixth of 32); some windows do
    # not exist.
    assert found["spans"]["targets"] % 5 == 0 and found["spans"]["targets"] != own["targets"]

    with fake_s3.serve():
        for name, content in data_fixtures.contents(data_fixtures.corpus_path()).items():
            if not name.endswith("/"):
                files.write(f"s3://bucket/corpus/{name}", content)
        on_s3 = "--config.data.corpus=s3://bucket/corpus"
        assert evaluated(capsys, run, "--blocks=16", "--batch_size=16", on_s3) == own


@pytest.mark.slow
def test_joint_likelihoods_equal_those_of_the_library_window_by_window(run, capsys):
    words = ("--target_share=0.5", "--windows=3", "--orders=4")
    found = evaluated(capsys, run, *words)
    assert found.items() >= {"windows": 3, "tokens": 48, "orders": 4, "segment_len": 32}.items()
    row_by_row = evaluated(capsys, run, *words, "--batch_size=1")
    assert row_by_row["left"] == pytest.approx(found["left"], rel=1e-6)

    corpus = Mixture((Corpus(data_fixtures.corpus_path(), "heldout"),))
    tokens = windows(corpus, 32, 3, every=32)
    known = joint.known_places(tokens, 0.5)
    model = xlnet_jax.load(run)
    left, backwards = (model.log_prob(tokens, known, order=order) for order in ("left", "reversed"))
    several = np.stack([each.joint_K for each in model.log_prob(tokens, known, orders=4)])
    nats = {
        "left": -sum(each.joint_K[0] for each in left),
        "reversed": -sum(each.joint_K[0] for each in backwards),
        "random": -several.mean(axis=1).sum(),
        "log_mean_exp": -np.log(np.exp(several).mean(axis=1)).sum(),
        "best": -several.max(axis=1).sum(),
    }
    assert len({round(value, 6) for value in nats.values()}) == 5
    pieces = corpus.tokenizer.text_lengths()[0]
    for name, value in nats.items():
        assert found[name]["nats_per_token"] == pytest.approx(value / 48, rel=1e-5), name
        bits = value / np.log(2) / pieces[tokens[~known]].sum()
        assert found[name]["bits_per_character"] == pytest.approx(bits, rel=1e-5), name
    assert nats["best"] < nats["log_mean_exp"] < nats["random"]


def test_a_loss_is_divided_by_the_unknown_tokens_and_by_their_text():
    tokenizer = data_fixtures.tokenizer()
    unknown_U = tokenizer.encode("Bado kilu menora.")
    found = joint.in_units(np.float64(12.0), unknown_U, tokenizer)
    characters, size = (per_V[unknown_U].sum() for per_V in tokenizer.text_lengths())
    assert found == {
        "nats_per_token": pytest.approx(12 / len(unknown_U)),
        "bits_per_character": pytest.approx(12 / np.log(2) / characters),
        "bits_per_byte": pytest.approx(12 / np.log(2) / size),
    }


def test_windows_are_evenly_spaced():
    mixture = tiny.mixture(tiny.Words(tokens=100))
    text = mixture.corpora[0].text
    whole = text[:96].reshape(3, 32)
    for count, expected in ((0, whole), (9, whole), (2, whole[:2])):
        np.testing.assert_array_equal(windows(mixture, 32, count, every=32), expected)
    two = tiny.mixture(tiny.Words(100), tiny.Words(40, seed=1))
    assert windows(two, 32, 0, every=32).shape == (4, 32)


def test_whole_documents_are_evenly_spaced_over_those_that_fit():
    corpus = Corpus(data_fixtures.corpus_path(), "heldout")
    every, _ = corpus.read(np.zeros(1, int), corpus.tokens)
    texts = [text[:-1] for text in np.split(every[0], np.cumsum(corpus.lengths)[:-1])]
    longest = sorted(map(len, texts))[len(texts) // 2]
    fits = [text.tolist() for text in texts if len(text) <= longest]
    assert 5 < len(fits) < len(texts)
    for count in (0, 3):
        found_NT = windows(Mixture((corpus,)), longest, count, whole=True)
        chosen = [
            fits[number * len(fits) // (count or len(fits))] for number in range(count or len(fits))
        ]
        assert [row[row >= 0].tolist() for row in found_NT] == chosen
        assert found_NT.shape[1] == longest
    with pytest.raises(BadInput, match="tokens, but no document of at most 0; hold out"):
        windows(Mixture((corpus,)), 0, 3, every=1, whole=True)


def test_the_same_share_is_unknown_in_every_window_at_other_places():
    tokens_NT = np.zeros((500, 32), int)
    known = joint.known_places(tokens_NT, 0.25)
    assert (known.sum(axis=1) == 24).all() and len(np.unique(known, axis=0)) > 490
    assert abs(known.mean(axis=0) - 0.75).max() < 0.1
    assert (joint.known_places(tokens_NT[:5], 0.001).sum(axis=1) == 31).all()
    assert not joint.known_places(tokens_NT[:5], 1.0).any()
    np.testing.assert_array_equal(joint.known_places(tokens_NT[:7], 0.25), known[:7])
    tokens_NT[:, 5:] = tokens_NT[0, 1:] = -1
    known = joint.known_places(tokens_NT, 0.5)
    assert known[tokens_NT < 0].all(), "padding is asked"
    assert (~known).sum(axis=1).tolist() == [1] + [2] * 499


def test_another_distribution_keeps_the_segment():
    config = tiny.config(
        data={"factorization_order": "uniform", "reuse_len": 32, "num_predict": 32}
    )
    assert under_distribution(config, "uniform") is config
    for distribution, old, expected in (
        ("spans", config, (16, 5)),
        ("left_within", tiny.config(), (32, 32)),
    ):
        data = under_distribution(old, distribution).data
        assert (data.factorization_order, data.segment_len) == (distribution, 32)
        assert (data.reuse_len, data.num_predict) == expected
    with pytest.raises(BadInput, match="is for models of data.objective=plm, but this"):
        under_distribution(CAUSAL, "uniform")


@pytest.mark.parametrize("option", ["--context", "--streams"])
def test_options_that_read_across_documents_are_for_streams(option):
    evaluation.check_objective(CAUSAL, CLM, option)
    data = {"objective": "clm", "documents": "whole", "pairs": "none", "windows_per_block": 1}
    layout = {"reuse_len": 32, "num_predict": 32}
    config = tiny.config(model={"memory_len": 0}, data=data | layout)
    with pytest.raises(BadInput, match=f"{option} reads text across documents, but this model"):
        evaluation.check_objective(config, CLM, option)
    evaluation.check_objective(config, CLM, "--segment_len")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--target_share=nan"], "--target_share=nan must be a share above 0 and at most 1"),
        (["--target_share=0.5", "--memory_len=4"], "--memory_len is not for the joint mode"),
        (["--orders=3"], "--orders is not for the split mode"),
    ],
)
def test_what_is_not_asked_rightly_is_refused_in_one_line(
    words, message, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(workdirs, "load_config", lambda *_: tiny.config())
    assert main(["evaluate", f"--workdir={tmp_path}", *words]) == 2
    told = capsys.readouterr().err
    assert message in told and told.count("\n") == 1


@pytest.fixture
def asked(monkeypatch):
    """The command without checkpoints, devices and a picture; what it scored, and whose tokenizer
    it compared.
    """
    runs = {
        "far": CAUSAL.changed(model={"memory_len": 40}),
        "near": CAUSAL.changed(model={"memory_len": 24}),
        "plm": tiny.config(),
    }
    heldout, scored, compared = tiny.mixture(), [], []
    monkeypatch.setattr(heldout.corpora[0], "sha256", "0", raising=False)

    def opened(stored, step, processes):
        run = SimpleNamespace(recipe=stored, mesh=None, params=None, step=7)
        return contextlib.nullcontext(run)

    def losses(stored, mesh, params, windows_NX, lengths):
        scored.append((stored.path, stored.config.model.memory_len, windows_NX.shape))
        return np.full((len(lengths), len(windows_NX)), 1.0 + (stored.path == "near"))

    monkeypatch.setattr(workdirs, "load_config", lambda name, *_: runs[name])
    monkeypatch.setattr(
        workdirs, "check_tokenizer", lambda name, mixture: compared.append((name, mixture))
    )
    monkeypatch.setattr(evaluation, "open_mixture", lambda config, split, weighted: heldout)
    monkeypatch.setattr(evaluate, "session", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(evaluate, "opened", opened)
    monkeypatch.setattr(evaluate.contexts, "losses", losses)
    monkeypatch.setattr(
        evaluate, "write_plot", lambda path, title, xlabel, curves, levels, **scale: sorted(curves)
    )
    return scored, compared, heldout


def test_models_are_compared_on_contexts_that_all_of_them_have(asked):
    scored, compared, heldout = asked
    found = evaluate.by_context("far", against=["near", "far"], targets=50)
    # 40 + 32 tokens and 24 + 32: both are asked for up to 32.
    assert found["lengths"] == [1, 2, 4, 8, 16, 32] and found["targets"] == 50
    assert scored == [("far", 40, (50, 33)), ("near", 24, (50, 33))], "each once"
    assert {name for name, _ in compared} == {"far", "near"}
    assert all(mixture is heldout for _, mixture in compared)
    losses = {name: (each["step"], each["loss"]) for name, each in found["models"].items()}
    assert losses == {"far": (7, [1.0] * 6), "near": (7, [2.0] * 6)}
    assert found["picture"] == ["far", "near"]
    scored.clear()
    assert evaluate.by_context("far", memory_len=200)["lengths"][-1] == 128 and scored[0][1] == 200
    with pytest.raises(BadInput, match="models of data.objective=clm, but plm has data.objective"):
        evaluate.by_context("far", against=["plm"])
    with pytest.raises(BadInput, match="--target_share is for models of .*plm, but far has"):
        joint.joint("far", target_share=0.5)
