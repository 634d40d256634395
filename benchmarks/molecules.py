"""Whole molecules in any order: the likelihood of a half by the number of orders, and linkers
between two given fragments.

    python benchmarks/molecules.py runs/molecules --trained=molecules --json
    python benchmarks/molecules.py --tiny              untrained models of made-up molecules,
                                                       without RDKit, to try it

Needs the extra `chemistry` (RDKit) and the runs of `compare` in that folder, `SYSTEM/SEED`:
docs/proteins_molecules.md has the command. `--trained` is a model with more training, of
configs/molecules.py. The questions are about the same held-out molecules for all runs; ten minutes.

  half       a random half of the pieces is unknown, in every fourth molecule. `plm` gives the log
             of the mean probability over K random orders, with K calls of the network; `mlm` gives
             its chain of masks in one random order, with a call for each unknown piece.
    bits_per_character   of the unknown characters, the mean over seeds
    error                standard error of it because of the K orders drawn, the mean over seeds
    calls, seconds       for one molecule; compiled programs, the median over seeds
  linker     6 to 10 pieces between two fragments are unknown, at least 4 from either end.
             `plm` fills them, given both sides; `clm` continues the left side by as many pieces,
             or fewer if the molecule ends, and the right side is appended. Both draw from left to
             right at temperature 1.
    valid                share of the molecules that RDKit reads, for each seed
    ended                share of the continuations of `clm` that end early
    trained              the shares of `--trained`, given both sides and given the left side alone,
                         and their difference with its 95 % interval over the molecules

`differences` are paired by seed, with intervals as in `compare`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from xlnet_jax import config as configs
from xlnet_jax.comparison.intervals import differences
from xlnet_jax.data import vocabulary
from xlnet_jax.data.batches import frames
from xlnet_jax.data.corpus.corpus import Corpus
from xlnet_jax.data.patterns import SMILES
from xlnet_jax.infer.options import Score
from xlnet_jax.infer.orders import any_order, checked_texts
from xlnet_jax.infer.score import Scorer
from xlnet_jax.library import Model, load

SYSTEMS = ("plm", "mlm", "clm")
CONFIGS = os.path.join(os.path.dirname(__file__), "..", "configs", "compare", "documents")
ORDERS = (1, 2, 4, 8, 16, 32, 64)
LINKER, SIDE = (6, 10), 4
TEXTS = ["CC(=O)Nc1ccc(O)cc1", "CN1CCC(CC1)OC(=O)c1ccccc1", "OCC1CCN(Cc2ccncc2)CC1"]
"""Of the tiny form."""


def known_halves(ids: list[list[int]]) -> list[np.ndarray]:
    """Which pieces of each molecule are known: a random half."""
    random = np.random.default_rng(0)
    return [random.permutation(len(each)) >= len(each) // 2 for each in ids]


def half(model: Model, ids: list[list[int]], orders: int) -> tuple[list[float], list[float], float]:
    """-log of the mean probability of a random half of each molecule, nats, its standard errors
    over the orders, and the seconds for all.
    """
    config, special, known = model.config, model.tokenizer.special, known_halves(ids)
    around = frames.pieces_around(config)
    texts = checked_texts(any_order(config), config.data.segment_len, ids, known, around)
    score = Scorer(
        any_order(config),
        model.params,
        special,
        config.data.segment_len,
        model.batch_size,
        frames.ids(config, special),
    )
    began = time.perf_counter()
    found = score.log_prob(texts, Score(order="random", orders=orders))
    seconds = time.perf_counter() - began
    nats = [-one.log_mean_exp for one in found]
    weights = [np.exp(one.joint_K - one.log_mean_exp) for one in found]
    return nats, [float(w_K.std() / math.sqrt(max(1, orders - 1))) for w_K in weights], seconds


def halves(models: dict[str, list[Model]], ids: list[list[int]], orders: Sequence[int]) -> Any:
    """The rows of `half`, and the differences between the first, the last and `mlm`."""
    rows, bits = dict[str, Any](), dict[str, dict[int, float]]()
    characters_V, _ = models["plm"][0].tokenizer.text_lengths()
    pairs = zip(ids, known_halves(ids), strict=True)
    characters = sum(characters_V[each][~known].sum() for each, known in pairs)
    unit = math.log(2) * int(characters)
    for name, system, K in [(f"plm, K={K}", "plm", K) for K in orders] + [("mlm", "mlm", 1)]:
        half(models[system][0], ids, K)  # compiles
        found = [half(model, ids, K) for model in models[system]]
        bits[name] = {seed: sum(nats) / unit for seed, (nats, _, _) in enumerate(found)}
        errors = [math.sqrt(sum(error**2 for error in each)) / unit for _, each, _ in found]
        calls = K if system == "plm" else statistics.mean(len(each) // 2 for each in ids)
        rows[name] = {
            "bits_per_character": statistics.mean(bits[name].values()),
            "error": statistics.mean(errors) if K > 1 else None,
            "calls": calls,
            "seconds": statistics.median(seconds for _, _, seconds in found) / len(ids),
        }
    first, *_, last, masked = bits
    return {
        "rows": rows,
        "differences": compared({name: bits[name] for name in (first, last, masked)}),
    }


def compared(values: dict[str, dict[int, float]]) -> list[dict[str, Any]]:
    return [each._asdict() for each in differences(values)]


def cut(pieces: list[list[str]]) -> list[tuple[str, int, str]]:
    """The left side, the number of unknown pieces and the right side of each molecule that is long
    enough.
    """
    random, found = np.random.default_rng(0), []
    for each in pieces:
        n = int(random.integers(*LINKER, endpoint=True))
        if (last := len(each) - n - SIDE) >= SIDE:
            start = int(random.integers(SIDE, last, endpoint=True))
            found.append(("".join(each[:start]), n, "".join(each[start + n :])))
    return found


def linked(model: Model, questions: list[tuple[str, int, str]], seed: int, both: bool) -> list[str]:
    """The molecules with their linkers, from both sides or from the left side alone."""
    if both:
        texts = [f"{left}[MASK:{n}]{right}" for left, n, right in questions]
        return [one.text for one in model.fill(texts, temperature=1, seed=seed)]
    answers = [""] * len(questions)
    for tokens in {n for _, n, _ in questions}:
        rows = [row for row, (_, n, _) in enumerate(questions) if n == tokens]
        new = model.generate([questions[row][0] for row in rows], tokens=tokens, seed=seed)
        for row, text in zip(rows, new, strict=True):
            answers[row] = questions[row][0] + text + questions[row][2]
    return answers


def valid(molecules: list[str]) -> list[bool]:
    """Which of them RDKit reads."""
    from rdkit import Chem, RDLogger

    RDLogger.DisableLog("rdApp.*")
    return [Chem.MolFromSmiles(text) is not None for text in molecules]


def one_network(model: Model, questions: list[tuple[str, int, str]]) -> dict[str, Any]:
    """The figures of `trained`."""
    both_N, left_N = (
        np.array(valid(linked(model, questions, 0, both)), float) for both in (True, False)
    )
    more_N = both_N - left_N
    mean = float(more_N.mean())
    width = 1.96 * float(more_N.std(ddof=1)) / math.sqrt(len(questions))
    return {
        "both": float(both_N.mean()),
        "left": float(left_N.mean()),
        "difference": [mean, mean - width, mean + width],
    }


def linkers(
    models: dict[str, list[Model]], pieces: list[list[str]], run: str | None, tiny: bool
) -> Any:
    """The figures of `linker`."""
    questions = cut(pieces)
    answers = {
        system: [linked(model, questions, seed, both) for seed, model in enumerate(models[system])]
        for system, both in (("plm", True), ("clm", False))
    }
    encode = models["clm"][0].tokenizer.encode
    ended = [
        len(encode(text)) < len(encode(left + right)) + n
        for texts in answers["clm"]
        for text, (left, n, right) in zip(texts, questions, strict=True)
    ]
    found = {"molecules": len(questions), "ended": statistics.mean(ended)}
    if tiny:
        return found
    shares = {
        name: {seed: statistics.mean(valid(texts)) for seed, texts in enumerate(each)}
        for name, each in answers.items()
    }
    return found | {
        "valid": shares,
        "valid_heldout": statistics.mean(valid(["".join(each) for each in pieces])),
        "differences": compared(shares),
        "trained": one_network(load(run, batch_size=64), questions) if run else None,
    }


def trained(folder: str) -> dict[str, list[Model]]:
    """The models of a comparison, by system; the number in the list is the seed."""
    seeds = sorted(
        int(name) for name in os.listdir(os.path.join(folder, "plm")) if name.isdecimal()
    )
    return {
        system: [load(os.path.join(folder, system, str(seed)), batch_size=64) for seed in seeds]
        for system in SYSTEMS
    }


def untrained(folder: str) -> dict[str, list[Model]]:
    """A tiny model of each system, with random parameters."""
    import _tiny
    import flax.linen as nn
    import jax

    from xlnet_jax.train.recipe import make_recipe

    path = os.path.join(folder, "vocabulary.json")
    counts = vocabulary.count(TEXTS, "pattern", SMILES)
    vocabulary.write_counted(path, "pattern", counts, None, True, SMILES)
    tokenizer = vocabulary.open_tokenizer(path)
    models = {}
    for system in SYSTEMS:
        config = configs.load(os.path.join(CONFIGS, f"{system}.py")).changed(
            model=_tiny.MODEL | {"vocab_size": tokenizer.vocab_size}
        )
        recipe = make_recipe(config)
        params = recipe.model.init(jax.random.key(0), recipe.example_batch(1))
        models[system] = [Model(config, tokenizer, nn.meta.unbox(params), 4)]
    return models


def heldout(corpus: str, count: int, longest: int) -> list[list[int]]:
    """The ids of held-out documents of at most `longest` pieces, evenly spaced."""
    split = Corpus(corpus, "heldout")
    lengths = split.lengths - 1  # without EOD
    starts = np.concatenate([[0], np.cumsum(split.lengths)[:-1]])
    fits = np.flatnonzero(lengths <= longest)
    chosen = fits[np.arange(count) * len(fits) // count]
    return [split.read(starts[[row]], int(lengths[row]))[0][0].tolist() for row in chosen]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", help="the work directory of `compare`")
    parser.add_argument("--trained", help="a work directory or a name for `load`")
    parser.add_argument("--json", action="store_true", help="print only the line of JSON")
    parser.add_argument(
        "--tiny", action="store_true", help="tiny sizes, to try it: the figures mean nothing"
    )
    parser.add_argument("--molecules", type=int, default=256)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if not given.tiny and not given.folder:
            parser.error("name the work directory of `compare`, or give --tiny")
        models = untrained(folder) if given.tiny else trained(given.folder)
    tokenizer, config = models["plm"][0].tokenizer, models["plm"][0].config
    if given.tiny:
        ids = [tokenizer.encode(text).tolist() for text in TEXTS]
    else:
        longest = config.data.segment_len - 2  # `mlm` reads CLS and SEP beside them
        ids = heldout(config.data.corpus, given.molecules, longest)
    pieces = [[tokenizer.pieces[id] for id in each] for each in ids]
    found = {
        "molecules": len(ids),
        "seeds": len(models["plm"]),
        "half": halves(models, ids[::4], ORDERS[:2] if given.tiny else ORDERS),
        "linker": linkers(models, pieces, given.trained, given.tiny),
    }
    if not given.json:
        for name, row in found["half"]["rows"].items():
            print(f"{name:10} " + "  ".join(f"{key} {value}" for key, value in row.items()))
        for each in found["half"]["differences"] + found["linker"].get("differences", []):
            print("{a} - {b}: {mean:.4f} [{low}, {high}], named: {named}".format(**each))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
