"""The fused attention by the static schedule of libtpu: cycles and units, for every TPU with a
kernel.

    python benchmarks/kernel_schedule.py --tiny               small sizes on one chip, to try it
    python benchmarks/kernel_schedule.py [--chips v5e v6e] [--saved] [--json]
                                         [T=512 M=384 P=85 B=2 H=16 E=64]
    python benchmarks/kernel_schedule.py --documents          rows of one, four and five documents
    python benchmarks/kernel_schedule.py --windows            without relative positions

Compiles both streams, forward and backward, dropout 0.1, bfloat16, with the blocks that a run
takes, for devices that are not here. A bundle is one cycle, without stalls: a lower bound of the
time, to compare changes of a kernel, and what the account of `compile` counts. A loop whose length
depends on data counts once. Parts that run once per batch count in every row. The figures are of
one row and one layer on one device; on v4 and v5p its two cores share the work, and bundles are
those of one of them. Shares are of all slots of a unit.

`--documents` takes T=2048 M=0 P=341 and rows of several documents. The figures are the bundles of
both streams times the share of the blocks of keys that a row visits. In `exact` each condition
counts as often as it holds: the start of a block of queries once, for example.

`--windows`, with the same sizes, compares the kernel with relative positions, the one without, and
the one with windows, in a global and in a local layer, both `exact`. The last columns are JAX's
splash attention for the content stream alone, without dropout.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib.metadata
import json
import os
import re
import sys
from collections.abc import Callable
from typing import Any

from xlnet_jax.aot import schedule
from xlnet_jax.aot.topology import CHIPS, describe, prepare_environment

prepare_environment()
FOLDER = schedule.request_schedules()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from _attention import (  # noqa: E402
    DOCUMENTS,
    RATE,
    Sizes,
    in_documents,
    in_window,
    lowered,
    streams,
    visits,
)
from jax.experimental.pallas.ops.tpu.splash_attention import (  # noqa: E402
    splash_attention_kernel as splash_attention,
)
from jax.experimental.pallas.ops.tpu.splash_attention import (  # noqa: E402
    splash_attention_mask as masks,
)
from jax.sharding import SingleDeviceSharding  # noqa: E402

from xlnet_jax.batch import NEVER  # noqa: E402
from xlnet_jax.kernels import fused, tpu  # noqa: E402
from xlnet_jax.kernels.tpu_units import LANES  # noqa: E402
from xlnet_jax.kernels.xla import Arguments  # noqa: E402

PARTS = ("forward", "backward")
WINDOWS = {"global": NEVER, "local": 64}
"""Sizes of the windows of ModernBERT's layers, by their name."""
UNITS = ("MATMUL", "MATPUSH", "XLU", "VALU", "VLOAD", "VSTORE")
TOPOLOGIES = {
    "v4": "v4:2x2x1",
    "v5e": "v5e:2x2",
    "v5p": "v5p:2x2x1",
    "v6e": "v6e:2x2",
    "tpu7x": "tpu7x:2x2x1",
}


def measure(chip: str, sizes: Sizes, saved: bool) -> dict[str, Any]:
    """The keys of one chip, or `not_compiled` with the reason."""
    if reason := why_not(chip):
        return {"not_compiled": reason}
    kernels, _ = schedules(chip, sizes, saved=saved)
    bundles = {
        part: sum(each.bundles for name, each in kernels.items() if part in name) for part in PARTS
    }
    total = sum(bundles.values())
    return {
        **{f"{name}_bundles": n // sizes.B for name, n in bundles.items()},
        "microseconds_per_row_and_layer": round(total / CHIPS[chip].clock / sizes.B * 1e6, 1),
        "units": {
            unit: round(
                sum(each.units[unit] * each.bundles for each in kernels.values()) / total, 3
            )
            for unit in UNITS
        },
        "clock": CHIPS[chip].clock,
    }


def documents(chip: str, sizes: Sizes) -> dict[str, Any]:
    """For each row of `DOCUMENTS` the bundles of the schedule, times the share of the blocks that
    the row visits, and the bundles by `cycles`; both also divided by the bundles of one document.
    """
    if reason := why_not(chip):
        return {"not_compiled": reason}
    rows = {
        name: functools.partial(in_documents, lengths=lengths)
        for name, lengths in DOCUMENTS.items()
    }
    bundles, exact = visiting(chip, sizes, rows, packed=True)
    return {
        **{f"{name}_bundles": round(n) for name, n in bundles.items()},
        **{f"{name}_share": round(n / bundles["one"], 3) for name, n in bundles.items()},
        **{f"{name}_exact_bundles": round(n) for name, n in exact.items()},
        **{f"{name}_exact_share": round(n / exact["one"], 3) for name, n in exact.items()},
    }


def windows(chip: str, sizes: Sizes) -> dict[str, Any]:
    """The bundles of both streams with relative positions, without, and by `cycles` in a global and
    in a local layer of a model with windows; of the content stream alone without dropout; and of
    `splash`. Also divided by those with relative positions.
    """
    if reason := why_not(chip):
        return {"not_compiled": reason}
    kinds = {
        "relative": {},
        "plain": {"relative": False},
        "plain_alone": {"relative": False, "chosen": False, "rate": 0.0},
    }
    bundles = {
        name: sum(each.bundles for each in schedules(chip, sizes, **kind)[0].values())
        for name, kind in kinds.items()
    }
    rows = {name: functools.partial(in_window, size=size) for name, size in WINDOWS.items()}
    for name, alone in (("", False), ("_alone", True)):
        exact = visiting(chip, sizes, rows, alone, relative=False, near=True)[1]
        bundles |= {f"{row}{name}": n for row, n in exact.items()}
    bundles |= {f"splash_{name}": splash(chip, sizes, name == "local") for name in WINDOWS}
    return {
        **{f"{name}_bundles": n for name, n in bundles.items()},
        **{f"{name}_share": round(n / bundles["relative"], 3) for name, n in bundles.items()},
    }


def splash(chip: str, sizes: Sizes, local: bool) -> int:
    """The bundles of JAX's splash attention, forward and backward, for the content stream alone and
    without dropout; with the fastest of a few blocks for v5e at T=2048.
    """
    T, H = sizes.T, sizes.H
    mask = masks.LocalMask((T, T), (WINDOWS["local"],) * 2, 0) if local else masks.FullMask((T, T))
    Q, K = (128, 256) if local else (512, 1024)
    blocks = splash_attention.BlockSizes(
        **dict.fromkeys(("block_q", "block_q_dkv", "block_q_dq"), Q),
        **dict.fromkeys(
            ("block_kv", "block_kv_compute", "block_kv_dkv", "block_kv_dkv_compute", "block_kv_dq"),
            K,
        ),
    )
    attend = splash_attention.make_splash_mha(
        masks.MultiHeadMask([mask] * H), block_sizes=blocks, head_shards=1, q_seq_shards=1
    )

    def run(x_HTE: jax.Array) -> Any:
        o_HTE, pull = jax.vjp(attend, *[x_HTE] * 3)
        return o_HTE, pull(o_HTE)

    here = SingleDeviceSharding(describe(TOPOLOGIES[chip]).devices[0])
    x_HTE = jax.ShapeDtypeStruct((H, T, sizes.E), jnp.bfloat16, sharding=here)
    with schedule.collected() as found:
        jax.jit(run).trace(x_HTE).lower(lowering_platforms=("tpu",)).compile()
    return sizes.B * sum(each.bundles for name, each in found.items() if "splash" in name)


def visiting(
    chip: str,
    sizes: Sizes,
    rows: dict[str, Callable[[Arguments], Arguments]],
    alone: bool = False,
    **options: bool,
) -> tuple[dict[str, float], dict[str, int]]:
    """The bundles of both streams for several rows, by their names: the bundles of the schedule
    times the share of the blocks that the row visits; and the bundles by `cycles`.

    Args:
      rows: functions that give a stream the integers of a row.
      alone: only the content stream, without dropout.
      options: of `streams`.
    """
    kernel = fused.KERNELS[describe(TOPOLOGIES[chip]).devices[0].device_kind]
    blocks = getattr(kernel, "keywords", {}).get("blocks", tpu.TpuBlocks())
    bundles, exact = dict.fromkeys(rows, 0.0), dict.fromkeys(rows, 0)
    rate = 0.0 if alone else RATE
    for chosen, stream in enumerate(streams(sizes, jnp.bfloat16, **options)[: 1 if alone else 2]):
        plan = tpu.plan_passes(stream, blocks, False)[0]
        groups = -(-sizes.H * plan.head_dim // (plan.groups * LANES))
        found, texts = schedules(chip, sizes, chosen=bool(chosen), rate=rate, **options)
        for name, of in rows.items():
            visited, _, every = visits(of(stream), plan.query_block, plan.key_block)
            query_blocks = every * plan.key_block // plan.keys
            bundles[name] += sum(each.bundles for each in found.values()) * visited / every
            exact[name] += groups * sum(
                cycles(text, visited, every, query_blocks) for text in texts
            )
    return bundles, exact


def cycles(text: str, visited: int, every: int, blocks: int) -> int:
    """The bundles of one row and some lanes in the schedule of a kernel, with every condition as
    often as it holds.

    Args:
      text: the schedule.
      visited: visits of blocks of keys.
      every: programs.
      blocks: blocks of queries.
    """
    program = max(conditions(text), key=count)
    inside = conditions(program)
    visit = max(inside, key=count)
    # The program starts the sums of a row, then visits a block of keys, then writes the results of
    # a block of queries and of a row. The first visit of a block of queries starts this block, but
    # without dropout the forward pass has nothing to start.
    start, at = sum(map(count, conditions(visit)[:1])), inside.index(visit)
    return (
        every * (count(program) - sum(map(count, inside)))
        + visited * (count(visit) - start)
        + blocks * (start + count(inside[at + 1]))
        + sum(map(count, inside[:at] + inside[at + 2 :]))
    )


def conditions(text: str) -> list[str]:
    """What is under each condition of a schedule, from 50 lines on, without conditions inside."""
    lines, found, n = text.splitlines(), [], 0
    while n < len(lines):
        target = re.search(r"sbr\.rel .*target = \$region(\d+)", lines[n])
        n += 1
        if target:
            last = re.compile(rf"PF:.*\bregion {target[1]}\b")
            end = next((m for m in range(n, len(lines)) if last.search(lines[m])), n)
            if end - n > 50:
                found.append("\n".join(lines[n : end + 1]))
                n = end
    return found


def count(text: str) -> int:
    """The bundles of a part of a schedule."""
    return schedule.parse(text).bundles


def schedules(
    chip: str, sizes: Sizes, saved: bool = False, **options: Any
) -> tuple[dict[str, Any], list[str]]:
    """The schedules of the kernels that a chip needs, by name, and their texts; `options`: of
    `lowered`.
    """
    device = describe(TOPOLOGIES[chip]).devices[0]

    def attend(a: Arguments) -> tuple[jax.Array, None]:
        return fused.KERNELS[device.device_kind](dataclasses.replace(a, save=saved))

    with schedule.collected() as found:
        lowered(attend, sizes, device, **options).compile()
        texts = [path.read_text() for path in FOLDER.glob("*xlnet_*-final_bundles.txt")]
    return {name: each for name, each in found.items() if "xlnet_" in name}, texts


def why_not(chip: str) -> str | None:
    """Why nothing can be compiled for the chip."""
    if libtpu_version() is None and "TPU_LIBRARY_PATH" not in os.environ:
        return "libtpu is not installed; run `make .venv/tpu.stamp`"
    if chip == "tpu7x" and jax.__version_info__ < (0, 12):
        return f"needs jaxlib 0.12, here is {jax.lib.__version__}"
    return None


def libtpu_version() -> str | None:
    """Of the installed package; None if TPU_LIBRARY_PATH names a library without one."""
    try:
        return importlib.metadata.version("libtpu")
    except importlib.metadata.PackageNotFoundError:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sizes", nargs="*", metavar="NAME=NUMBER", help="T, M, P, B, H or E")
    parser.add_argument("--chips", nargs="+", choices=TOPOLOGIES, default=list(TOPOLOGIES))
    parser.add_argument("--tiny", action="store_true", help="one row and head of 128 tokens on v5e")
    parser.add_argument(
        "--saved",
        action="store_true",
        help="probabilities are kept for the backward pass, as on pods",
    )
    parser.add_argument("--documents", action="store_true", help="rows of several documents")
    parser.add_argument("--windows", action="store_true", help="without relative positions")
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    args = parser.parse_args()
    if args.tiny:
        args.chips, args.sizes = ["v5e"], ["B=1", "T=128", "M=0", "P=21", "H=1"]
    if args.documents or args.windows:
        args.sizes = ["B=1", "T=2048", "M=0", "P=341", *args.sizes]
    sizes = Sizes(
        **{name: int(number) for name, number in (word.split("=") for word in args.sizes)}
    )
    chips = {}
    if not args.json:
        heads = ["forward", "backward", "us per row and layer", *UNITS]
        if args.documents:
            heads = [*DOCUMENTS, *(f"share of {name}" for name in DOCUMENTS)]
            heads += [f"exact {head}" for head in heads]
        if args.windows:
            heads = ["relative", "plain", "plain alone", *WINDOWS]
            heads += [f"{name} alone" for name in WINDOWS] + [f"splash {name}" for name in WINDOWS]
            heads += [f"share of {name}" for name in heads]
        print(f"| chip | bundles {' | '.join(heads)} |\n{'|---' * (1 + len(heads))}|")
    for chip in args.chips:
        print(f"compiling for {chip}", file=sys.stderr)
        try:
            if args.documents:
                one = chips[chip] = documents(chip, sizes)
            elif args.windows:
                one = chips[chip] = windows(chip, sizes)
            else:
                one = chips[chip] = measure(chip, sizes, args.saved)
        except jax.errors.JaxRuntimeError as error:
            if not (room := re.search(r"Ran out of memory in memory space.*?vmem\.", str(error))):
                raise
            one = chips[chip] = {"not_compiled": room[0]}
        if not args.json:
            print(f"| {' | '.join(cells(chip, one))} |", flush=True)
    how = {"dropout": RATE, "saved": args.saved, "jax": jax.__version__, "libtpu": libtpu_version()}
    print(json.dumps({"chips": chips, "sizes": dataclasses.asdict(sizes), **how}))


def cells(chip: str, one: dict[str, Any]) -> list[str]:
    """A row of the table."""
    if "not_compiled" in one:
        return [chip, f"not compiled: {one['not_compiled']}"]
    values = [value for name, value in one.items() if name not in ("units", "clock")]
    shares = one.get("units", {}).values()
    return [chip, *(f"{value:,}" for value in values), *(f"{share:.0%}" for share in shares)]


if __name__ == "__main__":
    main()
