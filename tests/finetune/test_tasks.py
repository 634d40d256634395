"""Multiple choice, labels of words, and embeddings: rows, losses and scores by hand."""

import dataclasses
import functools
import json

import data_fixtures
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from jax.sharding import PartitionSpec
from special_ids import CLS, SEP

from xlnet_jax.config import Config, FinetuneConfig
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.errors import BadInput
from xlnet_jax.finetune import evaluation
from xlnet_jax.finetune.classification import (
    Classification,
    MultiLabelClassification,
    MultipleChoice,
)
from xlnet_jax.finetune.embeddings import EmbeddingHead, Embeddings, contrastive_losses
from xlnet_jax.finetune.heads import binary_cross_entropy
from xlnet_jax.finetune.setup import encode_examples
from xlnet_jax.finetune.task import Example, Hidden
from xlnet_jax.finetune.token_classification import TokenClassification, TokenHead

D = 16


def _task(kind, segment_len=32, **changes):
    config = tiny.config(data={"segment_len": segment_len, "reuse_len": 4, "num_predict": 2})
    config = dataclasses.replace(config, finetune=FinetuneConfig(**changes))
    return kind(config, data_fixtures.tokenizer())


def _hidden(h_BCTD, real_BCT=None):
    h_BCTD = jnp.asarray(h_BCTD, jnp.float32)
    real_BCT = jnp.ones(h_BCTD.shape[:3], bool) if real_BCT is None else jnp.asarray(real_BCT)
    return Hidden(h_BCTD, real_BCT, jnp.zeros(h_BCTD.shape[:3], jnp.int32), jnp.arange(len(h_BCTD)))


def test_a_choice_is_one_sequence_for_each_option():
    task = _task(MultipleChoice)
    # A run of underscores is one blank.
    example = Example(("Bado ki.", "Re _ mi____ .", "lu", "tu ve"), "B", "a.txt")
    (row,) = task.encode(0, example)
    texts = [task.tokenizer.decode(tokens) for tokens in row.tokens]
    filled = [text.replace(" ", "") for text in texts]
    assert filled == ["Badoki.Relumilu.", "Badoki.Retuvemituve."]
    assert all(list(tokens[-2:]) == [SEP, CLS] for tokens in row.tokens)
    assert row.labels["label"] == 1
    (after, _) = task.sequences(example._replace(texts=("Bado ki.", "Remi.", "lu", "tu ve")))
    assert task.tokenizer.decode(after.tokens).replace(" ", "") == "Badoki.Remi.lu"
    outputs = task.outputs({"logits": np.array([[[0.0], [np.log(3)]]])}, [row], [example])
    assert outputs == [{"label": "B", "scores": pytest.approx([0.25, 0.75])}]
    assert task.score(outputs, [example]) == {"accuracy": 1}
    assert task.score(outputs, [example._replace(label=0)]) == {"accuracy": 0}
    for label in ("C", "2", "AB"):
        with pytest.raises(BadInput, match=f"a.txt: the label '{label}' is not one of 2 options"):
            task.score(outputs, [example._replace(label=label)])


def test_a_text_has_any_number_of_labels():
    """By the formula: a cross-entropy for each class; the fault: a softmax, or a class with
    p = 0.5.
    """
    task = _task(MultiLabelClassification, labels="a,b,c")
    example = Example(("Bado ki.",), ("a", "c"), "x.csv, row 2")
    (row,) = task.encode(0, example)
    np.testing.assert_array_equal(row.labels["label"], [1, 0, 1])
    logits_C = np.array([2.0, 0.0, -1.0])
    a, b, c = share_C = 1 / (1 + np.exp(-logits_C))
    loss_B = binary_cross_entropy(jnp.asarray(logits_C)[None, None], row.labels["label"][None])
    np.testing.assert_allclose(loss_B, [-np.log([a, 1 - b, c]).mean()], rtol=1e-6)
    (found,) = task.outputs({"logits": logits_C[None, None]}, [row], [example])
    scores = dict(zip("abc", share_C, strict=True))
    assert found == {"labels": ["a"], "scores": pytest.approx(scores)}
    expected = {"f1_micro": 2 / 3, "f1_macro": 1 / 3}
    assert task.score([found], [example]) == pytest.approx(expected)
    with pytest.raises(
        BadInput, match="x.csv, row 2: unknown label 'd'; finetune.labels are a, b, c"
    ):
        task.encode(0, example._replace(label=("d",)))


def test_only_a_better_evaluation_writes_its_predictions(tmp_path, monkeypatch):
    """Those that are there belong to the best checkpoint, which is kept."""
    task = _task(Classification, labels="no,yes")
    dev = encode_examples(task, "dev.tsv", [Example(("bame",), "yes", "dev.tsv, row 2")])
    written, before = tmp_path / "predictions.jsonl", tmp_path / "evaluations.jsonl"
    for score, earlier, writes in ((1, None, True), (0, 1, False), (1, 1, False), (1, 0.5, True)):
        if earlier is not None:
            before.write_text(json.dumps({"step": 4, "score": earlier}) + "\n")
        predictions = {"logits": np.array([[[0.0, 2 * score - 1]]])}
        monkeypatch.setattr(
            evaluation,
            "predictor",
            lambda *_, said=predictions: lambda *_: (np.ones(1), said),
        )
        found = evaluation.TaskEvaluator(None, None, dev, str(tmp_path), None)(None)
        assert (found["score"], found["rank"]) == (score, -score)
        assert written.exists() == writes
        written.unlink(missing_ok=True)


SENTENCE = Example(
    ("Bado", "\u0301", "1,234,", "ki", "remi"), ("B-X", "O", "O", "B-Y", "I-Y"), "ner.conll, row 3"
)
NAMES = "B-X,B-Y,I-Y,O"


@pytest.mark.parametrize("segment_len", [32, 10])
def test_labels_stand_at_first_pieces_and_come_back(segment_len):
    """In one row or in several; the fault: labels of the wrong pieces, or words lost at a cut."""
    task = _task(TokenClassification, segment_len, labels=NAMES)
    rows = task.encode(0, SENTENCE)
    assert (len(rows) > 1) == (segment_len == 10)
    label_NT = np.stack([row.labels["label"] for row in rows])
    assert (label_NT >= 0).sum() == len(SENTENCE.texts)
    for row, label_T in zip(rows, label_NT, strict=True):
        starts = np.flatnonzero(label_T >= 0) - (segment_len - len(row.tokens[0]))
        assert starts[0] == 0
        assert all(
            task.tokenizer.word_start[row.tokens[0][start]] or row.tokens[0][start] == 0
            for start in starts
        )
    outputs = task.outputs({"label": np.maximum(label_NT, 0)}, rows, [SENTENCE])
    assert outputs == [{"labels": list(SENTENCE.label)}]
    assert task.score(outputs, [SENTENCE]) == {"accuracy": 1, "f1": 1} and task.metrics[0] == "f1"
    with pytest.raises(BadInput, match="ner.conll, row 3: unknown label 'B-Z'"):
        task.encode(0, SENTENCE._replace(label=("B-Z",) * 5))


def test_only_labels_that_mark_entities_have_f1():
    task = _task(TokenClassification, labels="B-PER,E-PER,O")
    assert task.metrics == ("f1", "accuracy")
    # The scheme is that of the labels, not of one sentence without an end.
    example = SENTENCE._replace(label=("B-PER",))
    assert task.score([{"labels": ["B-PER"]}], [example]) == {"accuracy": 1, "f1": 0}

    task = _task(TokenClassification, labels="NN,O")
    assert task.metrics == ("accuracy",)
    example = SENTENCE._replace(label=("NN",))
    assert task.score([{"labels": ["NN"]}], [example]) == {"accuracy": 1}
    message = (
        "finetune.metric=f1: F1 of entities needs tags of BIO.* labels are NN, O; use accuracy"
    )
    with pytest.raises(BadInput, match=message):
        _task(TokenClassification, labels="NN,O", metric="f1")


def test_the_loss_of_words_is_their_mean():
    head = TokenHead(tiny.config().model, 3)
    hidden = _hidden(np.random.default_rng(0).normal(size=(1, 1, 5, D)))
    label = np.array([[-1, 2, -1, 0, -1]], np.int32)
    params = head.init(jax.random.key(0), hidden, {"label": label}, method="losses")
    logits_TO = np.asarray(head.apply(params, hidden, method="logits"))[0]
    nll_TO = np.log(np.exp(logits_TO).sum(axis=1, keepdims=True)) - logits_TO
    loss = head.apply(params, hidden, {"label": label}, method="losses")
    assert loss == pytest.approx((nll_TO[1, 2] + nll_TO[3, 0]) / 2, abs=1e-5)


@pytest.mark.parametrize(("cls", "first"), [("last", 2), ("first", 0)])
def test_pooling_ignores_padding(cls, first):
    """On the left and on the right, where it has larger numbers than the text, and smaller ones."""
    h_BCTD = np.arange(4 * D, dtype=np.float32).reshape(1, 1, 4, D) * (1 if cls == "first" else -1)
    real_T = np.isin(np.arange(4), [first, first + 1])
    hidden = dataclasses.replace(_hidden(h_BCTD, real_T[None, None]), cls=cls)
    text_TD = h_BCTD[0, 0, real_T]
    expected = {
        "mean": text_TD.mean(axis=0),
        "max": text_TD.max(axis=0),
        "last": text_TD[1],
        "cls": text_TD[1 if cls == "last" else 0],
    }
    for name, vector in expected.items():
        found = EmbeddingHead(name, 0.05).apply({}, hidden, method="vectors")[0, 0]
        np.testing.assert_allclose(found, vector)
        unit = EmbeddingHead(name, 0.05, True).apply({}, hidden, method="vectors")[0, 0]
        np.testing.assert_allclose(unit, vector / np.linalg.norm(vector), rtol=1e-5)


def test_the_negatives_are_those_of_the_whole_batch_on_any_number_of_devices():
    """Losses and gradients; the fault: negatives of the own device only, or its own pair at the
    wrong place.
    """
    vectors_B2D = jnp.asarray(np.random.default_rng(0).normal(size=(8, 2, D)), jnp.float32)
    losses = functools.partial(contrastive_losses, temperature=0.5)
    value = jax.value_and_grad(lambda x: losses(x).sum())

    mesh = meshes.make_mesh(dataclasses.replace(Config().mesh, slices=2, data=2, fsdp=2))
    rows = PartitionSpec(("slices", "data"))

    def local(x):
        loss, gradient = value(x)
        return losses(x), jax.lax.psum(loss, ("slices", "data")), gradient

    with jax.set_mesh(mesh):
        whole = jax.jit(lambda x: (losses(x), *value(x)))(vectors_B2D)
        split = jax.jit(
            jax.shard_map(
                local,
                in_specs=rows,
                out_specs=(rows, PartitionSpec(), rows),
                check_vma=False,
                axis_names={"slices", "data"},
            )
        )(vectors_B2D)
    for one, two in zip(whole, split, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-5)
    # By the formula.
    unit = np.asarray(vectors_B2D / np.linalg.norm(vectors_B2D, axis=-1, keepdims=True), np.float64)
    p_BB = np.exp(unit[:, 0] @ unit[:, 1].T / 0.5)
    expected = -np.log(np.diag(p_BB) ** 2 / p_BB.sum(axis=0) / p_BB.sum(axis=1)) / 2
    np.testing.assert_allclose(whole[0], expected, atol=1e-5)


def test_scores_of_embeddings():
    task = _task(Embeddings, columns="a,b,score")
    examples = [Example(("ba", "do"), label, "") for label in (1, 5, 3)]
    (row,) = task.encode(0, examples[0])
    assert len(row.tokens) == 2 and task.metrics[0] == "spearman"
    vectors = np.array([[[1, 0], [0, 1]], [[2, 2], [1, 1]], [[1, 0], [1, 1]]], np.float32)
    outputs = task.outputs({"vectors": vectors}, [row] * 3, examples)
    assert [each["similarity"] for each in outputs] == pytest.approx([0, 1, np.sqrt(0.5)])
    assert task.score(outputs, examples)["spearman"] == pytest.approx(1)
    # The nearest second texts of the three are 1 or 2, 1 or 2, and 1 or 2.
    unlabelled = [example._replace(label=None) for example in examples]
    assert task.score(outputs, unlabelled)["accuracy"] == pytest.approx(1 / 3)
    with pytest.raises(BadInput, match="train.gradient_accumulation_steps=2 .* negatives of a row"):
        tiny.config(finetune={"task": "embeddings"}, train={"gradient_accumulation_steps": 2})
