"""What a run says of itself on the way: which losses are logged, and what it does while nothing
moves.
"""

import io
import logging
import os
import re
import sys

import numpy as np
import pytest
import tiny
from rich.console import Console
from rich.progress import Progress, TextColumn

from xlnet_jax import cli, messages
from xlnet_jax.data.batches.stream import extend_plan
from xlnet_jax.messages import progress_bar
from xlnet_jax.options import Command
from xlnet_jax.run import progress
from xlnet_jax.run.goodput import Goodput
from xlnet_jax.run.progress import Reporter
from xlnet_jax.train import evaluation


class Nothing:
    """A writer of metrics that writes nothing."""

    def write(self, name, values):
        pass


def reporter(bar=None):
    config = tiny.config()
    mixture, plan = tiny.mixture(), extend_plan((), 0, 8, config.data.windows_per_block)
    bar = bar or progress_bar("", config.train.steps)
    goodput = Goodput()
    goodput.work()
    return Reporter(config, mixture, mixture.stream(config), plan, None, Nothing(), goodput, bar)


def report(to, steps):
    losses = np.array([float(step + 1) for step in steps])
    to(steps, {"loss": losses, "consecutive_bad": np.zeros(len(losses), np.int32)})


def test_the_bar_or_the_log_says_compiling_and_then_training(caplog):
    with caplog.at_level(logging.INFO, "xlnet_jax"), reporter().busy("compiling the step"):
        assert caplog.messages == ["compiling the step ..."]
    caplog.clear()
    console = Console(file=io.StringIO(), force_terminal=True)
    with Progress(TextColumn("{task.description}"), console=console) as bar:
        bar.add_task(progress.TRAINING, total=40)
        to = reporter(bar)
        with caplog.at_level(logging.INFO, "xlnet_jax"):
            with to.busy("compiling the step"):
                assert bar.tasks[0].description == "compiling the step"
            assert bar.tasks[0].description == "training"
            report(to, range(2))
    assert (
        not caplog.records
        and bar.tasks[0].completed == 2
        and bar.tasks[0].fields["note"] == "loss 2.0000"
    )


def test_a_bar_on_a_terminal_that_has_closed_ends_no_run(monkeypatch):
    reader, stream = os.pipe()
    with open(stream, "w") as closed:
        closed.isatty = lambda: True
        monkeypatch.setattr(sys, "stderr", closed)
        monkeypatch.setenv("TERM", "xterm")
        with progress_bar("", 10) as bar:
            os.close(reader)
            bar.update(bar.task_ids[0], completed=1, refresh=True)
        # For what is left in the buffer of the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)


class Screen(io.StringIO):
    """A terminal, and what stands on it: a line of text for each line, without colours."""

    def isatty(self):
        return True

    def lines(self):
        shown, row, column = [[]], 0, 0
        for part in re.findall(r"\x1b\[[?0-9;]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", self.getvalue()):
            if part == "\n":
                row += 1
                shown += [[]] * (row == len(shown))
            elif part == "\r":
                column = 0
            elif part.endswith("A") and part.startswith("\x1b"):
                row -= int(part[2:-1] or 1)
            elif part.endswith("K") and part.startswith("\x1b"):
                shown[row] = []
            elif not part.startswith("\x1b"):
                column = 0 if shown[row] == [] else column
                shown[row][column : column + len(part)] = part
                column += len(part)
            column = 0 if part == "\n" else column
        return [text for text in map("".join, shown) if text.strip()]


@pytest.mark.parametrize("transient", [True, False])
def test_lines_of_the_log_and_of_warnings_stand_above_the_bar(monkeypatch, transient):
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True))
    for name, value in {"TERM": "xterm", "COLUMNS": "90", "LINES": "20"}.items():
        monkeypatch.setenv(name, value)

    def run(overrides):
        log = logging.getLogger("xlnet_jax")
        log.info("before")
        with progress_bar("training", 10, transient=transient, note="loss 4.5") as bar:
            bar.update(bar.task_ids[0], completed=3, refresh=True)
            log.info("compiled 1 step")
            print("a warning", file=sys.stderr)
            print("on stdout, which is a file")
            bar.update(bar.task_ids[0], completed=10, refresh=True)
        log.info("after")
        return {}

    monkeypatch.setattr(cli, "TOPICS", {"data": ("x",)})
    monkeypatch.setattr(messages, "run_x", run, raising=False)
    monkeypatch.setattr(cli, "COMMANDS", (Command("x", "does", "xlnet-jax x", "messages:run_x"),))
    assert cli.main(["x"]) == 0
    lines = [re.sub(r"^\d\d:\d\d:\d\d ", "", line).rstrip() for line in screen.lines()]
    assert lines[:3] == ["before", "compiled 1 step", "a warning"] and lines[-1] == "after"
    assert [line.split()[0] for line in lines[3:-1]] == ["training"] * (not transient)
    assert sys.stdout.buffer.getvalue() == b"on stdout, which is a file\n"


class Three:
    """Three batches."""

    def __len__(self):
        return 3

    def __call__(self, index):
        return np.array(index)


def test_an_evaluation_by_itself_has_a_bar_and_one_in_training_has_the_bar_of_the_run(monkeypatch):
    bars = []

    def shown(what, total):
        bars.append(progress_bar(what, total))
        return bars[-1]

    monkeypatch.setattr(evaluation, "progress_bar", shown)
    for hooks in (evaluation.NO_HOOKS, evaluation.Hooks()):
        assert [*evaluation.results(Three(), tiny.config(), lambda batch: batch, hooks)] == [
            0,
            1,
            2,
        ]
    assert [bar.tasks[0].total for bar in bars] == [3, 0] and bars[0].tasks[0].completed == 2


@pytest.mark.parametrize("size", [1, 10, 64])
def test_the_first_losses_are_logged_and_then_every_hundredth(size, caplog):
    to = reporter()
    with caplog.at_level(logging.INFO, "xlnet_jax"):
        for first in range(0, 320, size):
            report(to, range(first, min(first + size, 320)))
    # Each line has the loss of the step that it names, wherever the dispatch ends.
    said = [
        re.match(r"step (\d+): loss (\d+)\.0000, \d+ tokens/s", r.getMessage()).groups()
        for r in caplog.records
    ]
    assert said == [(str(step),) * 2 for step in (1, 2, 5, 10, 20, 50, 100, 200, 300)]


def test_a_level_that_is_not_known_has_no_line(tmp_path, monkeypatch):
    """A run without held-out text has no held-out level; the other levels are drawn."""
    module, drawn = pytest.importorskip("matplotlib.figure"), []

    class Kept(module.Figure):
        def savefig(self, *args, **options):
            drawn.extend(line.get_label() for line in self.axes[0].lines)

    monkeypatch.setattr(module, "Figure", Kept)
    levels = {"held-out": None, "unigram": 5.0}
    curves = {"training": ([1, 2], [3.0, 2.5])}
    progress.write_plot(str(tmp_path / "loss.png"), "title", "step", curves, levels)
    assert drawn == ["training", "unigram"]
