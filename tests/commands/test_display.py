"""Views of texts that come about, on consoles of any width, with and without colours."""

import io
import re

import numpy as np
import pytest
from data_fixtures import tokenizer_of
from rich.console import Console

from xlnet_jax.commands import display
from xlnet_jax.commands.display import Board, Display, chance, described, progress
from xlnet_jax.infer.infill import Gap, Infilled, gapped, prompt


def console(width=40, **options):
    # Of a terminal, whatever the environment of the tests says.
    options = {"color_system": "standard", "no_color": False, "_environ": {"TERM": "xterm"}, **options}
    return Console(file=io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), width=width, force_terminal=True, **options)


def printed(where):
    where.file.flush()
    return where.file.buffer.getvalue().decode()


def plain(where, shown):
    """What is shown, without styles."""
    with where.capture() as capture:
        where.print(shown)
    return "".join(segment.text for segment in where.render(shown)), capture.get()


def ids(level, *pieces):
    return [tokenizer_of(level).pieces.index(piece) for piece in pieces]


def test_a_text_comes_about():
    """Empty places are dots; the newest piece is marked, the others that were filled are bold."""
    tools, where = tokenizer_of("sentencepiece"), console()
    text = gapped(tools, "Bado [MASK:2], ki[MASK]u", 1)
    board = Board(tools, text)
    assert plain(where, board.drawn(where))[0].rstrip() == "Bado · ·, ki ·u"
    (first, _), (last, _) = text.gaps
    board.put(last, ids("sentencepiece", "l")[0])
    board.put(first + 1, ids("sentencepiece", "▁")[0])
    board.put(first, ids("sentencepiece", "m")[0])
    drawn = board.drawn(where)
    assert drawn.plain == "Badom , kilu"
    styles = {drawn.plain[span.start : span.end]: str(span.style) for span in drawn.spans}
    assert styles == {"m": "reverse", " ": "bold", "l": "bold"}
    whole, coloured = plain(where, board.finished(where))
    assert whole.split("\n")[:2] == ["Badom , kilu", "order: first ■■■ last"]
    blue, green, magenta = "\x1b[94m", "\x1b[32m", "\x1b[35m"
    for code in (blue, green, magenta):
        assert f"{code}■" in coloured
    assert "\x1b[1;94ml\x1b[0m" in coloured, "the first piece is not of the first colour"


@pytest.mark.parametrize("options", [{"no_color": True}, {"color_system": None}])
def test_without_colours_the_order_is_in_words(options):
    tools, where = tokenizer_of("sentencepiece"), console(**options)
    text = prompt(tools, "Bado", 1, 3)
    board = Board(tools, text)
    for place, piece in zip((2, 0, 1), ids("sentencepiece", "l", "▁", "i"), strict=True):
        board.put(text.gaps[0][0] + place, piece)
    whole, escaped = plain(where, board.finished(where))
    assert whole.split("\n")[:2] == ["Bado il", "order: l, (space), i"]
    assert "\x1b[3" not in escaped and "\x1b[9" not in escaped, "a colour"


@pytest.mark.parametrize("width", [1, 7, 20])
def test_a_narrow_terminal_has_no_longer_lines(width):
    tools, where = tokenizer_of("sentencepiece"), console(width)
    text = gapped(tools, "Badokilumenora, [MASK:9] kilu", 1)
    board = Board(tools, text)
    for turn, position in enumerate(np.flatnonzero(np.logical_not(text.known)).tolist()):
        for shown in (board.drawn(where), board.finished(where)):
            whole, _ = plain(where, shown)
            assert max(map(len, whole.split("\n"))) <= width
            assert "".join(whole.split()).startswith("Badokilumenora,")
        board.put(position, ids("sentencepiece", "mn"[turn % 2])[0])


def test_characters_bytes_and_controls():
    """Bytes of one character that were filled together are one character; nothing controls the terminal."""
    where = console()
    for level in ("characters", "bytes"):
        tools = tokenizer_of(level)
        board = Board(tools, gapped(tools, "Ba[MASK:2] k", 1))
        assert board.drawn(where).plain == "Ba·· k"
        for position, piece in zip((2, 3), "do" if level == "characters" else ("<0x64>", "<0x6F>"), strict=True):
            board.put(position, ids(level, piece)[0])
        assert board.drawn(where).plain == "Bado k"
    assert Board(tokenizer_of("words"), gapped(tokenizer_of("words"), "Bado [MASK] kilu,", 1)).drawn(where).plain == (
        "Bado · kilu,"
    )
    assert described("a\x1b[2J", np.log(0.5)) == "  a\\x1b[2J  50.0 %  (-0.69 nats)"
    assert [chance(np.log(p)) for p in (1, 0.0123, 0.0001234)] == ["100.0 %", "1.2 %", "1.2e-04"]


def test_the_view_shows_one_text_at_a_time_and_ends_with_all(monkeypatch):
    """Pieces that came together are shown one by one, but for two seconds at most; a dumb terminal gets the end."""
    tools = tokenizer_of("sentencepiece")
    texts = [gapped(tools, "Bado [MASK:3].", 1), gapped(tools, "menora [MASK]", 2)]
    letters = ids("sentencepiece", "l", "m", "n")
    gaps = [Gap("lmn", -3.0, ["l", "m", "n"], [-1.0] * 3, [1, 2, 3]), Gap("m", -0.5, ["m"], [-0.5], [1])]
    found = [Infilled("", -3.0, gaps[:1], 3, True), Infilled("", -0.5, gaps[1:], 1, True)]
    for term, live in (("xterm", True), ("dumb", False)):
        slept = []
        where = console(_environ={"TERM": term}, color_system="standard" if live else None)
        view = Display(where, tools, pause=slept.append)
        with view.watch(texts):
            view(1, [(texts[1].gaps[0][0], letters[1])], True)
            view(0, list(zip(range(*texts[0].gaps[0]), letters, strict=True)), True)
        shown = printed(where)
        if live:
            assert "· · ·" in shown and "1 of 2 texts" in shown and slept == [display.PAUSE] * 2
        else:
            assert shown == "" and slept == []
        view.finish(found)
        order = "first ■■■ last" if live else "l, m, n"
        first, second = "  lmn  5.0 %  (-3.00 nats)", "  m  60.7 %  (-0.50 nats)"
        lines = re.sub(r"\x1b\[[0-9;]*m", "", printed(where)[len(shown) :]).split("\n")
        assert lines == ["Badolmn.", f"order: {order}", first, "", "menoram", second, ""]
    monkeypatch.setattr(display, "PAUSES", display.PAUSE)
    slept = []
    with Display(console(), tools, pause=slept.append).watch(texts) as view:
        view(0, list(zip(range(*texts[0].gaps[0]), letters, strict=True)), True)
    assert sum(slept) == display.PAUSE


def test_a_text_higher_than_the_terminal_is_shown_around_its_newest_piece():
    tools, where = tokenizer_of("sentencepiece"), console(10, height=5)
    text = gapped(tools, " ".join(f"Bado{number} [MASK:2]" for number in range(9)), 1)
    with Display(where, tools, pause=lambda seconds: None).watch([text]) as view:
        before = printed(where)
        assert "Bado0" in before and "Bado5" not in before
        view(0, [(text.gaps[5][1] - 1, ids("sentencepiece", "l")[0])], False)
        after = printed(where)[len(before) :]
        assert "Bado5" in after and "Bado0" not in after and after.count("\n") <= 5


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
