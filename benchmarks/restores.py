"""Bytes that each process reads when a run resumes: 1, 2 and 4 processes with the same parameters
(data parallelism).

    python benchmarks/restores.py --json
    python benchmarks/restores.py --tiny                       a tiny model and two processes, to
                                                               try it

The state of a model of 18 million parameters without its memory, filled with random numbers, is
saved by some processes and read by others, each with one CPU device, on one disk. The bytes are
those of the process's own read calls (`rchar` of /proc/self/io) during `Checkpoints.read`. The
arrays are compared with their checksums afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time

import _tiny

RUNS, TINY_RUNS = ((1, 1), (1, 2), (1, 4), (2, 2), (4, 4), (4, 2)), ((1, 1), (1, 2))
"""Processes that save, and processes that read."""
MODEL = {"layers": 4, "d_model": 512, "heads": 8, "head_dim": 64, "d_ff": 2048, "vocab_size": 8000}
REPOSITORY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def bytes_read() -> int:
    with open("/proc/self/io") as file:
        return int(file.readline().split()[1])


def host(process: int, processes: int, port: int, workdir: str, save: bool, tiny: bool) -> None:
    """One process: saves, or reads and prints a JSON line."""
    import jax
    import numpy as np

    from xlnet_jax.checkpoint.store import Checkpoints
    from xlnet_jax.config import CheckpointConfig, load
    from xlnet_jax.distributed.mesh import make_mesh
    from xlnet_jax.train.recipe import make_recipe
    from xlnet_jax.train.step import build_step

    if processes > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{port}", processes, process)
    words = (
        _tiny.WORDS if tiny else [f"--config.model.{key}={value}" for key, value in MODEL.items()]
    )
    config = load(os.path.join(REPOSITORY, "configs", "quickstart.py"), words)
    mesh = make_mesh(config.mesh)
    with jax.set_mesh(mesh):
        trees = build_step(make_recipe(config), mesh).abstract_state.split()
        del trees["memory"]

        def filled(leaf: jax.ShapeDtypeStruct) -> jax.Array:
            values = (
                np.random.default_rng(0).standard_normal(leaf.shape, np.float32).astype(leaf.dtype)
            )
            return jax.make_array_from_callback(
                leaf.shape, leaf.sharding, lambda index: values[index]
            )

        if save:
            with Checkpoints(workdir, CheckpointConfig(keep=1)) as checkpoints:
                checkpoints.save(1, jax.tree.map(filled, trees), {})
            return
        with Checkpoints(workdir) as checkpoints:
            record = checkpoints.record(1)
            before, began = bytes_read(), time.perf_counter()
            read = checkpoints.read(1, trees)
            line = {"bytes": bytes_read() - before, "seconds": time.perf_counter() - began}
            began = time.perf_counter()
            checkpoints.gather(1, read, trees, record)
            print(json.dumps(line | {"gather_seconds": time.perf_counter() - began}), flush=True)


def start(processes: int, workdir: str, *options: str) -> list[dict[str, float]]:
    """Runs `processes` of them; what each printed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "PYTHONPATH": REPOSITORY,
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "1",
    }
    words = [sys.executable, __file__, f"--workdir={workdir}", f"--host={processes}", *options]
    running = [
        subprocess.Popen(
            [*words, f"--process={i}", f"--port={port}"], stdout=subprocess.PIPE, env=environment
        )
        for i in range(processes)
    ]
    printed = [process.communicate()[0] for process in running]
    assert not any(process.returncode for process in running), (
        "a process failed; its error is above"
    )
    # Gloo prints, too.
    return [
        json.loads(line) for out in printed for line in out.splitlines() if line.startswith(b"{")
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--tiny", action="store_true", help="tiny sizes, to try it: the figures mean nothing"
    )
    for name, kind in {"workdir": str, "host": int, "process": int, "port": int}.items():
        parser.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)
    parser.add_argument("--save", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.host:
        host(args.process, args.host, args.port, args.workdir, args.save, args.tiny)
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        tiny = ["--tiny"] * args.tiny
        for saved, read in TINY_RUNS if args.tiny else RUNS:
            workdir = os.path.join(folder, f"saved_by_{saved}")
            if not os.path.exists(workdir):
                start(saved, workdir, "--save", *tiny)
            lines = start(read, workdir, *tiny)
            columns = {key: [line[key] for line in lines] for key in lines[0]}
            rows.append({"saved_by": saved, "read_by": read, **columns})
    alone = rows[0]["bytes"][0]
    for row in rows:
        row["share"] = max(row["bytes"]) / alone
    if args.json:
        print(json.dumps(rows))
        return
    print("saved by  read by  MB read by each process      of all  seconds")
    for row in rows:
        each = " ".join(f"{count / 1e6:.1f}" for count in row["bytes"])
        print(
            f"{row['saved_by']:8} {row['read_by']:8}  {each:26} {row['share']:7.0%} "
            f"{max(row['seconds']):8.2f}"
        )


if __name__ == "__main__":
    main()
