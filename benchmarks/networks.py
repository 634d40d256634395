r"""How fast networks train beside each other: tokens per second of permutation language modelling,
on random batches, on the CPU, in one run.

    python benchmarks/networks.py configs/modern/small_plm.py "configs/compare/small.py \
      --config.model.layers=3 --config.model.d_ff=240 --config.model.memory_len=64"
    python benchmarks/networks.py --tiny          tiny sizes and one round, to try it

Each argument is a configuration file, with changes. All networks are in one process and take turns
of four steps, so that other work on the machine slows all of them down. Compilation and the first
steps are not in the figures. Columns:

  parameters          number of parameters
  flops               FLOPs of a step
  per_second          tokens per second: median of turns
  ratio               tokens per second, divided by the last network's: median over rounds
  per_cpu_second      tokens over CPU seconds of all turns, and `cpu_ratio` over the last network:
                      depend less on what else the machine does
"""

from __future__ import annotations

import argparse
import functools
import json
import os

import numpy as np
from _sides import STEPS, Ours
from _tiny import WORDS
from _turns import taken, timed

from xlnet_jax import config as configs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("networks", nargs="*", metavar="CONFIG")
    parser.add_argument("--rounds", type=int, default=15, help="of turns (default 15)")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes: the figures mean nothing")
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    args = parser.parse_args()
    if args.tiny:
        args.networks, args.rounds = [" ".join(["configs/quickstart.py", *WORDS])] * 2, 1
    elif not args.networks:
        parser.error("name a configuration file, with changes")
    corpus, sides, tokens = "--config.data.corpus=unread", [], []
    for path, *words in map(str.split, args.networks):
        config = configs.load(path, [corpus, *words])
        config = config.changed(train={"steps_per_dispatch": STEPS})
        sides.append(Ours(config, "cpu"))
        tokens.append(STEPS * config.train.batch_size * config.data.segment_len)
        for _ in range(2):
            sides[-1].steps()
    load = os.getloadavg()[0]
    runs = {index: functools.partial(timed, side.steps) for index, side in enumerate(sides)}
    turns = zip(*taken(runs, args.rounds).values(), strict=True)
    seconds = np.array([[turn[:2] for turn in each] for each in turns])  # [rounds, sides, 2]
    rates = np.array(tokens) / seconds[..., 0]
    by_cpu = args.rounds * np.array(tokens) / seconds[..., 1].sum(axis=0)
    wall, cpu = seconds.sum(axis=(0, 1))
    networks = [
        {
            "network": name.split()[0],
            "parameters": side.made.parameters,
            "flops": side.made.flops,
            "per_second": round(np.median(rates[:, index])),
            "ratio": round(np.median(rates[:, index] / rates[:, -1]), 3),
            "per_cpu_second": round(by_cpu[index]),
            "cpu_ratio": round(by_cpu[index] / by_cpu[-1], 3),
        }
        for index, (side, name) in enumerate(zip(sides, args.networks, strict=True))
    ]
    if not args.json:
        print(*(f"{column:>15}" for column in networks[0]))
        for each in networks:
            print(*(f"{value:>15}" for value in each.values()))
    how = {"cpu_per_wall": round(cpu / wall, 2), "load_average": [load, os.getloadavg()[0]]}
    print(json.dumps({"networks": networks, **how}))


if __name__ == "__main__":
    main()
