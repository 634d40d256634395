"""`xlnet-jax generate` and `score`, and the same of `xlnet_jax.load(...)`: texts in, texts and likelihoods out."""

import dataclasses
import json
import os

import data_fixtures
import jax
import numpy as np
import pytest
import tiny
from special_ids import EOD

import xlnet_jax as xj
from xlnet_jax.checkpoint.store import Checkpoints
from xlnet_jax.cli import main
from xlnet_jax.commands import generate
from xlnet_jax.config import CheckpointConfig
from xlnet_jax.errors import BadInput
from xlnet_jax.infer.infill import Passage, text_after
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.storage import files

CONFIG = tiny.config(data={"objective": "clm", "reuse_len": 32, "num_predict": 32}, mesh={"data": 1, "fsdp": 8})
PROMPTS = ["Bado kilu menora.", "Rave"]


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """A work directory with random parameters, in which the end of a document is as likely as any piece."""
    folder = str(tmp_path_factory.mktemp("generate") / "run")
    return write_workdir(folder, CONFIG)


def write_workdir(folder, config):
    params = jax.device_put(tiny.random_params(config, 0.4))
    identity = workdirs.identity(config, "", data_fixtures.tokenizer().sha256)
    os.makedirs(folder)
    with Checkpoints(folder, CheckpointConfig()) as checkpoints:
        checkpoints.save(0, {"params": params}, identity)
    workdirs.write_tokenizer(folder, data_fixtures.tokenizer())
    files.write(os.path.join(folder, "config.json"), files.to_json(identity))
    return folder


def test_one_object_for_each_prompt(workdir, tmp_path, capsys, monkeypatch):
    """From the command line and a file, as the library gives them; eight rows are spread over eight devices."""
    (tmp_path / "prompts.txt").write_text(f"{PROMPTS[1]}\n\n")
    words = ["generate", f"--workdir={workdir}", PROMPTS[0], f"--input={tmp_path}/prompts.txt"]
    words += ["--tokens=20", "--temperature=0"]
    assert main([*words, "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    texts = [line["text"] for line in lines]
    assert [line["prompt"] for line in lines] == PROMPTS and all(texts)
    heard = ["", ""]

    def listen(number, text, ended):
        heard[number] += text

    model = xj.load(workdir)
    assert model.generate(PROMPTS, tokens=20, temperature=0, listener=listen) == texts == heard
    with pytest.raises(BadInput, match="this model is left-to-right"):
        model.vectors(PROMPTS)
    # On a terminal the texts themselves, one after the other.
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert shown.strip() == "\n\n".join(before + after for before, after in zip(PROMPTS, texts, strict=True)).strip()


def test_texts_of_several_prompts_appear_in_their_order(capsys):
    show = generate.Terminal(["a", "b", "c"])
    show(2, " six", True)
    show(0, " one", False)
    show(1, " three", False)
    assert capsys.readouterr().out == "a one"
    show(0, " two\x1b", True)
    show(1, " four\nfive", True)
    assert capsys.readouterr().out == " two\\x1b\n\nb three four\nfive\n\nc six\n"


def test_the_text_after_a_prompt():
    tokenizer = data_fixtures.tokenizer()
    ids = tokenizer.encode("Bado kilu menora.").tolist()
    for cut in range(len(ids)):
        assert tokenizer.decode(ids[:cut]) + text_after(tokenizer, ids[:cut], [*ids[cut:], EOD]) == "Bado kilu menora."


def test_a_masked_model_is_refused(workdir):
    masked = tiny.config(data={"objective": "mlm", "reuse_len": 29}, model={"memory_len": 0})
    model = dataclasses.replace(xj.load(workdir), config=masked)
    with pytest.raises(BadInput, match="data.objective=mlm, which predicts each unknown token by itself"):
        model.generate(["x"])
    with pytest.raises(BadInput, match=r"use `xlnet_jax.load\(...\).logits`, which gives those of every `.MASK.`"):
        model.infill(["x [MASK]"])


def test_scores_from_the_command_line_are_those_of_the_library(tmp_path, capsys):
    """Of a permutation model, on one device and on a mesh; a part of a text given the rest, as JSON."""
    folder = write_workdir(str(tmp_path / "run"), tiny.config(mesh={"data": 1, "fsdp": 8}))
    part = {"before": "Bado ", "text": "kilu", "after": " menora."}
    (tmp_path / "more.jsonl").write_text(json.dumps(part) + "\n\n")
    assert main(["score", f"--workdir={folder}", PROMPTS[0], f"--input={tmp_path}/more.jsonl", "--orders=3"]) == 0
    whole, given = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    model = xj.load(folder)
    first, second = model.score([PROMPTS[0], Passage("kilu", "Bado ", " menora.")], orders=3)
    for found, expected in ((whole, first), (given, second)):
        joint_K = expected.joint_K
        assert found["log_prob"] == pytest.approx(joint_K.mean(), abs=1e-4)
        best = joint_K.max()
        assert found["log_mean_exp"] == pytest.approx(best + np.log(np.exp(joint_K - best).mean()), abs=1e-4)
        assert found["spread"] == pytest.approx(np.sqrt(((joint_K - joint_K.mean()) ** 2).sum() / 2), abs=1e-4)
        assert found["spread"] > 1e-3
        assert sum(found["log_probs"]) == pytest.approx(found["log_prob"])
    assert "".join(given["pieces"]).strip("▁") == "kilu" and len(whole["pieces"]) > len(given["pieces"])
    # A space before the word is given with `before`, or unknown with the text.
    (spaced,) = model.score([Passage(" kilu", "Bado", " menora.")])
    assert spaced.position_U[0] == len(model.tokenizer.encode("Bado")) == second.position_U[0] - 1
    # Given more, and predicted with it: another likelihood than that of the word in the text of which nothing is given.
    assert abs(sum(whole["log_probs"][at] for at in second.position_U) - given["log_prob"]) > 0.01
    (tmp_path / "wrong.jsonl").write_text('{"texts": ["Bado"]}\n')
    (tmp_path / "other.jsonl").write_text('{"text": "Bado", "befor": "Kilu"}\n')
    (tmp_path / "list.jsonl").write_text('["Bado"]\n')
    for words, message in (
        (["  "], "has no pieces"),
        ([], "no text; give texts, or --input=FILE"),
        (["Bado", "--order=left", "--orders=2"], "several orders are random"),
        ([f"--input={tmp_path}/wrong.jsonl"], "row 1: give an object of strings: `text`"),
        ([f"--input={tmp_path}/other.jsonl"], "row 1: give an object of strings: `text`"),
        ([f"--input={tmp_path}/list.jsonl"], "row 1: no JSON object; give one on each line"),
    ):
        assert main(["score", f"--workdir={folder}", *words]) == 2
        assert message in capsys.readouterr().err
