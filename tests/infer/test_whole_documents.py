"""Models of `data.documents=whole` are asked one document a row, framed as in training."""

import data_fixtures
import numpy as np
import pytest
import tiny
from special_ids import CLS, EOD, MASK, SEP
from test_score import log_prob_at

from xlnet_jax.batch import NEVER
from xlnet_jax.commands import texts as commands
from xlnet_jax.errors import BadInput
from xlnet_jax.infer import infill
from xlnet_jax.infer.infill import Passage
from xlnet_jax.infer.orders import any_order
from xlnet_jax.library import Model

TEXT, GAP, T = "Bado kilu menora.", "Bado [MASK] menora.", 32
WHOLE = {"documents": "whole", "reuse_len": T, "windows_per_block": 1, "pairs": "none"}


def model(tokenizer=None, **data):
    config = tiny.config(model={"memory_len": 0}).changed(data=WHOLE | data)
    tokenizer = tokenizer or data_fixtures.tokenizer()
    return Model(config, tokenizer, tiny.random_params(config, 0.4), 4)


def log_probs(model, ids, rank):
    """log p of every piece at every position of one row, from the model itself, [N, V]."""
    rows_4T = np.zeros((4, T), np.int32)
    rows_4T[1], rows_4T[3] = NEVER, range(T)
    rows_4T[:2, : len(ids)] = ids, rank
    log_p_1TV = log_prob_at(any_order(model.config), model.params, *rows_4T[:, None])
    return np.asarray(log_p_1TV)[0, : len(ids)]


def test_a_left_to_right_model_scores_a_document_from_its_first_piece_to_its_end(monkeypatch):
    one = model(objective="clm", num_predict=T)
    ids = one.tokenizer.encode(TEXT).tolist()
    n = len(ids)
    log_p_NV = log_probs(one, [EOD, *ids], range(n + 1))
    chain = log_p_NV[np.arange(n + 1), [*ids, EOD]]
    (whole,) = one.score([TEXT])
    assert whole.position_U.tolist() == list(range(n + 1))
    np.testing.assert_allclose(whole.log_prob_KU[0], chain, atol=1e-4)
    # The text before is read after EOD as well, and the end follows.
    (part,) = one.score([Passage(" kilu menora.", "Bado")])
    assert part.position_U[0] > 0 and part.position_U[-1] == n
    np.testing.assert_allclose(part.log_prob_KU[0], chain[part.position_U], atol=1e-4)
    monkeypatch.setattr(commands, "on_all_devices", lambda *arguments: one)
    (line,) = commands.score("run", texts=[TEXT])
    assert line["pieces"] == [one.tokenizer.pieces[id] for id in [*ids, EOD]]
    assert line["log_prob"] == pytest.approx(chain.sum(), abs=1e-3)


def test_a_left_to_right_model_writes_a_document_from_its_first_piece_to_its_end(caplog):
    one = model(objective="clm", num_predict=T)
    ids = one.tokenizer.encode(TEXT).tolist()
    for prompt in ([], ids):
        read = [EOD, *prompt]
        while len(read) < T:
            read.append(int(log_probs(one, read, range(len(read)))[-1].argmax()))
            if read[-1] == EOD:
                break
        text = one.tokenizer.decode(prompt)
        (new,) = one.generate([text], tokens=T, temperature=0)
        assert (text + new).strip() == one.tokenizer.decode(read).strip()
    assert f"text 1 ends after {T - 1 - len(ids)} new tokens" in caplog.text
    one.params["lm_head"]["bias"][EOD] += 3
    drawn = one.generate([""] * 16, tokens=T - 1)
    lengths = [len(one.tokenizer.encode(text)) for text in drawn]
    assert min(lengths) < T / 3, "no text ends before its segment"


def test_spans_are_asked_before_sep_and_cls():
    """In `fill` too; only predicted pieces see SEP and CLS. Other orders have nothing around."""
    for order, behind in (("spans", [SEP, CLS]), ("uniform", [])):
        one = model(factorization_order=order, num_predict=6 if behind else T)
        ids, place = one.tokenizer.encode(TEXT).tolist(), 1
        known = [at != place for at in range(len(ids))]
        rank = [1 if at == place else -1 for at in range(len(ids))] + [0] * len(behind)
        log_p_V = log_probs(one, ids + behind, rank)[place]
        (found,) = one.log_prob([ids], [known])
        assert found.log_prob_KU[0, 0] == pytest.approx(log_p_V[ids[place]], abs=1e-4)
        (confident,) = one.log_prob([ids], [known], order="confidence")
        assert confident.log_prob_KU[0, 0] == pytest.approx(log_p_V[ids[place]], abs=1e-4)
        (filled,), gapped = one.fill([GAP]), infill.gapped(one.tokenizer, GAP, 1)
        rank = [-1 if known else 1 for known in gapped.known] + [0] * len(behind)
        log_p_V = log_probs(one, gapped.ids + behind, rank)[gapped.ids.index(MASK)]
        assert filled.log_prob == pytest.approx(log_p_V.max(), abs=1e-4)
    ((logits_V,),) = one.logits([GAP])
    assert filled.log_prob == pytest.approx(
        logits_V.max() - np.logaddexp.reduce(logits_V), abs=1e-4
    )
    assert len(one.hidden([TEXT])[0]) == len(ids) and np.isfinite(one.encode([""])).all()


def test_a_masked_xlnet_reads_cls_first():
    one = model(objective="mlm", num_predict=6)
    ids = one.tokenizer.encode(TEXT).tolist()
    (found,) = one.pseudo_score([TEXT])
    (confident,) = one.score([Passage(".", TEXT[:-1])], order="confidence")
    for at, log_prob in zip(found.position_U, found.log_prob_U, strict=True):
        masked = [CLS, *ids[:at], MASK, *ids[at + 1 :], SEP]
        log_p_V = log_probs(one, masked, [0] * len(masked))[1 + at]
        assert log_prob == pytest.approx(log_p_V[ids[at]], abs=1e-4)
    assert confident.log_prob_KU[0, -1] == pytest.approx(found.log_prob_U[-1], abs=1e-4)
    (logits_PV,), (filled,) = one.logits([GAP]), one.fill([GAP])
    expected = logits_PV[0].max() - np.logaddexp.reduce(logits_PV[0])
    assert filled.log_prob == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("data", "fits"),
    [
        ({"objective": "clm", "num_predict": T}, T - 1),
        ({"factorization_order": "spans"}, T - 2),
        ({"factorization_order": "uniform", "num_predict": T}, T),
    ],
    ids=["clm", "spans", "uniform"],
)
def test_a_text_longer_than_a_row_is_one_line(data, fits):
    one, ids = model(**data), list(range(9, 9 + T + 1))
    one.log_prob([ids[:fits]], [[False] * fits])
    with pytest.raises(BadInput, match=f"^text 1 has {fits + 1} tokens, .*segment_len={T}") as told:
        one.log_prob([ids[: fits + 1]], [[False] * (fits + 1)])
    assert "\n" not in str(told.value)
