"""`evaluate --context` of several models: which are refused, and how far back all of them are asked to look."""

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest
import tiny

from xlnet_jax.commands import evaluate
from xlnet_jax.errors import BadInput
from xlnet_jax.run import workdir as workdirs


def causal(memory_len):
    clm = {"objective": "clm", "reuse_len": 32, "num_predict": 32}
    return tiny.config(model={"memory_len": memory_len}, data=clm)


@pytest.fixture
def asked(monkeypatch):
    """The command without checkpoints, devices and a picture; what it scored, and whose tokenizer it compared."""
    runs = {"far": causal(40), "near": causal(24), "plm": tiny.config()}
    heldout, scored, compared = tiny.mixture(), [], []
    monkeypatch.setattr(heldout.corpora[0], "sha256", "0", raising=False)

    def opened(stored, step, processes):
        run = SimpleNamespace(recipe=stored, mesh=None, params=None, step=7)
        return contextlib.nullcontext(run)

    def losses(stored, mesh, params, windows_NX, lengths):
        scored.append((stored.path, stored.config.model.memory_len, windows_NX.shape))
        return np.full((len(lengths), len(windows_NX)), 1.0 + (stored.path == "near"))

    monkeypatch.setattr(workdirs, "load_config", lambda name, words: runs[name])
    monkeypatch.setattr(workdirs, "check_tokenizer", lambda name, mixture: compared.append((name, mixture)))
    monkeypatch.setattr(evaluate, "open_mixture", lambda config, split, weighted: heldout)
    monkeypatch.setattr(evaluate, "session", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(evaluate, "opened", opened)
    monkeypatch.setattr(evaluate.contexts, "losses", losses)
    monkeypatch.setattr(evaluate.loss_curve, "draw_context", lambda workdir, steps, curves: sorted(curves))
    return scored, compared, heldout


def test_models_are_compared_on_contexts_that_all_of_them_have(asked):
    scored, compared, heldout = asked
    found = evaluate.by_context("far", against=["near", "far"], targets=50)
    # 40 + 32 tokens and 24 + 32: both are asked for up to 32.
    assert found["lengths"] == [1, 2, 4, 8, 16, 32] and found["targets"] == 50
    assert scored == [("far", 40, (50, 33)), ("near", 24, (50, 33))], "each once"
    assert {name for name, _ in compared} == {"far", "near"} and {id(mixture) for _, mixture in compared} == {
        id(heldout)
    }
    losses = {name: (each["step"], each["loss"]) for name, each in found["models"].items()}
    assert losses == {"far": (7, [1.0] * 6), "near": (7, [2.0] * 6)} and found["picture"] == ["far", "near"]
    scored.clear()
    assert evaluate.by_context("far", memory_len=200)["lengths"][-1] == 128 and scored[0][1] == 200


def test_a_model_that_sees_both_sides_is_refused(asked):
    with pytest.raises(BadInput, match="left-to-right models .* but plm has data.objective=plm"):
        evaluate.by_context("far", against=["plm"])
