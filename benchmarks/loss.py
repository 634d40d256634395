"""The vocabulary loss in chunks of rows beside the plain one, which stores all logits: forward and
backward.

    python benchmarks/loss.py [--json]             minutes on two cores; temporaries need the extra
                                                   `tpu`
    python benchmarks/loss.py --device=gpu         times on a GPU, in bfloat16
    python benchmarks/loss.py --tiny              tiny sizes, to try it

V=32000, D=1024; 8 rows of 85 targets, as permutation LM has them, and 8 of 512, as left-to-right LM
has them (48 rows of 85 are nearly as many). Both sides run in one process and take turns. Figures,
for each number of targets P:

  plain_seconds, chunked_seconds       median of the turns; float32 on a CPU
  ratio                                plain over chunked: median over rounds
  spread                               smallest and largest turn of each side, in seconds
  cpu_seconds                          of each side, median; depends less on what else the machine
                                       does
  plain_temp_bytes, chunked_...        temporaries by the TPU compiler for --topology, bfloat16;
                                       null without libtpu
  largest_difference                   of loss and gradients, relative to the largest element of
                                       each array
  cpu_per_wall                         of all turns; far below the number of cores: the machine had
                                       other work, use only `cpu_seconds`

`LMHead.nll` takes the chunked side where a device has more than `vocabulary_loss.CHUNK` targets.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import statistics
import sys
from typing import Any

from _turns import Turn, taken, timed

FULL = 32000, 1024, 8, (85, 512)
TINY = 100, 16, 2, (3, 16)
SIDES = ("plain", "chunked")


def loss(side: str, params: Any, target_BP: Any) -> Any:
    """Mean over the targets; params: table, bias, vectors."""
    from xlnet_jax.kernels import vocabulary_loss
    from xlnet_jax.model.heads import logits, plain_nll

    table_VD, bias_V, vectors_BPD = params
    if side == "chunked":
        return vocabulary_loss.nll(table_VD, bias_V, vectors_BPD, target_BP).mean()
    return plain_nll(logits(table_VD, bias_V, vectors_BPD, "vocab"), target_BP).mean()


def compiled(side: str, described: Any) -> Any:
    import jax

    return jax.jit(jax.value_and_grad(functools.partial(loss, side))).lower(*described).compile()


def described(sizes: tuple[int, ...], dtype: str, device: Any) -> Any:
    """Shapes of (params, targets) on one device."""
    import jax
    from jax.sharding import SingleDeviceSharding

    V, D, B, P = sizes
    shape = functools.partial(jax.ShapeDtypeStruct, sharding=SingleDeviceSharding(device))
    return (shape((V, D), "float32"), shape((V,), "float32"), shape((B, P, D), dtype)), shape(
        (B, P), "int32"
    )


def temporaries(sizes: tuple[int, ...], topology: str) -> dict[str, int | None]:
    """Bytes by the TPU compiler; None without it."""
    if importlib.util.find_spec("libtpu") is None:
        print(
            "libtpu is not installed: no temporaries; run `make .venv/tpu.stamp`", file=sys.stderr
        )
        return {f"{side}_temp_bytes": None for side in SIDES}
    from xlnet_jax.aot.topology import describe

    shapes = described(sizes, "bfloat16", describe(topology).devices[0])
    return {
        f"{side}_temp_bytes": compiled(side, shapes).memory_analysis().temp_size_in_bytes
        for side in SIDES
    }


def times(sizes: tuple[int, ...], device: Any, rounds: int) -> dict[str, Any]:
    """The figures of one number of targets that need turns."""
    import jax
    import numpy as np

    shapes = described(sizes, "float32" if device.platform == "cpu" else "bfloat16", device)
    rng = np.random.default_rng(0)
    draw = lambda x: rng.standard_normal(x.shape, np.float32).astype(x.dtype) / sizes[1] ** 0.5  # noqa: E731
    params, target_BP = (
        jax.tree.map(draw, shapes[0]),
        rng.integers(0, sizes[0], shapes[1].shape).astype(np.int32),
    )
    inputs = jax.device_put((params, target_BP), device)
    programs = {side: compiled(side, shapes) for side in SIDES}
    results = {side: jax.device_get(run(*inputs)) for side, run in programs.items()}

    def turn(side: str) -> Turn:
        return timed(lambda: jax.block_until_ready(programs[side](*inputs)))

    turns = taken({side: functools.partial(turn, side) for side in SIDES}, rounds)
    seconds, cpu_seconds = (
        {side: [turn[which] for turn in turns[side]] for side in SIDES} for which in (0, 1)
    )
    pairs = zip(*(jax.tree.leaves(results[side]) for side in SIDES), strict=True)
    return {
        **{f"{side}_seconds": statistics.median(seconds[side]) for side in SIDES},
        "ratio": statistics.median([a / b for a, b in zip(*seconds.values(), strict=True)]),
        "spread": {side: [min(seconds[side]), max(seconds[side])] for side in SIDES},
        "cpu_seconds": {side: statistics.median(cpu_seconds[side]) for side in SIDES},
        "largest_difference": float(
            max(np.max(np.abs(x - y)) / np.max(np.abs(x)) for x, y in pairs)
        ),
        "cpu_per_wall": sum(sum(cpu_seconds[side]) for side in SIDES)
        / sum(sum(seconds[side]) for side in SIDES),
    }


def show(result: dict[str, Any]) -> None:
    heads = ("seconds", "smallest", "largest", "ratio", "CPU s", "CPU/wall", "TPU MB")
    print(f"{'P':>4} {'':8} " + " ".join(f"{head:>9}" for head in heads))
    for row in result["rows"]:
        for side in SIDES:
            low, high = row["spread"][side]
            size = row[f"{side}_temp_bytes"]
            columns = f"{row[f'{side}_seconds']:9.4g} {low:9.4g} {high:9.4g} {row['ratio']:9.2f}"
            columns += f" {row['cpu_seconds'][side]:9.4g} {row['cpu_per_wall']:9.2f}"
            print(
                f"{row['P']:4} {side:8} {columns} "
                f"{'null' if size is None else format(size / 1e6, '.1f'):>9}"
            )
    for name in ("device", "topology", "chunk", "V", "D", "B", "cores", "load_average"):
        print(f"{name:18} {result[name]}")
    print(f"largest difference {max(row['largest_difference'] for row in result['rows']):.2g}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--device", default="cpu", help="platform of JAX for the times (default cpu)"
    )
    parser.add_argument(
        "--topology", default="v5e:1x1", help="for the temporaries (default v5e:1x1)"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="of one turn of each side (default 3)"
    )
    parser.add_argument("--tiny", action="store_true", help="tiny sizes: the figures mean nothing")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if "xla_backend_optimization_level=0" in os.environ.get("XLA_FLAGS", "") and not args.tiny:
        sys.exit("XLA_FLAGS asks for unoptimised code, which the tests use; unset it")
    if args.device != "cpu":
        os.environ.setdefault("JAX_PLATFORMS", "")  # else only the CPU
    from xlnet_jax.aot.topology import prepare_environment

    prepare_environment()
    import jax

    from xlnet_jax.kernels import vocabulary_loss

    V, D, B, targets = TINY if args.tiny else FULL
    device, load, rows = jax.devices(args.device)[0], [os.getloadavg()[0]], []
    for P in targets:
        figures = times((V, D, B, P), device, args.rounds) | temporaries(
            (V, D, B, P), args.topology
        )
        rows.append({"P": P, **figures})
    load.append(os.getloadavg()[0])
    result = {
        "rows": rows,
        "device": device.device_kind,
        "topology": args.topology,
        "chunk": vocabulary_loss.CHUNK,
        "V": V,
        "D": D,
        "B": B,
        "cores": len(os.sched_getaffinity(0)),
        "load_average": load,
    }
    print(json.dumps(result)) if args.json else show(result)


if __name__ == "__main__":
    main()
