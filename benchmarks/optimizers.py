"""Optimizers on the text of the quick start: held-out loss of the same model after the same steps,
by three seeds.

    python benchmarks/optimizers.py [--json] [--steps=300] [--seeds=3] [--workdir=FOLDER]
        a quarter of an hour
    python benchmarks/optimizers.py --tiny
        two steps of a tiny model, one rate of two, to try it

The model is that of configs/quickstart.py, with its schedule, batch and weight decay. The rate of
each optimizer is the best of four, factors of 2, with the first seed; so all had the same search. A
run that was made is not made again in the same FOLDER.

Figures:

  heldout_loss   nats per target, by optimizer: of each seed, their mean, and the largest minus the
                 smallest
  rates          with the first seed, by rate
  unigram        the cross-entropy of the same targets by how often each piece occurs
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import tempfile
from typing import Any

import _tiny

from xlnet_jax import config as configs
from xlnet_jax.commands.quickstart import HELDOUT, TOKENIZER_SAMPLE_BYTES, speeches
from xlnet_jax.commands.train import train
from xlnet_jax.data.prepare.options import PrepareOptions
from xlnet_jax.data.prepare.pipeline import prepare
from xlnet_jax.run import workdir as workdirs

CONFIG = pathlib.Path(__file__).resolve().parents[1] / "configs" / "quickstart.py"
RATES = {
    "adamw": (1e-3, 2e-3, 4e-3, 8e-3),
    "lamb": (2.5e-3, 5e-3, 1e-2, 2e-2),
    "muon": (2e-3, 4e-3, 8e-3, 1.6e-2),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--tiny", action="store_true", help="tiny sizes, to try it: the figures mean nothing"
    )
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workdir", help="by default a temporary folder")
    asked = parser.parse_args()
    if asked.tiny:
        asked.steps, asked.seeds = 2, 1
        del RATES["lamb"]
    with tempfile.TemporaryDirectory() as temporary:
        result = compare(asked.workdir or temporary, asked.steps, asked.seeds, asked.tiny)
    if asked.json:
        print(json.dumps(result))
        return
    print(f"{asked.steps} steps, unigram {result['unigram']:.3f}")
    print(f"{'':8}{'rate':>8}{'mean':>8}{'spread':>8}   seeds; rates with the first one")
    for name, found in result["optimizers"].items():
        seeds = " ".join(f"{loss:.3f}" for loss in found["heldout_loss"])
        rates = ", ".join(f"{rate}: {loss:.3f}" for rate, loss in found["rates"].items())
        numbers = f"{found['rate']:8g}{found['mean']:8.3f}{found['spread']:8.3f}"
        print(f"{name:8}{numbers}   {seeds}; {rates}")


def corpus_of(folder: str, vocab_size: int) -> str:
    corpus = os.path.join(folder, "corpus")
    prepare(
        [speeches()],
        corpus,
        PrepareOptions(
            document="file",
            sentences="punctuation",
            heldout=HELDOUT,
            vocab_size=vocab_size,
            sample_bytes=TOKENIZER_SAMPLE_BYTES,
        ),
    )
    return corpus


def compare(folder: str, steps: int, seeds: int, tiny: bool) -> dict[str, Any]:
    config = configs.load(str(CONFIG), _tiny.WORDS if tiny else [])
    corpus = _tiny.corpus(folder) if tiny else corpus_of(folder, config.model.vocab_size)
    config = config.changed(
        data={"corpus": corpus},
        train={"steps": steps},
        log={"tensorboard": False},
        checkpoint={"every": steps},
        evaluation={"final": True},
    )
    baselines = []

    def loss(name: str, rate: float, seed: int) -> float:
        of_run = config.changed(
            optimizer={"name": name, "learning_rate": rate},
            seeds={key: value + 10 * seed for key, value in vars(config.seeds).items()},
        )
        workdir = os.path.join(folder, f"{name}_{rate}_{seed}")
        train(of_run, workdir)
        scores = workdirs.line_of(workdir, "evaluations", steps)
        baselines.append(scores["unigram_cross_entropy"])
        return scores["heldout_loss"]

    optimizers = {}
    for name, rates in RATES.items():
        by_rate = {rate: loss(name, rate, 0) for rate in (rates[:1] if tiny else rates)}
        best = min(by_rate, key=lambda rate: by_rate[rate])
        losses = [by_rate[best], *(loss(name, best, seed) for seed in range(1, seeds))]
        optimizers[name] = {
            "rate": best,
            "rates": by_rate,
            "heldout_loss": losses,
            "mean": statistics.fmean(losses),
            "spread": max(losses) - min(losses),
        }
    return {"steps": steps, "unigram": baselines[0], "optimizers": optimizers}


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    main()
