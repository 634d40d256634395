"""Which order distribution for what? The same text, model and FLOPs with each, and questions about
held-out windows.

    python benchmarks/order_distributions.py [--json] [--seeds=3] [--picture=FILE.svg]
                                             [--folder=runs/order_distributions]
    python benchmarks/order_distributions.py --tiny      tiny sizes, to try it

The text, the model and the optimizer are the quick start's (configs/quickstart.py), with more
steps. A seed takes ten minutes on two cores, and the same command, started again, continues in
`--folder`. The sides read 64 fresh tokens of each row and step, with the 64 before them as memory:

  spans        XLNet's distribution: segments of 128, of which 64 tokens are read a second time,
               with 21 targets in short spans
  uniform      segments of 64: any number of unknowns from one to all, at random places, in a random
               order
  left_within  the same unknowns in reading order; every other row is read reversed

A step of the last two predicts more and costs more, so they get fewer steps: the budget is FLOPs,
which is what a user pays. Fresh tokens differ by as much as the steps.

The questions are about windows of 64 tokens, without memory:

  sixth      a sixth is unknown, drawn by the distribution of spans
  half       a random half is unknown
  rest       the second half is unknown: the first one is continued
  all        everything is unknown

Figures, for each side, question and order (left, reversed, random: the mean of K random orders,
best: the best of these K for each window):

  nats                 per unknown token, of the joint likelihood; the mean over the windows and
                       seeds
  bits_per_character   of the unknown characters
  error                standard error of `nats` over the windows
  gain                 nats per unknown token by which a side is better than `spans` in the same
                       windows, for each seed
  gain_error           standard error of the mean gain over the windows
  order_spread         standard deviation over the K random orders, nats per unknown token; the mean
                       over the windows
  budget               steps, FLOPs, fresh tokens, and seconds of the training of each side
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import tempfile
import time
from typing import Any

import _tiny
import numpy as np

WINDOW = 64
WHOLE = {"segment_len": WINDOW, "reuse_len": WINDOW, "num_predict": WINDOW}
DISTRIBUTIONS: dict[str, dict[str, Any]] = {
    "spans": {},
    "uniform": {"factorization_order": "uniform", **WHOLE},
    "left_within": {"factorization_order": "left_within", **WHOLE},
}
"""Changes of the section `data`."""
QUESTIONS = ["sixth", "half", "rest", "all"]
ORDERS = ("left", "reversed", "random", "best")
TINY = {
    "layers": 1,
    "d_model": 32,
    "heads": 2,
    "head_dim": 16,
    "d_ff": 64,
    "vocab_size": _tiny.VOCABULARY,
}


def config_of(distribution: str, corpus: str, steps: int, tiny: bool, seed: int = 0) -> Any:
    """The configuration of a side; `steps` are those of `spans`, and the others have as many
    FLOPs.
    """
    from xlnet_jax import config as configs
    from xlnet_jax.model.flops import step_flops

    base = configs.load(os.path.join(os.path.dirname(__file__), "..", "configs", "quickstart.py"))

    def of(distribution: str) -> Any:
        return base.changed(
            model=TINY if tiny else {},
            log=_tiny.LOG if tiny else {},
            data={"corpus": corpus, **DISTRIBUTIONS[distribution]},
            optimizer={"warmup_steps": min(base.optimizer.warmup_steps, steps // 4)},
            evaluation={"final": False},
            seeds={"init": base.seeds.init + seed, "data": base.seeds.data + seed},
        )

    found = of(distribution)
    equal = round(steps * step_flops(of("spans")) / step_flops(found))
    size = math.gcd(equal, steps) if tiny else base.train.steps_per_dispatch
    equal = max(size, round(equal / size) * size)
    result = found.changed(
        train={"steps": equal, "steps_per_dispatch": size}, checkpoint={"every": equal, "keep": 1}
    )
    configs.check(result)
    return result


def known_of(question: str, word_start_BN: np.ndarray, data: Any) -> np.ndarray:
    """Which tokens of the windows are given, bool [B, N]."""
    from xlnet_jax.data.batches import spans

    B, N = word_start_BN.shape
    rng = np.random.default_rng(0)
    if question == "sixth":
        draws_BX = rng.random((B, spans.draws_needed(N, data)))
        every_BN = np.ones((B, N), bool)
        goal = round(N / 6)
        return ~spans.sample(word_start_BN, every_BN, goal, draws_BX, data, data.spans, N)
    if question == "half":
        return np.argsort(rng.random((B, N)), axis=1) < N // 2
    return np.broadcast_to(np.arange(N) < (N // 2 if question == "rest" else 0), (B, N))


def answers(
    model: Any, windows_BN: np.ndarray, known_BN: np.ndarray, orders: int
) -> dict[str, np.ndarray]:
    """The joint log-likelihood of each window, nats [B], under each of ORDERS.

    `spread` is the standard deviation over the random orders, nats per unknown token.
    """
    from xlnet_jax.infer.options import Score
    from xlnet_jax.infer.orders import any_order, checked_texts
    from xlnet_jax.infer.score import Scorer

    T, scored = model.config.data.segment_len, any_order(model.config)
    score = Scorer(scored, model.params, model.tokenizer.special, T, batch_size=64)
    texts = checked_texts(scored, T, windows_BN, known_BN)
    found = {
        name: np.array([each.joint_K[0] for each in score.log_prob(texts, Score(order=name))])
        for name in ORDERS[:2]
    }
    random_KB = np.array(
        [each.joint_K for each in score.log_prob(texts, Score(order="random", orders=orders))]
    ).T
    spread_B = random_KB.std(axis=0) / (~known_BN).sum(axis=1)
    return {
        **found,
        "random": random_KB.mean(axis=0),
        "best": random_KB.max(axis=0),
        "spread": spread_B,
    }


def run(folder: str, steps: int, seeds: int, count: int, orders: int, tiny: bool) -> dict[str, Any]:
    import xlnet_jax
    from xlnet_jax.commands.quickstart import HELDOUT, TOKENIZER_SAMPLE_BYTES, speeches
    from xlnet_jax.commands.train import train
    from xlnet_jax.data.corpus.corpus import Corpus
    from xlnet_jax.data.prepare.options import PrepareOptions
    from xlnet_jax.data.prepare.pipeline import prepare
    from xlnet_jax.model.flops import step_flops

    began = time.monotonic()
    corpus = os.path.join(folder, "corpus")
    if tiny:
        _tiny.corpus(folder)
    else:
        prepare(
            [speeches()],
            corpus,
            PrepareOptions(
                vocab_size=2000,
                document="file",
                sentences="punctuation",
                heldout=HELDOUT,
                sample_bytes=TOKENIZER_SAMPLE_BYTES,
            ),
        )
    heldout = Corpus(corpus, "heldout")
    starts = np.linspace(0, heldout.tokens - WINDOW, count).astype(int)
    windows_BN, _ = heldout.read(starts, WINDOW)
    budget: dict[str, Any] = {}
    known: dict[str, np.ndarray] = {}
    # Of each distribution and question, one dictionary for each seed.
    joint: dict[tuple[str, str], list[dict[str, np.ndarray]]] = {}
    for seed, distribution in itertools.product(range(seeds), DISTRIBUTIONS):
        config = config_of(distribution, corpus, steps, tiny, seed)
        workdir = os.path.join(folder, f"{distribution}_{steps}_{seed}")
        trained = train(config, workdir)
        budget.setdefault(
            distribution,
            {
                "steps": config.train.steps,
                "flops": config.train.steps * step_flops(config),
                "fresh_tokens": config.train.steps
                * config.train.batch_size
                * config.data.reuse_len,
                "seconds": [],
            },
        )["seconds"].append(trained["seconds"]["steps"])
        model = xlnet_jax.load(workdir)
        for question in QUESTIONS:
            known[question] = known_of(
                question, heldout.tokenizer.word_start[windows_BN], config.data
            )
            joint.setdefault((distribution, question), []).append(
                answers(model, windows_BN, known[question], orders)
            )
    characters_V, _ = heldout.tokenizer.text_lengths()
    rows = []
    for question, order in itertools.product(QUESTIONS, ORDERS):
        unknown_BN = ~known[question]
        characters = characters_V[windows_BN][unknown_BN].sum()
        nats = {
            distribution: -np.stack([each[order] for each in joint[distribution, question]])
            for distribution in DISTRIBUTIONS
        }
        per_token = {
            distribution: nats_SB / unknown_BN.sum(axis=1) for distribution, nats_SB in nats.items()
        }
        gains = {
            distribution: per_token["spans"] - per_SB
            for distribution, per_SB in per_token.items()
            if distribution != "spans"
        }
        rows.append(
            {
                "question": question,
                "order": order,
                "nats": {
                    distribution: float(per_SB.mean()) for distribution, per_SB in per_token.items()
                },
                "error": {
                    distribution: error(per_SB) for distribution, per_SB in per_token.items()
                },
                "bits_per_character": {
                    distribution: float(nats_SB.mean(axis=0).sum() / math.log(2) / characters)
                    for distribution, nats_SB in nats.items()
                },
                "gain": {
                    distribution: gain_SB.mean(axis=1).tolist()
                    for distribution, gain_SB in gains.items()
                },
                "gain_error": {
                    distribution: error(gain_SB) for distribution, gain_SB in gains.items()
                },
            }
        )
    return {
        "rows": rows,
        "order_spread": {
            question: {
                distribution: float(
                    np.mean([each["spread"] for each in joint[distribution, question]])
                )
                for distribution in DISTRIBUTIONS
            }
            for question in QUESTIONS
        },
        "budget": budget,
        "windows": count,
        "orders": orders,
        "seconds": time.monotonic() - began,
    }


def error(values_SB: np.ndarray) -> float:
    """The standard error over the windows, of the means over the seeds."""
    return float(values_SB.mean(axis=0).std(ddof=1) / math.sqrt(values_SB.shape[1]))


def table(found: dict[str, Any]) -> str:
    lines = [
        (
            "nats per unknown token (bits per character), "
            "and by how much a distribution is better than spans with each seed"
        )
    ]
    lines.append(
        f"{'unknown':8}{'order':10}"
        + "".join(f"{distribution:>16}" for distribution in DISTRIBUTIONS)
        + "".join(f"{distribution + ' better by':>32}" for distribution in list(DISTRIBUTIONS)[1:])
    )
    for row in found["rows"]:
        sides = [
            f"{row['nats'][distribution]:.3f} ({row['bits_per_character'][distribution]:.3f})"
            for distribution in DISTRIBUTIONS
        ]
        gains = [
            " ".join(f"{gain:+.3f}" for gain in each) + f" +- {row['gain_error'][distribution]:.3f}"
            for distribution, each in row["gain"].items()
        ]
        lines.append(
            f"{row['question']:8}{row['order']:10}"
            + "".join(f"{side:>16}" for side in sides)
            + "".join(f"{gain:>32}" for gain in gains)
        )
    for distribution, each in found["budget"].items():
        lines.append(
            f"{distribution}: {each['steps']} steps, {each['flops']:.3g} FLOPs, "
            f"{each['fresh_tokens']:,} fresh tokens, "
            + ", ".join(f"{seconds:.0f} s" for seconds in each["seconds"])
        )
    spreads = ", ".join(
        f"{question} " + "/".join(f"{by[distribution]:.3f}" for distribution in DISTRIBUTIONS)
        for question, by in found["order_spread"].items()
    )
    lines.append(
        "standard deviation over random orders, "
        f"nats per unknown token ({'/'.join(DISTRIBUTIONS)}): {spreads}"
    )
    return "\n".join(lines)


def picture(found: dict[str, Any], path: str) -> None:
    """By how much each distribution is better than spans, in two orders; error lines are standard
    errors over the windows.
    """
    import _bars

    heights, errors = {}, {}
    for distribution, order in itertools.product(list(DISTRIBUTIONS)[1:], ("left", "random")):
        rows = [row for row in found["rows"] if row["order"] == order]
        heights[f"{distribution}, {order}"] = [
            float(np.mean(row["gain"][distribution])) for row in rows
        ]
        errors[f"{distribution}, {order}"] = [row["gain_error"][distribution] for row in rows]
    _bars.draw(
        path,
        QUESTIONS,
        heights,
        errors,
        "nats per unknown token",
        "Gain over the distribution spans, by what is unknown",
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print only the line of JSON")
    parser.add_argument(
        "--tiny",
        action="store_true",
        help="two distributions and one question, with a tiny model for 4 steps, to try it",
    )
    parser.add_argument("--folder", help="of corpus and runs (default: a temporary one)")
    parser.add_argument("--steps", type=int, default=2000, help="of `spans`")
    parser.add_argument("--seeds", type=int, default=1, help="of parameters and data")
    parser.add_argument("--windows", type=int, default=256)
    parser.add_argument("--orders", type=int, default=8, help="K random orders")
    parser.add_argument("--picture", help="an SVG file to write")
    given = parser.parse_args()
    steps, count, orders = (4, 4, 2) if given.tiny else (given.steps, given.windows, given.orders)
    if given.tiny:
        del DISTRIBUTIONS["left_within"], QUESTIONS[1:]
    with tempfile.TemporaryDirectory() as temporary:
        found = run(given.folder or temporary, steps, given.seeds, count, orders, given.tiny)
    if given.picture:
        picture(found, given.picture)
    if not given.json:
        print(table(found))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
