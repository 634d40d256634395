"""The table of what was compiled for whole pods, as Markdown: XLNet-Large on every kind of TPU, without having one.

    python benchmarks/topologies.py                      minutes a row on two cores; needs the extra `tpu`
    python benchmarks/topologies.py --tiny               two layers on the smallest slices, to try it
    python benchmarks/topologies.py --only=v3 --json     one JSON line for each row whose topology begins with v3

Every row is a command of its own, `xlnet-jax compile`, so that a row that fails ends with its message.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Any

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")

# Topology, slices, overrides.
ROWS: list[tuple[str, int, list[str]]] = [
    ("v3:16x16", 1, []),
    ("v3:16x16", 1, ["train.accumulation=2"]),
    ("v3:16x16", 1, ["mesh.fsdp=16"]),
    ("v3:16x16", 1, ["train.batch_size=8192"]),
    ("v3:16x32", 1, []),
    ("v3:16x32", 1, ["train.batch_size=8192"]),
    ("v4:8x8x4", 1, []),
    ("v5e:16x16", 1, []),
    ("v5p:8x8x8", 1, []),
    ("v6e:16x16", 1, []),
    ("tpu7x:4x4x4", 1, []),
    ("v5e:16x16", 2, []),
]
TINY = [("v3:2x2", 1, []), ("v5e:2x2", 1, ["mesh.fsdp=4"]), ("v5e:2x2", 2, [])]


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
        f"{one['count']:g} {one['kind']} over {one['axis']} ({one['network']}), {one['bytes'] / 1e6:.0f} MB"
        for one in result["collectives"]
    )
    slices = f" x {result['slices']}" if result["slices"] > 1 else ""
    peak = f"{result['peak_hbm_bytes'] / 2**30:.2f} of {result['hbm_bytes'] / 2**30:.0f} GiB"
    projection = "" if result["projected_days"] is None else (
        f"{result['projected_step_seconds']:.3g} s, {result['projected_tokens_per_second']:.3g} tokens/s, "
        f"{result['projected_days']:.2g} days"
    )  # fmt: skip
    cells = [
        f"{result['topology']}{slices} ({result['devices']} devices)", str(result["batch_size"]), mesh,
        "yes" if result["fits"] else f"no; {result['advice']}", peak, reduced, projection,
        f"{result['compile_seconds']:.0f} s",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="two small layers, smallest slices")
    parser.add_argument("--only", default="", help="topologies that begin with this")
    parser.add_argument("--json", action="store_true", help="one JSON line a row")
    args = parser.parse_args()
    config = "tests/tiny_tpu.py" if args.tiny else "configs/xlnet_large_512.py"
    if not args.json:
        print(f"Compiled on {time.strftime('%Y-%m-%d')} with `{config}`; times of a step are projections.\n")
        print("| topology | batch | mesh | fits | peak HBM | collectives of a step | projection | compiled |")
        print("|---|---|---|---|---|---|---|---|", flush=True)
    for topology, slices, overrides in TINY if args.tiny else ROWS:
        if topology.startswith(args.only):
            result = compiled(config, topology, slices, overrides)
            print(json.dumps(result) if args.json else row(result), flush=True)


if __name__ == "__main__":
    main()
