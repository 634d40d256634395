"""Separate processes: a run stopped and started again ends bit for bit as if never touched."""

import re
import signal
import time

import pytest
import shared
from shared import STEPS, finish, start


def assert_ended_as(undisturbed, workdir):
    hashes, plan = shared.arrays(workdir, STEPS)
    assert len(hashes) > 40
    assert {name.split("'")[1] for name in hashes} == {"params", "optimizer", "memory", "counters"}
    assert (hashes, plan) == undisturbed.arrays()
    assert shared.steps(workdir) == undisturbed.steps()


# Stopped at step 3, the scan is cut elsewhere: equal bits only with production flags.
@pytest.mark.slow
@pytest.mark.production
def test_stopped_at_an_odd_step_and_resumed_without_the_compilation_cache(tmp_path, undisturbed):
    off = "--config.log.compilation_cache=none"
    finish(start(tmp_path, "--stop_at=3", off))
    _, err = finish(start(tmp_path, off))
    assert "resuming at step 3" in err and "compilation cache: off" in err
    assert_ended_as(undisturbed, tmp_path)
    hashes, _ = shared.arrays(tmp_path, STEPS)
    before, _ = shared.arrays(tmp_path, STEPS - 4)
    same = {name for name, digest in hashes.items() if before[name] == digest}
    assert same <= {"['counters']['skipped']", "['counters']['consecutive_bad']", "['memory']['valid']"}


def test_sigterm_saves_exits_42_and_the_run_goes_on_exactly(tmp_path, undisturbed):
    # So slow that the signal comes in the middle.
    process = start(tmp_path, "--config.checkpoint.every=2", "--config.data.workers=0", undisturbed.cache,
                    faults="data_slow=0.1")  # fmt: skip
    first = tmp_path / "checkpoints" / "2"
    while process.poll() is None and not first.exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, err = finish(process, 42)
    # After a dispatch, or while the batches of the next one are read.
    assert re.search(r"SIGTERM (while waiting for data )?at step \d+: saved; rerun the same command", err), err
    finish(start(tmp_path, "--config.checkpoint.every=2", undisturbed.cache))
    assert_ended_as(undisturbed, tmp_path)
