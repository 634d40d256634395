"""`compare`: two tiny systems with two seeds, killed and resumed; its page, and what it refuses."""

import dataclasses
import json
import math
import pathlib
import re

import data_fixtures
import numpy as np
import pytest
import tiny
from test_report import page_of

from xlnet_jax import config as configs
from xlnet_jax.cli import main
from xlnet_jax.commands import compare as command
from xlnet_jax.data.batches.mixture import Mixture
from xlnet_jax.data.corpus.corpus import Corpus
from xlnet_jax.errors import Diverged
from xlnet_jax.infer.estimators import known_places
from xlnet_jax.model.flops import step_flops
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.run.metrics import read_jsonl
from xlnet_jax.train.sliding import windows

CONFIG = """
import sys
sys.path.insert(0, {tests!r})
import dataclasses, tiny
from ml_collections import ConfigDict


def get_config():
    return ConfigDict(dataclasses.asdict(tiny.config({changes})))
"""
TASK = """
from xlnet_jax import config as base


def get_config():
    config = base.default()
    config.finetune.update(task="classification", columns="text,label")
    config.finetune.update(train={path!r}, dev={path!r})
    config.data.segment_len = 16
    config.optimizer.warmup_steps = 0
    config.train.update(steps=2, batch_size=8, steps_per_dispatch=2)
    config.model.compute_dtype = "float32"
    return config
"""
PHASES = """
from xlnet_jax import config as base


def get_config():
    config = base.start_from(__file__, "causal.py")
    config.phases = (dict(steps=24), dict(steps=16))
    return config
"""
CLM = "data=dict(objective='clm', reuse_len=32, num_predict=32)"
MDM = "data=dict(objective='mdm', reuse_len=32, num_predict=32), model=dict(memory_len=0)"

WHOLE = (
    "data=dict(objective='clm', documents='whole', reuse_len=32, num_predict=32, pairs='none', "
    "windows_per_block=1), model=dict(memory_len=0)"
)


@pytest.fixture
def words(tmp_path):
    """Of a comparison of two systems, with the same steps of one as of the other."""
    for name, changes in {"causal": CLM, "diffusion": MDM}.items():
        (tmp_path / f"{name}.py").write_text(CONFIG.format(tests=str(tiny.TESTS), changes=changes))
    return [
        "compare",
        f"--configs={tmp_path}/causal.py,{tmp_path}/diffusion.py",
        f"--workdir={tmp_path}/compared",
        f"--corpus={data_fixtures.corpus_path()}",
        "--seeds=2",
        "--equal=tokens",
        "--windows=3",
        "--length=16",
        "--json",
        "--config.train.steps=4",
    ]


@pytest.fixture
def task(tmp_path):
    """The file of a task: which of two words a text has."""
    path = tmp_path / "examples.jsonl"
    rows = [{"text": f"{word} river", "label": word} for word in ("green", "old")] * 4
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "word.py").write_text(TASK.format(path=str(path)))
    return f"--finetune={tmp_path}/word.py"


def without_bound(path):
    """Scores of a version that had no such measure."""
    content = json.loads(path.read_text())
    del content["measures"]["bound"]
    path.write_text(json.dumps(content))


def asked(capsys, words, code=0):
    assert main(words) == code
    captured = capsys.readouterr()
    return json.loads(captured.out) if code == 0 else captured.err


@pytest.fixture
def scored(monkeypatch):
    """In place of training: scores that depend on system and seed. The second run is killed once.
    The runs begun.
    """
    begun = []

    def run(config, folder, seed, heldout, tokens_NT, orders):
        begun.append("/".join(folder.split("/")[-2:]))
        if len(begun) == 2:
            raise KeyboardInterrupt
        causal = config.objective.causal
        nats_N = [10.0 + seed + causal, 20.0, 30.0][: len(tokens_NT)]
        one = {"calls": 3, "flops": 10, "seconds": 0.5, "nats_N": nats_N}
        measures = dict.fromkeys(("half", "pseudo", "bound"), None if causal else one)
        measures["left_to_right"] = one
        where = workdirs.environment() | {"device_kind": "<cpu>"}
        content = {
            "steps": 4,
            "seconds": {"steps": 1.0},
            "heldout_loss": None,
            "curve": [[2, 5.0], [4, 4.0]],
            "measures": measures,
            "environment": where,
        }
        pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
        pathlib.Path(folder, "measures.json").write_text(json.dumps(content))

    monkeypatch.setattr(command, "train_and_score", run)
    return begun


def test_a_killed_comparison_goes_on_and_its_page_loads_nothing(words, scored, tmp_path, capsys):
    assert main(words) == 130
    capsys.readouterr()
    result = asked(capsys, words)
    assert scored == ["causal/0", "causal/1", "causal/1", "diffusion/0", "diffusion/1"]
    assert asked(capsys, words) == result and len(scored) == 5, "a finished run was done again"
    assert json.loads((tmp_path / "compared/compare.json").read_text()) == result

    (left,) = result["differences"]  # the others are not defined for one of the two
    corpus = Corpus(data_fixtures.corpus_path(), "heldout")
    bytes_NT = corpus.tokenizer.text_lengths()[1][windows(Mixture((corpus,)), 16, 3, every=16)]
    expected = {"a": "causal", "b": "diffusion", "measure": "left_to_right", "named": False}
    assert left.items() >= expected.items()
    assert left["mean"] == pytest.approx(1 / math.log(2) / bytes_NT.sum())
    difference_N = [1 / math.log(2) / bytes_NT[0].sum(), 0, 0]
    assert left["spread"] == pytest.approx(np.std(difference_N, ddof=1))
    half = result["systems"]["diffusion"]["1"]["measures"]["half"]
    given_NT = known_places(bytes_NT, 0.5)
    assert half["bits_per_byte"] == pytest.approx(61 / math.log(2) / (bytes_NT * ~given_NT).sum())

    page = page_of(result["page"])
    assert "fewer than 5 seeds" in page and "not defined" in page and "&lt;cpu&gt;" in page
    assert page.count("<svg") == 2 and page.count("<polyline") == 4
    assert f"3 windows of 16 tokens, {bytes_NT.sum()} bytes in all" in page
    assert "equal training fresh tokens: causal, diffusion. Seeds of each: 2." in page
    assert "The best mean is that of diffusion: " in page and "No difference is named." in page
    assert "a - b, bits per byte</text>" in page


def test_every_run_is_fine_tuned_once_and_the_page_has_the_task(
    words, task, scored, tmp_path, monkeypatch, capsys
):
    begun = []

    def fine_tune(config, folder):
        begun.append((pathlib.Path(folder).relative_to(tmp_path / "compared").as_posix(), config))
        if len(begun) == 2:
            raise KeyboardInterrupt
        pathlib.Path(folder).mkdir(parents=True)
        score = 0.5 + 0.1 * config.seeds.init + 0.25 * ("causal" in folder)
        return {"score": score, "metric": "accuracy"}

    monkeypatch.setattr(command, "fine_tune", fine_tune)
    scored += ["", ""]  # so that none of its runs is killed
    assert main([*words, task]) == 130
    capsys.readouterr()
    result = asked(capsys, [*words, task])
    assert asked(capsys, [*words, task]) == result
    assert [where for where, _ in begun] == [
        "causal/word/0",
        "causal/word/1",
        "causal/word/1",
        "diffusion/word/0",
        "diffusion/word/1",
    ]
    config = begun[-1][1]
    assert config.checkpoint.init_from == f"{tmp_path}/compared/diffusion/1"
    assert (config.seeds.init, config.seeds.data, config.seeds.dropout) == (1, 1, 1)
    assert config.evaluation.every == config.checkpoint.every == config.train.steps == 2
    assert result["systems"]["causal"]["1"]["tasks"]["word"]["score"] == pytest.approx(0.85)
    (pair,) = [each for each in result["differences"] if each["measure"] == "word"]
    assert pair["mean"] == pytest.approx(0.25) and pair["spread"] is None and not pair["named"]
    page = page_of(result["page"])
    assert "Fine-tuned: word" in page and "0.8000" in page and "Differences in accuracy" in page
    assert main([word for word in [*words, task] if word != "--json"]) == 0
    assert re.search(r"causal +word +0\.8000 accuracy, 2 seeds", capsys.readouterr().out)
    for run in result["systems"]["diffusion"].values():
        run["tasks"] = {}
    command.show(result)
    assert re.search(r"diffusion +word +not run", capsys.readouterr().out)

    path = tmp_path / "word.py"
    path.write_text(path.read_text().replace("segment_len = 16", "segment_len = 32"))
    assert "compared/causal/word/0 was fine-tuned with another configuration" in asked(
        capsys, [*words, task], 2
    )
    (tmp_path / "uneven.py").write_text(path.read_text().replace("steps=2,", "steps=3,"))
    for changed, what in [
        (f"--finetune={tmp_path}/uneven.py", "evaluation.every=3 must be a multiple of"),
        (f"{task},{tmp_path}/word.py", "--finetune has two files with the name word"),
        (f"--finetune={tmp_path}/causal.py", "causal.py names no finetune.task"),
    ]:
        assert what in asked(capsys, [*words, changed], 2)
    assert len(begun) == 5


def test_what_a_folder_lacks_is_scored(words, scored, tmp_path, capsys):
    assert main(words) == 130 and main(words) == 0
    without_bound(tmp_path / "compared/diffusion/0/measures.json")
    capsys.readouterr()
    asked(capsys, [*words, "--only=causal:0"])
    assert len(scored) == 5
    asked(capsys, words)
    assert scored[5:] == ["diffusion/0"]


def test_whole_documents_are_questions_and_the_page_says_who_models_their_length(
    words, scored, tmp_path, capsys
):
    for name, objective in {"causal": "clm", "diffusion": "mdm"}.items():
        changes = WHOLE.replace("clm", objective)
        (tmp_path / f"{name}.py").write_text(CONFIG.format(tests=str(tiny.TESTS), changes=changes))
    scored += ["", ""]  # so that none of its runs is killed
    result = asked(capsys, [*words, "--length=500"])
    assert result["length_modelled"] == ["causal"]
    assert result["length"] == 31, "clm reads <eod> before the text"
    assert result["windows"] == 2, "no more documents fit"
    corpus = Corpus(data_fixtures.corpus_path(), "heldout")
    tokens_NT = windows(Mixture((corpus,)), 31, 3, whole=True)
    bytes_NT = corpus.tokenizer.text_lengths()[1][tokens_NT] * (tokens_NT >= 0)
    left = result["systems"]["diffusion"]["0"]["measures"]["left_to_right"]
    assert left["bits_per_byte"] == pytest.approx(30 / math.log(2) / bytes_NT.sum())
    page = page_of(result["page"])
    assert "whole documents" in page and "Length of a document modelled by: causal." in page


def test_one_run_alone_and_more_seeds_later(words, scored, tmp_path, capsys):
    result = asked(capsys, [*words, "--only=diffusion:1"])
    assert scored == ["diffusion/1"] and not result["systems"]["causal"]
    assert "not run" in pathlib.Path(result["page"]).read_text()
    scored.append("killed before")
    result = asked(capsys, [word.replace("--seeds=2", "--seeds=6") for word in words])
    (left,) = result["differences"]
    assert len(scored) == 2 + 11 and left["seeds"] == 6 and left["named"]
    page = pathlib.Path(result["page"]).read_text()
    assert "is named only where" in page
    assert f"diffusion is better than causal by {left['mean']:.4f} [" in page


def test_what_does_not_compare_is_refused_in_one_line(words, scored, tmp_path, capsys):
    for name, changes in {"small": "model=dict(vocab_size=100)", "whole": WHOLE}.items():
        (tmp_path / f"{name}.py").write_text(CONFIG.format(tests=str(tiny.TESTS), changes=changes))
    causal = f"--configs={tmp_path}/causal.py"
    for changed, what in [
        (f"{causal},{tmp_path}/small.py", "'small': (100, 'joined')}: such systems cannot"),
        (
            f"{causal},{tmp_path}/whole.py",
            f"'whole': ({tiny.VOCAB}, 'whole')}}: such systems cannot",
        ),
        (causal, "is one configuration; name two"),
        (f"{causal},{tmp_path}/causal.py", "two files with the name causal"),
        (f"{causal},", "has an empty name; separate files by single commas"),
        ("--config.train.batch_size=0", "causal: train.batch_size=0"),
        ("--only=causal:7", "is no NAME:SEED of causal, diffusion with seeds 0 to 1"),
    ]:
        assert what in asked(capsys, [*words, changed], 2)
    assert scored == []
    asked(capsys, [*words, "--only=causal:0"])
    for changed, what in [
        ("--config.optimizer.learning_rate=0.5", "configs_sha256"),
        ("--windows=2", "windows: 3 -> 2"),
    ]:
        error = asked(capsys, [*words, changed], 2)
        assert "is of another comparison" in error and what in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [(Diverged("no finite loss"), 3, "no finite loss"), (MemoryError(), 2, "out of memory;")],
)
def test_an_error_names_the_system_and_the_seed(words, monkeypatch, capsys, error, code, line):
    def fail(*arguments):
        raise error

    monkeypatch.setattr(command, "train_and_score", fail)
    found = asked(capsys, [*words, "--only=diffusion:1"], code)
    assert f"compare: diffusion, seed 1: {line}" in found


def test_the_steps_that_are_asked_for_are_of_the_first(words, tmp_path):
    """Those of the others follow, also of phases, beside which `train.steps` is refused."""
    (tmp_path / "parts.py").write_text(PHASES)
    files = f"{tmp_path}/causal.py,{tmp_path}/parts.py"
    asked = ["--config.train.steps=10", "--config.seeds.data=5"]
    systems = command.load_systems(files, data_fixtures.corpus_path(), asked)
    named = command.equal_budgets(systems, "flops")
    assert [(each.train.steps, each.seeds.data) for each in named.values()] == [(10, 5), (10, 5)]
    assert [phase["steps"] for phase in named["parts"].phases] == [6, 4]


def test_all_spend_what_the_first_does():
    base, phases = tiny.config(), ({"steps": 30}, {"steps": 10, "train": {"batch_size": 4}})
    long = dataclasses.asdict(base.changed(train={"steps": 500_000}))
    named = {
        "half": base.changed(train={"batch_size": 4, "steps": 1000}),
        "whole": base,
        "parts": configs.from_dict(long | {"phases": phases}),
    }
    found = command.equal_budgets(named, "tokens")
    assert [each.train.steps for each in found.values()] == [1000, 500, 428 + 142]
    assert [phase["steps"] for phase in found["parts"].phases] == [428, 142], "dispatches have 2"
    found = command.equal_budgets(named, "flops")
    each = {name: command.training_cost(config, "flops") for name, config in found.items()}
    assert each["half"] == 1000 * step_flops(named["half"]) and found["whole"].train.steps > 500, (
        "one table for all rows"
    )
    assert all(abs(cost / each["half"] - 1) < 0.002 for cost in each.values())
    small = {"one": named["half"].changed(train={"steps": 1}), "parts": named["parts"]}
    found = command.equal_budgets(small, "tokens")
    assert [each.train.steps for each in found.values()] == [1, 2 + 2], "at least a dispatch"


@pytest.mark.slow
def test_two_systems_are_trained_scored_and_fine_tuned(words, task, tmp_path, monkeypatch, capsys):
    result = asked(capsys, [*words, task])
    tuned = {name: runs["1"]["tasks"]["word"] for name, runs in result["systems"].items()}
    assert all(each["metric"] == "accuracy" and 0 <= each["score"] <= 1 for each in tuned.values())
    losses = {
        read_jsonl(f"{tmp_path}/compared/{name}/word/1/metrics.jsonl")[-1]["loss"] for name in tuned
    }
    assert len(losses) == 2, "both began with the same parameters"
    programs = (tmp_path / "compared/compilation_cache").glob("jit_steps-*-cache")
    assert len([*programs]) == 3, "two systems and a task, each with two seeds"
    without_bound(tmp_path / "compared/diffusion/0/measures.json")
    monkeypatch.setattr(command, "train", None)  # it is not called again
    first = result["systems"]["diffusion"]["0"]["measures"]["bound"]
    again = asked(capsys, words)["systems"]["diffusion"]["0"]["measures"]["bound"]
    assert first.pop("seconds") > 0 and again.pop("seconds") > 0
    assert again == first and again["calls"] == 3 * 64
    for name, calls in {"causal": 3, "diffusion": 3 * 16}.items():
        runs = result["systems"][name]
        assert [*runs] == ["0", "1"] and runs["0"]["curve"] != runs["1"]["curve"]
        for one in runs.values():
            score = one["measures"]["left_to_right"]
            assert score["calls"] == calls and 5 < score["bits_per_byte"] < 9 and one["steps"] == 4
            for measure in ("half", "pseudo"):
                assert (one["measures"][measure] is None) == (name == "causal")
    half = result["systems"]["diffusion"]["0"]["measures"]["half"]
    assert half["calls"] == 3 * 8 * 2 and half["flops"] > 0
