"""Signals: in training, evaluation, the first compilation, a wait for data, a machine that shuts
down.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import types

import pytest
import shared
import tiny
from shared import EVALUATE, environment, finish, start, train_words, wait_until

from xlnet_jax import messages
from xlnet_jax.checkpoint.store import Checkpoints
from xlnet_jax.errors import Stopped
from xlnet_jax.run import signals
from xlnet_jax.run.signals import stop_request
from xlnet_jax.train.loop import Run


def test_a_signal_only_asks_and_the_old_handlers_come_back():
    handlers = {number: signal.getsignal(number) for number in signals.SIGNALS}
    with stop_request() as stop, stop_request() as inner:  # what a command calls finds its request
        stop.working()
        assert inner is stop and stop.name is None
    assert {number: signal.getsignal(number) for number in handlers} == handlers
    with stop_request() as stop:
        stop.working()
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: stop.name == "SIGTERM")
    # The second one of a shutdown does not change the exit code of a process that has saved.
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGHUP)
    assert signal.getsignal(signal.SIGINT) is handlers[signal.SIGINT]
    assert signal.set_wakeup_fd(-1) == -1


def never(event):
    """Data that come after the event."""
    event.wait()
    yield "data"


def test_a_signal_ends_a_wait_for_data_outside_the_library_that_waits():
    event = threading.Event()
    with stop_request() as stop:
        stop.working()
        assert stop.take(iter("ab"), alone=True) == "a"
        began = time.monotonic()
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
        with pytest.raises(Stopped, match="SIGTERM"):
            stop.take(never(event), alone=True)
        assert 0.1 < time.monotonic() - began < 5
        event.set()


def test_one_of_several_that_waits_for_data_is_ended_after_a_while(monkeypatch):
    monkeypatch.setattr(signals, "DATA_SECONDS", 0.5)
    event = threading.Event()
    with stop_request() as stop:
        stop.working()
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: stop.name)
        began = time.monotonic()
        said = []
        ended = lambda *how: (said.append((*how, time.monotonic() - began)), event.set())  # noqa: E731
        monkeypatch.setattr(messages, "end", ended)
        assert stop.take(never(event), alone=False) == "data"
    ((code, line, seconds),) = said
    assert code == 42 and line.startswith("SIGTERM while waiting for data") and seconds > 0.4


@pytest.mark.parametrize(
    ("grace", "dispatch", "save", "warns"),
    [
        (30, 10, 10, False),
        (30, 10, 10.1, True),
        (30, 20, 0, False),
        (0, 20, 20, False),
    ],
)
def test_two_dispatches_and_a_save_must_fit_into_the_grace(caplog, grace, dispatch, save, warns):
    """Fails if only one dispatch counts, or if there is a warning where the grace or the save is
    not known.
    """
    config = tiny.config(checkpoint={"grace_seconds": grace})
    tokens = config.train.steps_per_dispatch * config.train.batch_size * config.data.segment_len
    run = types.SimpleNamespace(
        built=types.SimpleNamespace(recipe=types.SimpleNamespace(config=config)),
        checkpoints=types.SimpleNamespace(seconds=save),
        report=types.SimpleNamespace(rates=[tokens / dispatch]),
        warned=False,
    )
    for _ in range(2):
        Run._check_grace(run)
    assert caplog.text.count(f"checkpoint.grace_seconds={grace:g}: ") == warns


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ("INT INT", 130),
        ("TERM TERM TERM", 0),
        ("INT TERM", 0),
        ("TERM wait TERM", 130),
        ("HUP HUP TERM", 0),
        ("ignored HUP TERM", 0),
    ],
)
def test_a_second_control_c_ends_at_once_and_a_repeated_sigterm_does_not(sent, code):
    """Nor does a closed terminal, which `nohup` has the program ignore."""
    program = (
        "import os, signal, sys, time\n"
        # The tests may run under `nohup` themselves.
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
        "if sys.argv[1].startswith('ignored '):\n"
        "    sys.argv[1] = sys.argv[1].removeprefix('ignored ')\n"
        "    signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "from xlnet_jax.run import signals\n"
        "with signals.stop_request() as stop:\n"
        "    stop.working()\n"
        "    for name in sys.argv[1].split():\n"
        "        if name != 'wait':\n"
        "            os.kill(os.getpid(), signal.Signals['SIG' + name])\n"
        "            continue\n"
        "        while not stop.name:\n"
        "            time.sleep(0.01)\n"
        "        signals.SAME_SECONDS = 0.1\n"
        "        time.sleep(0.2)\n"
        "print(stop.name, flush=True)\n"  # all of them have been read
    )
    done = subprocess.run(
        [sys.executable, "-c", program, sent], cwd=tiny.ROOT, capture_output=True, text=True
    )
    assert done.returncode == code, done.stderr
    first = "TERM" if sent.startswith("ignored") else sent.split()[0]
    assert ("second SIG" in done.stderr) == bool(code)
    assert done.stdout == ("" if code else f"SIG{first}\n")


def train(workdir, undisturbed, faults=""):
    """Of the undisturbed run the first twelve steps."""
    return start(
        workdir,
        "--config.data.workers=0",
        "--stop_at=12",
        *EVALUATE,
        undisturbed.cache,
        faults=faults,
    )


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
    # Where the signal comes: the fault, the step that is saved, what is said.
    "first compilation": ("compile_wait=60", None, "SIGTERM: there was nothing to save"),
    "waiting for data": ("data_wait=6", 6, "SIGTERM while waiting for data at step 6: saved"),
    "evaluation": ("heldout_slow=2", 4, "in the evaluation, which the next start repeats,"),
    "evaluation that waits for data": ("heldout_wait", 4, "SIGTERM in the evaluation"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_sigterm_saves_what_there_is_ends_with_42_and_the_run_goes_on_exactly(
    tmp_path, undisturbed, case
):
    fault, saved, told = CASES[case]
    process = train(tmp_path, undisturbed, fault)
    until_said(process, f"planted: {fault.partition('=')[0]}")
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
        return
    assert result(tmp_path)[2] == saved
    _, err = finish(train(tmp_path, undisturbed))
    assert f"resuming at step {saved}" in err
    assert result(tmp_path) == (undisturbed.steps(12), undisturbed.scores(12), 12)


@pytest.mark.slow
def test_a_shutdown_sends_sigterm_twice_to_all_and_the_state_is_saved(tmp_path, undisturbed):
    """As systemd does for a unit: to the launcher, which forwards it, the trainer, and its data
    workers.
    """
    run = tmp_path / "run"
    words = train_words(run, "--config.data.workers=1", *EVALUATE, undisturbed.cache)
    trainer = shlex.join([sys.executable, str(tiny.TESTS / "planted.py"), "step_slow=0.2"])
    bin = tmp_path / "xlnet_jax" / ".venv" / "bin"
    bin.mkdir(parents=True)
    (bin.parent / "installed-0").touch()
    (bin / "xlnet-jax").write_text(f'#!/bin/sh\nexec {trainer} "$@"\n')
    (bin / "xlnet-jax").chmod(0o755)
    program = ["bash", str(tiny.ROOT / "launch" / "startup.sh"), "--repo=x", "--commit=0", "--"]
    process = subprocess.Popen(
        [*program, *words],
        env={**environment(), "HOME": str(tmp_path)},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_until((run / "checkpoints" / "4").exists, process)
    for _ in range(2):
        os.killpg(process.pid, signal.SIGTERM)
        time.sleep(0.3)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 42 and "Traceback" not in said, said
    saved = re.search(r"SIGTERM.* at step (\d+): saved", said)
    with Checkpoints(str(run)) as checkpoints:
        assert saved and checkpoints.steps()[0] == int(saved[1]) < shared.STEPS, said


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs /proc")
def test_a_signal_while_the_program_imports(tmp_path):
    process = start(tmp_path)
    wait_until(lambda: catches(process.pid, signal.SIGTERM), process)
    process.send_signal(signal.SIGTERM)
    assert "SIGTERM: there was nothing to save; rerun the same command" in finish(process, 42)[1]


def catches(pid, number):
    """Whether a process has a handler for a signal."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        mask = next(line for line in file if line.startswith("SigCgt"))
    return bool(int(mask.split()[1], 16) >> (number - 1) & 1)
