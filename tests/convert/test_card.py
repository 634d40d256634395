"""The program of the model card for `<mask>` is the one of the page; `peers/test_model_card.py`
runs it.
"""

import data_fixtures
import pytest
import tiny

from xlnet_jax.convert.formats import Trained
from xlnet_jax.convert.model_card import model_card


def card(config):
    return model_card(Trained(config, data_fixtures.tokenizer(), {}))


def programs(page):
    return [block.split("```")[0] for block in page.split("```python\n")[1:]]


def test_the_page_has_the_program_of_the_card():
    """Ten lines, with what a plain call and the pipeline lack; a masked model needs neither of the
    two arguments.
    """
    plm = card(tiny.config())
    page = (tiny.ROOT / "docs" / "convert.md").read_text(encoding="utf-8")
    program = programs(plm)[1]
    assert (
        program in programs(page)
        and "perm_mask=perm_mask, target_mapping=target_mapping" in program
    )
    assert len(program.strip().splitlines()) <= 12
    for text in (plm, page):
        assert 'a plain call `model(**given)` and `pipeline("fill-mask")`' in " ".join(text.split())
    data = {"objective": "mlm", "reuse_len": 29}
    mlm = programs(card(tiny.config(data=data, model={"memory_len": 0})))[1]
    assert mlm.splitlines()[:6] == program.splitlines()[:6] and "perm_mask" not in mlm


@pytest.mark.parametrize(
    ("family", "tag", "count"),
    [("xlnet", "text-generation", 3), ("gpt2", "text-generation", 2), ("bert", "fill-mask", 2)],
)
def test_a_pretrained_model_says_what_it_is_for(family, tag, count):
    page = card(tiny.config() if family == "xlnet" else tiny.family(family))
    assert f"\npipeline_tag: {tag}\n" in page and "\n- pretraining\n" in page
    assert "its head is untrained" in page and len(programs(page)) == count
    assert ("max_new_tokens=20" in page) == (tag == "text-generation")


@pytest.mark.parametrize(
    ("task", "tag", "says"),
    [
        ("classification", "text-classification", "together 1"),
        ("multi_label_classification", "text-classification", "the labels above 0.5"),
        ("regression", "text-classification", "The score is the number"),
        ("multiple_choice", "multiple-choice", "XLNetForMultipleChoice"),
        ("question_answering", "question-answering", "XLNetForQuestionAnswering"),
        ("token_classification", "token-classification", "is_split_into_words=True"),
        ("embeddings", "sentence-similarity", "from sentence_transformers import"),
    ],
)
def test_a_fine_tuned_model_is_one_of_its_task(task, tag, says):
    """The fault: "XLNet pretrained" with an untrained head, for a head that is trained."""
    named = "no,some|thing" if task.endswith("classification") else ""
    page = card(tiny.config(finetune={"task": task, "labels": named}))
    assert f"\npipeline_tag: {tag}\n" in page
    assert "its head is untrained" not in page and " pretrained with" not in page
    assert (
        says in page
        and f"| task | {task} |" in page
        and ("| labels | no, some\\|thing |" in page) == bool(named)
    )
    assert "generate(" not in page and "<mask>" not in page and len(programs(page)) == 1


def test_the_pooling_that_a_head_reads_is_named():
    """ModernBERT's classifiers read the mean of all vectors or CLS, its heads of pieces neither."""
    for task, named in (("regression", 1), ("token_classification", 0), ("embeddings", 1)):
        page = card(tiny.family("modernbert", finetune={"task": task, "pooling": "cls"}))
        assert page.count("| pooling | cls |") == named
    assert "| pooling |" not in card(tiny.family("roberta", finetune={"task": "regression"}))
