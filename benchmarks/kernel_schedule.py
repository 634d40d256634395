"""The fused attention by the static schedule of libtpu: cycles and units, for every TPU with a
kernel.

    python benchmarks/kernel_schedule.py --tiny               small sizes on one chip, to try it
    python benchmarks/kernel_schedule.py [--chips v5e v6e] [--saved] [--json]
                                         [T=512 M=384 P=85 B=2 H=16 E=64]

Compiles both streams, forward and backward, dropout 0.1, bfloat16, with the blocks that a run
takes, for devices that are not here. A bundle is one cycle, without stalls: a lower bound of the
time, to compare changes of a kernel, and what the account of `compile` counts. A loop whose length
depends on data counts once. Parts that run once per batch count in every row. The figures are of
one row and one layer on one device; on v4 and v5p its two cores share the work, and bundles are
those of one of them. Shares are of all slots of a unit.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import os
import sys
from typing import Any

from xlnet_jax.aot import schedule
from xlnet_jax.aot.topology import CHIPS, describe, prepare_environment

prepare_environment()
schedule.request_schedules()

import jax  # noqa: E402
from _attention import RATE, Sizes, lowered  # noqa: E402

from xlnet_jax.kernels import fused  # noqa: E402
from xlnet_jax.kernels.xla import Arguments  # noqa: E402

PARTS = ("forward", "backward")
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
    if libtpu_version() is None and "TPU_LIBRARY_PATH" not in os.environ:
        return {"not_compiled": "libtpu is not installed; run `make .venv/tpu.stamp`"}
    if chip == "tpu7x" and jax.__version_info__ < (0, 12):
        return {"not_compiled": f"needs jaxlib 0.12, here is {jax.lib.__version__}"}
    device = describe(TOPOLOGIES[chip]).devices[0]

    def attend(a: Arguments) -> tuple[jax.Array, None]:
        return fused.KERNELS[device.device_kind](dataclasses.replace(a, save=saved))

    with schedule.collected() as found:
        lowered(attend, sizes, device).compile()
    kernels = {name: each for name, each in found.items() if "xlnet_" in name}
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
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    args = parser.parse_args()
    if args.tiny:
        args.chips, args.sizes = ["v5e"], ["B=1", "T=128", "M=0", "P=21", "H=1"]
    given = {name: int(number) for name, number in (word.split("=") for word in args.sizes)}
    sizes = Sizes(**given)
    chips = {}
    if not args.json:
        print(f"| chip | bundles forward | backward | us per row and layer | {' | '.join(UNITS)} |")
        print("|---" * (4 + len(UNITS)) + "|")
    for chip in args.chips:
        print(f"compiling for {chip}", file=sys.stderr)
        one = chips[chip] = measure(chip, sizes, args.saved)
        if "not_compiled" in one:
            cells = [chip, f"not compiled: {one['not_compiled']}"] + [""] * (2 + len(UNITS))
        else:
            cells = [
                chip,
                f"{one['forward_bundles']:,}",
                f"{one['backward_bundles']:,}",
                f"{one['microseconds_per_row_and_layer']:.1f}",
                *(f"{share:.0%}" for share in one["units"].values()),
            ]
        if not args.json:
            print(f"| {' | '.join(cells)} |", flush=True)
    how = {"dropout": RATE, "saved": args.saved, "jax": jax.__version__, "libtpu": libtpu_version()}
    print(json.dumps({"chips": chips, "sizes": dataclasses.asdict(sizes), **how}))


if __name__ == "__main__":
    main()
