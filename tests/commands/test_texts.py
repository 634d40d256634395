"""`xlnet-jax fill`, `generate` and `score`: as the library does it, on a mesh, and on a
terminal.
"""

import dataclasses
import json
import os
import shlex
import types

import data_fixtures
import numpy as np
import pytest
import tiny
from special_ids import EOD

import xlnet_jax as xj
from xlnet_jax.cli import main
from xlnet_jax.commands import texts
from xlnet_jax.errors import BadInput
from xlnet_jax.infer import orders
from xlnet_jax.infer.infill import Passage, text_after
from xlnet_jax.infer.score import Likelihood

CLM = {"objective": "clm", "reuse_len": 32, "num_predict": 32}
PROMPTS = ["Bado kilu menora.", "Rave"]
TEXTS = ["Bado [MASK] menora, ra[MASK:3]si.", "[MASK:2-6] kilu"]


def write_workdir(folder, config):
    """A work directory with random parameters, in which the end of a document is as likely as any
    piece.
    """
    os.makedirs(folder)
    tiny.save_run(folder, config, tiny.random_params(config, 0.4))
    return folder


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """A permutation model; without a memory, so that one segment is the longest text."""
    config = tiny.config(mesh={"data": 1, "fsdp": 8}, model={"memory_len": 0})
    return write_workdir(str(tmp_path_factory.mktemp("texts") / "plm"), config)


@pytest.fixture(scope="module")
def causal(tmp_path_factory):
    return write_workdir(
        str(tmp_path_factory.mktemp("texts") / "clm"),
        tiny.config(data=CLM, mesh={"data": 1, "fsdp": 8}),
    )


def lines(capsys, words):
    assert main([*words, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def on_a_terminal(monkeypatch, capsys, words):
    with monkeypatch.context() as terminal:
        terminal.setattr("sys.stdout.isatty", lambda: True, raising=False)
        assert main(words) == 0
    return capsys.readouterr().out


def test_fill_is_that_of_the_library(workdir, tmp_path, capsys):
    (tmp_path / "more.jsonl").write_text(json.dumps({"text": TEXTS[1]}) + "\n\n")
    words = ["fill", f"--workdir={workdir}", TEXTS[0], f"--input={tmp_path}/more.jsonl"]
    found = lines(capsys, [*words, "--order=reversed", "--temperature=1", "--seed=5"])
    expected = xj.load(workdir).fill(TEXTS, order="reversed", temperature=1, seed=5)
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == {"text", "log_prob", "gaps", "calls", "exact"}
        assert (one["text"], one["calls"], one["exact"]) == (other.text, other.calls, True)
        total = sum(sum(gap["log_probs"]) for gap in one["gaps"])
        assert one["log_prob"] == pytest.approx(other.log_prob, abs=1e-3)
        assert one["log_prob"] == pytest.approx(total, abs=1e-3)
        for gap, same in zip(one["gaps"], other.gaps, strict=True):
            assert (gap["pieces"], gap["order"]) == (same.pieces, same.order)
        turns = [turn for gap in one["gaps"] for turn in gap["order"]]
        assert turns == list(range(len(turns), 0, -1))
    assert [len(gap["pieces"]) for gap in found[0]["gaps"]] == [1, 3]
    assert xj.load(workdir).fill([]) == []


def test_samples_differ_and_the_first_is_that_without_samples(workdir, capsys):
    words = ["fill", f"--workdir={workdir}", *TEXTS, "--temperature=1", "--batch_size=2"]
    single, several = lines(capsys, words), lines(capsys, [*words, "--samples=3"])
    assert [one["sample"] for one in several] == [1, 2, 3] * 2
    assert [one["text"] for one in several[::3]] == [one["text"] for one in single]
    assert len({one["text"] for one in several}) == 6
    # The most probable pieces of a gap whose length is drawn.
    drawn = lines(capsys, ["fill", f"--workdir={workdir}", TEXTS[1], "--samples=9"])
    assert len({len(one["gaps"][0]["pieces"]) for one in drawn}) > 1


@pytest.mark.slow
def test_a_bar_counts_several_texts_on_a_terminal(workdir, capsys, monkeypatch):
    """On stderr; of a single text there is none."""
    words = [f"--workdir={workdir}", "--json"]
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    for count in (1, 2):
        assert main(["score", *["Rave"] * count, *words]) == 0
        out, err = capsys.readouterr()
        assert len(out.splitlines()) == count and (f"{count}/{count}" in err) == (count == 2)


def test_a_terminal_shows_the_gaps_and_nothing_of_json(workdir, capsys, monkeypatch):
    words = ["fill", f"--workdir={workdir}", TEXTS[0]]
    (found,) = lines(capsys, words)
    shown = on_a_terminal(monkeypatch, capsys, words)
    assert found["text"] in shown and "{" not in shown
    chances = [texts.chance(np.log(p)) for p in (1, 0.0123, 0.0001234)]
    assert chances == ["100.0 %", "1.2 %", "1.2e-04"]
    assert all(f"({gap['log_prob']:.2f} nats)" in shown for gap in found["gaps"])
    # With --json there is no view on a terminal either.
    assert json.loads(on_a_terminal(monkeypatch, capsys, [*words, "--json"])) == found


def test_a_permutation_model_continues_texts(workdir, capsys, monkeypatch):
    """In another order as the library, which warns too; on a terminal the same texts."""
    prompts = [f"--prompt={prompt}" for prompt in PROMPTS]
    words = ["generate", f"--workdir={workdir}", *prompts, "--tokens=8", "--order=random"]
    found = lines(capsys, words)
    monkeypatch.setattr(orders, "_told", set())
    heard = []
    expected = xj.load(workdir).generate(
        PROMPTS, tokens=8, order="random", listener=lambda *said: heard.append(said)
    )
    assert [one["text"] for one in found] == expected and all(expected)
    assert capsys.readouterr().err.count("may be poor here") == 1
    assert sorted(heard) == [(number, text, True) for number, text in enumerate(expected)]
    assert [one["prompt"] for one in found] == PROMPTS and all(one["exact"] for one in found)
    shown = on_a_terminal(monkeypatch, capsys, words)
    at = [shown.index(before + after) for before, after in zip(PROMPTS, expected, strict=True)]
    assert at == sorted(at)
    # From left to right the text appears as it is written, also where pieces are drawn in parallel:
    # inexactly.
    words = ["generate", f"--workdir={workdir}", PROMPTS[0], "--tokens=8", "--tokens_per_step=3"]
    (one,) = lines(capsys, words)
    assert not one["exact"]
    assert on_a_terminal(monkeypatch, capsys, words).strip() == (PROMPTS[0] + one["text"]).strip()


def test_a_left_to_right_model_continues_texts(causal, tmp_path, capsys, monkeypatch):
    """From the command line and a file, as the library gives them; eight rows are spread over eight
    devices.
    """
    (tmp_path / "prompts.txt").write_text(f"{PROMPTS[1]}\n\n")
    words = ["generate", f"--workdir={causal}", PROMPTS[0], f"--input={tmp_path}/prompts.txt"]
    words += ["--tokens=20", "--temperature=0"]
    found, heard, model = lines(capsys, words), ["", ""], xj.load(causal)
    continued = [line["text"] for line in found]
    assert [line["prompt"] for line in found] == PROMPTS and all(continued)

    def listen(number, text, ended):
        heard[number] += text

    assert model.generate(PROMPTS, tokens=20, temperature=0, listener=listen) == continued == heard
    shown = on_a_terminal(monkeypatch, capsys, words)
    assert shown.strip() == "\n\n".join(map("".join, zip(PROMPTS, continued, strict=True))).strip()
    with pytest.raises(BadInput, match="this model is left-to-right"):
        model.encode(PROMPTS)
    for name, value in {"order": "random", "tokens_per_step": 2, "speculative": 2}.items():
        with pytest.raises(BadInput, match=f"{name}={value}: a left-to-right model"):
            model.generate(["x"], **{name: value})
    with pytest.raises(BadInput, match="cannot fill a gap: use `generate`, or train one with"):
        model.fill(["x [MASK]"])
    masked = tiny.config(data={"objective": "mlm", "reuse_len": 29}, model={"memory_len": 0})
    model = dataclasses.replace(model, config=masked)
    with pytest.raises(BadInput, match="mlm, which predicts each unknown token by itself"):
        model.generate(["x"])
    with pytest.raises(BadInput, match="text 1 has 2 unknown pieces: a masked model"):
        model.fill(["x [MASK:2]"])


@pytest.mark.slow
def test_masked_diffusion_from_the_command_line(tmp_path, capsys):
    """The bound has its own name."""
    data = {"objective": "mdm", "reuse_len": 32, "num_predict": 32}
    config = tiny.config(data=data, model={"memory_len": 0}, mesh={"data": 1, "fsdp": 8})
    folder = write_workdir(str(tmp_path / "run"), config)
    (scored,) = lines(capsys, ["score", f"--workdir={folder}", PROMPTS[0], "--draws=8"])
    assert scored["draws"] == 8 and "log_prob" not in scored
    (bound,) = xj.load(folder).elbo(PROMPTS[:1], draws=8)
    assert scored["elbo"] == pytest.approx(bound.elbo, rel=1e-5)
    assert scored["elbo"] == pytest.approx(sum(scored["log_probs"]))
    (one,) = lines(capsys, ["score", f"--workdir={folder}", PROMPTS[0], "--draws=1"])
    assert one["standard_error"] is None
    words = ["generate", f"--workdir={folder}", PROMPTS[1], "--order=confidence", "--tokens=9"]
    (text,) = lines(capsys, words)
    assert text["exact"] and text["text"]


def test_the_text_after_a_prompt():
    tokenizer = data_fixtures.tokenizer()
    ids = tokenizer.encode("Bado kilu menora.").tolist()
    for cut in range(len(ids)):
        new = text_after(tokenizer, ids[:cut], [*ids[cut:], EOD])
        assert tokenizer.decode(ids[:cut]) + new == "Bado kilu menora."


def test_one_order_has_no_spread(monkeypatch):
    """Nor has the order of confidence, by which masked diffusion has a likelihood and no bound."""
    model = types.SimpleNamespace(tokenizer=data_fixtures.tokenizer(), config=tiny.config())
    likely = Likelihood(np.arange(2), np.array([[-1.0, -2.0]]))
    model.score = lambda passages, order="random": [
        likely._replace(place_U=np.array([2, 1]) if order == "confidence" else None)
    ]
    monkeypatch.setattr(texts, "on_all_devices", lambda *_: model)
    (one,) = texts.score("run", texts=["Bado"])
    assert one["log_prob"] == -3 and not {"spread", "log_mean_exp", "order"} & one.keys()
    data = {"objective": "mdm", "reuse_len": 32, "num_predict": 32}
    model.config = tiny.config(data=data, model={"memory_len": 0})
    (one,) = texts.score("run", texts=["Bado"], order="confidence")
    assert one["log_prob"] == -3 and one["order"] == [2, 1] and "spread" not in one


def test_scores_from_the_command_line_are_those_of_the_library(tmp_path, capsys):
    """Of a permutation model, on one device and on a mesh; a part of a text given the rest, as
    JSON.
    """
    folder = write_workdir(str(tmp_path / "run"), tiny.config(mesh={"data": 1, "fsdp": 8}))
    passage = Passage("kilu", "Bado ", " menora.")
    (tmp_path / "more.jsonl").write_text(json.dumps(passage._asdict()) + "\n\n")
    words = ["score", f"--workdir={folder}", PROMPTS[0], f"--input={tmp_path}/more.jsonl"]
    whole, given = lines(capsys, [*words, "--orders=3"])
    model = xj.load(folder)
    first, second = model.score([PROMPTS[0], passage], orders=3)
    for found, expected in ((whole, first), (given, second)):
        joint_K = expected.joint_K
        log_mean_exp = np.logaddexp.reduce(joint_K) - np.log(3)
        assert found["log_prob"] == pytest.approx(joint_K.mean(), abs=1e-4)
        assert found["log_mean_exp"] == pytest.approx(log_mean_exp, abs=1e-4)
        assert found["spread"] == pytest.approx(np.std(joint_K, ddof=1), abs=1e-4)
        assert found["spread"] > 1e-3
        assert sum(found["log_probs"]) == pytest.approx(found["log_prob"])
        assert found["mean_log_prob"] * len(found["pieces"]) == pytest.approx(found["log_prob"])
    assert "".join(given["pieces"]).strip("▁") == "kilu"
    # A space before the word is given with `before`, or unknown with the text.
    (spaced,) = model.score([Passage(" kilu", "Bado", " menora.")])
    assert spaced.position_U[0] == len(model.tokenizer.encode("Bado")) == second.position_U[0] - 1
    # Given more, and predicted with it: another likelihood than that of the word in the text of
    # which nothing is given.
    assert abs(sum(whole["log_probs"][at] for at in second.position_U) - given["log_prob"]) > 0.01


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("fill", "no text; give texts, or --input=FILE"),
        ("fill [MASK:33]", "text 1 has 33 tokens, and a model with model.memory_len=0 reads only"),
        ("fill [MASK] --tokens_per_step=2 --speculative=2", "tokens_per_step=2 with speculative=2"),
        ("fill [MASK:3-3] --samples=2", "samples=2 of the most probable pieces are alike"),
        ("generate --input=empty.txt", "--input=empty.txt has no text"),
        (
            "generate --input=wide.txt",
            "--input=wide.txt: a NUL byte, so it is not UTF-8 text; convert the file",
        ),
        ("score '  '", "has no pieces"),
        (
            "score --input=wrong.jsonl",
            "row 1: give an object of strings: text, and before and after if there are any, and no",
        ),
        ("score --input=list.jsonl", "row 1: holds no JSON object"),
    ],
)
def test_bad_input_is_one_line(workdir, tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "wide.txt").write_bytes("Bado\n".encode("utf-16-le"))
    (tmp_path / "wrong.jsonl").write_text('{"text": "[MASK]", "texts": "[MASK]"}\n')
    (tmp_path / "list.jsonl").write_text('["Bado"]\n')
    assert main([*shlex.split(words), f"--workdir={workdir}"]) == 2
    out, err = capsys.readouterr()
    assert message in err.splitlines()[-1] and "Traceback" not in err and out == ""
