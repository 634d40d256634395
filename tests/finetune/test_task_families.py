"""BERT, RoBERTa, ALBERT, GPT-2 and ModernBERT on tasks: they learn, padding changes nothing,
dropout stands where theirs does.
"""

import data_fixtures
import flax.linen as nn
import jax
import numpy as np
import pytest
import tiny
import traced

from xlnet_jax.commands.finetune import finetune
from xlnet_jax.errors import BadInput
from xlnet_jax.finetune.recipe import task_recipe
from xlnet_jax.finetune.setup import rows_of
from xlnet_jax.finetune.task import Example
from xlnet_jax.finetune.tasks import TASKS
from xlnet_jax.train.loss import mean_loss

MODELS = {
    "bert": {},
    "roberta": {},
    "albert": {"d_embed": 8, "share_layers": True},
    "gpt2": {"norm": "pre"},
    "modernbert": {"norm": "pre", "window": 8},
}
T = 16


def _model(family):
    positions = {} if family == "xlnet" else {"max_positions": 2 * T}
    return {"architecture": family, "memory_len": 0} | positions | MODELS.get(family, {})


def _recipe(family, task="classification", **model):
    named = {"labels": "no,yes"} if task.endswith("classification") else {}
    config = tiny.config(
        model=_model(family) | model,
        data={"segment_len": T},
        finetune={"task": task, "train": "none.tsv"} | named,
    )
    kind = TASKS[task](config, data_fixtures.tokenizer())
    return task_recipe(kind, _row(kind), config)


def _row(task):
    """Of two words, or of a context, a question and two options."""
    texts = ("bame dono", "kira") + ("lu", "tume") * (task.texts[0] == 4)
    return task.encode(0, Example(texts, None, ""))[0]


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name in ("roberta", "albert")))
        for name in MODELS
    ],
)
def test_a_family_learns_a_class_and_padding_changes_nothing(family):
    """The fault: a head that reads padding, or the first piece of a text that is read from left to
    right.
    """
    model = _recipe(family).model
    params = jax.jit(lambda: nn.meta.unbox(_recipe(family).init_params()))()
    assert set(params["head"]) == ({"logits"} if family == "gpt2" else {"summary", "logits"})
    texts = ["bame dono", "kira", "lusi tume veve", "veve bame kira lusi", "veve", "dono kira bame"]
    labels = ["yes" if "veve" in text else "no" for text in texts]
    examples = [Example((text,), label, "") for text, label in zip(texts, labels, strict=True)]
    rows = rows_of(model.task, examples)
    batch = model.task.batch(rows, len(rows))

    @jax.jit
    def step(params):
        loss, gradient = jax.value_and_grad(lambda params: mean_loss(params, model, batch, ())[0])(
            params
        )
        return loss, jax.tree.map(lambda x, g: x - 0.2 * g, params, gradient)

    losses = []
    for _ in range(40):
        loss, params = step(params)
        losses.append(float(loss))
    assert losses[-1] < 0.2 < 0.5 < losses[0]
    evaluate = jax.jit(model.evaluate)
    short, long = (
        evaluate(params, model.task.batch(rows, len(rows), length)) for length in (T, 2 * T)
    )
    np.testing.assert_allclose(short[1]["logits"], long[1]["logits"], atol=1e-5)
    assert np.ptp(short[1]["logits"][:, 0, 1]) > 0.5
    np.testing.assert_array_equal(short[1]["logits"][:, 0].argmax(-1), batch.labels["label"])


@pytest.mark.parametrize(
    ("family", "task", "rates"),
    [
        # XLNet drops what the last layer gives, and each summary once more; so do the heads of
        # RoBERTa.
        ("xlnet", "classification", {"": 0.5, "summary/Dropout_0": 0.5}),
        ("xlnet", "token_classification", {"": 0.5}),
        ("xlnet", "question_answering", {"": 0.5, "answer_class/Dropout_0": 0.5}),
        ("bert", "classification", {"summary/Dropout_0": 0.5}),
        ("bert", "token_classification", {"": 0.5}),
        ("bert", "question_answering", {}),
        ("roberta", "classification", {"": 0.5, "summary/Dropout_0": 0.5}),
        ("roberta", "multiple_choice", {"summary/Dropout_0": 0.5}),
        ("albert", "classification", {"summary/Dropout_0": 0.1}),
        ("albert", "token_classification", {"": 0.1}),
        ("gpt2", "classification", {}),
        ("modernbert", "classification", {"summary/Dropout_0": 0.5}),
        ("modernbert", "token_classification", {"summary/Dropout_0": 0.5}),
        ("modernbert", "question_answering", {"summary/Dropout_0": 0.5}),
    ],
)
def test_dropout_of_a_head_is_that_of_its_class_in_transformers(family, task, rates):
    """ALBERT's heads have a rate of their own, as the model has none."""
    recipe = _recipe(
        family, task, dropout=0.0 if family == "albert" else 0.5, attention_dropout=0.0
    )
    params = nn.meta.unbox(recipe.abstract_params)
    batch = recipe.model.task.batch([_row(recipe.model.task)] * 2, 2)
    found = traced.dropped(recipe.model.row_losses, params, batch, (), jax.random.key(0))
    of_model = ("layers/", "positions/", "token_dropout")
    assert {place: rate for place, rate in found.items() if not place.startswith(of_model)} == rates
    assert not traced.dropped(recipe.model.evaluate, params, batch), "an evaluation drops nothing"


@pytest.mark.slow
def test_the_head_of_pretraining_begins_the_head_of_a_modernbert(tmp_path, settings):
    """As in transformers, where both have one name. What the task may read is known from the
    source's architecture.
    """
    source, model = str(tmp_path / "run"), _model("modernbert") | {"max_positions": 32}
    data = {"objective": "mlm", "reuse_len": 30, "bidirectional": False, "pairs": "none"}
    config = tiny.config(model=model, data=data | {"spans": "random"})
    params = tiny.random_params(config, 0.1)
    tiny.save_run(source, config, params)
    asked = settings(
        model={"memory_len": 0},
        checkpoint={"init_from": source},
        finetune={"tokenizer": "", "pooling": "cls"},
        optimizer={"learning_rate": 1e-12},
        train={"steps": 4},
    )
    finetune(asked, str(tmp_path / "task"))
    found, _ = tiny.saved_parameters(str(tmp_path / "task"))
    for module, name in (("transform", "kernel"), ("norm", "scale")):
        began, given = found["head"]["summary"][module][name], params["lm_head"][module][name]
        np.testing.assert_allclose(began, given, atol=1e-9)
    assert "lm_head" not in found


@pytest.mark.slow
def test_the_pooler_of_pretraining_begins_a_head(tmp_path, settings):
    """And no other part of the source's heads is used; the memory of the task's configuration is no
    obstacle.
    """
    source = str(tmp_path / "run")
    data = {"objective": "mlm", "reuse_len": 29, "sentence_loss": True, "bidirectional": False}
    config = tiny.config(model=_model("bert") | {"max_positions": 32}, data=data)
    params = tiny.random_params(config, 0.1)
    tiny.save_run(source, config, params)
    asked = settings(
        model={"memory_len": 24},
        checkpoint={"init_from": source},
        finetune={"tokenizer": ""},
        optimizer={"learning_rate": 1e-12},
        train={"steps": 4},
    )
    finetune(asked, str(tmp_path / "task"))
    found, _ = tiny.saved_parameters(str(tmp_path / "task"))
    np.testing.assert_allclose(
        found["head"]["summary"]["kernel"], params["pooler"]["kernel"], atol=1e-9
    )
    np.testing.assert_allclose(found["position_embedding"], params["position_embedding"], atol=1e-9)
    assert "pooler" not in found and "lm_head" not in found


@pytest.mark.parametrize(
    ("family", "keys", "segment_len", "message"),
    [
        (
            "gpt2",
            {"task": "regression"},
            T,
            "finetune.task=regression needs a CLS, which model.architecture=gpt2 lacks; use one of "
            "classification, multi_label_classification, text_to_text",
        ),
        (
            "bert",
            {"task": "classification", "segments": 2},
            T,
            "finetune.segments=2 must be 1 with model.architecture=bert: its positions do not",
        ),
        (
            "bert",
            {"task": "classification"},
            64,
            "data.segment_len=64 is more than model.max_positions=32",
        ),
    ],
)
def test_what_a_family_cannot_do_is_refused(family, keys, segment_len, message):
    with pytest.raises(BadInput, match=message):
        tiny.config(
            model=_model(family),
            finetune=keys | {"train": "x"},
            data={"segment_len": segment_len},
        )
