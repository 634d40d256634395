"""The benchmarks of orders and of order distributions ask what they say."""

import dataclasses
import importlib

import numpy as np
import pytest
import tiny

from xlnet_jax.config import DataConfig
from xlnet_jax.model.flops import step_flops


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.syspath_prepend(tiny.ROOT / "benchmarks")
    return importlib.import_module("order_toy")


def test_puzzles_have_one_solution(toy):
    grids = toy.grids()
    assert len(np.unique(grids, axis=0)) == len(grids) == 288
    rows = grids.reshape(-1, 4, 4) - toy.FIRST
    quarters = rows.reshape(-1, 2, 2, 2, 2).swapaxes(2, 3).reshape(-1, 4, 4)
    for parts in (rows, rows.swapaxes(1, 2), quarters):
        assert (np.sort(parts) == np.arange(4)).all()
    cells, unknown = toy.sudoku_to_solve(np.random.default_rng(1), 50)
    assert (unknown.sum(axis=1) == 16 - toy.CLUES).all()
    for cells_T, unknown_T in zip(cells, unknown, strict=True):
        assert ((grids == cells_T) | unknown_T).all(axis=1).sum() == 1
    drawn, _ = toy.sudoku(np.random.default_rng(1), 2000)
    assert not {tuple(grid) for grid in drawn} & {tuple(grid) for grid in cells}, "held out"
    cells, unknown = toy.sums(np.random.default_rng(1), 50)
    x, y = np.split(cells - toy.FIRST, 2, axis=1)
    assert (y[:, -1] == x[:, 0]).all() and (
        (y[:, :-1] - y[:, 1:] - x[:, :0:-1]) % toy.MODULUS == 0
    ).all()
    assert (unknown == (np.arange(2 * toy.TERMS) >= toy.TERMS)).all()


@pytest.fixture
def distributions(monkeypatch):
    monkeypatch.syspath_prepend(tiny.ROOT / "benchmarks")
    return importlib.import_module("order_distributions")


def test_distributions_have_equal_budgets(distributions):
    spans, *others = [
        distributions.config_of(distribution, "corpus", 2000, tiny=False)
        for distribution in distributions.DISTRIBUTIONS
    ]
    assert spans.train.steps == 2000 and spans.data.factorization_order == "spans"
    for config in others:
        budget = config.train.steps * step_flops(config)
        assert budget == pytest.approx(2000 * step_flops(spans), rel=0.005)
        assert config.model == spans.model and config.train.batch_size == spans.train.batch_size


def test_questions_ask_for_what_they_are_called(distributions):
    words = np.random.default_rng(3).random((500, distributions.WINDOW)) < 0.6
    unknown = {
        name: ~distributions.known_of(name, words, DataConfig()) for name in distributions.QUESTIONS
    }
    shares = {name: each.mean() for name, each in unknown.items()}
    assert shares == pytest.approx({"sixth": 1 / 6, "half": 0.5, "rest": 0.5, "all": 1}, abs=0.01)
    starts = {
        name: (each[:, 1:] & ~each[:, :-1]).sum() / each.sum() for name, each in unknown.items()
    }
    assert starts["half"] > 0.45 and starts["sixth"] < 0.6, (
        "single tokens would start at 0.5 and 0.83 of the places"
    )
    assert (unknown["rest"] == (np.arange(distributions.WINDOW) >= distributions.WINDOW // 2)).all()


def test_a_linker_stands_between_two_fragments(monkeypatch):
    monkeypatch.syspath_prepend(tiny.ROOT / "benchmarks")
    molecules = importlib.import_module("molecules")
    (fewest, most), side = molecules.LINKER, molecules.SIDE
    whole = [f"[{at}]" for at in range(40)]
    found = molecules.cut(
        [*(whole[:length] for length in range(fewest + 2 * side)), *[whole] * 200]
    )
    assert len(found) == 200 and {n for _, n, _ in found} == {*range(fewest, most + 1)}
    for left, n, right in found:
        start = left.count("[")
        assert min(start, right.count("[")) >= side
        assert left == "".join(whole[:start]) and right == "".join(whole[start + n :])


@pytest.mark.slow
@pytest.mark.production
def test_confidence_finds_the_easy_order_of_sums(toy, monkeypatch):
    """From left to right the sum of all comes first, which the model cannot guess: one of five. A
    filler that ignores the order, or a model that sees its targets, would solve as many in both
    orders.
    """
    monkeypatch.setattr(toy, "TERMS", 5)
    puzzle = dataclasses.replace(toy.PUZZLES["sums"], length=10)
    fill, _ = toy.trained(puzzle, 1000, 0)
    shares = toy.solved(fill, puzzle, 256, 0)
    assert (
        shares["left"] < 0.35
        and min(shares["reversed"], shares["confidence"]) > shares["left"] + 0.2
    ), shares
