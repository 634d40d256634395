"""The package as a library: what `xlnet_jax.load` gives, against the model applied to one text
alone.
"""

import ast
import dataclasses
import json
import pathlib
import re

import data_fixtures
import jax
import numpy as np
import pages
import pytest
import shared
import tiny
from special_ids import CLS, MASK, SEP

import xlnet_jax as xj
from xlnet_jax import config as configs
from xlnet_jax.batch import Batch
from xlnet_jax.cli import main
from xlnet_jax.commands import inspect as inspect_command
from xlnet_jax.convert import huggingface
from xlnet_jax.convert.formats import Trained
from xlnet_jax.data import vocabulary
from xlnet_jax.data.tokenizer import XLNET
from xlnet_jax.errors import BadInput
from xlnet_jax.infer import infill
from xlnet_jax.model.transformer import XLNet, empty_memory
from xlnet_jax.run.metrics import read_jsonl
from xlnet_jax.train.loss import LanguageModel

CONFIG = tiny.config()
TEXTS = [
    "Bado kilu.",
    "Menora sidu, 12. Rave bado kilu menora tusi veno.",
    "",
    "Kilu <mask> menora <mask>.",
]


@pytest.fixture(scope="module")
def params():
    return tiny.random_params(CONFIG, 0.3)


def batch(ids, masks):
    """One text without padding."""
    n, zero = len(ids), np.zeros(1, np.int32)
    ids, positions = np.array([ids], np.int32), np.array([masks], np.int32).reshape(1, -1)
    segments = np.array([[0] * (n - 1) + [2]], np.int32)
    rank = np.isin(np.arange(n), masks).astype(np.int32)[None]
    return Batch(
        ids,
        segments,
        rank,
        zero + 1,
        zero > 0,
        positions,
        positions,
        0.0 * positions,
        zero,
        zero,
        0.0 * zero,
    )


@pytest.fixture(scope="module")
def folder(params, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("library") / "model")
    huggingface.write(Trained(CONFIG, data_fixtures.tokenizer(), params), folder)
    return folder


@pytest.fixture(scope="module")
def model(folder):
    return xj.load(folder, batch_size=3)


def test_the_names_of_the_package_are_imported_when_they_are_used():
    (checked,) = [
        node
        for node in ast.parse(pathlib.Path(xj.__file__).read_text()).body
        if isinstance(node, ast.If)
    ]
    typed = {
        name.asname or name.name: f"{node.module}.{name.name}"
        for node in checked.body
        for name in node.names
    }
    found = {name: getattr(xj, name) for name in xj.__all__}
    assert typed == {
        name: f"{value.__module__}.{value.__name__}" for name, value in found.items()
    } | {
        "Config": "xlnet_jax.config.Config",
        "load_config": "xlnet_jax.config.load",
        "Passage": "xlnet_jax.library.Passage",
    }
    assert dir(xj) == sorted([*xj.__all__, "__version__"])


def test_the_most_probable_pieces_of_a_gap(model, capsys, folder):
    text, other = "Bado [MASK] menora.", "Kilu <mask>"
    every = model.fill([text, other], top=5)
    assert len(every) == 10
    for number, question in enumerate((text, other)):
        ranked = every[number::2]
        chances = [one.log_prob for one in ranked]
        assert (
            chances == sorted(chances, reverse=True)
            and len({one.gaps[0].pieces[0] for one in ranked}) == 5
        )
        (best,) = model.fill([question])
        assert best.gaps[0].pieces == ranked[0].gaps[0].pieces and best.log_prob == pytest.approx(
            chances[0], abs=1e-5
        )
    # Each has the likelihood that is found by scoring it, and no other piece is more probable.
    gapped = infill.gapped(model.tokenizer, text, 1)
    place = gapped.known.index(False)
    rows = [
        [*gapped.ids[:place], piece, *gapped.ids[place + 1 :]]
        for piece in range(tiny.VOCAB)
        if piece != MASK
    ]
    scores = [each.joint_K[0] for each in model.log_prob(rows, [gapped.known] * len(rows))]
    expected = dict(zip([row[place] for row in rows], scores, strict=True))
    for one, best in zip(every[::2], sorted(scores, reverse=True), strict=False):
        piece = model.tokenizer.pieces.index(one.gaps[0].pieces[0])
        assert one.log_prob == pytest.approx(expected[piece], abs=1e-4)
        assert one.log_prob == pytest.approx(best, abs=1e-4)
    assert main(["fill", f"--workdir={folder}", text, other, "--top=2"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["rank"] for line in lines] == [1, 2, 1, 2]
    assert [line["text"] for line in lines] == [every[n].text for n in (0, 2, 1, 3)]
    for options, message in (
        ({"top": 2, "samples": 2}, "top=2 with samples: the most probable pieces are not drawn"),
        ({"top": 2, "temperature": 1}, "top=2 with temperature: the most probable"),
        ({"top": tiny.VOCAB + 1}, f"the vocabulary has {tiny.VOCAB} pieces"),
    ):
        with pytest.raises(BadInput, match=message):
            model.fill([text], **options)
    with pytest.raises(BadInput, match="text 2 has 3 unknown pieces: top=2 ranks the pieces"):
        model.fill([text, "Bado [MASK:3]"], top=2)


def test_a_wrong_question_is_one_line(model):
    for wrong, message in (
        (lambda: model.score("The end"), "put it into a list"),
        (lambda: model.score(xj.Passage("Bado")), "put it into a list"),
        (lambda: model.hidden(["Bado", None]), "text 2: NoneType where a string is expected"),
        (lambda: model.fill(["\ud800 [MASK]"]), "text 1: a lone surrogate"),
        (
            lambda: model.fill(["Bado [MASK:3]"], order=np.array([3, 1, 2]) / 2),
            "give its name, or a list",
        ),
        (
            lambda: model.logits(["Kilu [MASK:2-8]"]),
            "text 1: a gap of random length is not supported here; write [MASK] or",
        ),
        (lambda: model.hidden(["Kilu", "[MASK:0]"]), "text 2: '[MASK:0]' is no gap"),
        (
            lambda: model.log_prob([[9, 10], [9, MASK]], [[True, False]] * 2),
            "text 2: id 6 (<mask>) is a gap, and only",
        ),
    ):
        with pytest.raises(BadInput) as raised:
            wrong()
        assert message in str(raised.value) and "\n" not in str(raised.value)
    ids, known = (
        model.tokenizer.encode("Bado kilu"),
        [True] + [False] * (len(model.tokenizer.encode("Bado kilu")) - 1),
    )
    backwards = np.arange(1, len(ids))[::-1]
    (found,) = model.log_prob([ids], [known], order=backwards)
    (same,) = model.log_prob([ids.tolist()], [known], order="reversed")
    np.testing.assert_array_equal(found.log_prob_KU, same.log_prob_KU)


@pytest.mark.parametrize("gap", ["[MASK]", "<mask>", "[MASK:2]"])
def test_a_gap_is_one_everywhere_and_where_it_makes_no_sense_one_line(model, gap):
    count = 2 if gap == "[MASK:2]" else 1
    assert model.pieces(f"Kilu {gap} menora").count(MASK) == count
    (same,) = model.logits([f"Kilu {gap} menora"])
    assert same.shape == (count, tiny.VOCAB)
    for wrong, message in (
        (
            lambda: model.encode(["Kilu", f"Kilu {gap}"]),
            "and only a whole text has a vector; fill it first",
        ),
        (lambda: model.score(["Kilu", f"Kilu {gap}"]), "and only words have a likelihood; `fill`"),
        (
            lambda: model.score(["Kilu", xj.Passage("Kilu", after=f" {gap}")]),
            "and only words have a likelihood",
        ),
        (
            lambda: model.generate(["Kilu", f"Kilu {gap}"]),
            "and a text is continued only at its end; use `fill`",
        ),
    ):
        with pytest.raises(BadInput) as raised:
            wrong()
        assert str(raised.value).startswith(f"text 2: {gap} is a gap, {message}")


def test_a_text_for_a_vocabulary_of_bytes_may_hold_any_byte(model, tmp_path):
    text, path = b"B\xffa".decode(errors="surrogateescape"), str(tmp_path / "vocabulary.json")
    vocabulary.write_counted(path, "bytes", vocabulary.count([text], "bytes"), None, True)
    of_bytes = dataclasses.replace(model, tokenizer=vocabulary.open_tokenizer(path))
    assert of_bytes.score([text])[0].log_prob_KU.shape == (1, 3)
    with pytest.raises(BadInput, match="text 2: a lone surrogate"):
        of_bytes.score([text, "\ud800"])


def test_texts_together_are_those_alone(model, params):
    """Padding, batches and order change nothing; the last text is also computed by the model
    itself.
    """
    hidden, logits = model.hidden(TEXTS), model.logits([f"{text} [MASK]" for text in TEXTS])
    for text, h_TD, logits_PV in zip(TEXTS, hidden, logits, strict=True):
        assert len(h_TD) == len(model.pieces(text)) and model.pieces(text)[-2:] == [SEP, CLS]
        np.testing.assert_allclose(model.hidden([text])[0], h_TD, atol=2e-5)
        assert logits_PV.shape == (text.count("<mask>") + 1, tiny.VOCAB)
    logits = model.logits(TEXTS[-1:])
    ids = model.pieces(TEXTS[-1])
    one = batch(ids, [i for i, piece in enumerate(ids) if piece == MASK])
    ours = LanguageModel(XLNet(CONFIG.model))

    @jax.jit
    def alone(params):
        out = ours.transformer.apply({"params": params}, one, empty_memory(CONFIG.model, 1))
        return out.hidden_BTD[0], ours.logits(params, out.target_vectors_BPD)[0]

    h_TD, logits_PV = alone(params)
    np.testing.assert_allclose(hidden[-1], h_TD, atol=2e-5)
    np.testing.assert_allclose(logits[-1], logits_PV, atol=1e-4)


def test_vectors(model):
    hidden, vectors = model.hidden(TEXTS), model.encode(TEXTS[:3])
    assert vectors.shape == (3, 16)
    np.testing.assert_allclose(vectors[0], hidden[0].mean(axis=0), rtol=1e-5)
    config = configs.override(model.config, ["--config.finetune.pooling=cls"])
    of_cls = type(model)(config, model.tokenizer, model.params, 3)
    np.testing.assert_array_equal(of_cls.encode(TEXTS[:2])[1], hidden[1][-1])
    assert model.encode([]).shape == (0, 16) and model.logits([]) == []


@pytest.mark.parametrize("page", ["README.md", "docs/library.md"])
def test_the_python_of_a_page_prints_as_many_lines_as_it_shows(page, model, monkeypatch):
    """What trains is for tests/wheel."""
    (program, output), *_ = pages.sessions((tiny.ROOT / page).read_text(encoding="utf-8"))
    assert 5 < len(program.splitlines()) <= 16
    monkeypatch.setattr(xj, "load", {"runs/quickstart/run": model}.__getitem__, raising=False)
    assert pages.printed(program, {}).count("\n") == output.count("\n") > 3


@pytest.mark.parametrize("case", ["transformer", pytest.param("phases", marks=pytest.mark.slow)])
def test_a_run_whose_head_has_no_parameters_answers(case, tmp_path):
    """Checkpoints of Transformer, and of GPT-2 between phases, have no array of `lm_head`."""
    config = tiny.family("gpt2" if case == "phases" else case)
    params = tiny.random_params(config, 0.1)
    assert params["lm_head"] == {}
    phases = (
        ({"steps": 3}, {"steps": 37, "optimizer": {"learning_rate": 1e-4}})
        if case == "phases"
        else ()
    )
    tiny.save_run(str(tmp_path), config, params, phases)
    ours, theirs = xj.load(str(tmp_path)), xj.Model(config, data_fixtures.tokenizer(), params, 16)
    scores = [model.score(TEXTS[:1])[0].joint_K for model in (ours, theirs)]
    assert scores[0] == pytest.approx(scores[1]) and scores[0][0] < -1
    written = [model.generate(TEXTS[:1], tokens=3, temperature=0) for model in (ours, theirs)]
    assert written[0] == written[1]


def test_the_package_has_no_other_name():
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        xj.lod  # noqa: B018


def test_batches_are_those_of_the_steps_also_in_phases():
    base = tiny.config(data={"corpus": data_fixtures.corpus_path()})
    parts = ({"steps": 3}, {"steps": 2, "train": {"batch_size": 4}, "data": {"num_predict": 4}})
    config = configs.from_dict(
        dataclasses.asdict(base.changed(train={"steps": 500_000})) | {"phases": parts}
    )
    found = list(xj.batches(config))
    assert [each.target_tokens.shape for each in found] == [(8, 6)] * 3 + [(4, 4)] * 2
    for start in (1, 4):
        for mine, theirs in zip(xj.batches(config, start=start), found[start:], strict=True):
            jax.tree.map(np.testing.assert_array_equal, mine, theirs)
    assert (found[0].tokens != found[1].tokens).any()
    example = inspect_command.example(config, 4, 1)
    assert (
        example["tokens"] == found[4].tokens[1].tolist()
        and example["rank"] == found[4].rank[1].tolist()
    )
    with pytest.raises(BadInput, match="train.batch_size=0 must be at least 1"):
        next(xj.batches(base.changed(train={"batch_size": 0})))


def test_a_batch_as_transformers_takes_it_hides_what_a_rank_does_not_see():
    """peers/test_huggingface.py compares what that library computes from it."""
    batch = tiny.batch(CONFIG)
    batch = dataclasses.replace(batch, target_weights=batch.target_weights * (np.arange(6) < 5))
    given = batch.for_transformers()
    for row in range(8):
        targets = batch.target_positions[row, :5].tolist()
        for i in range(32):
            for j in range(32):
                seen = batch.rank[row, j] < batch.rank[row, i] + (i not in targets)
                assert given["perm_mask"][row, i, j] == (not seen)
        assert given["target_mapping"][row].argmax(axis=1).tolist()[:5] == targets
    assert (given["labels"][:, :5] == batch.target_tokens[:, :5]).all() and (
        given["labels"][:, 5] == -100
    ).all()
    assert not given["target_mapping"][:, 5].any() and given["target_mapping"].sum() == 8 * 5


def test_a_tokenizer_pads_a_list(model):
    ids_NT, real_NT = model.tokenizer(TEXTS[:3])
    assert (
        ids_NT.shape == real_NT.shape
        and not real_NT[2].any()
        and (ids_NT[~real_NT] == XLNET.pad).all()
    )
    for text, ids_T, real_T in zip(TEXTS, ids_NT, real_NT, strict=False):
        assert (
            ids_T[: real_T.sum()].tolist() == model.tokenizer.encode(text).tolist()
            and real_T[: real_T.sum()].all()
        )
    assert model.tokenizer([])[0].shape == (0, 0)


def test_the_loss_of_the_page_is_that_of_a_step_and_hands_on_the_memory(model, capsys):
    blocks = re.findall(
        r"^```python\n(.*?)^```$", (tiny.ROOT / "docs/library.md").read_text(), re.M | re.S
    )
    (program,) = [block for block in blocks if "mean_loss" in block] or [""]
    names = {"model": model, "batch": tiny.batch(CONFIG)}
    exec(program, names)
    assert capsys.readouterr().out.count("\n") == 2
    assert 0 < float(names["loss"]) < 20 and names["memory"].hidden_LBMD.any()
    assert any(leaf.any() for leaf in jax.tree.leaves(names["gradient"]))


@pytest.mark.slow
def test_the_loss_of_the_page_trains_and_resumes(tmp_path, pytestconfig):
    blocks = re.findall(
        r"^```python\n(.*?)^```$", (tiny.ROOT / "docs/library.md").read_text(), re.M | re.S
    )
    (program,) = [block for block in blocks if "class Focal" in block]
    assert len(program.splitlines()) <= 30
    names = {"__name__": "elsewhere"}
    exec(program, names)
    settings = shared.settings(pytestconfig)
    for stop in (2, 4):
        xj.pretrain(settings, str(tmp_path / "focal"), stop_at=stop, recipe=names["focal"])
    xj.pretrain(settings, str(tmp_path / "focal4"), stop_at=4, recipe=names["focal"])
    xj.pretrain(settings, str(tmp_path / "plain"), stop_at=4)
    focal, again, plain = (
        read_jsonl(str(tmp_path / name / "metrics.jsonl")) for name in ("focal", "focal4", "plain")
    )
    assert [line["loss"] for line in focal] == [line["loss"] for line in again]
    nll, weighed = plain[0]["loss"], focal[0]["loss"]
    assert weighed < nll and weighed == pytest.approx((1 - np.exp(-nll)) ** 2 * nll, rel=0.05)
    assert all(mine["loss"] < theirs["loss"] for mine, theirs in zip(focal, plain, strict=True))
    assert focal[-1]["grad_norm"] != plain[-1]["grad_norm"]
