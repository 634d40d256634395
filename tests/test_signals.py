"""Signals: the first asks, the second ends at once."""

import os
import signal
import subprocess
import sys

from xlnet_jax.train.signals import StopRequest


def test_the_first_signal_only_asks_and_the_old_handler_comes_back():
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest() as stop:
        assert not stop
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop and stop.name == "SIGTERM"
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_second_signal_ends_the_process_with_130():
    code = (
        "import os, signal\n"
        "from xlnet_jax.train.signals import StopRequest\n"
        "with StopRequest():\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    print('asked', flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    print('never', flush=True)\n"
    )
    root = os.path.dirname(os.path.dirname(__file__))
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (130, "asked\n")
    assert "second SIGINT" in done.stderr
