"""Runs and exports of the last version with the old names: they resume, evaluate, load, export and import.

`golden/runs_before/make.py` made them, and recorded what the old program computed.
"""

import json
import shutil
import tarfile

import numpy as np
import pytest
import tiny
from safetensors.numpy import load_file

import xlnet_jax as xj
from xlnet_jax import config as configs
from xlnet_jax.cli import main
from xlnet_jax.commands.export import export
from xlnet_jax.commands.import_ import import_
from xlnet_jax.commands.predict import predict
from xlnet_jax.config import Config
from xlnet_jax.config.names import RENAMED
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.run.metrics import read_jsonl

GOLDEN = tiny.TESTS / "golden"
CORPUS = GOLDEN / "corpus_v1"
TASKS = {"tokens": "token_classification", "spans": "question_answering", "choice": "multiple_choice"}


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    folder = tmp_path_factory.mktemp("before")
    with tarfile.open(GOLDEN / "runs_before" / "runs.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    for tokenizer in [*folder.glob("*/tokenizer/"), *folder.glob("exported/*/")]:
        shutil.copy(CORPUS / "spiece.model", tokenizer)
    return folder


@pytest.fixture(scope="module")
def expected(before):
    return json.loads((before / "expected.json").read_text())


def test_old_keys_and_values_are_read_under_their_new_names(before):
    stored = {name: json.loads((before / name / "config.json").read_text())["config"] for name in ("uniform", *TASKS)}
    assert set(RENAMED) <= set(stored["uniform"]) and not set(RENAMED.values()) & set(stored["uniform"])
    config = workdirs.load_config(str(before / "uniform"))
    assert (config.data.factorization_order, config.data.mask_group_size, config.data.positive_pair_rate) == (
        "uniform", 5, 0.3)  # fmt: skip
    assert config.train.gradient_accumulation_steps == 2 and not config.model.biases_per_layer
    vanilla = workdirs.load_config(str(before / "vanilla"))
    assert (vanilla.model.architecture, vanilla.data.multi_token_prediction) == ("vanilla", 2)
    assert config.model.architecture == "xlnet"
    for old, new in TASKS.items():
        assert stored[old]["finetune.task"] == old
        assert workdirs.load_config(str(before / old)).finetune.task == new


@pytest.mark.slow
@pytest.mark.parametrize("name", ["uniform", "tokens"])
def test_a_run_goes_on_as_the_old_program_did(before, expected, tmp_path, monkeypatch, pytestconfig, name, capsys):
    monkeypatch.chdir(before)
    run = shutil.copytree(before / name, tmp_path / "run")
    keys = configs.renamed(expected[name]["keys"])
    keys |= {"data.corpus": CORPUS} if name == "uniform" else {"checkpoint.init_from": ""}
    keys |= {"log.compilation_cache": pytestconfig.cache.mkdir("xla"), "train.elastic": True}
    words = [f"--config.{key}={value}" for key, value in keys.items()]
    command = "finetune" if name == "tokens" else "train"
    assert main([command, f"--config={tiny.ROOT}/configs/quickstart.py", f"--workdir={run}", *words]) == 0
    assert "resuming at step 4" in capsys.readouterr().err
    lines = read_jsonl(str(run / "metrics.jsonl"))
    assert [line["step"] for line in lines] == list(range(1, 9))
    assert [line["loss"] for line in lines[4:]] == pytest.approx(expected[name]["losses"], rel=1e-4)


def test_a_run_is_evaluated_and_loaded(before, expected, capsys):
    run = str(before / "uniform")
    words = [f"--config.data.corpus={CORPUS}", "--config.train.elastic=True"]
    assert main(["evaluate", f"--workdir={run}", *words, "--json"]) == 0
    result, old = json.loads(capsys.readouterr().out), expected["uniform"]["evaluate"]
    assert result == pytest.approx(old, rel=1e-4) and old["heldout_loss"] != old["loss_without_memory"]
    score = expected["uniform"]["score"]
    assert xj.load(run).score([score["text"]])[0].joint_K[0] == pytest.approx(score["log_prob"], rel=1e-4)


@pytest.mark.parametrize("name", ["uniform", "tokens"])
def test_a_run_is_exported_and_an_old_export_is_imported(before, tmp_path, name):
    """The same arrays and the same configuration; what has a new name there is read under it."""
    export(str(before / name), str(tmp_path / "exported"))
    old, new = before / "exported" / name, tmp_path / "exported"
    arrays, others = load_file(old / "model.safetensors"), load_file(new / "model.safetensors")
    assert arrays.keys() == others.keys()
    assert all(np.array_equal(arrays[key], others[key]) for key in arrays)
    content, newer = (json.loads((folder / "config.json").read_text()) for folder in (old, new))
    assert newer == content | {"end_n_top": 5}  # which an old folder leaves at the library's default
    own, renamed = (json.loads((folder / "xlnet_jax.json").read_text()) for folder in (old, new))
    # Keys that are newer have their defaults.
    newer = {
        key: value for key, value in configs.flat(Config()).items() if key in renamed.keys() - configs.renamed(own)
    }
    assert newer | configs.renamed(own) == renamed != own
    if name == "uniform":
        import_(str(old), str(tmp_path / "imported"))
        assert workdirs.load_config(str(tmp_path / "imported")).data.factorization_order == "uniform"


def test_an_old_task_predicts_the_same_from_its_run_and_its_export(before):
    folders = [before / "tokens", before / "exported" / "tokens"]
    stored = [json.loads(line) for line in (before / "tokens" / "predictions.jsonl").read_text().splitlines()]
    for folder in folders:
        said = predict(str(folder), input=str(before / "tokens.jsonl"))
        assert [line["labels"] for line in said] == [line["labels"] for line in stored]
