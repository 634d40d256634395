"""Bytes of parameters and optimizer state that a device holds under `mesh.zero1`, by the number of devices.

    python benchmarks/split.py --config=configs/xlnet_large.py --json

From shapes alone: no device is used and nothing is compiled. In MB of one device:

  even      all of the state, divided by the number of devices
  state     what a device holds
  whole     of that, what every device holds: arrays of less than a hundredth of all elements
  padding   of that, zeros that make packed arrays divide
  over      what is split, with its padding, over an even split of the same arrays: 0.01 is 1 % more
  unpacked  what a device would hold if an array were split only along an axis that divides
  fsdp      the same of the best `mesh.fsdp` without zero1, and that
"""

from __future__ import annotations

import argparse
import json
import math
from typing import Any

import flax.linen as nn
import jax
from jax.sharding import AbstractMesh

from xlnet_jax.config import load
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.train import state as states
from xlnet_jax.train.recipe import Recipe, make_recipe

DEVICES = (6, 192, 256, 768, 2048, 4096)


def held(boxed: Any, data: int, fsdp: int, split: meshes.Split) -> tuple[int, int, int]:
    """Bytes on one device; of them those that all devices hold; and padding on all devices together."""
    grid = AbstractMesh((1, data, fsdp, 1), meshes.AXES)
    packed = meshes.pack(boxed, grid.shape, split)
    total = whole = 0
    shardings = meshes.shardings(packed, grid, split)
    for x, sharding in zip(jax.tree.leaves(packed), jax.tree.leaves(shardings), strict=True):
        size = math.prod(sharding.shard_shape(x.shape)) * x.dtype.itemsize
        total += size
        whole += 0 if meshes.row_split(sharding.spec) else size
    padding = sum(4 * (x.size - y.size) for x, y in zip(*map(jax.tree.leaves, (packed, boxed)), strict=True))
    return total, whole, padding


def row(recipe: Recipe, devices: int) -> dict[str, Any]:
    """The columns for one number of devices, in bytes."""
    boxed = jax.eval_shape(lambda: states.init_state(recipe))
    boxed = boxed.params, boxed.opt_state
    everything = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(nn.meta.unbox(boxed)))
    least = sum(x.size for x in jax.tree.leaves(boxed[0])) / 100
    packs = recipe.config.optimizer.name != "muon"
    state, whole, padding = held(boxed, devices, 1, meshes.Split(("data",), least, packs))
    unpacked, _, _ = held(boxed, devices, 1, meshes.Split(("data",), least, False))
    sizes = [size for size in range(1, devices + 1) if devices % size == 0]
    fsdp = min((held(boxed, devices // size, size, meshes.Split(("fsdp",), least, False))[0], size) for size in sizes)
    return {
        "devices": devices, "even": everything / devices, "state": state, "whole": whole, "padding": padding / devices,
        "over": (state - whole) / ((everything - whole) / devices) - 1 if everything > whole else None,
        "unpacked": unpacked, "fsdp_state": fsdp[0], "fsdp": fsdp[1],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="configs/xlnet_large.py")
    parser.add_argument("--devices", type=int, nargs="+", default=DEVICES)
    parser.add_argument("--json", action="store_true")
    args, overrides = parser.parse_known_args()
    recipe = make_recipe(load(args.config, overrides))
    rows = [row(recipe, devices) for devices in args.devices]
    if args.json:
        print(json.dumps(rows))
        return
    print(f"{'devices':>8}{'even':>10}{'state':>10}{'whole':>10}{'padding':>10}{'over':>9}{'unpacked':>10}   fsdp")
    for each in rows:
        columns = [f"{each[name] / 1e6:10.3f}" for name in ("even", "state", "whole", "padding")]
        over = "-" if each["over"] is None else f"{each['over']:.3%}"
        print(f"{each['devices']:8}{''.join(columns)}{over:>9}{each['unpacked'] / 1e6:10.3f}   "
              f"{each['fsdp_state'] / 1e6:.3f} with {each['fsdp']}")  # fmt: skip


if __name__ == "__main__":
    main()
