"""Texts between the processes of a run, over JAX's coordination service."""

import collections
import functools
import threading
import types

import hosts
import jax
import pytest
from jax._src.lib import _jax

from xlnet_jax.config import Config
from xlnet_jax.distributed import processes
from xlnet_jax.errors import RestartMe


class Client:
    """A client of the service that counts its requests, and the bytes of their answers."""

    def __init__(self, client, requests):
        self._client, self._requests = client, requests

    def __getattr__(self, name):
        def request(*words):
            answer = getattr(self._client, name)(*words)
            self._requests[name] += 1
            self._requests["bytes"] += len(str(answer or ""))
            return answer

        return request


@pytest.fixture
def clients(monkeypatch, count):
    """Runs a body in `count` threads, each with its own client; all their requests; and the client
    of process 0.
    """
    address = f"127.0.0.1:{hosts.free_port()}"
    service = _jax.get_distributed_runtime_service(address, count)
    requests = collections.Counter()
    found = [
        _jax.get_distributed_runtime_client(address, number, init_timeout=60)
        for number in range(count)
    ]
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
    yield each, requests, found[0]
    each(lambda number: found[number].shutdown())
    service.shutdown()


@pytest.mark.parametrize("count", [50, pytest.param(1000, marks=pytest.mark.prove)])
def test_what_all_say_and_hear_grows_as_their_number(clients, count):
    """Fails if each hears the texts of all: 1,000 processes would get a million texts."""
    each, requests, client = clients
    watch = functools.partial(types.SimpleNamespace, count=count)
    sessions = each(lambda number: processes.Session(watch(process=number), 30.0))
    for turn in range(2):
        texts = [f"text {number}" * (1 - turn) for number in range(count)]
        collected = each(lambda number, texts=texts: sessions[number].collect(texts[number]))
        assert collected == [texts, *[[]] * (count - 1)]
        assert (
            each(lambda number, texts=texts: sessions[number].broadcast(texts[number]))
            == texts[:1] * count
        )
        each(lambda number: sessions[number].barrier("nothing"))
    answers = requests.pop("bytes")
    assert requests.total() <= 2 * (5 * count + 4) and answers <= 2 * 60 * count
    assert client.key_value_dir_get("xlnet_jax") == [], (
        "what all have read stays in the memory of process 0"
    )


@pytest.mark.parametrize("count", [4])
def test_who_does_not_come_is_named(clients, count):
    each, *_ = clients
    known = {0: "0 (a)", 2: "2 (c)"}

    def meet(number):
        watch = types.SimpleNamespace(
            process=number, name_of=lambda process: known.get(process, str(process))
        )
        if number < 2:
            with pytest.raises(RestartMe) as raised:
                processes.Session(watch, 1.0).barrier("reading")
            return str(raised.value)
        return None

    said = each(meet)
    assert said[0] == said[1] and said[2:] == [None] * 2
    assert said[0].startswith(
        "reading: waited 1 s (distributed.rendezvous_seconds) for process 2 (c), 3; rerun"
    )


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (ValueError("UNKNOWN: Gloo AllGather failed: Connection closed by peer"), 23.0),
        (jax.errors.JaxRuntimeError("INTERNAL: Gloo all-reduce failed"), 23.0),
        (RuntimeError("a save failed, since a process is lost"), 23.0),
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory"), 3.0),
    ],
)
def test_an_error_waits_for_news_of_a_lost_process(monkeypatch, error, seconds):
    """Fails if a process whose peer is lost ends as by a bug, with 1, and is not started again."""
    me = types.SimpleNamespace(process=0, processes=2, coordinator="a:1", devices=None)
    watch = types.SimpleNamespace(leave=None, meet=lambda: None)
    monkeypatch.setattr(processes, "find_process_info", lambda config: me)
    monkeypatch.setattr(processes, "Watch", lambda *_: watch)
    for name in ("_keep_stdout", "hold_aborts", "_start_jax"):
        monkeypatch.setattr(processes, name, lambda *_: None)
    monkeypatch.setattr(processes, "_largest", int)
    waited = []
    monkeypatch.setattr(processes.time, "sleep", waited.append)
    config = Config().changed(distributed={"heartbeat_seconds": 20.0})
    with pytest.raises(type(error)), processes.session(config, {}):
        raise error
    assert waited == [seconds]
