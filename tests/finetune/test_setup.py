"""What a task takes from the run that it starts from: the whole architecture, and nothing of how it
was trained.
"""

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
    of_family = {"architecture", "max_positions", "window", "global_every", "theta", "theta_local"}
    assert set(configs.ARCHITECTURE) == {*ARCHITECTURE, *of_family, "vocab_size", "spare_rows"}
    of_run = vars(asked.model).keys() - configs.ARCHITECTURE
    # The first two are for `data.objective=clm`, the last one is of other families.
    assert of_run == {*OF_RUN, "same_length", "layer_losses", "init_truncated"}
    train, _ = prepare(asked, str(tmp_path / "task"))
    before, found = vars(asked.model), vars(train.task.config.model)
    for name, value in ARCHITECTURE.items():
        assert found[name] == value != before[name]
    for name, value in OF_RUN.items():
        assert found[name] == before[name] != value
    # All parameters are taken, but for the head.
    recipe = task_recipe(train.task, train.rows[0], train.task.config)
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    leaves = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=one),
        nn.meta.unbox(recipe.abstract_params),
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
    with pytest.raises(BadInput, match="does not fit this task: .* is not for model.arch.*vanilla"):
        finetune(config, str(tmp_path / "task"))
    assert not (tmp_path / "task").exists()


def test_the_page_says_what_the_configuration_decides():
    """docs/finetune.md; all other keys of the model come with the parameters."""
    page = (tiny.ROOT / "docs" / "finetune.md").read_text(encoding="utf-8")
    (row,) = [line for line in page.splitlines() if line.endswith("| the configuration |")]
    named = {name for name in vars(configs.ModelConfig()) if f"`{name}`" in row}
    assert named == set(vars(configs.ModelConfig())) - set(configs.ARCHITECTURE)


def _rows(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize(
    ("keys", "rows", "columns"),
    [
        (
            {"task": "classification"},
            [{"sentence": "b", "question": "a"}],
            "question,sentence,label",
        ),
        (
            {"task": "embeddings"},
            [{"question2": "b", "question1": "a"}],
            "question1,question2",
        ),
        ({"task": "text_to_text", "max_answer": 4}, [{"source": "a", "target": "b"}], ""),
        # Of sources with other names those of the first; a run that takes one text or two has no
        # order.
        ({"task": "classification"}, [{"text": "a"}, {"sentence": "b"}], "text,label"),
        ({"task": "classification"}, [{"text": "a"}, {"sentence1": "b", "sentence2": "c"}], ""),
    ],
)
def test_the_names_that_training_took_are_stored_and_exported(
    tmp_path, settings, keys, rows, columns
):
    """The dev set may have other names."""
    for number, row in enumerate(rows):
        labelled = [row | {"label": label} for label in ("yes", "no")]
        (tmp_path / f"{number}.jsonl").write_text(_rows(*labelled))
    sources = [f"{tmp_path}/{number}.jsonl" for number in range(len(rows))]
    config = settings(
        finetune=keys | {"train": ",".join(sources), "dev": sources[-1]},
        train={"batch_size": 2},
        model={"memory_len": 0},
    )
    train, dev = prepare(config, str(tmp_path / "run"))
    assert train.task.config.finetune.columns == columns and len(dev.examples) == 2
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
    keys = {name: getattr(own.finetune, name) for name in ("train", "dev", "dev_share", "epochs")}
    small = settings()
    usual = configs.Config(model=small.model, data=small.data, finetune=small.finetune)
    plain = usual.changed(finetune=keys, train={"batch_size": 4})
    train, dev = prepare(plain, str(tmp_path / "run"))
    assert (len(train.examples), len(dev.examples)) == (43, 5)
    assert not {*train.examples} & {*dev.examples}
    assert "5 of 48 examples of " in caplog.text
    found = train.task.config
    assert (found.train.steps, found.train.steps_per_dispatch) == (33, 1)
    assert found.optimizer.warmup_steps == 3
    assert found.checkpoint.every == found.evaluation.every == 11
    warm, _ = prepare(plain.changed(optimizer={"warmup_steps": 7}), str(tmp_path / "run"))
    assert warm.task.config == found.changed(optimizer={"warmup_steps": 7})
    # Of steps that are set nothing follows.
    again, _ = prepare(found, str(tmp_path / "run"))
    assert again.task.config == found and found.checkpoint.keep_best == 1


@pytest.mark.parametrize(
    ("words", "dev", "share"),
    [
        (["train=mine.tsv"], "", 0.1),
        (["train=mine.tsv", "dev=tfds:glue/sst2:validation"], "tfds:glue/sst2:validation", 0),
        (["train=mine.tsv", "dev_share=0.2"], "", 0.2),
        (["train=tfds:glue/sst2:validation"], "tfds:glue/sst2:validation", 0),
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
    assert f"--config=configs/finetune/{path.name} " in text
    assert "not measured" in text.replace("\n", " ")
    wanted = "mnli qqp sst2 cola stsb mrpc rte squad2 squad2_base race imdb yelp5"
    assert {path.stem for path in RECIPES} >= set(wanted.split())


def _prepare(settings, folder, data, dev="", name="a.jsonl", **finetune):
    """Reads training examples and dev examples from two files."""
    files = {"train": "", "dev": ""}
    for key, text in (("train", data), ("dev", dev)):
        if text:
            files[key] = str(folder / f"{key}_{name}")
            pathlib.Path(files[key]).write_text(text)
    config = settings(
        train={"batch_size": 1},
        finetune=files | finetune,
        evaluation={"every": 0, "final": False},
        model={"memory_len": 0},
    )
    return prepare(config, str(folder / "run"))


def _prepared(*args, **finetune):
    """The labels and the numbers of examples for training and of the dev set, or the error."""
    try:
        train, dev = _prepare(*args, **finetune)
    except BadInput as error:
        return str(error)
    return train.task.labels, len(train.examples), len(dev.examples) if dev else 0


def _lines(*labels, **fields):
    return _rows(*({"text": "bame dono", **fields, "label": label} for label in labels))


NLI = '{"sentence1": "bame", "sentence2": "dono", "gold_label": "%s"}\n'
CHOICE = {"context": "bame", "question": "dono", "options": ["kira", "lusi"]}


@pytest.mark.parametrize(
    ("finetune", "data", "found", "told"),
    [
        (
            {},
            NLI % "yes" + NLI % "-" + NLI % "no",
            (["no", "yes"], 2, 0),
            '"-" (1), the first in',
        ),
        (
            {},
            _lines("a", None, "b", float("nan"), None),
            (["a", "b"], 2, 0),
            "null (2), NaN (1), the first",
        ),
        (
            {},
            _lines("a", "", "NaN", "b"),
            (["a", "b"], 2, 0),
            '"" (1), "NaN" (1), the',
        ),
        (
            {"labels": "0,1"},
            _lines(0, 1, -1),
            (["0", "1"], 2, 0),
            "1 of 3 examples without a label: -1 (1)",
        ),
        ({}, _lines(0.0, 1, -1.0, 2.0, 1.0), (["0", "1", "2"], 4, 0), "-1 (1)"),
        # These are classes and numbers.
        ({}, _lines(-1, 0, 1), (["-1", "0", "1"], 3, 0), ""),
        # Numbers come in the order of their values.
        ({}, _lines(10, -1, 1, 2), (["-1", "1", "2", "10"], 4, 0), ""),
        ({}, _lines("none", "None", "neutral"), (["None", "neutral", "none"], 3, 0), ""),
        ({"labels": "-,yes"}, _lines("-", "yes"), (["-", "yes"], 2, 0), ""),
        ({"task": "regression"}, _lines(-1, 0, 1, 2, None), ([], 4, 0), "null (1)"),
        (
            {"task": "multiple_choice"},
            _lines("A", "", None, -1, "B", **CHOICE),
            ([], 2, 0),
            '"" (1), null (1), -1 (1)',
        ),
        (
            {"task": "token_classification", "columns": "w,label"},
            _lines(["X", "-"], ["X", None], ["", "Y"], w=["bame", "dono"]),
            (["-", "X"], 1, 0),
            "2 of 3 examples without",
        ),
        # Without the key, and without one label.
        (
            {"drop_unlabelled": False},
            _lines("a", "b", "-"),
            "row 3; give labels, or remove the rows",
            "",
        ),
        (
            {},
            _lines("-", None),
            'a.jsonl: 2 of 2 examples without a label: "-" (1), null (1), the',
            "",
        ),
    ],
    ids=[
        "snli",
        "null_and_nan",
        "texts",
        "minus_one_of_two_given",
        "floats",
        "three_moods",
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
    tmp_path, settings, caplog, finetune, data, found, told
):
    said = _prepared(settings, tmp_path, data, **finetune)
    assert found in said if isinstance(found, str) else said == found
    assert told in caplog.text and ("left out" in caplog.text) == bool(told)


def test_the_dev_set_is_read_by_the_same_rules(tmp_path, settings, caplog):
    found = _prepared(settings, tmp_path, _lines(0, 1), _lines(1, -1, None, 0))
    assert found == (["0", "1"], 2, 2)
    assert "dev_a.jsonl: 2 of 4 examples without a label: -1 (1), null (1)," in caplog.text
    fields = {"context": "bame dono", "question": "kira"}
    answers = {"text": ["dono"], "answer_start": [5]}
    data, dev = json.dumps(fields | {"answers": answers}), json.dumps(fields)
    found = _prepared(settings, tmp_path, data, dev, task="question_answering")
    assert "dev_a.jsonl: 1 of 1 example without a label: null (1)" in found


ONE = [{"text": "bame", "label": "yes"}, {"text": "dono", "label": "no"}]
NUMBER = [{"text": "bame", "score": 1}, {"text": "dono", "score": 2}]


@pytest.mark.parametrize(
    ("task", "train", "dev", "text", "label"),
    [
        ("classification", ONE, {"text": "a", "sentence": "b", "label": "no"}, "a", "no"),
        ("regression", NUMBER, {"text": "a", "score": 1, "label": 2}, "a", 1),
        # This dev set lacks the names of training, so it is read by its own.
        ("classification", ONE, {"sentence": "b", "label": "no"}, "b", "no"),
    ],
)
def test_the_dev_set_is_read_by_the_names_that_training_took(
    tmp_path, settings, task, train, dev, text, label
):
    _, found = _prepare(settings, tmp_path, _rows(*train), _rows(dev), task=task)
    assert [(each.texts, each.label) for each in found.examples] == [((text,), label)]


@pytest.mark.parametrize(
    ("task", "train", "dev", "told"),
    [
        (
            "classification",
            ONE,
            [{"sentence1": "a", "sentence2": "b", "label": "no"}],
            "dev_a.jsonl, row 1: the number of texts is 2, and in {}/train_a.jsonl it is 1;",
        ),
        # The number would become a class.
        (
            "classification",
            [{**ONE[0], "score": 1}, ONE[1], {"text": "kira", "score": 0.1}],
            ONE,
            "train_a.jsonl, row 3: no column 'label'",
        ),
        (
            "question_answering",
            [{"context": "bame", "question": "a", "is_impossible": "False", "answers": []}],
            [],
            "train_a.jsonl, row 1: 'is_impossible' must be true or false, and is 'False'",
        ),
    ],
)
def test_what_is_not_as_training_reads_it_is_refused(tmp_path, settings, task, train, dev, told):
    found = _prepared(settings, tmp_path, _rows(*train), _rows(*dev), task=task)
    assert told.format(tmp_path) in found


def test_a_similarity_or_a_target_that_is_not_there_is_left_out(tmp_path, settings, caplog):
    similar = [
        {"sentence1": "bame", "sentence2": "kira", "score": score}
        for score in (0.5, None, float("nan"), 1.0)
    ]
    targets = [{"source": "bame", "target": target} for target in ("dono", None, "nan", "-")]
    for rows, keys, left in (
        (similar, {"task": "embeddings", "columns": "sentence1,sentence2,score"}, 2),
        (targets, {"task": "text_to_text", "max_answer": 4}, 3),
        (similar, {"task": "embeddings", "columns": "sentence1,sentence2"}, 4),
    ):
        _, found, _ = _prepared(settings, tmp_path, _rows(*rows), **keys)
        assert found == left
    assert '"" (1), NaN (1), the first in' in caplog.text
    assert "1 of 4 examples without a label: null (1)" in caplog.text


@pytest.mark.parametrize("labels", [[",", ", ", "."], [" a", "a"], ['["a"', "b"]])
def test_a_label_with_a_comma_or_spaces_is_kept(tmp_path, settings, labels):
    found = _prepared(settings, tmp_path, _lines(*labels))
    assert found == (labels, len(labels), 0)


@pytest.mark.parametrize(("labels", "refused"), [([1, 2, 3], True), ("0123", False), ("1A", False)])
def test_numbers_of_options_that_may_count_from_1_are_refused(tmp_path, settings, labels, refused):
    data = _lines(*labels, **CHOICE | {"options": ["kira"] * 5})
    found = _prepared(settings, tmp_path, data, task="multiple_choice")
    if refused:
        assert "row 1: numbers of options count from 0, and no label is 0 or a letter" in found
    else:
        assert found == ([], len(labels), 0)


def test_a_run_whose_labels_mark_no_entities_says_so_once(tmp_path, settings, caplog):
    for tags, metric, lines in (("B-PER E-PER O", "f1", 0), ("NNP VBZ IN", "accuracy", 1)):
        words = zip(("bame", "dono", "kira"), tags.split(), strict=True)
        text = "".join(f"{word} {tag}\n" for word, tag in words)
        train, dev = _prepare(
            settings, tmp_path, text, text, "a.conll", task="token_classification"
        )
        assert train.task.metric == dev.task.metric == metric
        said = [line for line in caplog.messages if "F1 of entities" in line]
        assert len(said) == lines
    assert said[0].endswith("accuracy ranks the checkpoints")


@pytest.mark.parametrize("which", ["train", "dev"])
def test_examples_that_the_tokenizer_does_not_know_are_told(
    settings, examples, tmp_path, caplog, which
):
    texts = {name: pathlib.Path(path).read_text() for name, path in examples.items()}
    texts[which] = texts[which].replace("kiki", "Привет")
    _prepare(settings, tmp_path, texts["train"], texts["dev"], "a.tsv")
    (line,) = [line for line in caplog.messages if "does not know" in line]
    assert line.startswith(f"{tmp_path}/{which}_a.tsv: the tokenizer does not know")
    assert "such as 'Привет'" in line


def test_a_task_needs_two_labels(tmp_path, settings):
    data = _lines([], [])
    found = _prepared(settings, tmp_path, data, task="multi_label_classification")
    assert "has no label; a task needs at least two" in found
