"""Views of texts that come about, on consoles with and without colours."""

import io
import re

import numpy as np
import pytest
from data_fixtures import tokenizer_of
from rich.console import Console

from xlnet_jax.commands import display
from xlnet_jax.commands.display import Display, chance, drawn, progress
from xlnet_jax.infer.infill import Gap, Infilled, gapped


def console(**options):
    # Of a terminal, whatever the environment of the tests says.
    options = {"color_system": "standard", "no_color": False, "_environ": {"TERM": "xterm"}, **options}
    return Console(file=io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), width=40, force_terminal=True, **options)


def printed(where):
    where.file.flush()
    return where.file.buffer.getvalue().decode()


def ids(level, *pieces):
    return [tokenizer_of(level).pieces.index(piece) for piece in pieces]


def test_a_text_comes_about():
    """Empty places are dots; the colours are those of the order."""
    tools = tokenizer_of("sentencepiece")
    text = gapped(tools, "Bado [MASK:2], ki[MASK]u", 1)
    assert drawn(tools, text, {}).plain == "Bado · ·, ki ·u"
    (first, _), (last, _) = text.gaps
    order = (last, first + 1, first)
    shown = drawn(tools, text, dict(zip(order, ids("sentencepiece", "l", "▁", "m"), strict=True)))
    assert shown.plain == "Badom , kilu"
    styles = {shown.plain[span.start : span.end]: str(span.style) for span in shown.spans}
    assert styles == {"l": "bold bright_blue", " ": "bold green", "m": "bold magenta"}


@pytest.mark.parametrize(("level", "pieces"), [("characters", ["d", "o"]), ("bytes", ["<0x64>", "<0x6F>"])])
def test_characters_and_bytes(level, pieces):
    tools = tokenizer_of(level)
    text = gapped(tools, "Ba[MASK:2] k", 1)
    assert drawn(tools, text, {}).plain == "Ba·· k"
    assert drawn(tools, text, dict(zip((2, 3), ids(level, *pieces), strict=True))).plain == "Bado k"


def test_words_and_chances():
    tools = tokenizer_of("words")
    assert drawn(tools, gapped(tools, "Bado [MASK] kilu,", 1), {}).plain == "Bado · kilu,"
    assert [chance(np.log(p)) for p in (1, 0.0123, 0.0001234)] == ["100.0 %", "1.2 %", "1.2e-04"]


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_the_view_shows_one_text_at_a_time_and_ends_with_all(monkeypatch, term):
    """Pieces that came together are shown one by one, but for two seconds at most; a dumb terminal gets the end."""
    tools, slept = tokenizer_of("sentencepiece"), []
    texts = [gapped(tools, "Bado [MASK:3].", 1), gapped(tools, "menora [MASK]", 2)]
    letters = ids("sentencepiece", "l", "m", "n")
    gaps = [Gap("lmn", -3.0, ["l", "m", "n"], [-1.0] * 3, [1, 2, 3]), Gap("m\x1b", -0.5, ["m"], [-0.5], [1])]
    found = [Infilled("", -3.0, gaps[:1], 3, True), Infilled("", -0.5, gaps[1:], 1, True)]
    monkeypatch.setattr(display.time, "sleep", slept.append)
    where = console(_environ={"TERM": term}, color_system="standard" if term == "xterm" else None)
    view = Display(where, tools, "filling")
    with view.watch(texts) as show:
        show(1, [(texts[1].gaps[0][0], letters[1])], True)
        show(0, list(zip(range(*texts[0].gaps[0]), letters, strict=True)), True)
    shown = printed(where)
    live = term == "xterm"
    assert ("· · ·" in shown and "1 of 2 texts" in shown) == live and (shown == "") != live
    assert sum(slept) == pytest.approx(3 * display.PAUSE * live)
    view.finish(found)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", printed(where)[len(shown) :]).split("\n")
    assert lines[:4] == ["Badolmn.", "  lmn  5.0 %  (-3.00 nats)", "menoram", "  m\\x1b  60.7 %  (-0.50 nats)"]
    assert lines[4:] == (["order: first ■■■■■■ last", ""] if live else [""])
    monkeypatch.setattr(display, "PAUSES", 2 * display.PAUSE)
    slept.clear()
    with Display(console(), tools, "filling").watch(texts) as show:
        show(0, list(zip(range(*texts[0].gaps[0]), letters, strict=True)), True)
    assert sum(slept) == pytest.approx(1.5 * display.PAUSE)  # of four pieces three


def test_a_bar_only_for_several_texts_on_a_terminal(monkeypatch, capsys):
    for tty, term, total in ((False, "xterm", 5), (True, "dumb", 5), (True, "xterm", 1)):
        monkeypatch.setenv("TERM", term)
        monkeypatch.setattr("sys.stderr.isatty", lambda tty=tty: tty, raising=False)
        with progress("scoring", total) as done:
            done(1)
        assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with Display(None, tokenizer_of("bytes"), "scoring").watch(range(5)) as heard:
        for number, ended in ((0, True), (1, False), (2, True)):
            heard(number, "new", ended)
    out, err = capsys.readouterr()
    assert out == "" and "scoring" in err and "2/5" in err
