"""What the processes of a run say to each other at its start, by their number: messages, bytes,
seconds.

    python benchmarks/meetings.py [--processes=64] [--json]
    python benchmarks/meetings.py --tiny                       two processes and four threads, to
                                                               try it

Each of `--processes` real ones joins JAX's coordination service over loopback and goes through the
meetings of a start. Then threads play up to 8,000 with a service in memory, which shows what is
said, and not how long it takes. Messages are requests to the service and their answers count as
one; bytes are those of names, texts and answers.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import threading
import time
import types
import warnings
from typing import Any

SIMULATED, TINY = (64, 1000, 8000), (4,)
STEPS = "[3000, 2000, 1000]"


def start(session: Any) -> None:
    """The meetings of a run that resumes, from `choice.resolve_attention` to the first dispatch."""
    session.broadcast(
        max(session.collect("fused\nattention: fused, the kernel for TPU v5 lite"), default="")
    )
    session.broadcast("0" * 32, "marking the work directory")
    session.barrier("reading the work directory")
    session.broadcast(STEPS)
    session.broadcast("".join(session.collect("")))
    session.broadcast("False False")
    session.barrier("compiling the step")


class Counted:
    """A client that counts its requests, and the bytes of them and of their answers."""

    def __init__(self, client: Any) -> None:
        self._client, self.messages, self.bytes = client, 0, 0

    def __getattr__(self, name: str) -> Any:
        def request(*words: Any) -> Any:
            answer = getattr(self._client, name)(*words)
            self.messages += 1
            self.bytes += len(f"{words}{answer}")
            return answer

        return request


class Service:
    """The coordination service for the threads of one process."""

    def __init__(self, count: int) -> None:
        barrier, self._texts = threading.Barrier(count), dict[str, str]()
        self.wait_at_barrier = lambda name, milliseconds: barrier.wait() and None
        self.key_value_set, self.key_value_try_get = (
            self._texts.__setitem__,
            self._texts.__getitem__,
        )

    def key_value_dir_get(self, folder: str) -> list[tuple[str, str]]:
        return [item for item in list(self._texts.items()) if item[0].startswith(f"{folder}/")]

    def key_value_delete(self, folder: str) -> None:
        for key, _ in self.key_value_dir_get(folder):
            del self._texts[key]


def session(process: int, count: int) -> Any:
    from xlnet_jax.distributed.processes import Session

    return Session(types.SimpleNamespace(process=process, count=count), 300.0)  # type: ignore[arg-type]


def simulated(count: int) -> dict[str, int]:
    from xlnet_jax.distributed import processes

    service, here = Service(count), threading.local()
    clients = [Counted(service) for _ in range(count)]
    processes._client = lambda: here.client

    def run(process: int) -> None:
        here.client = clients[process]
        start(session(process, count))

    threading.stack_size(2**18)
    threads = [threading.Thread(target=run, args=(process,)) for process in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {
        "messages": sum(one.messages for one in clients),
        "bytes": sum(one.bytes for one in clients),
    }


def real(process: int, count: int, address: str, results: Any) -> None:
    """One process: its messages and bytes, and seconds on the clock and of its processor from all
    there to the end.
    """
    from jax._src.lib import _jax

    from xlnet_jax.distributed import processes

    service = None if process else _jax.get_distributed_runtime_service(address, count)
    client = _jax.get_distributed_runtime_client(address, process, init_timeout=120)
    client.connect()
    counted = Counted(client)
    processes._client = lambda: counted
    began, cpu = time.perf_counter(), time.process_time()
    start(session(process, count))
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    results.put((process, counted.messages, counted.bytes, seconds, cpu))
    client.shutdown()
    if service:
        service.shutdown()


def measured(count: int) -> dict[str, float]:
    """Forks them, so that all have the same modules at once."""
    import xlnet_jax.distributed.processes  # noqa: F401

    # No device is used before, so there are no threads.
    warnings.filterwarnings("ignore", "os.fork")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    forks = multiprocessing.get_context("fork")
    results = forks.SimpleQueue()
    running = [
        forks.Process(target=real, args=(process, count, address, results))
        for process in range(count)
    ]
    for one in running:
        one.start()
    rows = sorted(results.get() for _ in running)
    for one in running:
        one.join()
    _, messages, size, seconds, cpu = zip(*rows, strict=True)
    return {
        "messages": sum(messages),
        "bytes": sum(size),
        "seconds": max(seconds),
        "cpu_seconds_of_process_0": cpu[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, default=64, help="real ones (default 64)")
    parser.add_argument(
        "--tiny", action="store_true", help="tiny sizes, to try it: the figures mean nothing"
    )
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.tiny:
        args.processes = 2
    os.environ["JAX_PLATFORMS"] = "cpu"
    rows = [{"processes": args.processes, "kind": "real"} | measured(args.processes)]
    rows += [
        {"processes": count, "kind": "simulated"} | simulated(count)
        for count in (TINY if args.tiny else SIMULATED)
    ]
    for row in rows:
        row |= {f"{name}_each": row[name] / row["processes"] for name in ("messages", "bytes")}
        if args.json:
            print(json.dumps(row))
            continue
        each = (
            "{processes:6} {kind:10} {messages_each:.2f} messages and {bytes_each:.0f} bytes each"
        )
        more = (
            "; {seconds:.2f} s, process 0 {cpu_seconds_of_process_0:.2f} CPU s"
            if row["kind"] == "real"
            else ""
        )
        print((each + more).format(**row))


if __name__ == "__main__":
    main()
