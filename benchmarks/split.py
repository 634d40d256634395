"""Bytes of parameters and optimizer state that a device holds under `mesh.zero1`, by the number of
devices.

    python benchmarks/split.py --config=configs/xlnet_large.py --json
    python benchmarks/split.py --tiny                          the quick start's model on six
                                                               devices, to try it

From shapes alone: no device is used and nothing is compiled. Other words are keys of the
configuration. Bytes of one device, printed in MB:

  even      all of the state, divided by the number of devices
  state     what a device holds
  whole     of that, what every device holds
  over      the rest of it, over an even split of the same arrays: 0.01 is 1 % more
  unpacked  what a device would hold if an array were split only along an axis that divides
  fsdp      the best `mesh.fsdp` without zero1, also along axes alone, and what a device would hold
            with it
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from typing import Any

import jax
from jax.sharding import AbstractMesh

from xlnet_jax.config import load
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.train import state as states
from xlnet_jax.train.recipe import Recipe, make_recipe

DEVICES = (6, 192, 256, 768, 2048, 4096)


def held(
    recipe: Recipe, boxed: Any, data: int, fsdp: int = 1, packs: bool | None = None
) -> tuple[int, int]:
    """Bytes on one device, and those of them that all devices hold."""
    grid = AbstractMesh((1, data, fsdp, 1), meshes.AXES)
    split = meshes.split_of(recipe.config.changed(mesh={"zero1": fsdp == 1}), boxed[0], grid.shape)
    split = split if packs is None else dataclasses.replace(split, packs=packs)
    packed = meshes.pack(boxed, grid.shape, split)
    total = whole = 0
    shardings = meshes.shardings(packed, grid, split)
    for x, sharding in zip(jax.tree.leaves(packed), jax.tree.leaves(shardings), strict=True):
        size = math.prod(sharding.shard_shape(x.shape)) * x.dtype.itemsize
        total += size
        whole += 0 if meshes.row_split(sharding.spec) else size
    return total, whole


def row(recipe: Recipe, devices: int) -> dict[str, Any]:
    """The columns for one number of devices."""
    state = jax.eval_shape(lambda: states.init_state(recipe, recipe.init_params()))
    boxed = state.params, state.opt_state
    everything = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(boxed))
    mine, whole = held(recipe, boxed, devices)
    sizes = [size for size in range(2, devices + 1) if devices % size == 0]
    best, fsdp = min(
        (held(recipe, boxed, devices // size, size, packs=False)[0], size) for size in sizes
    )
    return {
        "devices": devices,
        "even": everything / devices,
        "state": mine,
        "whole": whole,
        "over": (mine - whole) * devices / (everything - whole) - 1,
        "unpacked": held(recipe, boxed, devices, packs=False)[0],
        "fsdp": fsdp,
        "fsdp_state": best,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", default="configs/xlnet_large.py")
    parser.add_argument("--devices", type=int, nargs="+", default=DEVICES)
    parser.add_argument(
        "--tiny", action="store_true", help="tiny sizes, to try it: the figures mean nothing"
    )
    parser.add_argument("--json", action="store_true")
    args, overrides = parser.parse_known_args()
    if args.tiny:
        args.config, args.devices = "quickstart", (6,)
    recipe = make_recipe(load(args.config, overrides))
    rows = [row(recipe, devices) for devices in args.devices]
    if args.json:
        print(json.dumps(rows))
        return
    print(f"{'devices':>8}{'even':>10}{'state':>10}{'whole':>10}{'over':>9}{'unpacked':>10}   fsdp")
    for each in rows:
        even, state, whole, unpacked, best = (
            f"{each[name] / 1e6:.1f}"
            for name in ("even", "state", "whole", "unpacked", "fsdp_state")
        )
        print(
            f"{each['devices']:8}{even:>10}{state:>10}{whole:>10}{each['over']:9.3%}"
            f"{unpacked:>10}   {best} with {each['fsdp']}"
        )


if __name__ == "__main__":
    main()
