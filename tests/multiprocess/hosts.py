"""Starts the processes of one run over loopback, as hosts of a cluster would be."""

from __future__ import annotations

import os
import pathlib
import random
import socket
import subprocess
import sys

import shared

TESTS = pathlib.Path(__file__).parent.parent
HEARTBEAT = 10


def free_port() -> int:
    """A port that is free together with the next one, which the rendezvous takes.

    Not one of those that the system gives to connections, from 32768 on, which may be taken before
    the process listens. No other worker of this test run tries the same.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 8
    while True:
        port = random.SystemRandom().randrange(12_000 + 2 * worker, 32_000, 16)
        try:
            with socket.create_server(("", port)), socket.create_server(("", port + 1)):
                return port
        except OSError:
            continue


class Hosts:
    """`count` processes with `devices` CPU devices each.

    Args:
      options: of the command, the same for all.
      own: further options by process.
      faults: to plant in them, see `planted.py`.
    """

    def __init__(
        self,
        command,
        workdir,
        *options,
        count,
        devices=1,
        cache,
        own=None,
        faults=None,
    ):
        port = free_port()
        program = ["-m", "xlnet_jax"] if faults is None else [f"{TESTS}/planted.py", faults]
        words = [command, f"--workdir={workdir}", "--json"]
        if command == "train":
            words = shared.train_words(workdir)
        words = [sys.executable, *program, *words, f"--config.log.compilation_cache={cache}"]
        environment = shared.environment() | {"JAX_NUM_CPU_DEVICES": str(devices)}
        self.processes = {}
        for i in range(count):
            several = [
                f"--config.distributed.coordinator=127.0.0.1:{port}",
                f"--config.distributed.processes={count}",
                f"--config.distributed.process_id={i}",
                f"--config.distributed.heartbeat_seconds={HEARTBEAT}",
            ]
            self.processes[i] = subprocess.Popen(
                [*words, *several * (count > 1), *options, *(own or {}).get(i, ())],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )

    def finish(self, code=0, timeout=200):
        """Waits for all; {process: (stdout, stderr)}. Asserts their exit codes, but of those
        killed.
        """
        try:
            ended = {
                i: process.communicate(timeout=timeout) for i, process in self.processes.items()
            }
        finally:
            for process in self.processes.values():
                process.kill()
        for i, (_, err) in ended.items():
            assert self.processes[i].returncode in (code, -9), (
                f"process {i}: {self.processes[i].returncode}\n{err}"
            )
        return ended
