"""Who is late is named: in the step times, and at a barrier."""

import re

import pytest
from hosts import Hosts


@pytest.fixture(scope="module")
def cache(pytestconfig):
    """The compilation cache of all tests."""
    return str(pytestconfig.cache.mkdir("xla"))


@pytest.mark.slow
def test_a_planted_straggler_in_one_of_two_processes_is_named(tmp_path, cache):
    options = ["--config.watchdog.report_every=10", "--stop_at=24", "--config.data.workers=0",
               "--config.data.read_threads=1", "--config.data.prefetch=1"]  # fmt: skip
    ended = Hosts("train", tmp_path, *options, count=2, cache=cache, faults="data_slow=0.4,only=1").finish()
    said = ended[0][1]
    assert len(re.findall(r"step times, 10 steps to [12]0, ms per step", said)) == 2, said
    named = re.findall(r"straggler: process (\d) \((\S+)\): (\d+) ms of a step of (\d+) ms", said)
    assert named and {process for process, *_ in named} == {"1"}, said
    assert "straggler" not in ended[1][1]


@pytest.mark.slow
def test_a_host_that_does_not_come_to_a_barrier_is_named(tmp_path, cache):
    options = ["--config.distributed.rendezvous_seconds=15", "--config.data.workers=0"]
    hosts = Hosts("train", tmp_path, *options, count=2, cache=cache, faults="compile_wait=300,only=1")
    said = hosts.finish(42)[0][1]
    assert re.search(r"compiling the step: waited 15 s \(distributed.rendezvous_seconds\) for process 1 \(\S+\)", said)


@pytest.mark.slow
def test_a_hang_of_one_process_ends_both_with_42_and_a_dump(tmp_path, cache):
    options = ["--config.watchdog.seconds=6", "--config.data.workers=0"]
    ended = Hosts("train", tmp_path, *options, count=2, cache=cache, faults="data_wait=6,only=1").finish(42)
    assert "during data; the stacks" in ended[1][1] and "in train_batch" in ended[1][1]
