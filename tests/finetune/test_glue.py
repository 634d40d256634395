"""`glue`: the nine tasks from made-up files of the published formats, and their mean."""

import json
import pathlib
import statistics

import data_fixtures
import pytest

from xlnet_jax.cli import main
from xlnet_jax.commands import glue
from xlnet_jax.finetune.setup import prepare
from xlnet_jax.run.metrics import read_jsonl

NLI = ["index", "sentence1", "sentence2", "label"]
MNLI = [
    *("index", "promptID", "pairID", "genre", "sentence1_binary_parse", "sentence2_binary_parse"),
    *("sentence1_parse", "sentence2_parse", "sentence1", "sentence2", "label1"),
]
STSB = ["index", "genre", "filename", "year", "old_index", "source1", "source2"]


def nli(*labels):
    return [NLI, *([n, "Bame dono.", "Kira lusi.", label] for n, label in enumerate(labels))]


def mnli(votes, *labels):
    names = [*MNLI, *(f"label{n}" for n in range(2, votes + 1)), "gold_label"]
    start = ["0", "1", "1c", "fiction", "( Bame )", "( dono )", "(ROOT)", "(ROOT)"]
    texts = ['Bame "dono', "Kira lusi."]
    return [names, *([*start, *texts, *[each] * votes, each] for each in labels)]


# Row by row, as lists of columns. SST-2 ends its sentences with a space, and a quote may stand
# alone; CoLA has no header; QQP has rows of fewer columns; in MNLI `-` means no agreement, and only
# its dev sets have five votes.
FILES = {
    "CoLA/train": [["gj04", "1", "", "Bame dono."], ["gj04", "0", "*", 'Kira "lusi.']],
    "SST-2/train": [["sentence", "label"], ['bame "dono ', "1"], ["kira lusi ", "0"]],
    "MRPC/train": [
        ["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"],
        ["1", "702876", "702977", 'He said, "Bame dono.', "Kira lusi."],
        ["0", "2108705", "2108831", "Kira.", 'Lusi "bame".'],
    ],
    "STS-B/train": [
        [*STSB, "sentence1", "sentence2", "score"],
        ["0", "main", "MSRvid", "2012", "1", "none", "none", "Bame dono.", 'A "kira.', "5.000"],
        ["1", "main", "MSRvid", "2012", "4", "none", "none", "Kira lusi.", "Kira.", "3.8"],
        ["2", "main", "MSRvid", "2012", "5", "none", "none", "Dono lusi.", "Bame.", "0.5"],
    ],
    "QQP/train": [
        ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"],
        ["1", "2", "3", 'Bame "dono?', "Kira lusi?", "0"],
        ["4", "5", "6", "Kira?", 'Lusi ""bame?"', "1"],
        ["7", "8", "9", "Only three more"],
    ],
    "MNLI/train": mnli(1, "neutral", "entailment", "contradiction"),
    "MNLI/dev_matched": mnli(5, "neutral", "-", "entailment"),
    "MNLI/dev_mismatched": mnli(5, "contradiction", "neutral", "neutral", "neutral"),
    "QNLI/train": [
        ["index", "question", "sentence", "label"],
        ["0", "Bame dono?", 'Kira "lusi.', "entailment"],
        ["1", "Kira?", "Lusi.", "not_entailment"],
    ],
    "RTE/train": nli("entailment", "not_entailment"),
    "WNLI/train": nli("1", "0"),
}
LABELS = {
    **dict.fromkeys(("cola", "sst2", "mrpc", "qqp", "wnli"), ["0", "1"]),
    **dict.fromkeys(("qnli", "rte"), ["entailment", "not_entailment"]),
    "mnli": ["contradiction", "entailment", "neutral"],
}


@pytest.fixture
def words(tmp_path):
    for name, rows in FILES.items():
        path = tmp_path / "data" / f"{name}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
        if path.parent.name != "MNLI":
            path.with_name("dev.tsv").write_text(path.read_text())
    sizes = "vocab_size=200 layers=2 d_model=16 heads=2 head_dim=8 d_ff=32 memory_len=0"
    return [
        "glue",
        f"--data={tmp_path}/data",
        f"--workdir={tmp_path}/runs",
        f"--config.finetune.tokenizer={data_fixtures.corpus_path()}/spiece.model",
        "--config.data.segment_len=24",
        "--config.train.batch_size=2",
        *(f"--config.model.{size}" for size in sizes.split()),
        "--json",
    ]


def test_all_published_formats_are_read_and_the_mean_is_glues(words, capsys, monkeypatch):
    """With runs of given scores: a task counts once, however many metrics it has."""
    read = {}

    def scored(config, folder):
        train, dev = prepare(config, folder)
        read[folder.name] = train, dev
        folder.mkdir(parents=True)
        names = ("accuracy", "f1", "matthews", "pearson", "spearman")
        lines = [{"step": 9, "score": 0.5, **dict.fromkeys(names, 0.5), "f1": 0.9}]
        (folder / "evaluations.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
        guess = [
            {"where": each.where, "gold": each.label, "label": "neutral"} for each in dev.examples
        ]
        (folder / "predictions.jsonl").write_text("".join(json.dumps(x) + "\n" for x in guess))

    monkeypatch.setattr(glue, "finetune", lambda config, name: scored(config, pathlib.Path(name)))
    assert main(words) == 0
    result = json.loads(capsys.readouterr().out)
    assert read.keys() == glue.TASKS.keys() and len(read) == 9
    for name, (train, _) in read.items():
        assert name == "stsb" or train.task.labels == LABELS[name]
        assert len(train.examples) == (3 if name in ("mnli", "stsb") else 2), name
    texts = {name: train.examples[0].texts for name, (train, _) in read.items()}
    assert texts["cola"] == ("Bame dono.",) and texts["sst2"] == ('bame "dono ',)
    assert texts["mrpc"] == ('He said, "Bame dono.', "Kira lusi.")
    assert texts["stsb"] == ("Bame dono.", 'A "kira.')
    assert texts["qqp"] == ('Bame "dono?', "Kira lusi?")
    assert texts["mnli"] == ('Bame "dono', "Kira lusi.")
    assert texts["qnli"] == ("Bame dono?", 'Kira "lusi.')
    assert [float(each.label) for each in read["stsb"][0].examples] == [5, 3.8, 0.5]
    assert len(read["mnli"][1].examples) == 2 + 4
    # One of two is neutral, and three of four; with one mean over the six it would be 2/3.
    assert result["mnli"] == {"dev_matched.tsv": 0.5, "dev_mismatched.tsv": 0.75}
    assert result["mrpc"] == result["qqp"] == {"accuracy": 0.5, "f1": 0.9}
    assert result["stsb"] == {"pearson": 0.5, "spearman": 0.5}
    assert result["cola"] == {"matthews": 0.5}
    assert result["glue"] == pytest.approx((6 * 0.5 + 2 * 0.7 + 0.625) / 9)


def test_a_missing_file_is_told_before_any_task_is_trained(words, tmp_path, capsys):
    (tmp_path / "data/WNLI/dev.tsv").unlink()
    assert main(words) == 2
    assert "WNLI/dev.tsv: no such file" in capsys.readouterr().err
    assert main([*words, "--config.finetune.dev=mine.tsv"]) == 2
    assert "--config.finetune.dev=mine.tsv: glue gives each task" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.prove
def test_nine_tasks_are_trained_and_the_same_command_changes_nothing(words, tmp_path, capsys):
    words += [
        "--config.train.elastic=true",
        "--config.train.steps=2",
        "--config.train.steps_per_dispatch=2",
        "--config.optimizer.warmup_steps=0",
        "--config.checkpoint.every=2",
        "--config.evaluation.every=2",
        "--config.log.tensorboard=False",
    ]
    assert main(words) == 0
    result = json.loads(capsys.readouterr().out)
    scores = [statistics.fmean(result[name].values()) for name in glue.TASKS]
    assert result["glue"] == statistics.fmean(scores) and len(scores) == 9
    assert len(read_jsonl(f"{tmp_path}/runs/rte/metrics.jsonl")) == 2
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out) == result
