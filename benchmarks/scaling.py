"""What a training step of ours costs as one size grows: segment, memory, layers, batch, devices.

    python benchmarks/scaling.py [--json]                        on virtual CPU devices; some
                                                                 minutes
    python benchmarks/scaling.py --tiny                         tiny sizes, to try it

Every axis starts at the same small model and doubles one size. All variants take turns, so that
other work on the machine slows all of them down. `growth` is the median over rounds of the cost
over that of the variant before: 2 is linear. Devices are cores of one machine that share its
memory: more of them divide the batch and add communication, so a growth above 1 of CPU seconds is
the cost of the mesh.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import sys
from typing import Any

from _turns import taken, timed

DEVICES = 4
AXES = {
    "T": (128, 256, 512),
    "M": (96, 192, 384),
    "L": (2, 4, 8),
    "batch": (4, 8, 16),
    "devices": (1, 2, 4),
}
TINY = {"T": (16,), "M": (12,), "L": (1,), "batch": (4,), "devices": (1, 2)}


class Variant:
    """One compiled step and its state."""

    def __init__(self, sizes: dict[str, int], width: int) -> None:
        import jax
        from _sides import batches

        from xlnet_jax.config import Config, DataConfig, ModelConfig, OptimizerConfig, TrainConfig
        from xlnet_jax.distributed.mesh import make_mesh, place
        from xlnet_jax.train.recipe import make_recipe
        from xlnet_jax.train.step import build_step, create_state

        T = sizes["T"]
        config = Config(
            model=ModelConfig(
                vocab_size=1000,
                layers=sizes["L"],
                d_model=width,
                heads=width // 32,
                head_dim=32,
                d_ff=4 * width,
                memory_len=sizes["M"],
                compute_dtype="float32",
            ),
            data=DataConfig(segment_len=T, reuse_len=T // 2, num_predict=T // 6),
            optimizer=OptimizerConfig(warmup_steps=0),
            train=TrainConfig(batch_size=sizes["batch"], steps_per_dispatch=1),
        )
        recipe = make_recipe(config)
        self.mesh = make_mesh(config.mesh, jax.devices()[: sizes["devices"]])
        with jax.set_mesh(self.mesh):
            built = self.built = build_step(recipe, self.mesh)
            self.state = create_state(built)
            first = jax.tree.map(lambda x: x[:1], batches(config))
            self.batch = place(first, self.mesh)
            self.compiled = built.jitted.lower(self.state, self.batch, built.dropout_seed).compile()
        self.temp_bytes = self.compiled.memory_analysis().temp_size_in_bytes

    def step(self) -> None:
        import jax

        with jax.set_mesh(self.mesh):
            self.state, _ = jax.block_until_ready(
                self.compiled(self.state, self.batch, self.built.dropout_seed)
            )


def rows(axes: dict[str, tuple[int, ...]], width: int, rounds: int) -> list[dict[str, Any]]:
    """A row for every size of every axis, in order."""
    base, made = {name: sizes[0] for name, sizes in axes.items()}, {}
    wanted = [
        (axis, size, tuple((base | {axis: size}).items()))
        for axis, sizes in axes.items()
        for size in sizes
    ]
    for _, _, sizes in wanted:
        if sizes not in made:
            made[sizes] = Variant(dict(sizes), width)
            made[sizes].step()
            print(f"compiled: {dict(sizes)}", file=sys.stderr)
    runs = {sizes: functools.partial(timed, variant.step) for sizes, variant in made.items()}
    turns, result = taken(runs, rounds), []
    for axis, size, sizes in wanted:
        now = turns[sizes]
        before = (
            turns[tuple((base | {axis: result[-1]["size"]}).items())] if size > base[axis] else None
        )
        seconds, cpu, _ = zip(*now, strict=True)
        result.append(
            {
                "axis": axis,
                "size": size,
                "seconds": statistics.median(seconds),
                "spread": [min(seconds), max(seconds)],
                "cpu_seconds": statistics.median(cpu),
                "temp_bytes": made[sizes].temp_bytes,
                "growth": before
                and statistics.median(
                    a.cpu_seconds / b.cpu_seconds for a, b in zip(now, before, strict=True)
                ),
            }
        )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds", type=int, default=7, help="of one step of every variant (default 7)"
    )
    parser.add_argument("--tiny", action="store_true", help="tiny sizes: the figures mean nothing")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax

    jax.config.update("jax_num_cpu_devices", DEVICES)
    load = [os.getloadavg()[0]]
    result = {"rows": rows(TINY, 32, 1) if args.tiny else rows(AXES, 128, args.rounds)}
    load.append(os.getloadavg()[0])
    result |= {"cores": len(os.sched_getaffinity(0)), "load_average": load, "jax": jax.__version__}
    if args.json:
        print(json.dumps(result))
        return
    print(
        f"{'':8}{'size':>6}{'seconds':>10}{'smallest':>10}{'largest':>10}{'CPU s':>8}"
        f"{'growth':>8}{'temp MB':>9}"
    )
    for row in result["rows"]:
        growth = "" if row["growth"] is None else f"{row['growth']:.2f}"
        print(
            f"{row['axis']:8}{row['size']:6}{row['seconds']:10.3f}{row['spread'][0]:10.3f}"
            f"{row['spread'][1]:10.3f}{row['cpu_seconds']:8.3f}{growth:>8}"
            f"{row['temp_bytes'] / 1e6:9.1f}"
        )
    print({name: value for name, value in result.items() if name != "rows"})


if __name__ == "__main__":
    main()
