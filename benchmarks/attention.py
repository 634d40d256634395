"""Attention of one layer, both streams, forward and backward: fused and XLA's, T 512 to 8192.

    python benchmarks/attention.py --json                          time on this CPU, temporaries by
                                                                   the TPU compiler
    python benchmarks/attention.py --tiny                          one short length, to try it
    python benchmarks/attention.py --device=gpu --json             time on a GPU (or tpu): fused and
                                                                   XLA at every T
    python benchmarks/attention.py --modern --no-time --json       without relative positions and
                                                                   memory, in a window of 128
    python benchmarks/attention.py --device=gpu --cudnn --json     also beside cuDNN

M = 3/4 T, P = T/6, 16 heads of 64, dropout 0.1, one row. One JSON line:

  rows            [{T, fused_temp_bytes, xla_temp_bytes, growth, xla_growth, milliseconds}]; growth
                  of the temporaries over the row before; milliseconds {implementation: {median,
                  smallest, largest}} of --rounds calls. null: no TPU compiler here, or no such
                  measurement (no kernel for the device, too long, no memory)
  rows, --cudnn   {global, local}: {fused, cudnn}: the same milliseconds of the content stream alone
                  without dropout, memory and relative positions, if each position sees all others
                  or those of a window of 128. For the window cuDNN gets a mask [T, T]
  compiled_for, vmem_temporaries, device, dtype, cores, load_average, cpu_per_wall, jax, libtpu

Temporaries are those in HBM, and all of them are there: compiled with
xla_vf_vmem_memory_space_assignment=false. By default XLA places some in vector memory instead (128
MiB on v5e): a constant amount, which hides most of those of short segments and nothing of long
ones. `--vmem` leaves the default.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib.metadata
import importlib.util
import json
import os
import statistics
import sys
import time
from typing import Any

LENGTHS = (512, 1024, 2048, 4096, 8192)
CHIP = "v5e:2x2"
LONGEST_ON_CPU = {"xla": 1024}
WINDOWS = {"global": None, "local": 64}
"""The largest distance of a visible key."""


def drawn(stream: Any, T: int) -> Any:
    """Numbers for the shapes: positions, ranks and segments that rise along a row."""
    import jax
    import numpy as np
    from _attention import in_window

    from xlnet_jax.kernels.xla import Arguments

    rng = np.random.default_rng(0)
    highest = {"rank_BK": T, "limit_BQ": T, "query_position_BQ": T}

    def array(name: str, x: jax.ShapeDtypeStruct) -> np.ndarray:
        if not x.shape:
            return np.zeros((), x.dtype)
        if np.issubdtype(x.dtype, np.integer):
            return np.sort(rng.integers(0, highest.get(name, 2), x.shape)).astype(x.dtype)
        return rng.standard_normal(x.shape, np.float32).astype(x.dtype)

    names = [field.name for field in dataclasses.fields(stream) if not field.metadata.get("static")]
    made = {
        name: jax.tree.map(functools.partial(array, name), getattr(stream, name)) for name in names
    }
    if made["position"]:
        *tables, direction_B = made["position"]
        made["position"] = (*tables, np.ones_like(direction_B))
    row = Arguments(**made)
    return in_window(row, WINDOWS["local"]) if row.near else row


def milliseconds(sizes: Any, name: str, rounds: int, **options: bool) -> dict[str, float] | None:
    """Of one call on the local device; None where it is not measured; `options`: of `streams`."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from _attention import streams, train

    from xlnet_jax.kernels import fused, xla

    device = jax.devices()[0]
    cpu = device.platform == "cpu"
    dtype = jnp.dtype("float32" if cpu else "bfloat16")
    if name == "fused" and fused.why_no_kernel(device.device_kind, 64, dtype):
        return None
    if cpu and LONGEST_ON_CPU.get(name, 0) < sizes.T:
        return None
    attend = {"fused": fused.attend, "xla": xla.attend}[name]
    inputs = [drawn(stream, sizes.T) for stream in streams(sizes, dtype, **options)]
    return timed(train(attend), (inputs, np.uint32(1)), rounds)


def beside_cudnn(T: int, size: int | None, name: str, rounds: int) -> dict[str, float] | None:
    """As `milliseconds`, of `rows, --cudnn`, for a window of this size or none."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from _attention import sizes_of, streams

    from xlnet_jax.kernels import fused, xla

    near = size is not None
    sizes = dataclasses.replace(sizes_of(T), M=0)
    drawn_row = drawn(streams(sizes, jnp.bfloat16, relative=False, near=near)[0], T)
    seen = {"limit_BQ": drawn_row.limit_BQ * 0 + 1, "rank_BK": drawn_row.rank_BK * 0}
    row = dataclasses.replace(drawn_row, **seen)
    if name == "fused":
        return timed(lambda row: xla.differentiated(fused.attend, row)[::2], (row,), rounds)
    at_T = np.arange(T)
    mask = np.abs(at_T[:, None] - at_T) <= size if near else None

    def both_ways(mask: Any, *qkv: Any) -> Any:
        o_BQHE, pull = jax.vjp(
            functools.partial(
                jax.nn.dot_product_attention,
                mask=None if mask is None else mask[None, None],
                implementation="cudnn",
            ),
            *qkv,
        )
        return o_BQHE, pull(o_BQHE)

    return timed(both_ways, (mask, row.q_BQHE, row.k_BKHE, row.v_BKHE), rounds)


def timed(function: Any, inputs: Any, rounds: int) -> dict[str, float] | None:
    """Milliseconds of a call on the local device, compilation excluded; None if its memory is too
    small.
    """
    import jax

    mesh = jax.make_mesh((1,), ("data",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:1])
    inputs, seconds = jax.device_put(inputs), []
    with jax.set_mesh(mesh):
        run = jax.jit(function)
        try:
            for _ in range(rounds + 1):
                began = time.perf_counter()
                jax.block_until_ready(run(*inputs))
                seconds.append(time.perf_counter() - began)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            return None
    one = sorted(1e3 * each for each in seconds[1:])
    return {
        "median": round(statistics.median(one), 2),
        "smallest": round(one[0], 2),
        "largest": round(one[-1], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "gpu", "tpu"), default="cpu")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, metavar="T")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--vmem", action="store_true", help="compile for TPU with the default flags"
    )
    parser.add_argument(
        "--modern", action="store_true", help="windows; no relative positions and no memory"
    )
    parser.add_argument("--cudnn", action="store_true", help="also beside cuDNN: needs a GPU")
    parser.add_argument("--no-time", action="store_true", help="only the temporaries")
    parser.add_argument(
        "--tiny", action="store_true", help="one short length, to try it: the times mean nothing"
    )
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    args = parser.parse_args()
    if args.tiny:
        args.lengths, args.rounds = [32], 1
    load = os.getloadavg()[0]
    if args.device != "tpu":
        os.environ.setdefault("JAX_PLATFORMS", {"cpu": "cpu", "gpu": "cuda,cpu"}[args.device])
        from xlnet_jax.aot.topology import prepare_environment

        prepare_environment()
    import jax
    from _attention import RATE, sizes_of, temporaries

    if args.cudnn and (args.device != "gpu" or jax.devices()[0].platform != "gpu"):
        sys.exit("--cudnn needs --device=gpu and an NVIDIA GPU with JAX's extra for CUDA")
    options = {"relative": False, "near": True} if args.modern else {}

    from xlnet_jax.kernels import tpu, xla

    has_compiler = (
        importlib.util.find_spec("libtpu") is not None or "TPU_LIBRARY_PATH" in os.environ
    )
    rows: list[dict[str, Any]] = []
    for T in args.lengths:
        row: dict[str, Any] = {"T": T}
        sizes = dataclasses.replace(sizes_of(T), M=0) if args.modern else sizes_of(T)
        for name, attend in (("fused", tpu.attend), ("xla", xla.attend)):
            size = None
            if has_compiler:
                size = temporaries(attend, sizes, CHIP, args.vmem, **options)
            row[f"{name}_temp_bytes"] = size
        for key, name in (("growth", "fused"), ("xla_growth", "xla")):
            before, now = (
                each.get(f"{name}_temp_bytes") for each in (rows[-1] if rows else {}, row)
            )
            row[key] = round(now / before, 2) if before and now else None
        wall, cpu = time.perf_counter(), time.process_time()
        names = () if args.no_time else ("fused", "xla")
        row["milliseconds"] = {
            name: milliseconds(sizes, name, args.rounds, **options) for name in names
        }
        if args.cudnn:
            row |= {
                layer: {
                    name: beside_cudnn(T, size, name, args.rounds) for name in ("fused", "cudnn")
                }
                for layer, size in WINDOWS.items()
            }
        row["cpu_per_wall"] = round(
            (time.process_time() - cpu) / max(time.perf_counter() - wall, 1e-9), 2
        )
        rows.append(row)
        print(json.dumps(row), file=sys.stderr)  # a later length may run out of time
    if not args.json:
        show(rows)
    device = jax.devices()[0]
    result = {
        "rows": rows,
        "compiled_for": CHIP if has_compiler else None,
        "vmem_temporaries": args.vmem,
        "device": device.device_kind,
        "dtype": "float32" if device.platform == "cpu" else "bfloat16",
        "dropout": RATE,
        "cores": os.cpu_count(),
        "load_average": load,
        "jax": jax.__version__,
        "libtpu": importlib.metadata.version("libtpu")
        if importlib.util.find_spec("libtpu")
        else None,
    }
    print(json.dumps(result))


def show(rows: list[dict[str, Any]]) -> None:
    print("| T | fused, MB of temporaries | growth | XLA, MB | growth | fused, ms | XLA, ms |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        cells = [str(row["T"])]
        for name, key in (("fused", "growth"), ("xla", "xla_growth")):
            size = row[f"{name}_temp_bytes"]
            cells += ["not measured" if size is None else f"{size / 1e6:,.1f}", str(row[key] or "")]
        for name in ("fused", "xla"):
            one = row["milliseconds"].get(name)
            cells.append(
                f"{one['median']} ({one['smallest']} to {one['largest']})"
                if one
                else "not measured"
            )
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
