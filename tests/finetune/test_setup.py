"""What a task takes from the run that it starts from: the whole architecture, and nothing of how it
was trained.
"""

import dataclasses
import json
import pathlib

import flax.linen as nn
import jax
import numpy as np
import pytest
import tiny

from xlnet_jax import config as configs
from xlnet_jax.checkpoint import restore
from xlnet_jax.commands.finetune import finetune
from xlnet_jax.convert import fields
from xlnet_jax.distributed.processes import Session
from xlnet_jax.errors import BadInput
from xlnet_jax.finetune import setup
from xlnet_jax.finetune.recipe import task_recipe
from xlnet_jax.finetune.setup import prepare

ARCHITECTURE = dict(
    layers=3,
    d_model=24,
    heads=3,
    head_dim=6,
    d_ff=20,
    activation="relu",
    biases_per_layer=False,
    norm="pre",
    scale_embedding=True,
    cutoffs="50,100",
    div_val=2,
    d_embed=12,
    tie_embedding=False,
    tie_projections="none",
    share_layers=True,
    clamp_len=7,
    layer_norm_epsilon=1e-6,
)
"""Another value of each key, but for those of the test below and for `vocab_size`, which the
tokenizer decides.
"""
OF_RUN = dict(
    memory_len=5,
    dropout=0.3,
    attention_dropout=0.2,
    activation_dropout=0.1,
    init_std=0.5,
    compute_dtype="bfloat16",
    remat="full",
    attention="xla",
    unroll="on",
)


def test_a_task_has_the_whole_architecture_of_its_source_and_its_own_way_to_train(
    tmp_path, settings
):
    source = str(tmp_path / "run")
    config = tiny.config(model=ARCHITECTURE | OF_RUN)
    tiny.save_run(source, config, tiny.random_params(config))
    asked = settings(checkpoint={"init_from": source}, finetune={"tokenizer": ""})
    of_family = {"architecture", "max_positions"}
    assert set(configs.ARCHITECTURE) == {*ARCHITECTURE, *of_family, "vocab_size", "spare_rows"}
    of_run = {field.name for field in dataclasses.fields(asked.model)} - set(configs.ARCHITECTURE)
    # The first two are for `data.objective=clm`, the last one is of other families.
    assert of_run == {*OF_RUN, "same_length", "layer_losses", "init_truncated"}
    train, _ = setup.prepare(asked, str(tmp_path / "task"))
    found = vars(train.task.config.model)
    assert {name: found[name] for name in ARCHITECTURE} == ARCHITECTURE
    assert {name: found[name] for name in OF_RUN} == {
        name: getattr(asked.model, name) for name in OF_RUN
    }
    before = vars(asked.model)
    assert all(before[name] != value for name, value in (ARCHITECTURE | OF_RUN).items())
    # All parameters are taken, but for the head.
    recipe = task_recipe(train.task, train.rows[0], train.task.config)
    leaves = nn.meta.unbox(recipe.abstract_params)
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    leaves = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=one), leaves
    )
    _, origin = restore.foreign_parameters(source, leaves, Session())
    assert {name.split("/")[1] for name in origin["fresh"]} == {"head"}
    assert {name.split("/")[1] for name in origin["left_over"]} == {"lm_head"}


def test_a_dry_run_looks_at_the_step_of_its_source(tmp_path, settings):
    source = str(tmp_path / "run")
    config = tiny.config()
    tiny.save_run(source, config, tiny.random_params(config))
    asked = settings(
        checkpoint={"init_from": f"{source}/checkpoints/4"}, finetune={"tokenizer": ""}
    )
    with pytest.raises(BadInput, match="no checkpoint of step 4; there are 3"):
        finetune(asked, str(tmp_path / "task"), dry_run=True)


def test_a_model_that_no_task_can_have_is_refused_in_one_line(tmp_path, settings):
    source = str(tmp_path / "run")
    clm = {"objective": "clm", "reuse_len": 32, "num_predict": 32}
    run = tiny.config(
        model={"architecture": "vanilla", "memory_len": 0, "layer_losses": True}, data=clm
    )
    tiny.save_run(source, run, {"x": np.zeros(1)})
    config = settings(checkpoint={"init_from": source}, finetune={"tokenizer": ""})
    with pytest.raises(BadInput) as raised:
        finetune(config, str(tmp_path / "task"))
    assert str(raised.value) == (
        f"the model of {source} does not fit this task: finetune.task=classification is not for "
        "model.architecture=vanilla; use none"
    )
    assert not (tmp_path / "task").exists()


def test_the_page_says_what_the_configuration_decides():
    """docs/finetune.md; all other keys of the model come with the parameters."""
    page = (tiny.ROOT / "docs" / "finetune.md").read_text(encoding="utf-8")
    (row,) = [line for line in page.splitlines() if line.endswith("| the configuration |")]
    named = {name for name in vars(configs.ModelConfig()) if f"`{name}`" in row}
    assert named == set(vars(configs.ModelConfig())) - set(configs.ARCHITECTURE)


@pytest.mark.parametrize(
    ("task", "rows", "columns"),
    [
        (
            "classification",
            [{"sentence": "b", "question": "a", "label": "yes"}],
            "question,sentence,label",
        ),
        ("classification", [{"text": "a", "source": "web", "label": "yes"}], "text,label"),
        (
            "regression",
            [{"hypothesis": "b", "premise": "a", "score": 1}],
            "premise,hypothesis,score",
        ),
        ("embeddings", [{"question2": "b", "question1": "a"}], "question1,question2"),
        ("text_to_text", [{"source": "a", "target": "b"}], ""),
        # Of sources with other names those of the first; a run that takes one text or two has no
        # order.
        (
            "classification",
            [{"text": "a", "label": "yes"}, {"sentence": "b", "label": "no"}],
            "text,label",
        ),
        (
            "classification",
            [{"text": "a", "label": "yes"}, {"sentence1": "b", "sentence2": "c", "label": "no"}],
            "",
        ),
    ],
)
def test_the_names_that_training_took_are_stored_and_exported(
    tmp_path, settings, task, rows, columns
):
    """And a start with the same words reads the same examples; the dev set may have other names."""
    for number, row in enumerate(rows):
        text = (
            "".join(json.dumps(row | {"label": label}) + "\n" for label in ("yes", "no"))
            if "label" in row
            else ""
        )
        (tmp_path / f"{number}.jsonl").write_text(text or f"{json.dumps(row)}\n" * 2)
    last = rows[-1] if task != "embeddings" else {"sentence1": "a", "sentence2": "b"}
    (tmp_path / "dev.jsonl").write_text(json.dumps(last))
    sources = {
        "train": ",".join(f"{tmp_path}/{number}.jsonl" for number in range(len(rows))),
        "task": task,
    }
    sources |= {"max_answer": 4} if task == "text_to_text" else {}
    config = settings(
        finetune=sources | {"dev": f"{tmp_path}/dev.jsonl"},
        train={"batch_size": 2},
        model={"memory_len": 0},
    )
    train, dev = prepare(config, str(tmp_path / "run"))
    assert train.task.config.finetune.columns == columns and len(dev.examples) == 1
    again, _ = prepare(
        config.changed(finetune={"dev": "", "dev_share": 0.0}, evaluation={"every": 0}),
        str(tmp_path / "run"),
    )
    assert again.sha256 == train.sha256
    # They go with an export.
    assert fields.own_keys(train.task.config)["finetune.columns"] == columns


OWN = tiny.ROOT / "configs" / "finetune" / "own.py"


def test_settings_of_no_data_set_train_for_three_passes_and_score_a_tenth(
    tmp_path, settings, examples, caplog
):
    """Keys that are set stay as they are; what follows is in the configuration of the run, which a
    resume reads.
    """
    caplog.set_level("INFO")
    own = configs.load(str(OWN), [f"--config.finetune.train={examples['train']}"])
    assert (own.finetune.epochs, own.finetune.dev, own.finetune.dev_share) == (3, "", 0.1)
    keys = {
        "train": examples["train"],
        "dev": "",
        "dev_share": own.finetune.dev_share,
        "epochs": own.finetune.epochs,
    }
    usual = {name: vars(section) for name, section in configs.Config().sections.items()}
    sections = {name: usual[name] for name in ("evaluation", "checkpoint", "optimizer")}
    plain = settings().changed(finetune=keys, train=usual["train"] | {"batch_size": 4}, **sections)
    train, dev = prepare(plain, str(tmp_path / "run"))
    assert (len(train.examples), len(dev.examples)) == (43, 5) and not {*train.examples} & {
        *dev.examples
    }
    assert "5 of 48 examples of " in caplog.text
    found = train.task.config
    assert (found.train.steps, found.optimizer.warmup_steps, found.train.steps_per_dispatch) == (
        33,
        3,
        1,
    )
    assert (found.checkpoint.every, found.evaluation.every) == (11, 11)
    warm = prepare(plain.changed(optimizer={"warmup_steps": 7}), str(tmp_path / "run"))[
        0
    ].task.config
    assert (warm.optimizer.warmup_steps, warm.train.steps) == (7, 33)
    # Of steps that are set nothing follows.
    again = prepare(found, str(tmp_path / "run"))[0].task.config
    assert again == found and found.checkpoint.keep_best == 1


@pytest.mark.parametrize(
    ("words", "dev", "share"),
    [
        (["train=mine.tsv"], "", 0.1),
        (["train=tfds:glue/mrpc:train"], "", 0.1),
        (["train=mine.tsv", "dev=tfds:glue/sst2:validation"], "tfds:glue/sst2:validation", 0),
        (["train=mine.tsv", "dev_share=0.2"], "", 0.2),
        (["train=tfds:glue/sst2:validation"], "tfds:glue/sst2:validation", 0),
        ([], "tfds:glue/sst2:validation", 0),
    ],
)
def test_other_training_examples_are_not_scored_on_a_published_dev_set(words, dev, share):
    config = configs.load("finetune/sst2", [f"--config.finetune.{word}" for word in words])
    assert config.finetune.dev == dev
    assert config.finetune.dev_share == share


RECIPES = sorted({*(tiny.ROOT / "configs" / "finetune").glob("*.py")} - {OWN})


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_published_recipe_loads_and_says_how_it_is_run_and_what_to_expect(path):
    config = configs.load(str(path))
    assert config.finetune.task != "none" and config.finetune.train and config.finetune.dev
    assert config.optimizer.warmup_steps < config.train.steps
    assert config.train.steps % config.evaluation.every == 0
    text = path.read_text()
    assert f"--config=configs/finetune/{path.name} " in text and "not measured" in text.replace(
        "\n", " "
    )
    wanted = "mnli qqp sst2 cola stsb mrpc rte squad2 squad2_base race imdb yelp5"
    assert {path.stem for path in RECIPES} >= set(wanted.split())


def test_a_text_in_the_place_of_a_label_is_refused():
    with pytest.raises(
        BadInput, match="a.tsv: the label 'x{60}' has 1001 characters; name its column"
    ):
        setup._sorted({"b", "x" * 1001}, "a.tsv")
    assert setup._sorted({"10", "9", "b"}, "a.tsv") == ["b", "9", "10"]


def _prepared(settings, folder, name, data, dev="", **finetune):
    """The labels and the numbers of examples for training and of the dev set, or the error."""
    files = {
        key: str(folder / f"{key}_{name}") for key, text in (("train", data), ("dev", dev)) if text
    }
    for key, text in (("train", data), ("dev", dev)):
        if text:
            (folder / f"{key}_{name}").write_text(text)
    config = settings(
        train={"batch_size": 1},
        finetune={"dev": "", **files, **finetune},
        evaluation={"every": 0, "final": False},
    )
    try:
        train, held = setup.prepare(config, str(folder / "run"))
    except BadInput as error:
        return str(error)
    return train.task.labels, len(train.examples), len(held.examples) if held else 0


def _lines(*labels, **fields):
    return "".join(
        json.dumps({"text": "bame dono", **fields, "label": label}) + "\n" for label in labels
    )


NLI = '{"sentence1": "bame", "sentence2": "dono", "gold_label": "%s"}\n'
CHOICE = {"context": "bame", "question": "dono", "options": ["kira", "lusi"]}


@pytest.mark.parametrize(
    ("finetune", "name", "data", "found", "told"),
    [
        (
            {},
            "a.jsonl",
            NLI % "yes" + NLI % "-" + NLI % "no",
            (["no", "yes"], 2, 0),
            '"-" (1), the first in',
        ),
        (
            {},
            "a.jsonl",
            _lines("a", None, "b", float("nan"), None),
            (["a", "b"], 2, 0),
            "null (2), NaN (1), the first",
        ),
        (
            {},
            "a.csv",
            "text,label\nbame,a\ndono,\nkira,NaN\nlusi,b\n",
            (["a", "b"], 2, 0),
            '"" (1), "NaN" (1), the',
        ),
        (
            {},
            "a.tsv",
            "text\tlabel\nbame\t0\ndono\t1\nkira\t2\nlusi\t-1\n",
            (["0", "1", "2"], 3, 0),
            '"-1" (1)',
        ),
        (
            {},
            "a.jsonl",
            _lines(0, 1, -1, 2, -1),
            (["0", "1", "2"], 3, 0),
            "2 of 5 examples without a label: -1 (2)",
        ),
        (
            {"labels": "0,1"},
            "a.jsonl",
            _lines(0, 1, -1),
            (["0", "1"], 2, 0),
            "1 of 3 examples without a label: -1 (1)",
        ),
        ({}, "a.jsonl", _lines(0.0, 1, -1.0, 2.0, 1.0), (["0", "1", "2"], 4, 0), "-1 (1)"),
        # These are classes and numbers.
        ({}, "a.jsonl", _lines(-1, 0, 1), (["-1", "0", "1"], 3, 0), ""),
        ({}, "a.jsonl", _lines(-1, 1), (["-1", "1"], 2, 0), ""),
        ({}, "a.jsonl", _lines(-1, 1, 2, 3), (["-1", "1", "2", "3"], 4, 0), ""),
        ({}, "a.jsonl", _lines("none", "None", "neutral"), (["None", "neutral", "none"], 3, 0), ""),
        ({"labels": "-,yes"}, "a.jsonl", _lines("-", "yes"), (["-", "yes"], 2, 0), ""),
        ({"task": "regression"}, "a.jsonl", _lines(-1, 0, 1, 2, None), ([], 4, 0), "null (1)"),
        (
            {"task": "multiple_choice"},
            "a.jsonl",
            _lines("A", "", None, -1, "B", **CHOICE),
            ([], 2, 0),
            '"" (1), null (1), -1 (1)',
        ),
        (
            {"task": "token_classification", "columns": "w,label"},
            "a.jsonl",
            _lines(["X", "-"], ["X", None], ["", "Y"], w=["bame", "dono"]),
            (["-", "X"], 1, 0),
            "2 of 3 examples without",
        ),
        # Without the key, and without one label.
        (
            {"drop_unlabelled": False},
            "a.jsonl",
            _lines("a", "b", "-"),
            "row 3; give labels, or remove the rows",
            "",
        ),
        (
            {},
            "a.jsonl",
            _lines("-", None),
            'a.jsonl: 2 of 2 examples without a label: "-" (1), null (1), the',
            "",
        ),
    ],
    ids=[
        "snli",
        "null_and_nan",
        "csv",
        "minus_one_tsv",
        "minus_one",
        "minus_one_of_two_given",
        "floats",
        "three_moods",
        "votes",
        "not_counted",
        "none_is_a_class",
        "named",
        "regression",
        "multiple_choice",
        "tags",
        "refused",
        "all",
    ],
)
def test_an_example_without_a_label_is_left_out_and_said_and_never_a_class(
    tmp_path, settings, caplog, finetune, name, data, found, told
):
    said = _prepared(settings, tmp_path, name, data, **finetune)
    assert found in said if isinstance(found, str) else said == found
    assert told in caplog.text and ("left out" in caplog.text) == bool(told)


def test_the_dev_set_is_read_by_the_same_rules(tmp_path, settings, caplog):
    data = _lines(0, 1)
    assert _prepared(settings, tmp_path, "a.jsonl", data, dev=_lines(1, -1, None, 0)) == (
        ["0", "1"],
        2,
        2,
    )
    assert (
        "dev_a.jsonl: 2 of 4 examples without a label: -1 (1), null (1), the first in"
        in caplog.text
    )
    # A test set, which would score nothing.
    assert "2 of 2 examples without a label: -1 (2)" in _prepared(
        settings, tmp_path, "a.jsonl", data, _lines(-1, -1)
    )
    fields = {"context": "bame dono", "question": "kira"}
    answers = {"text": ["dono"], "answer_start": [5]}
    found = _prepared(
        settings,
        tmp_path,
        "a.jsonl",
        json.dumps(fields | {"answers": answers}),
        json.dumps(fields),
        task="question_answering",
    )
    assert "dev_a.jsonl: 1 of 1 example without a label: null (1)" in found


def _rows(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


ONE = [{"text": "bame", "label": "yes"}, {"text": "dono", "label": "no"}]
TWO = [
    {"premise": "bame", "hypothesis": "kira", "label": "yes"},
    {"premise": "a", "hypothesis": "b", "label": "no"},
]
NUMBER = [{"text": "bame", "score": 1}, {"text": "dono", "score": 2}]


@pytest.mark.parametrize(
    ("task", "train", "dev", "texts", "label"),
    [
        ("classification", ONE, {"text": "a", "sentence": "b", "label": "no"}, ("a",), "no"),
        (
            "classification",
            ONE,
            {"sentence1": "b", "text": "a", "sentence2": "c", "label": "no"},
            ("a",),
            "no",
        ),
        ("regression", NUMBER, {"text": "a", "score": 1, "label": 2}, ("a",), 1),
        (
            "classification",
            TWO,
            {"sentence1": "x", "sentence2": "y", "premise": "a", "hypothesis": "b", "label": "no"},
            ("a", "b"),
            "no",
        ),
        # This dev set lacks the names of training, so it is read by its own.
        ("classification", ONE, {"sentence": "b", "label": "no"}, ("b",), "no"),
    ],
)
def test_the_dev_set_is_read_by_the_names_that_training_took(
    tmp_path, settings, task, train, dev, texts, label
):
    (tmp_path / "train.jsonl").write_text(_rows(*train))
    (tmp_path / "dev.jsonl").write_text(_rows(dev))
    finetune = {"task": task, "train": f"{tmp_path}/train.jsonl", "dev": f"{tmp_path}/dev.jsonl"}
    _, found = prepare(settings(finetune=finetune, train={"batch_size": 2}), str(tmp_path / "run"))
    assert [(each.texts, each.label) for each in found.examples] == [(texts, label)]


@pytest.mark.parametrize(
    ("task", "train", "dev", "told"),
    [
        (
            "classification",
            ONE,
            [{"sentence1": "a", "sentence2": "b", "label": "no"}],
            (
                "dev.jsonl, row 1: the number of texts is 2, and in {}/train.jsonl it is 1; "
                "every example needs the same"
            ),
        ),
        (
            "classification",
            TWO,
            ONE,
            "dev.jsonl, row 1: the number of texts is 1, and in {}/train.jsonl it is 2;",
        ),
        # The number would become a class.
        (
            "classification",
            [{**ONE[0], "score": 1}, ONE[1], {"text": "kira", "score": 0.1}],
            ONE,
            "train.jsonl, row 3: no column 'label'",
        ),
        (
            "question_answering",
            [
                {
                    "context": "bame dono",
                    "question": "a",
                    "is_impossible": "False",
                    "answers": [{"text": "dono", "answer_start": 5}],
                }
            ],
            [],
            "train.jsonl, row 1: 'is_impossible' must be true or false, and is 'False'",
        ),
        (
            "text_to_text",
            [{"source": "a", "target": None}],
            [],
            "1 of 1 example without a label: null (1), the first",
        ),
    ],
)
def test_what_is_not_as_training_reads_it_is_refused(tmp_path, settings, task, train, dev, told):
    (tmp_path / "train.jsonl").write_text(_rows(*train))
    (tmp_path / "dev.jsonl").write_text(_rows(*dev))
    finetune = {
        "task": task,
        "train": f"{tmp_path}/train.jsonl",
        "dev": f"{tmp_path}/dev.jsonl" * bool(dev),
    }
    finetune |= {} if task != "text_to_text" else {"max_answer": 4}
    changes = {
        "train": {"batch_size": 2},
        "evaluation": {"every": 4 if dev else 0},
        "model": {"memory_len": 0},
    }
    with pytest.raises(BadInput) as raised:
        prepare(settings(finetune=finetune, **changes), str(tmp_path / "run"))
    assert told.format(tmp_path) in str(raised.value)


def test_a_file_with_two_bytes_a_character_is_refused(tmp_path, settings):
    """Without a mark at its start it would be read as text with a NUL behind each letter."""
    told = _prepared(
        settings, tmp_path, "a.csv", "text,label\nbame,a\ndono,b\n".encode("utf-16-le").decode()
    )
    assert told.endswith("train_a.csv: a NUL byte, so it is not UTF-8 text; convert the file")


def test_a_similarity_or_a_target_that_is_not_there_is_left_out(tmp_path, settings, caplog):
    similar = [
        {"sentence1": "bame", "sentence2": "kira", "score": score}
        for score in (0.5, None, float("nan"), 1.0)
    ]
    targets = [{"source": "bame", "target": target} for target in ("dono", None, "nan", "-")]
    for task, rows, columns, left in (
        ("embeddings", similar, "sentence1,sentence2,score", 2),
        ("text_to_text", targets, "", 3),
        ("embeddings", similar, "sentence1,sentence2", 4),
    ):
        (tmp_path / "train.jsonl").write_text(_rows(*rows))
        finetune = {"task": task, "train": f"{tmp_path}/train.jsonl", "dev": "", "columns": columns}
        finetune |= {} if task != "text_to_text" else {"max_answer": 4}
        config = settings(
            finetune=finetune,
            train={"batch_size": 2},
            evaluation={"every": 0},
            model={"memory_len": 0},
        )
        found, _ = prepare(config, str(tmp_path / f"{task}{columns}"))
        assert len(found.examples) == left
    assert (
        '"" (1), NaN (1), the first in' in caplog.text
        and "1 of 4 examples without a label: null (1)" in caplog.text
    )


@pytest.mark.parametrize(
    ("task", "labels"),
    [
        ("token_classification", ["''", ",", "``"]),
        ("token_classification", [",", ", ", "."]),
        ("classification", ["anger", "joy, love"]),
        ("classification", [" a", "a"]),
        ("classification", ['["a"', "b"]),
    ],
)
def test_a_label_with_a_comma_or_spaces_is_kept(tmp_path, settings, task, labels):
    words = task == "token_classification"
    data = (
        json.dumps({"w": ["bame"] * len(labels), "label": labels})
        if words
        else _lines(*labels, w="bame")
    )
    found = _prepared(settings, tmp_path, "a.jsonl", data, task=task, columns="w,label")
    assert found == (labels, 1 if words else len(labels), 0)


@pytest.mark.parametrize(
    ("labels", "refused"),
    [
        ("1234", True),
        ("21", True),
        ([1, 2, 3], True),
        ("0123", False),
        ("ABC", False),
        ("1A", False),
    ],
)
def test_numbers_of_options_that_may_count_from_1_are_refused(tmp_path, settings, labels, refused):
    data = _lines(*labels, c="bame", q="dono", **dict.fromkeys("vwxyz", "kira"))
    found = _prepared(
        settings, tmp_path, "a.jsonl", data, task="multiple_choice", columns="c,q,v,w,x,y,z,label"
    )
    told = (
        "row 1: numbers of options count from 0, and no label is 0 or a letter; "
        "subtract 1 if yours count from 1"
    )
    assert told in found if refused else found == ([], len(labels), 0)


@pytest.mark.parametrize(
    ("tags", "metric", "lines"),
    [
        (("B-PER", "E-PER", "O", "S-ORG"), "f1", 0),
        (("B_PER", "I_PER", "O", "B_LOC"), "f1", 0),
        (("NNP", "NNP", "VBZ", "NNP"), "accuracy", 1),
        (("B-PER", "Q-PER", "O", "B-ORG"), "accuracy", 1),
    ],
)
def test_a_run_whose_labels_mark_no_entities_says_so_once(
    tmp_path, settings, caplog, tags, metric, lines
):
    words = ("bame", "dono", "kira", "lu")
    path = tmp_path / "ner.conll"
    path.write_text(
        "".join(f"{word} {tag}\n" for word, tag in zip(words, tags, strict=True)) + "\n"
    )
    path.write_text(path.read_text() * 8)
    finetune = {"task": "token_classification", "train": str(path), "dev": str(path)}
    train, dev = setup.prepare(settings(finetune=finetune), str(tmp_path / "run"))
    assert train.task.metric == dev.task.metric == metric
    said = [record.message for record in caplog.records if "F1 of entities" in record.message]
    assert len(said) == lines and all(
        line.endswith("accuracy ranks the checkpoints") for line in said
    )


@pytest.mark.parametrize(
    "word", ["Привет", "学校に行く", "🎉"], ids=["cyrillic", "japanese", "emoji"]
)
@pytest.mark.parametrize("which", ["train", "dev"])
def test_examples_that_the_tokenizer_does_not_know_are_told(
    settings, examples, tmp_path, caplog, which, word
):
    for name, path in examples.items():
        text = pathlib.Path(path).read_text("utf-8")
        (tmp_path / f"{name}.tsv").write_text(
            text.replace("kiki", word) if name == which else text, "utf-8"
        )
    setup.prepare(
        settings(finetune={name: str(tmp_path / f"{name}.tsv") for name in examples}),
        str(tmp_path / "run"),
    )
    (line,) = [line for line in caplog.messages if "does not know" in line]
    assert (
        line.startswith(f"{tmp_path / which}.tsv: the tokenizer does not know")
        and f"such as {word!r}" in line
    )


@pytest.mark.parametrize(
    ("task", "labels", "told"),
    [
        ("classification", ["a", "a"], "has one label, 'a'; a task needs at least two"),
        (
            "multi_label_classification",
            [["a"], []],
            "has one label, 'a'; a task needs at least two",
        ),
        ("multi_label_classification", [[], []], "has no label; a task needs at least two"),
    ],
)
def test_a_task_needs_two_labels(tmp_path, settings, task, labels, told):
    assert told in _prepared(settings, tmp_path, "a.jsonl", _lines(*labels), task=task)
