"""The command line: help, exit codes, one clear line, one JSON object."""

import json
import os
import subprocess
import sys

import data_fixtures
import pytest
import tiny

from xlnet_jax.cli import main

HERE = str(tiny.TESTS)
CONFIG = f"--config={HERE}/tiny_config.py"
COMMANDS = ("prepare", "train", "evaluate", "export", "inspect", "compile", "quickstart", "configure")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    out = capsys.readouterr().out
    assert ended.value.code == 0 and "example:" in out and f"xlnet-jax {command}" in out and "--json" in out


def test_help_answers_without_loading_jax():
    code = "import sys; from xlnet_jax.cli import make_parser; make_parser(); sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=os.path.dirname(HERE)).returncode == 0


def corpus_option():
    return f"--config.data.corpus={data_fixtures.corpus_path()}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", CONFIG, "--workdir=W", "--config.train.stps=3"], "Did you mean 'train.steps'?"),
        (["train", "--config=missing.py", "--workdir=W"], "missing.py: no such file"),
        (["train", CONFIG, "--workdir=W"], "data.corpus is empty"),
        (["train", CONFIG, "--workdir=W", "--config.data.corpus=nowhere"], "nowhere: no such folder"),
        (["train", CONFIG, "--workdir=W", "--bogus"], "unknown option '--bogus'"),
        (["evaluate", "--workdir=W"], "W: no config.json"),
        (["export", "--workdir=W", "--output=X"], "W: no config.json"),
        (["export", "--workdir=W", "--output=X", "--steps=2"], "W: no config.json"),
        (["train", CONFIG, "--workdir=W", "--stop_at=0"], "--stop_at=0 must be at least 1"),
        (["train", CONFIG, "--workdir=s3://b/W"], "s3://b/W: of the addresses only gs://BUCKET/... works"),
        (["prepare", "--input=x", "--output=X", "--bogus"], "unknown option '--bogus'"),
        (["inspect", CONFIG, "--parameters", "--output=x.png"], "leave it out with --parameters"),
        (["prepare", "--input=nothing/*.txt", "--output=X"], "nothing"),
        (["inspect", CONFIG, "--row=99", "CORPUS"], "--row=99 is not in [0, train.batch_size=8)"),
        (["inspect", CONFIG, "--step=-1", "CORPUS"], "--step=-1 must lie in"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(tmp_path, monkeypatch, capsys, words, message):
    words = [corpus_option() if word == "CORPUS" else word for word in words]
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.err.count("\n") == 1 and captured.out == ""
    assert captured.err.startswith(f"xlnet-jax {words[0]}: ")
    assert os.listdir(tmp_path) == [] or words[0] == "prepare"


def test_inspect_prints_the_example_as_json_and_draws_it(tmp_path, capsys):
    picture = tmp_path / "masks.png"
    assert main(["inspect", CONFIG, corpus_option(), "--step=5", "--row=2", f"--output={picture}", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    length = tiny.config().data.segment_len
    assert len(shown["tokens"]) == len(shown["segments"]) == len(shown["rank"]) == len(shown["pieces"]) == length
    assert len(shown["targets"]) == 6 and shown["pieces"][-1] == "<cls>" and shown["continues"]
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert main(["inspect", CONFIG, corpus_option(), "--step=5", "--row=2"]) == 0
    assert "predicts" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "parameters", "tensors"), [("large", 360_300_800, 319), ("base", 116_750_336, 163)])
def test_inspect_counts_parameters_as_the_original_names_them(capsys, name, parameters, tensors):
    path = os.path.join(HERE, "..", "configs", f"xlnet_{name}.py")
    assert main(["inspect", f"--config={path}", "--parameters", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"parameters": parameters, "tensors": tensors}


def test_prepare_train_evaluate_and_export_from_the_command_line(tmp_path, capsys):
    """The documented path, with the JSON keys that scripts rely on."""
    corpus, run, exported = (str(tmp_path / name) for name in ("corpus", "run", "exported"))
    prepared = ["prepare", f"--input={data_fixtures.text_folder()}", f"--output={corpus}", "--heldout=0.2",
                f"--tokenizer={data_fixtures.tokenizer_path()}", "--workers=1", "--json"]  # fmt: skip
    assert main(prepared) == 0
    assert json.loads(capsys.readouterr().out)["train_tokens"] > 1000
    words = [CONFIG, f"--config.data.corpus={corpus}", f"--workdir={run}", "--stop_at=4", "--json"]
    assert main(["train", *words]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]).keys() == {
        "step", "loss", "tokens_per_second", "workdir", "seconds", "goodput", "heldout_loss", "unigram_cross_entropy",
        "picture",
    }  # fmt: skip
    assert main(["evaluate", f"--workdir={run}", "--batch_size=8", "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert {"loss", "perplexity", "loss_without_memory", "tokens", "step"} <= scores.keys() and scores["step"] == 4
    assert main(["export", f"--workdir={run}", f"--output={exported}", "--json"]) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {os.path.basename(file) for file in files}
    assert main(["export", f"--workdir={run}", f"--output={exported}"]) == 2
    assert exported in capsys.readouterr().err
