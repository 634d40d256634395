"""Real processes over loopback: the same numbers as one, one stop for all, exit code 42 when one is lost."""

import json
import os
import signal
import time

import pytest
from hosts import HEARTBEAT, Hosts

from xlnet_jax.train.metrics import read_lines

STEPS = 40
SAVES = "--config.checkpoint.every=2"


@pytest.fixture(scope="module")
def cache(pytestconfig):
    """The compilation cache of all tests; a topology is compiled once."""
    return str(pytestconfig.cache.mkdir("xla"))


def lines(workdir):
    """What every step measured, but for the speed."""
    kept = ("step", "loss", "grad_norm", "learning_rate", "targets", "epoch")
    return [{name: line[name] for name in kept} for line in read_lines(os.path.join(workdir, "metrics.jsonl"))]


def evaluated(*options, **settings):
    """What all processes print, which must be the same."""
    printed = {out for out, _ in Hosts("evaluate", *options, **settings).finish().values()}
    assert len(printed) == 1
    return json.loads(printed.pop())


def wait_for(path, processes):
    until = time.monotonic() + 200
    while not path.exists():
        assert time.monotonic() < until and all(p.poll() is None for p in processes.values()), "ended too soon"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def two(tmp_path_factory, cache):
    """An undisturbed run of two processes."""
    workdir = tmp_path_factory.mktemp("two")
    ended = Hosts("train", workdir, count=2, cache=cache).finish()
    results = [json.loads(out) for out, _ in ended.values()]
    assert all(result["step"] == STEPS for result in results) and results[0]["loss"] == results[1]["loss"]
    assert [line["step"] for line in lines(workdir)] == list(range(1, STEPS + 1))
    (start,) = read_lines(os.path.join(workdir, "runs.jsonl"))
    assert (start["processes"], start["devices"]) == (2, 2)
    assert not os.path.exists(workdir / ".shared")
    return workdir


def test_sigterm_to_one_of_two_stops_both_at_one_step_and_the_run_goes_on_exactly(tmp_path, cache, two):
    hosts = Hosts("train", tmp_path, SAVES, count=2, cache=cache)
    wait_for(tmp_path / "checkpoints" / "2", hosts.processes)
    hosts.processes[1].send_signal(signal.SIGTERM)
    ended = hosts.finish(42)
    (newest,) = {max(int(name) for name in os.listdir(tmp_path / "checkpoints"))}
    assert 2 <= newest < STEPS
    for _, err in ended.values():
        assert f"SIGTERM in process 1 at step {newest}: saved" in err and "Traceback" not in err
    ended = Hosts("train", tmp_path, count=2, cache=cache).finish()
    assert all(f"resuming at step {newest}" in err for _, err in ended.values())
    assert lines(tmp_path) == lines(two)


def test_another_configuration_in_one_process_is_refused_with_both_values(tmp_path, cache):
    own = {1: ["--config.optimizer.clip=0.5"], 0: ["--config.data.prefetch=3"]}
    ended = Hosts("train", tmp_path, count=2, cache=cache, own=own).finish(2)
    for _, err in ended.values():
        assert "optimizer.clip is 1.0 in process 0 (" in err and "and 0.5 in process 1 (" in err
    assert os.listdir(tmp_path) == []


def test_a_missing_process_is_named_and_ends_in_42(tmp_path, cache):
    short = ["--config.distributed.rendezvous_seconds=8", "--config.distributed.report_seconds=2"]
    ended = Hosts("train", tmp_path, *short, count=3, cache=cache, absent=(1,)).finish(42)
    for _, err in ended.values():
        assert "waiting for process 1 of 3 (here: 0 on " in err and "process 1 did not come within 8 s" in err


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_kill_9_of_one_of_two_ends_the_other_with_42_and_one_process_goes_on(tmp_path, cache, two, victim):
    hosts = Hosts("train", tmp_path, SAVES, count=2, cache=cache)
    wait_for(tmp_path / "checkpoints" / "2", hosts.processes)
    hosts.processes[victim].kill()
    began = time.monotonic()
    assert hosts.processes[1 - victim].wait(timeout=3 * HEARTBEAT) == 42
    assert time.monotonic() - began < HEARTBEAT
    _, err = hosts.finish(42)[1 - victim]
    assert f"lost process {victim} (" in err
    newest = max(int(name) for name in os.listdir(tmp_path / "checkpoints") if name.isdigit())
    Hosts("train", tmp_path, f"--stop_at={newest + 4}", count=1, cache=cache).finish()
    for mine, wanted in zip(lines(tmp_path)[: newest + 4], lines(two), strict=False):
        assert mine["loss"] == pytest.approx(wanted["loss"], rel=1e-4)
        assert [mine[name] for name in ("step", "targets", "epoch")] == [
            wanted[name] for name in ("step", "targets", "epoch")
        ]


@pytest.mark.slow
def test_one_two_and_four_processes_have_the_same_losses_and_evaluation(tmp_path, cache, two):
    alone, four = tmp_path / "one", tmp_path / "four"
    Hosts("train", alone, "--stop_at=4", count=1, cache=cache).finish()
    Hosts("train", four, "--stop_at=4", count=4, cache=cache).finish()
    wanted = lines(alone)[:3]
    for workdir in (two, four):
        for mine, theirs in zip(lines(workdir), wanted, strict=False):
            assert mine["loss"] == pytest.approx(theirs["loss"], abs=1e-5)
            assert mine["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-4)
    one = evaluated(alone, count=1, cache=cache)
    for count in (2, 4):
        several = evaluated(alone, count=count, cache=cache)
        assert several == pytest.approx(one, abs=1e-6)
    # Blocks that do not fill the last batch.
    assert evaluated(alone, "--blocks=3", count=2, cache=cache)["tokens"] < one["tokens"]


@pytest.mark.slow
def test_one_process_then_two_that_share_the_rows(tmp_path, cache, two):
    """The tensor axis goes across the processes: both feed all rows, and none is counted twice."""
    Hosts("train", tmp_path, "--stop_at=2", count=1, cache=cache).finish()
    split = ["--config.mesh.data=1", "--config.mesh.tensor=2"]
    ended = Hosts("train", tmp_path, "--stop_at=4", *split, count=2, cache=cache).finish()
    assert all("resuming at step 2" in err for _, err in ended.values())
    for mine, wanted in zip(lines(tmp_path), lines(two), strict=False):
        assert mine["loss"] == pytest.approx(wanted["loss"], abs=1e-5) and mine["epoch"] == wanted["epoch"]
    one = evaluated(tmp_path, "--config.mesh.data=-1", "--config.mesh.tensor=1", count=1, cache=cache)
    assert evaluated(tmp_path, *split, count=2, cache=cache) == pytest.approx(one, abs=1e-6)


@pytest.mark.slow
def test_only_process_0_exports(tmp_path, cache, two):
    exported = tmp_path / "exported"
    ended = Hosts("export", two, f"--output={exported}", count=2, cache=cache).finish()
    assert "model.safetensors" in json.loads(ended[0][0])["files"]
    assert json.loads(ended[1][0])["process"] == 1
