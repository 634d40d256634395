"""The watchdog, the step times of several hosts, and where the time went."""

import json
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest
import shared
import tiny
from shared import finish, start

from xlnet_jax.run import goodput
from xlnet_jax.run.goodput import Goodput
from xlnet_jax.run.stragglers import Row, stragglers, table
from xlnet_jax.run.watchdog import Watchdog


def watched(tmp_path, seconds, body=None):
    """What the watchdog has said and to which code, while `body` runs with it; without one, until it has ended it."""
    ended, over = [], threading.Event()
    path = str(tmp_path / "stacks" / "process_0.txt")

    def end(code, line):
        ended.append((code, line))
        over.set()

    watchdog = Watchdog(seconds, path, lambda: "data", end)
    try:
        if body:
            body(watchdog)
        else:
            over.wait(20)
    finally:
        watchdog.cancel()
    return ended, pathlib.Path(path)


def a_place_to_hang():
    time.sleep(1.5)


def test_no_progress_dumps_all_stacks_and_ends_with_42(tmp_path, capfd):
    over = threading.Event()

    def body(watchdog):
        watchdog.progress(7)
        for _ in range(100):  # faulthandler shows no more
            threading.Thread(target=over.wait).start()
        other = threading.Thread(target=a_place_to_hang)
        other.start()
        other.join()
        over.set()

    ended, path = watched(tmp_path, 0.4, body)
    ((code, line),) = ended
    assert code == 42 and "no progress for 0.4 s (watchdog.seconds) after step 7, during data" in line
    assert str(path) in line
    stacks = path.read_text()
    assert "in a_place_to_hang" in stacks and "in body" in stacks
    assert "in a_place_to_hang" in capfd.readouterr().err


@pytest.mark.parametrize("seconds", [0, 1])
def test_progress_or_a_compilation_keeps_it_quiet(tmp_path, seconds):
    def body(watchdog):
        if seconds:
            for _ in range(15):
                time.sleep(0.1)
                watchdog.progress()
            with watchdog.suspended():
                time.sleep(1.5)
        else:
            time.sleep(0.8)

    ended, path = watched(tmp_path, seconds, body)
    assert not ended and not path.exists()


@pytest.mark.parametrize("trouble", ["a folder that cannot be written", "no more threads"])
def test_what_keeps_the_stacks_from_the_disk_does_not_keep_it_from_ending(tmp_path, monkeypatch, trouble):
    def fail(_):
        raise RuntimeError("can't start new thread")

    if trouble == "no more threads":
        monkeypatch.setattr(threading.Timer, "start", fail)
    else:
        (tmp_path / "stacks").write_text("in the way")
    ended, _ = watched(tmp_path, 0.3)
    assert [code for code, _ in ended] == [42]


def test_a_process_that_was_stopped_for_longer_than_the_limit_goes_on(tmp_path):
    """As by Ctrl-Z and fg, or on a machine that is moved. Fails if the clock on the wall counts."""
    program = (
        "import logging, sys\n"
        "from xlnet_jax import messages\n"
        "from xlnet_jax.run.watchdog import Watchdog\n"
        "logging.basicConfig()\n"
        "watchdog = Watchdog(1, sys.argv[1], lambda: 'data', messages.end)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "watchdog.cancel()\n"
    )
    words = [sys.executable, "-c", program, str(tmp_path / "stacks" / "process_0.txt")]
    with subprocess.Popen(
        words, cwd=tiny.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(1.3)
        process.send_signal(signal.SIGCONT)
        assert any("this process did not run for " in line for line in process.stderr), "it was ended"
        _, said = process.communicate("\n")
    assert process.returncode == 0, said


def row(process, data, python=0.001, save=0.0, step=0.1):
    return Row(process, f"host{process}", step, data, python, save)


def test_the_host_that_others_wait_for_is_named():
    rows = [row(0, 0.002), row(1, 0.08), row(2, 0.003), row(3, 0.001, save=0.06)]
    assert [each.process for each in stragglers(rows)] == [1, 3]
    assert [each.process for each in stragglers(rows[:2])] == [1]
    # All wait alike, or what one takes longer is hidden behind the device.
    assert stragglers([row(0, 0.08), row(1, 0.09)]) == []
    assert stragglers([row(0, 0.001), row(1, 0.01)]) == []
    assert table(rows, 100, 10)[2].split() == ["1", "host1", "100.0", "80.0", "1.0", "0.0"]


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
    expected = {"steps": 61.5, "start": 2, "restore": 4, "compile": 0, "data": 3, "save": 0, "evaluation": 12}
    assert seconds == pytest.approx(expected | {"check": 0, "restarts": 50})
    assert sum(seconds.values()) == pytest.approx(clock[0] - 70 - 100)
    assert goodput.summary(second)["goodput"] == pytest.approx(61.5 / sum(seconds.values()))
    assert "training 61.5 s" in goodput.described(second) and "lost: restarts 50.0 s" in goodput.described(second)
    # After an end in order nothing was waiting.
    account = Goodput()
    account.resume_from([second | {"ended": True}])
    assert account.seconds["restarts"] == 50


@pytest.mark.slow
def test_a_planted_hang_is_dumped_and_ended_and_the_run_goes_on(tmp_path, undisturbed):
    run = tmp_path / "run"
    options = ("--config.data.workers=0", "--stop_at=12", undisturbed.cache)
    _, said = finish(start(run, "--config.watchdog.seconds=3", *options, faults="data_wait=6"), 42)
    assert "xlnet-jax: no progress for 3 s (watchdog.seconds) after step 4, during data; the stacks" in said
    for stacks in (said, (run / "stacks" / "process_0.txt").read_text()):
        assert "planted.py" in stacks and "in train_batch" in stacks and "loop.py" in stacks
    out, said = finish(start(run, *options))
    assert "resuming at step 4" in said
    result = json.loads(out)
    assert result["step"] == 12 and shared.steps(run) == undisturbed.steps(12)
    # What the hang and the work that is done again have cost.
    assert result["seconds"]["restarts"] > 3 and 0 < result["goodput"] < 1
