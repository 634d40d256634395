"""Texts between the processes of a run, over JAX's coordination service."""

import collections
import threading
import types

import hosts
import jax
import pytest
from jax._src.lib import _jax

from xlnet_jax.distributed import processes


class Client:
    """A client of the service that counts its requests."""

    def __init__(self, client, requests):
        self._client, self._requests = client, requests

    def __getattr__(self, name):
        self._requests[name] += 1
        return getattr(self._client, name)


@pytest.fixture
def clients(monkeypatch, count):
    """Runs a body in `count` threads, each with its own client; and all their requests."""
    address = f"127.0.0.1:{hosts.free_port()}"
    service = _jax.get_distributed_runtime_service(address, count)
    requests = collections.Counter()
    found = [_jax.get_distributed_runtime_client(address, number, init_timeout=60) for number in range(count)]
    here = threading.local()
    monkeypatch.setattr(processes, "_client", lambda: Client(found[here.number], requests))
    monkeypatch.setattr(jax, "process_count", lambda: count)

    def each(body):
        results = [None] * count

        def run(number):
            here.number = number
            results[number] = body(number)

        threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return results

    each(lambda number: found[number].connect())
    yield each, requests
    each(lambda number: found[number].shutdown())
    service.shutdown()


@pytest.mark.parametrize("count", [50, pytest.param(1000, marks=pytest.mark.prove)])
def test_a_gathering_takes_a_fixed_number_of_requests_of_each_process(clients, count):
    """Fails if each asks for the text of each: 1,000 processes would make a million requests."""
    each, requests = clients
    sessions = each(lambda number: processes.Session(types.SimpleNamespace(process=number), 30.0))
    requests.clear()
    for turn in range(2):
        texts = each(lambda number, turn=turn: sessions[number].gather("" if turn else f"text {number}"))
        assert texts == [["" if turn else f"text {number}" for number in range(count)]] * count
    assert requests.total() <= 2 * (3 * count + 1)
