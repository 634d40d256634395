"""Real processes over loopback: the same numbers as one, one stop for all, exit code 42 when one is
lost.
"""

import json
import os
import re
import shutil
import signal

import jax
import pytest
import shared
import tiny
from hosts import HEARTBEAT, Hosts
from shared import steps
from test_meshes import assert_same_gradient, optax_moment

from xlnet_jax.checkpoint.store import Checkpoints
from xlnet_jax.commands.evaluate import evaluate
from xlnet_jax.commands.train import train
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.distributed.mesh import make_mesh
from xlnet_jax.run.metrics import read_jsonl
from xlnet_jax.train.recipe import make_recipe
from xlnet_jax.train.step import build_step

STEPS = 40
SAVES = "--config.checkpoint.every=2"


@pytest.fixture(scope="module")
def cache(pytestconfig):
    """The compilation cache of all tests; a topology is compiled once."""
    return str(pytestconfig.cache.mkdir("xla"))


def assert_same_run(mine, wanted, within=1e-5):
    """The same text in the same order, and the same losses to `within`."""
    assert mine and len(mine) <= len(wanted)
    for one, other in zip(mine, wanted, strict=False):
        assert (one["step"], one["targets"]) == (other["step"], other["targets"])
        assert one["loss"] == pytest.approx(other["loss"], abs=within)
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-3)


def gradient_of_step_1(workdir):
    """By array, up to a factor: Adam's first moment in the checkpoint of step 1."""
    settings = tiny.config(mesh={"data": 1})
    abstract = build_step(
        make_recipe(settings), make_mesh(settings.mesh, jax.devices()[:1])
    ).abstract_state.split()
    with Checkpoints(str(workdir)) as checkpoints:
        return jax.device_get(
            optax_moment(
                tiny.restored(checkpoints, 1, {"optimizer": abstract["optimizer"]})["optimizer"]
            )
        )


def newest_checkpoint(workdir):
    with Checkpoints(str(workdir)) as checkpoints:
        return checkpoints.steps()[0]


def evaluated(*options, **settings):
    """What all processes print, which must be the same."""
    printed = {out for out, _ in Hosts("evaluate", *options, **settings).finish().values()}
    assert len(printed) == 1
    return json.loads(printed.pop())


@pytest.fixture(scope="module")
def two(tmp_path_factory, cache):
    """An undisturbed run of two processes."""
    workdir = tmp_path_factory.mktemp("two")
    ended = Hosts("train", workdir, count=2, cache=cache).finish()
    one, other = (json.loads(out) for out, _ in ended.values())
    assert one["step"] == other["step"] == STEPS and one["loss"] == other["loss"]
    assert [line["step"] for line in steps(workdir)] == list(range(1, STEPS + 1))
    (start,) = read_jsonl(os.path.join(workdir, "runs.jsonl"))
    assert (start["processes"], start["devices"]) == (2, 2)
    assert not os.path.exists(workdir / ".shared")
    return workdir


def started(workdir, cache, victim, after=2):
    """Two processes that have saved a step. One is slow, so that the run does not end before what a
    test does to it.
    """
    hosts = Hosts(
        "train", workdir, SAVES, count=2, cache=cache, faults=f"step_slow=0.3,only={victim}"
    )
    shared.wait_until((workdir / "checkpoints" / str(after)).exists, *hosts.processes.values())
    return hosts


def interrupted(workdir, cache, victim, number, after):
    """A run of two processes that a signal to one of them has stopped after a step; the step it
    stopped at.
    """
    hosts = started(workdir, cache, victim, after)
    hosts.processes[victim].send_signal(number)
    ended = hosts.finish(42)
    step = newest_checkpoint(workdir)
    assert after <= step < STEPS
    for _, err in ended.values():
        assert f"{number.name} in process {victim} at step {step}: saved" in err
        assert "Traceback" not in err
    return step


@pytest.mark.slow
def test_a_signal_to_one_of_two_stops_both_at_one_step_and_one_process_or_two_go_on(
    tmp_path, cache, two, undisturbed
):
    both, alone = tmp_path / "both", tmp_path / "alone"
    step = interrupted(both, cache, 1, signal.SIGTERM, 2)
    assert not os.path.exists(both / ".shared")
    shutil.copytree(both, alone)
    shared.finish(shared.start(alone, f"--stop_at={step + 2}", undisturbed.cache))
    first, second = read_jsonl(os.path.join(alone, "runs.jsonl"))
    assert (first["processes"], second["processes"], second["step"]) == (2, 1, step)
    assert first["attention"] == second["attention"] == "cpu"
    assert_same_run(steps(alone), steps(undisturbed.workdir))
    assert len(steps(alone)) == step + 2

    step = interrupted(both, cache, 0, signal.SIGINT, step + 2 - step % 2)
    ended = Hosts("train", both, count=2, cache=cache).finish()
    assert all(f"resuming at step {step}" in err for _, err in ended.values())
    assert steps(both) == steps(two)


@pytest.mark.slow
def test_a_checkpoint_that_one_of_two_cannot_read_is_left_and_the_next_is_saved(
    tmp_path, cache, two
):
    """Fails if processes that have made different numbers of reads wait for each other in the next
    save.
    """
    shutil.copytree(two, tmp_path, dirs_exist_ok=True)
    newest = newest_checkpoint(tmp_path)
    again = (f"--config.train.steps={STEPS + 2}", "--config.watchdog.seconds=60")
    ended = Hosts(
        "train", tmp_path, *again, count=2, cache=cache, faults=f"damaged={newest},only=1"
    ).finish()
    moved = f"is damaged: planted (in process 1); moved to {tmp_path}/quarantine/{newest}"
    assert all(moved in err for _, err in ended.values())
    assert newest_checkpoint(tmp_path) == STEPS + 2


def test_another_configuration_in_one_process_is_refused_with_both_values(tmp_path, cache):
    own = {1: ["--config.optimizer.clip=0.5"], 0: ["--config.data.prefetch=3"]}
    ended = Hosts("train", tmp_path, count=2, cache=cache, own=own).finish(2)
    for _, err in ended.values():
        assert "optimizer.clip is 1.0 in process 0 (" in err and "and 0.5 in process 1 (" in err
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_kill_9_of_one_of_two_ends_the_other_with_42_and_one_process_goes_on(
    tmp_path, cache, two, victim
):
    hosts = started(tmp_path, cache, victim)
    hosts.processes[victim].kill()
    assert hosts.processes[1 - victim].wait(timeout=3 * HEARTBEAT) == 42
    _, err = hosts.finish(42)[1 - victim]
    assert f"lost process {victim} (" in err and "its connection closed" in err
    if victim == 0:
        newest = newest_checkpoint(tmp_path)
        Hosts("train", tmp_path, f"--stop_at={newest + 4}", count=1, cache=cache).finish()
    assert_same_run(steps(tmp_path), steps(two), within=1e-3)


@pytest.mark.slow
def test_a_process_that_is_stopped_is_lost_after_a_heartbeat(tmp_path, cache):
    hosts = started(tmp_path, cache, 1)
    hosts.processes[1].send_signal(signal.SIGSTOP)
    assert hosts.processes[0].wait(timeout=6 * HEARTBEAT) == 42
    hosts.processes[1].send_signal(signal.SIGCONT)
    ended = hosts.finish(42)
    assert "lost process 1 (" in ended[0][1] and f"silent for {HEARTBEAT} s" in ended[0][1]
    assert "lost process 0 (" in ended[1][1]


@pytest.mark.slow
def test_a_device_without_memory_is_one_line_and_code_2_in_every_process(tmp_path, cache):
    ended = Hosts("train", tmp_path, count=2, cache=cache, faults="oom,only=1").finish(2)
    assert "out of memory: RESOURCE_EXHAUSTED" in ended[1][1]
    assert all("Traceback" not in err for _, err in ended.values())


@pytest.mark.slow
def test_four_devices_in_one_two_and_four_processes(tmp_path, cache, pytestconfig, monkeypatch):
    """The same losses, gradient and evaluation; and four processes go on as two that share the
    rows. The one process is this one.
    """
    monkeypatch.setattr(meshes, "available_devices", lambda local=False: jax.devices()[:4])
    alone, two, four = tmp_path / "one", tmp_path / "two", tmp_path / "four"
    each = [
        "--config.train.steps_per_dispatch=1",
        "--config.checkpoint.every=1",
        "--config.checkpoint.keep=9",
    ]
    often = {"train": {"steps_per_dispatch": 1}, "checkpoint": {"every": 1, "keep": 9}}
    train(shared.settings(pytestconfig, **often), str(alone), stop_at=6)
    Hosts("train", two, "--stop_at=4", *each, count=2, devices=2, cache=cache).finish()
    Hosts("train", four, "--stop_at=4", *each, count=4, cache=cache).finish()
    for workdir in (two, four):
        assert len(steps(workdir)) == 4
        assert_same_run(steps(workdir), steps(alone))
        assert_same_gradient(gradient_of_step_1(alone), gradient_of_step_1(workdir))
    # The tensor axis goes across the processes: both feed all rows, and none is counted twice.
    split = ["--config.mesh.data=1", "--config.mesh.tensor=2"]
    ended = Hosts("train", four, "--stop_at=6", *split, count=2, cache=cache).finish()
    assert all("resuming at step 4" in err for _, err in ended.values())
    assert_same_run(steps(four), steps(alone))
    whole = evaluate(str(alone))
    assert evaluated(four, *split, count=2, cache=cache)["heldout_loss"] == pytest.approx(
        whole["heldout_loss"], abs=1e-5
    )
    # Two batches, of which the second has blocks for one process only.
    some = ["--blocks=5", "--batch_size=4"]
    one = evaluate(str(alone), blocks=5, batch_size=4)
    assert one["heldout_loss"] != whole["heldout_loss"]
    assert evaluated(alone, *some, count=4, cache=cache) == pytest.approx(one, rel=1e-6)


@pytest.mark.slow
def test_only_process_0_exports(tmp_path, cache, two):
    exported = tmp_path / "exported"
    ended = Hosts("export", two, f"--output={exported}", count=2, cache=cache).finish()
    assert {*json.loads(ended[0][0])["files"]} == {*map(str, exported.iterdir())}
    assert (exported / "model.safetensors").stat().st_size > 0
    assert json.loads(ended[1][0])["process"] == 1


@pytest.mark.slow
def test_a_disk_that_refuses_one_process_ends_all_with_its_code(tmp_path, cache):
    """Orbax waited for the others, which waited for this one: 20 minutes of all machines, and
    then 42.
    """
    hosts = Hosts(
        "train",
        tmp_path / "run",
        "--config.checkpoint.every=4",
        count=2,
        cache=cache,
        faults="full=600,only=1",
    )
    ended = hosts.finish(2)
    assert "planted: full" in ended[1][1]
    for _, err in ended.values():
        assert "/checkpoints: File too large; fix this" in err.splitlines()[-1]
        assert "Traceback" not in err
    assert newest_checkpoint(tmp_path / "run") == 4


@pytest.mark.slow
def test_a_straggler_is_named_and_when_it_hangs_both_end_with_42_and_a_dump(tmp_path, cache):
    options = [
        "--config.watchdog.report_every=10",
        "--config.watchdog.seconds=6",
        "--config.data.workers=0",
        "--config.data.read_threads=1",
        "--config.data.prefetch=1",
    ]
    faults = "data_slow=0.8,data_wait=24,only=1"
    ended = Hosts("train", tmp_path, *options, count=2, cache=cache, faults=faults).finish(42)
    said = ended[0][1]
    assert len(re.findall(r"step times, 10 steps to [12]0: [0-9.]+ ms per step", said)) == 2, said
    named = re.findall(r"straggler: process (\d) \((\S+)\): (\d+) ms of a step of (\d+) ms", said)
    assert named and {process for process, *_ in named} == {"1"}, said
    assert "straggler: " not in ended[1][1]
    assert "during data; the stacks" in ended[1][1] and "in train_batch" in ended[1][1]


@pytest.mark.slow
def test_a_host_that_does_not_come_to_a_barrier_is_named(tmp_path, cache):
    options = ["--config.distributed.rendezvous_seconds=15", "--config.data.workers=0"]
    hosts = Hosts(
        "train", tmp_path, *options, count=2, cache=cache, faults="compile_wait=300,only=1"
    )
    said = hosts.finish(42)[0][1]
    assert re.search(
        r"compiling the step: waited 15 s \(distributed.rendezvous_seconds\) for process 1 \(\S+\)",
        said,
    )
