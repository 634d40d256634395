"""Compiles XLNet-Large for whole pods of every kind of TPU, without having one, and prints a
Markdown table.

    python benchmarks/topologies.py                      minutes per row on two cores; needs the
                                                         extra `tpu`
    python benchmarks/topologies.py --tiny               two layers on the smallest slice, to try it
    python benchmarks/topologies.py --only=v3 --json     one JSON line for each row whose topology
                                                         starts with v3
    python benchmarks/topologies.py --rows=FILE          the table from such lines of an earlier run
    python benchmarks/topologies.py --largest            the largest batch per core of v3:16x16:
                                                         several compilations

Every row is a separate command, `xlnet-jax compile`, so that a failing row ends with its own
message.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from typing import Any

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")

PUBLISHED, PODS, TINY = (
    "configs/xlnet_large_512.py",
    "configs/xlnet_large_pods.py",
    "tests/tiny_tpu.py",
)

# Configuration, topology, slices, overrides.
ROWS: list[tuple[str, str, int, list[str]]] = [
    (PUBLISHED, "v3:16x16", 1, []),
    (PUBLISHED, "v3:16x16", 1, ["train.gradient_accumulation_steps=2"]),
    (PUBLISHED, "v3:16x16", 1, ["mesh.fsdp=16"]),
    (PUBLISHED, "v3:16x16", 1, ["train.batch_size=8192"]),
    (PUBLISHED, "v3:16x32", 1, []),
    (PUBLISHED, "v3:16x32", 1, ["train.batch_size=8192"]),
    (PODS, "v4:8x8x4", 1, ["mesh.fsdp=8"]),
    (PODS, "v5e:16x16", 1, []),
    (PODS, "v5e:16x16", 2, []),
    (PODS, "v5p:8x8x8", 1, ["mesh.fsdp=8"]),
    (PODS, "v6e:16x16", 1, []),
    (PODS, "v6e:8x8", 3, ["train.elastic=true", "mesh.fsdp=8"]),
    (PODS, "tpu7x:4x4x4", 1, []),
]
SMALL = [(TINY, "v3:2x2", 1, [])]


def compiled(config: str, topology: str, slices: int, overrides: list[str]) -> dict[str, Any]:
    """The JSON of one `xlnet-jax compile`."""
    words = [f"--config={config}", f"--topology={topology}", f"--slices={slices}", "--json"]
    words += [f"--config.{word}" for word in overrides]
    command = [sys.executable, "-m", "xlnet_jax", "compile", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout)


def row(result: dict[str, Any]) -> str:
    mesh = ", ".join(f"{name}={size}" for name, size in result["mesh"].items() if size > 1)
    reduced = "; ".join(
        f"{one['count']:g} {one['kind']} over {one['axis']} ({one['network']}), "
        f"{one['bytes'] / 1e6:.0f} MB {one['dtype']}"
        for one in result["collectives"]
    )
    slices = f" x {result['slices']}" if result["slices"] > 1 else ""
    peak = f"{result['peak_hbm_bytes'] / 2**30:.2f} of {result['hbm_bytes'] / 2**30:.0f} GiB"
    times = result["account"]
    bounds = (
        ""
        if times is None
        else (f"{times['lower_ms']:.0f} to {times['upper_ms']:.0f} ms, MFU from {times['mfu']:.1%}")
    )
    parts = [result["attention"], f"remat {result['remat']}"]
    if result["gradient_accumulation_steps"] > 1:
        parts.append(f"{result['gradient_accumulation_steps']} micro-batches")
    cells = [
        f"{result['topology']}{slices} ({result['devices']} devices)",
        f"{result['batch_size']}, {', '.join(parts)}",
        mesh,
        peak if result["fits"] else f"does not fit ({peak}); {result['advice']}",
        reduced,
        bounds,
        f"{result['compile_seconds']:.0f} s",
    ]
    return f"| {' | '.join(cells)} |"


def largest() -> dict[str, Any]:
    """The largest number of rows per v3 core, with the published configuration unchanged."""
    from xlnet_jax.aot import topology

    topology.prepare_environment()
    from xlnet_jax.aot import report as compiling
    from xlnet_jax.config import load

    pod = topology.describe("v3:16x16")
    best = compiling.largest_batch(load(os.path.join(ROOT, PUBLISHED)), pod, len(pod.devices))
    if best is None:
        sys.exit("not even one row fits")
    rows = best.config.train.batch_size // len(pod.devices)
    return {
        "topology": pod.name,
        "max_batch_per_core": rows,
        "peak_hbm_bytes": best.needed,
        "hbm_bytes": pod.hbm_bytes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--tiny", action="store_true", help="two small layers, smallest slice")
    parser.add_argument("--only", default="", help="topologies that start with this")
    parser.add_argument("--json", action="store_true", help="one JSON line per row")
    parser.add_argument(
        "--rows", help="file of JSON lines to print as the table, instead of compiling"
    )
    parser.add_argument(
        "--largest", action="store_true", help="search the largest batch per core instead"
    )
    args = parser.parse_args()
    if args.largest:
        print(json.dumps(largest()))
        return
    if not args.json:
        print(
            "| topology | batch | mesh | peak HBM | collectives of a step | "
            "time of a step | compiled in |"
        )
        print("|---|---|---|---|---|---|---|", flush=True)
    if args.rows:
        with open(args.rows, encoding="utf-8") as file:
            for line in file:
                print(row(json.loads(line)))
        return
    for config, topology, slices, overrides in SMALL if args.tiny else ROWS:
        if topology.startswith(args.only):
            result = compiled(config, topology, slices, overrides)
            print(json.dumps(result) if args.json else row(result), flush=True)


if __name__ == "__main__":
    main()
