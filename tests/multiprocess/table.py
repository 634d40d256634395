"""What happens when: stops and losses of a run of two processes, tried one after the other.

    python tests/multiprocess/table.py            the table of docs/training.md
    python tests/multiprocess/table.py --json     one line: [{"event", "exit_codes", "seconds", "line"}, ...]

`seconds` are from the event to the end of the last process that ends, on this machine. Ends with 1 if an exit code is
not the promised one.
"""

# ruff: noqa: E402

from __future__ import annotations

import argparse
import json
import pathlib
import shutil
import signal
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE.parent.parent), str(HERE.parent), str(HERE)]

import compiling
from hosts import HEARTBEAT, Hosts, free_port

OPTIONS = ("--config.checkpoint.every=2", "--config.data.workers=0", "--config.train.steps=100000")
PATIENCE = 20


class Table:
    """Runs in `folder`; `rows` are what happened."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder, self.rows = folder, []
        self.good = True

    def start(self, name: str, *options: str, **settings) -> Hosts:
        """Two processes in the work directory `name`."""
        common = (*OPTIONS, f"--config.distributed.rendezvous_seconds={PATIENCE}", *options)
        return Hosts("train", self.folder / name, *common, count=settings.pop("count", 2), cache=self.folder / "cache",
                     **settings)  # fmt: skip

    def running(self, name: str, *options: str, **settings) -> Hosts:
        """The same, after the first checkpoint."""
        hosts = self.start(name, *options, **settings)
        until = time.monotonic() + 200
        while not list((self.folder / name).glob("checkpoints/[2-9]")):
            assert time.monotonic() < until and all(p.poll() is None for p in hosts.processes.values()), name
            time.sleep(0.05)
        return hosts

    def row(
        self, event: str, hosts: Hosts, began: float, promised: dict[int, int], of: int, warm: bool = False
    ) -> None:
        """Waits for the end and adds the row.

        Args:
          of: the process whose last line is shown.
          warm: every program must come from the compilation cache, in every process.
        """
        codes, lines, miss = {}, {}, False
        for number, process in hosts.processes.items():
            _, err = process.communicate(timeout=PATIENCE + 12 * HEARTBEAT)
            codes[number] = process.returncode
            miss |= "compilation cache: miss" in err
            lines[number] = next((line for line in reversed(err.splitlines()) if line.startswith("xlnet-jax")), "")
        seconds = time.monotonic() - began
        assert not (warm and miss), "a process has compiled"
        self.good &= codes == promised
        self.rows.append({"event": event, "exit_codes": codes, "seconds": round(seconds, 1), "line": lines[of].strip()})
        print(f"{event}: {codes} {seconds:.1f} s{'' if codes == promised else f', promised {promised}'}\n  {lines[of]}",
              file=sys.stderr, flush=True)  # fmt: skip

    def fill(self) -> None:
        """Tries everything."""
        for victim in (0, 1):
            hosts = self.running(f"kill{victim}")
            began = time.monotonic()
            hosts.processes[victim].kill()
            self.row(f"SIGKILL of process {victim}", hosts, began, {1 - victim: 42, victim: -9}, 1 - victim)
        for victims, event in (((1,), "SIGTERM to one process"), ((0, 1), "SIGTERM to all")):
            hosts = self.running(f"term{len(victims)}")
            began = time.monotonic()
            for victim in victims:
                hosts.processes[victim].send_signal(signal.SIGTERM)
            self.row(event, hosts, began, {0: 42, 1: 42}, 0)
        hosts = self.running("stop")
        began = time.monotonic()
        hosts.processes[1].send_signal(signal.SIGSTOP)
        hosts.processes[0].wait(timeout=12 * HEARTBEAT)
        hosts.processes[1].kill()
        self.row(f"SIGSTOP of process 1, heartbeat_seconds={HEARTBEAT}", hosts, began, {0: 42, 1: -9}, 0)
        self._starts()
        self._clashes()

    def _starts(self) -> None:
        port = free_port()
        began = time.monotonic()
        first = self.start("late", "--stop_at=2", absent=(1,), port=port)
        time.sleep(5)
        second = self.start("late", "--stop_at=2", absent=(0,), port=port)
        first.processes |= second.processes
        self.row("process 1 starts 5 s late (to step 2)", first, began, {0: 0, 1: 0}, 0)
        began = time.monotonic()
        hosts = self.start("missing", absent=(1,))
        self.row(f"process 1 is missing, rendezvous_seconds={PATIENCE}", hosts, began, {0: 42}, 0)
        began = time.monotonic()
        hosts = self.start("other", own={1: ["--config.optimizer.clip=0.5"]})
        self.row("another configuration in process 1", hosts, began, {0: 2, 1: 2}, 0)
        began = time.monotonic()
        again = self.start("late2", "--stop_at=2")
        self.row("a second start with warm caches (to step 2)", again, began, {0: 0, 1: 0}, 0, warm=True)

    def _clashes(self) -> None:
        port = free_port()
        first = self.running("first", port=port)
        began = time.monotonic()
        second = self.start("second", "--config.optimizer.clip=0.5", port=port)
        self.row("a second run at the same ports", second, began, {0: 2, 1: 2}, 0)
        began = time.monotonic()
        second = self.start("first", "--config.log.tensorboard=false")
        self.row("a second run in the same work directory", second, began, {0: 2, 1: 2}, 0)
        assert all(process.poll() is None for process in first.processes.values()), "the first run has ended"
        began = time.monotonic()
        for process in first.processes.values():
            process.send_signal(signal.SIGTERM)
        self.row("the first run after both, SIGTERM to all", first, began, {0: 42, 1: 42}, 0)


def main() -> int:
    """Prints the table; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="xlnet_table_"))
    table = Table(folder)
    try:
        table.fill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if arguments.json:
        print(json.dumps(table.rows))
    else:
        print("| event | exit codes | seconds | line |\n|---|---|---|---|")
        for row in table.rows:
            codes = ", ".join(f"{number}: {code}" for number, code in sorted(row["exit_codes"].items()))
            line = row["line"].replace(str(folder), "WORKDIR").replace("|", "\\|")
            print(f"| {row['event']} | {codes} | {row['seconds']} | {line[:160]} |")
    return 0 if table.good else 1


if __name__ == "__main__":
    compiling.set_flags()
    sys.exit(main())
