"""Does it matter in which order a text is filled? Puzzles with easy and hard orders, solved in
each.

    python benchmarks/order_toy.py [--json] [--seeds=3] [--picture=FILE.svg]
        minutes on two cores
    python benchmarks/order_toy.py --tiny
        tiny sizes, to try it

A small permutation language model is trained on generated puzzles with any of their cells unknown:
a uniform number of them, from one to all, at random places and in a random order. Then the most
probable token is filled in, cell by cell.

  sums      x_1 .. x_6 below 5 are given, and after them stand y_6 .. y_1 with
            y_i = (x_1 + .. + x_i) mod 5, unknown. From left to right the sum of all comes first,
            which is hard; from right to left each y is the last one and an x. Who guesses the first
            sum and errs nowhere else solves one of 5.
  sudoku    4x4: each of 4 values once in each row, column and quarter. 6 of 16 cells are given, and
            only one grid fits them. No fixed order is easy: the easy cells depend on the puzzle. 48
            of the 288 grids are never trained on, and all puzzles are of these.

Figures:

  solved                   share of the puzzles without a wrong cell, by puzzle and order, for each
                           seed. A seed changes parameters and data, and the random orders; the
                           puzzles to solve are the same.
  mean, spread             over the seeds; the spread is the largest minus the smallest
  chance                   the share that guessing every cell would solve
  confidence_solves_more   whether order `confidence` solves more than `left` with every seed of
                           both puzzles
  loss                     nats per unknown token of the last training steps, mean over the seeds
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

ORDERS = ("left", "reversed", "random", "confidence")
FIRST = 9
"""The id of the first value: those below are pieces such as <pad>."""
DISPATCH = 50

TERMS, MODULUS = 6, 5
CLUES, HELDOUT_GRIDS = 6, 48


@dataclasses.dataclass(frozen=True)
class Puzzle:
    """A kind of puzzles. B of them are ids, int [B, T], and which cells may be unknown, bool [B,
    T].
    """

    length: int
    values: int
    layers: int
    steps: int
    learning_rate: float
    draw: Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]
    """For training."""
    ask: Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]
    """To be solved: all of these cells are unknown."""


def sums(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The terms, and their sums from the last to the first."""
    x_BN = rng.integers(0, MODULUS, (count, TERMS))
    y_BN = np.cumsum(x_BN, axis=1) % MODULUS
    cells_BT = FIRST + np.concatenate([x_BN, y_BN[:, ::-1]], axis=1)
    return cells_BT, np.broadcast_to(np.arange(2 * TERMS) >= TERMS, cells_BT.shape)


@functools.cache
def grids() -> np.ndarray:
    """All 288 grids, [288, 16]; the last `HELDOUT_GRIDS` are held out."""
    rows = np.array(list(itertools.permutations(range(4))))
    all_G44 = rows[np.array(list(itertools.product(range(len(rows)), repeat=4)))]
    quarters_G44 = all_G44.reshape(-1, 2, 2, 2, 2).swapaxes(2, 3).reshape(-1, 4, 4)
    whole_G = [
        (np.sort(each, axis=2) == np.arange(4)).all(axis=(1, 2))
        for each in (all_G44.swapaxes(1, 2), quarters_G44)
    ]
    found = all_G44[whole_G[0] & whole_G[1]].reshape(-1, 16)
    return FIRST + np.random.default_rng(0).permutation(found)


def sudoku(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Grids that are not held out."""
    cells_BT = rng.choice(grids()[:-HELDOUT_GRIDS], count)
    return cells_BT, np.ones(cells_BT.shape, bool)


def sudoku_to_solve(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Grids that are held out, with clues that no other of the 288 grids has."""
    cells, unknown = [], []
    while len(cells) < count:
        grid_T, unknown_T = rng.choice(grids()[-HELDOUT_GRIDS:]), rng.permutation(16) >= CLUES
        if (grids() == grid_T)[:, ~unknown_T].all(axis=1).sum() == 1:
            cells.append(grid_T)
            unknown.append(unknown_T)
    return np.array(cells), np.array(unknown)


PUZZLES = {
    "sums": Puzzle(2 * TERMS, MODULUS, 2, 2500, 3e-3, sums, sums),
    "sudoku": Puzzle(16, 4, 3, 2000, 4e-3, sudoku, sudoku_to_solve),
}


def uniform(rng: np.random.Generator, cells_BT: np.ndarray, free_BT: np.ndarray) -> Any:
    """A Batch that predicts some of the free cells: a uniform number, at random places and in a
    random order.
    """
    from xlnet_jax.batch import forward_text

    # The free cells come first, in a random order; the first U of them are unknown.
    order_BT = np.argsort(np.where(free_BT, rng.random(free_BT.shape), 2), axis=1)
    place_BT = np.argsort(order_BT, axis=1)
    unknown_B1 = rng.integers(1, free_BT.sum(axis=1, keepdims=True) + 1)
    rank_BT = np.where(place_BT < unknown_B1, place_BT, -1).astype(np.int32)
    slots = int(free_BT.sum(axis=1).max())
    used_BP = np.arange(slots) < unknown_B1
    position_BP = np.where(used_BP, np.argsort(rank_BT < 0, axis=1, kind="stable")[:, :slots], 0)
    target_BP = np.where(used_BP, np.take_along_axis(cells_BT, position_BP, axis=1), 0)
    batch = forward_text(
        cells_BT.astype(np.int32),
        rank_BT,
        np.zeros_like(rank_BT),
        position_BP.astype(np.int32),
        target_BP.astype(np.int32),
    )
    return dataclasses.replace(batch, target_weights=used_BP.astype(np.float32))


def config_of(puzzle: Puzzle, slots: int, steps: int, seed: int) -> Any:
    from xlnet_jax import config as configs

    return dataclasses.replace(
        configs.Config(),
        model=configs.ModelConfig(
            vocab_size=FIRST + puzzle.values,
            layers=puzzle.layers,
            d_model=64,
            heads=4,
            head_dim=16,
            d_ff=256,
            memory_len=0,
            init_std=0.1,
            dropout=0.0,
            attention_dropout=0.0,
            compute_dtype="float32",
        ),
        data=configs.DataConfig(
            objective="plm", segment_len=puzzle.length, reuse_len=puzzle.length, num_predict=slots
        ),
        optimizer=configs.OptimizerConfig(
            learning_rate=puzzle.learning_rate, warmup_steps=min(100, steps // 2), schedule="cosine"
        ),
        train=configs.TrainConfig(steps=steps, batch_size=64, steps_per_dispatch=DISPATCH),
        seeds=configs.SeedsConfig(init=seed),
    )


def trained(puzzle: Puzzle, steps: int, seed: int) -> tuple[Any, float]:
    """A Decoder of the trained model, and its loss at the end."""
    import jax

    from xlnet_jax.batch import stack
    from xlnet_jax.data.tokenizer import XLNET
    from xlnet_jax.distributed import mesh as meshes
    from xlnet_jax.infer.decoder import Decoder
    from xlnet_jax.infer.orders import any_order
    from xlnet_jax.train.recipe import make_recipe
    from xlnet_jax.train.step import build_step, create_state

    rng = np.random.default_rng(seed)
    slots = int(puzzle.draw(rng, 1)[1].sum())
    config = config_of(puzzle, slots, steps, seed)
    mesh = meshes.make_mesh(config.mesh, jax.devices()[:1])
    recipe = make_recipe(config)
    loss = float("nan")
    with jax.set_mesh(mesh):
        built = build_step(recipe, mesh)
        state = create_state(built)
        for _ in range(steps // DISPATCH):
            batches = stack([uniform(rng, *puzzle.draw(rng, built.rows)) for _ in range(DISPATCH)])
            state, metrics = built.jitted(state, meshes.place(batches, mesh), built.dropout_seed)
            loss = float(np.mean(jax.device_get(metrics["loss"])))
    return Decoder(any_order(config), state.params, XLNET, puzzle.length, batch_size=128), loss


def solved(fill: Any, puzzle: Puzzle, count: int, seed: int) -> dict[str, float]:
    """The share of `count` puzzles that each order solves."""
    from xlnet_jax.infer.options import Decoding

    cells_BT, unknown_BT = puzzle.ask(np.random.default_rng(0), count)
    texts = list(
        zip(np.where(unknown_BT, FIRST, cells_BT).astype(np.int32), ~unknown_BT, strict=True)
    )
    shares = {}
    for order in ORDERS:
        filled = fill(texts, Decoding(order=order, seed=seed))
        found_BT = np.stack([one.token_N for one in filled])
        shares[order] = float((found_BT == cells_BT).all(axis=1).mean())
    return shares


def run(seeds: int, count: int) -> dict[str, Any]:
    began = time.monotonic()
    shares: dict[str, dict[str, list[float]]] = {
        name: {order: [] for order in ORDERS} for name in PUZZLES
    }
    losses: dict[str, list[float]] = {name: [] for name in PUZZLES}
    for (name, puzzle), seed in itertools.product(PUZZLES.items(), range(seeds)):
        fill, loss = trained(puzzle, puzzle.steps, seed)
        losses[name].append(loss)
        for order, share in solved(fill, puzzle, count, seed).items():
            shares[name][order].append(share)
    asked = {
        name: puzzle.ask(np.random.default_rng(0), count)[1] for name, puzzle in PUZZLES.items()
    }
    return {
        "solved": shares,
        "mean": {
            name: {order: statistics.mean(each) for order, each in by.items()}
            for name, by in shares.items()
        },
        "spread": {
            name: {order: max(each) - min(each) for order, each in by.items()}
            for name, by in shares.items()
        },
        "chance": {
            name: float(PUZZLES[name].values ** -float(asked[name][0].sum())) for name in PUZZLES
        },
        "confidence_solves_more": all(
            best > left
            for by in shares.values()
            for best, left in zip(by["confidence"], by["left"], strict=True)
        ),
        "loss": {name: statistics.mean(each) for name, each in losses.items()},
        "puzzles": count,
        "seeds": seeds,
        "seconds": time.monotonic() - began,
    }


def table(found: dict[str, Any]) -> str:
    lines = [f"{'solved':10}" + "".join(f"{order:>22}" for order in ORDERS) + f"{'chance':>10}"]
    for name, mean in found["mean"].items():
        shares = [
            f"{mean[order]:.3f} (spread {found['spread'][name][order]:.3f})" for order in ORDERS
        ]
        lines.append(
            f"{name:10}"
            + "".join(f"{share:>22}" for share in shares)
            + f"{found['chance'][name]:10.0e}"
        )
    lines.append(f"confidence solves more than left: {found['confidence_solves_more']}")
    return "\n".join(lines)


def picture(found: dict[str, Any], path: str) -> None:
    """The share that each order solves; error lines reach from the worst seed to the best."""
    import _bars

    by = found["solved"]
    mean = {order: [found["mean"][name][order] for name in by] for order in ORDERS}
    ends = {
        order: [
            [mean[order][i] - min(by[name][order]) for i, name in enumerate(by)],
            [max(by[name][order]) - mean[order][i] for i, name in enumerate(by)],
        ]
        for order in ORDERS
    }
    hard = [1 / MODULUS if name == "sums" else None for name in by]
    _bars.draw(
        path,
        list(by),
        mean,
        ends,
        "share solved",
        "Puzzles solved by the order of filling",
        {"first sum guessed": hard},
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print only the line of JSON")
    parser.add_argument(
        "--tiny", action="store_true", help="one kind of puzzle, 50 steps and one seed, to try it"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--puzzles", type=int, default=512, help="of each kind, to be solved")
    parser.add_argument("--picture", help="an SVG file to write")
    given = parser.parse_args()
    if given.tiny:
        given.seeds, given.puzzles = 1, 4
        del PUZZLES["sudoku"]
        PUZZLES["sums"] = dataclasses.replace(PUZZLES["sums"], layers=1, steps=DISPATCH)
    found = run(given.seeds, given.puzzles)
    if given.picture:
        picture(found, given.picture)
    if not given.json:
        print(table(found))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
