"""`xlnet-jax fill`, and `generate` with a permutation model: as the library does it, on a mesh, and on a terminal."""

import json
import re

import pytest
import tiny
from test_generate_command import PROMPTS, write_workdir

import xlnet_jax as xj
from xlnet_jax.cli import main
from xlnet_jax.commands import display
from xlnet_jax.errors import BadInput
from xlnet_jax.infer import orders

TEXTS = ["Bado [MASK] menora, ra[MASK:3]si.", "[MASK:2-6] kilu"]


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """A permutation model with random parameters; without a memory, so that one segment is the longest text."""
    config = tiny.config(mesh={"data": 1, "fsdp": 8}, model={"memory_len": 0})
    return write_workdir(str(tmp_path_factory.mktemp("fill") / "run"), config)


def lines(capsys, words):
    """The JSON objects that a command prints."""
    assert main([*words, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_fill_is_that_of_the_library(workdir, tmp_path, capsys):
    (tmp_path / "more.jsonl").write_text(json.dumps({"text": TEXTS[1]}) + "\n\n")
    words = ["fill", f"--workdir={workdir}", TEXTS[0], f"--input={tmp_path}/more.jsonl"]
    found = lines(capsys, [*words, "--order=reversed", "--temperature=1", "--seed=5"])
    heard = ([], [])
    expected = xj.load(workdir).infill(
        TEXTS, order="reversed", temperature=1, seed=5, listener=lambda number, new, ended: heard[number].extend(new)
    )
    for one, other, pairs in zip(found, expected, heard, strict=True):
        assert one.keys() == {"text", "log_prob", "gaps", "calls", "exact"}
        assert (one["text"], one["calls"], one["exact"]) == (other.text, other.calls, True)
        assert one["log_prob"] == pytest.approx(other.log_prob, abs=1e-3)
        assert sum(gap["log_prob"] for gap in one["gaps"]) == pytest.approx(one["log_prob"], abs=1e-3)
        for gap, same in zip(one["gaps"], other.gaps, strict=True):
            assert (gap["pieces"], gap["order"]) == (same.pieces, same.order)
            assert len(gap["log_probs"]) == len(gap["pieces"])
        turns = [turn for gap in one["gaps"] for turn in gap["order"]]
        assert turns == list(range(len(pairs), 0, -1))
    assert [len(gap["pieces"]) for gap in found[0]["gaps"]] == [1, 3]
    assert xj.load(workdir).infill([]) == []


def test_samples_differ_and_the_first_is_that_without_samples(workdir, capsys):
    words = ["fill", f"--workdir={workdir}", *TEXTS, "--temperature=1", "--batch_size=2"]
    single, several = lines(capsys, words), lines(capsys, [*words, "--samples=3"])
    assert [one["sample"] for one in several] == [1, 2, 3] * 2
    assert [one["text"] for one in several[::3]] == [one["text"] for one in single]
    assert len({one["text"] for one in several}) == 6
    # The most probable pieces of a gap whose length is drawn.
    drawn = lines(capsys, ["fill", f"--workdir={workdir}", TEXTS[1], "--samples=9"])
    assert len({len(one["gaps"][0]["pieces"]) for one in drawn}) > 1


def on_a_terminal(monkeypatch, capsys, words):
    """What a command prints on one, without styles."""
    with monkeypatch.context() as terminal:
        terminal.setattr("sys.stdout.isatty", lambda: True, raising=False)
        terminal.setattr(display, "PAUSE", 0.0)
        terminal.setenv("COLUMNS", "200")
        assert main(words) == 0
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().out)


def test_a_permutation_model_continues_texts(workdir, capsys, monkeypatch):
    """In another order as the library, which warns too; on a terminal the same texts, with their order."""
    words = ["generate", f"--workdir={workdir}", *(f"--prompt={prompt}" for prompt in PROMPTS), "--tokens=8"]
    found = lines(capsys, [*words, "--order=random"])
    monkeypatch.setattr(orders, "_told", set())
    heard = []
    expected = xj.load(workdir).generate(
        PROMPTS, tokens=8, order="random", listener=lambda number, text, ended: heard.append((number, text, ended))
    )
    assert [one["text"] for one in found] == expected and all(expected)
    assert capsys.readouterr().err.count("may be poor here") == 1
    assert sorted(heard) == [(number, text, True) for number, text in enumerate(expected)]
    assert [(one["prompt"], one["exact"]) for one in found] == [(prompt, True) for prompt in PROMPTS]
    monkeypatch.setenv("TERM", "dumb")
    shown = on_a_terminal(monkeypatch, capsys, [*words, "--order=random"])
    at = [shown.index(before + after) for before, after in zip(PROMPTS, expected, strict=True)]
    assert at == sorted(at) and shown.count("order: ") == 2


def test_from_left_to_right_a_terminal_shows_the_text_as_it_is_written(workdir, capsys, monkeypatch):
    """Also where pieces are drawn in parallel, which is said to be inexact."""
    words = ["generate", f"--workdir={workdir}", f"--prompt={PROMPTS[0]}", "--tokens=8", "--tokens_per_step=3"]
    (found,) = lines(capsys, words)
    assert not found["exact"]
    assert on_a_terminal(monkeypatch, capsys, words).strip() == (PROMPTS[0] + found["text"]).strip()


def test_a_terminal_shows_the_gaps_and_nothing_of_json(workdir, capsys, monkeypatch):
    words = ["fill", f"--workdir={workdir}", TEXTS[0]]
    (found,) = lines(capsys, words)
    monkeypatch.setenv("TERM", "xterm")
    shown = on_a_terminal(monkeypatch, capsys, words)
    assert found["text"] in shown and "Bado · menora" in shown and "{" not in shown
    assert re.findall(r"\((-[0-9.]+) nats\)", shown) == [f"{gap['log_prob']:.2f}" for gap in found["gaps"]]
    # With --json there is no view on a terminal either.
    assert json.loads(on_a_terminal(monkeypatch, capsys, [*words, "--json"])) == found


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no text; give texts, or --input=FILE"),
        (["a [MASK]", "no gap"], "text 2, 'no gap', has no gap; write [MASK]"),
        (["a [MASK:0]"], "text 1: '[MASK:0]' is no gap"),
        (["[MASK:33]"], "text 1 has 33 tokens, and a model with model.memory_len=0 reads only data.segment_len=32"),
        (["[MASK]", "--order=right"], "argument --order: invalid choice: 'right'"),
        (["[MASK]", "--tokens_per_step=2", "--speculative=2"], "tokens_per_step=2 with speculative=2"),
        (["[MASK]", "--order=confidence", "--speculative=2"], "a draft needs its order beforehand"),
        (["[MASK]", "--speculative=1"], "speculative=1 must be 0 (no drafts) or at least 2"),
        (["[MASK]", "--temperature=-1"], "--temperature=-1.0 must be at least 0"),
        (["[MASK]", "--top_p=0"], "--top_p=0.0 must be above 0"),
        (["[MASK]", "--top_p=0.5"], "top_k and top_p change nothing with temperature=0, the default"),
        (["[MASK]", "--samples=2"], "samples=2 of the most probable pieces are alike"),
        (["[MASK:3-3]", "--samples=2"], "samples=2 of the most probable pieces are alike"),
        (["--input=none.txt"], "--input=none.txt: no such file"),
        (["--input=empty.txt"], "--input=empty.txt has no text"),
        (["--input=wrong.jsonl"], "wrong.jsonl, row 1: give an object with one string, `text`, and nothing else"),
    ],
)
def test_bad_input_is_one_line(workdir, tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "wrong.jsonl").write_text('{"text": "[MASK]", "texts": "[MASK]"}\n')
    # What `generate` shares is refused there too.
    for command in ("fill", "generate") if {*words} <= {"--input=none.txt", "--input=empty.txt"} else ("fill",):
        assert main([command, f"--workdir={workdir}", *words]) == 2
        captured = capsys.readouterr()
        last = captured.err.splitlines()[-1]
        assert message in last and "Traceback" not in captured.err and captured.out == ""


def test_a_left_to_right_model_has_one_order(tmp_path):
    config = tiny.config(data={"objective": "clm", "reuse_len": 32, "num_predict": 32})
    model = xj.load(write_workdir(str(tmp_path / "run"), config))
    for options, message in (
        (
            {"order": "random"},
            r"order=random: a left-to-right model \(data.objective=clm\) has one token after",
        ),
        ({"tokens_per_step": 2}, "tokens_per_step=2: a left-to-right model"),
        ({"speculative": 2}, "speculative=2: a left-to-right model"),
    ):
        with pytest.raises(BadInput, match=message):
            model.generate(["x"], **options)
    with pytest.raises(BadInput, match="order=reversed: a left-to-right model"):
        model.score(["x"], order="reversed")
    with pytest.raises(BadInput, match="cannot fill a gap: use `generate`, or train one with data.objective=plm"):
        model.infill(["x [MASK]"])
