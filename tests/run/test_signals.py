"""Signals: the first asks, the second ends at once; in training, evaluation, the first compilation, a wait for data."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import shared
import tiny
from shared import EVALUATE, finish, start

from xlnet_jax.checkpoint.store import Checkpoints
from xlnet_jax.errors import RestartMe, Stopped
from xlnet_jax.run import signals
from xlnet_jax.run.signals import StopRequest, stop_request


def test_the_first_signal_only_asks_and_the_old_handler_comes_back():
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest() as stop:
        stop.working()
        assert not stop
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop and stop.name == "SIGTERM"
    assert signal.getsignal(signal.SIGTERM) is before
    assert signal.set_wakeup_fd(-1) == -1


def test_a_signal_where_there_is_nothing_to_save_ends_there():
    with pytest.raises(RestartMe, match="SIGTERM during start-up: rerun the same command"), stop_request():
        os.kill(os.getpid(), signal.SIGTERM)
        pytest.fail("went on")


def test_a_library_does_not_swallow_a_signal():
    with pytest.raises(RestartMe, match="SIGTERM during start-up"), stop_request():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except Exception:
            pytest.fail("taken for a failure")
        pytest.fail("went on")


def test_a_signal_that_is_swallowed_all_the_same_ends_the_process_from_outside(monkeypatch):
    monkeypatch.setattr(signals, "START_SECONDS", 0.1)
    monkeypatch.setattr(signals, "CLEANUP_SECONDS", 0.3)
    said = []
    with StopRequest() as stop:
        stop.end = lambda code, line: said.append((code, line))
        began = time.monotonic()
        with contextlib.suppress(Stopped):
            os.kill(os.getpid(), signal.SIGTERM)
        while not said and time.monotonic() - began < 10:
            time.sleep(0.01)
        assert time.monotonic() - began > 0.3
    assert said[0] == (42, "SIGTERM during start-up: rerun the same command to resume")


def test_a_signal_ends_a_wait_that_may_be_ended_even_if_it_came_before():
    with StopRequest() as stop:
        stop.working()
        os.kill(os.getpid(), signal.SIGTERM)
        with stop.waiting("something else", raises=False):
            pass
        with pytest.raises(Stopped), stop.waiting("waiting for data", raises=True):
            pytest.fail("waited")
    with StopRequest() as stop:
        stop.working()
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        began = time.monotonic()
        waiting = stop.waiting("waiting for data", raises=True)
        with pytest.raises(Stopped, match="SIGINT during waiting for data"), waiting:
            threading.Event().wait(30)
        assert time.monotonic() - began < 10


def test_a_wait_that_cannot_be_ended_here_is_ended_from_outside(monkeypatch):
    monkeypatch.setattr(signals, "DATA_SECONDS", 0.3)
    ended = threading.Event()
    said = []

    def end(code, line):
        said.append((code, line))
        ended.set()

    with StopRequest() as stop:
        stop.end = end
        stop.working()
        with stop.waiting("waiting for data", raises=False):
            assert not ended.wait(0.6), "ended without a signal"
            os.kill(os.getpid(), signal.SIGTERM)
            assert ended.wait(10)
    assert said[0] == (42, "SIGTERM during waiting for data: rerun the same command to resume")


def test_what_a_command_calls_finds_its_request():
    with stop_request() as outer, stop_request() as inner:
        assert inner is outer
    with stop_request() as later:
        assert later is not outer


def test_the_second_signal_ends_the_process_with_130():
    code = (
        "import os, signal\n"
        "from xlnet_jax.run.signals import StopRequest\n"
        "with StopRequest() as stop:\n"
        "    stop.working()\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    print('asked', flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    print('never', flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tiny.ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (130, "asked\n")
    assert "second SIGINT" in done.stderr


def train(workdir, undisturbed, faults=""):
    """Of the undisturbed run the first twelve steps."""
    return start(workdir, "--config.data.workers=0", "--stop_at=12", *EVALUATE, undisturbed.cache, faults=faults)


def until_said(process, text):
    """Reads stderr up to a line with the text; returns what was read."""
    said = []
    for line in process.stderr:
        said.append(line)
        if text in line:
            return "".join(said)
    raise AssertionError(f"ended with {process.wait()} without {text!r}:\n{''.join(said)}")


def result(workdir):
    """What a run has measured, and where its checkpoints are."""
    with Checkpoints(str(workdir)) as checkpoints:
        return shared.steps(workdir), shared.scores(workdir), checkpoints.steps()[0]


CASES = {
    # Where the signal comes: the fault, what to wait for, the step that is saved, what is said.
    "first compilation": ("compile_wait=60", "planted: compile_wait", None, "SIGTERM during start-up"),
    "waiting for data": ("data_wait=6", "planted: data_wait", 6, "SIGTERM while waiting for data at step 6: saved"),
    "evaluation": (
        "heldout_slow=2",
        "planted: heldout_slow",
        4,
        "in the evaluation, which the next start repeats,",
    ),
    "evaluation that waits for data": ("heldout_wait", "planted: heldout_wait", 4, "SIGTERM in the evaluation"),
}


@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=[] if name == "waiting for data" else pytest.mark.slow) for name in CASES]
)
def test_sigterm_saves_what_there_is_ends_with_42_and_the_run_goes_on_exactly(tmp_path, undisturbed, case):
    fault, moment, saved, told = CASES[case]
    process = train(tmp_path, undisturbed, fault)
    until_said(process, moment)
    if case == "waiting for data":
        # So far only the thread that reads ahead does.
        until_said(process, "planted: waits")
    process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    _, err = finish(process, 42)
    assert time.monotonic() - began < 20
    assert told in err and "run the same command" in err.splitlines()[-1]
    if saved is None:
        assert not (tmp_path / "checkpoints").exists()
    else:
        assert result(tmp_path)[2] == saved
    _, err = finish(train(tmp_path, undisturbed))
    assert saved is None or f"resuming at step {saved}" in err
    assert result(tmp_path) == (undisturbed.steps(12), undisturbed.scores(12), 12)


@pytest.mark.slow
def test_a_second_signal_in_a_compilation_ends_at_once_with_130(tmp_path, undisturbed):
    process = train(tmp_path, undisturbed, "compile_wait=60")
    until_said(process, "planted: compile_wait")
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    assert "second SIG" in finish(process, 130)[1]
    assert time.monotonic() - began < 5


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs /proc")
def test_a_signal_while_the_program_imports(tmp_path):
    process = start(tmp_path)
    while not catches(process.pid, signal.SIGTERM):
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    assert "SIGTERM during start-up: rerun the same command" in finish(process, 42)[1]


def catches(pid, number):
    """Whether a process has a handler for a signal."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        mask = next(line for line in file if line.startswith("SigCgt"))
    return bool(int(mask.split()[1], 16) >> (number - 1) & 1)
