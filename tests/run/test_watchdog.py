"""The watchdog, the step times of several hosts, and where the time went."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import shared
import tiny
from shared import finish, start

from xlnet_jax import messages
from xlnet_jax.run import goodput
from xlnet_jax.run.goodput import Goodput
from xlnet_jax.run.watchdog import Watchdog


@pytest.fixture
def watched(monkeypatch):
    """(seconds, body) -> what the watchdog has said and to which code, while the body ran with it
    and that list.
    """

    def watched(seconds, body):
        ended = []
        monkeypatch.setattr(messages, "end", lambda *how: ended.append(how))
        watchdog = Watchdog(seconds, lambda: "data")
        try:
            body(watchdog, ended)
        finally:
            watchdog.cancel()
        return ended

    return watched


def a_place_to_hang(here, over):
    here.set()
    over.wait()


def test_no_progress_dumps_all_stacks_and_ends_with_42(watched, caplog, capfd):
    def body(watchdog, ended):
        here, over = threading.Event(), threading.Event()
        with watchdog.suspended():
            for _ in range(100):  # faulthandler shows no more
                threading.Thread(target=over.wait).start()
            threading.Thread(target=a_place_to_hang, args=(here, over)).start()
            here.wait()
        watchdog.progress(7)
        shared.wait_until(lambda: ended)
        over.set()

    ((code, line),) = watched(0.4, body)
    assert (
        code == 42
        and "no progress for 0.4 s (watchdog.seconds) after step 7, during data; the stacks are"
        in line
    )
    assert "in a_place_to_hang" in capfd.readouterr().err and "in body" in caplog.text


@pytest.mark.parametrize("seconds", [0, 1])
def test_progress_or_a_compilation_keeps_it_quiet(watched, seconds):
    def body(watchdog, _):
        for _ in range(15 if seconds else 0):
            time.sleep(0.1)
            watchdog.progress()
        with watchdog.suspended() if seconds else contextlib.nullcontext():
            time.sleep(1.5)

    assert not watched(seconds, body)


def test_a_process_that_was_stopped_for_longer_than_the_limit_goes_on():
    """As by Ctrl-Z and fg, or on a machine that is moved. Fails if the clock on the wall counts."""
    # It stops itself after a few intervals, and ends a few after the watchdog has noticed, however
    # late this test is.
    program = (
        "import os, signal, threading, time\n"
        "from xlnet_jax.run import watchdog\n"
        "goes_on = threading.Event()\n"
        "watchdog.log.warning = lambda text, *values: (print(text % values), goes_on.set())\n"
        "watching = watchdog.Watchdog(1, lambda: 'data')\n"
        "time.sleep(0.2)\n"
        "os.kill(os.getpid(), signal.SIGSTOP)\n"
        "goes_on.wait()\n"
        "time.sleep(0.3)\n"
        "watching.cancel()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=tiny.ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        os.waitpid(process.pid, os.WUNTRACED)
        time.sleep(1.3)
        process.send_signal(signal.SIGCONT)
        out, err = process.communicate()
    assert process.returncode == 0 and "this process did not run for " in out, err


@pytest.mark.parametrize(
    ("outside", "named"),
    [
        ([2, 80, 3, 60], [1, 3]),
        ([2, 80], [1]),
        # All wait alike, or what one takes longer is hidden behind the device.
        ([80, 90], []),
        ([1, 10], []),
    ],
)
def test_the_host_that_others_wait_for_is_named(outside, named):
    assert goodput.stragglers(np.array([[100 - ms, ms - 1, 1, 0] for ms in outside])) == named


def test_time_is_counted_once_and_over_restarts(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(time, "time", lambda: clock[0])
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def run(account, lost):
        clock[0] += 1  # start
        with account.measure("restore"):
            clock[0] += 2
        account.work()
        for _ in range(3):
            with account.measure("data"):
                clock[0] += 0.5
            with account.measure(goodput.DEVICE):
                clock[0] += 10
            with account.measure("evaluation"):
                clock[0] += 1
                with account.measure("data"):
                    clock[0] += 1
            clock[0] += 0.25
        line = json.loads(json.dumps(account.line(3)))
        clock[0] += lost
        return line

    first = run(Goodput(), lost=50)
    killed = Goodput()
    killed.resume_from([{"step": 0, "time": 1.0, "ended": False, "seconds": {}}, first])
    second = run(killed, lost=70)
    seconds = goodput.summary(second)["seconds"]
    expected = {
        "steps": 61.5,
        "start": 2,
        "restore": 4,
        "compile": 0,
        "data": 3,
        "save": 0,
        "evaluation": 12,
    }
    assert seconds == pytest.approx(expected | {"restarts": 50})
    assert sum(seconds.values()) == pytest.approx(clock[0] - 70 - 100)
    assert goodput.summary(second)["goodput"] == pytest.approx(61.5 / sum(seconds.values()))
    assert "training 61.5 s" in goodput.time_line(
        second
    ) and "lost: restarts 50.0 s" in goodput.time_line(second)
    # After an end in order nothing was waiting.
    account = Goodput()
    account.resume_from([second | {"ended": True}])
    assert account.seconds["restarts"] == 50


@pytest.mark.slow
def test_a_planted_hang_is_dumped_and_ended_and_the_run_goes_on(tmp_path, undisturbed):
    run = tmp_path / "run"
    options = ("--config.data.workers=0", "--stop_at=12", undisturbed.cache)
    _, said = finish(start(run, "--config.watchdog.seconds=3", *options, faults="data_wait=6"), 42)
    assert (
        "xlnet-jax: no progress for 3 s (watchdog.seconds) after step 4, during data; the stacks"
        in said
    )
    assert "planted.py" in said and "in train_batch" in said and "loop.py" in said
    out, said = finish(start(run, *options))
    assert "resuming at step 4" in said
    result = json.loads(out)
    assert result["step"] == 12 and shared.steps(run) == undisturbed.steps(12)
    # What the hang and the work that is done again have cost.
    assert result["seconds"]["restarts"] > 3 and 0 < result["goodput"] < 1
