"""Which order law for what? The same text, model and FLOPs with each, and questions about held-out windows.

    python benchmarks/order_laws.py [--json] [--folder=runs/order_laws] [--picture=FILE.svg]  half an hour on two cores
    python benchmarks/order_laws.py --quick                                                   tiny sizes, to try it

The text, the model and the optimizer are the quick start's (configs/quickstart.py), with more steps. A second start of
the same command continues in `--folder`. The sides read 64 fresh tokens of each row and step, with the 64 before them
as memory:

  spans        XLNet's law: segments of 128, of which 64 tokens are read a second time, with 21 targets in short spans
  uniform      segments of 64: any number of unknowns from one to all, at random places, in a random order
  left_within  the same unknowns in reading order; every other row is read reversed

A step of the last two predicts more and costs more, so they get fewer steps: the budget is FLOPs, which is what a user
pays. Fresh tokens differ by as much as the steps.

The questions are about windows of 64 tokens, without memory:

  sixth      a sixth is unknown, drawn by the law of spans
  half       a random half is unknown
  rest       the second half is unknown: the first one is continued
  all        everything is unknown

Figures, for each side, question and order (left, reversed, random: the mean of K random orders, best: the best of
these K for each window):

  nats                 per unknown token, of the joint likelihood; the mean over the windows
  bits_per_character   of the unknown characters
  error                standard error of `nats` over the windows
  gain, gain_error     nats per unknown token by which a side is better than `spans` in the same windows, and its
                       standard error
  order_spread         standard deviation over the K random orders, nats per unknown token; the mean over the windows
  budget               steps, FLOPs, fresh tokens, and seconds of the training of each side
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import tempfile
import time
from typing import Any

import numpy as np

WINDOW = 64
WHOLE = {"segment_len": WINDOW, "reuse_len": WINDOW, "num_predict": WINDOW}
LAWS: dict[str, dict[str, Any]] = {
    "spans": {},
    "uniform": {"orders": "uniform", **WHOLE},
    "left_within": {"orders": "left_within", **WHOLE},
}
"""Changes of the section `data`."""
QUESTIONS = ("sixth", "half", "rest", "all")
ORDERS = ("left", "reversed", "random", "best")
QUICK = {"layers": 1, "d_model": 32, "heads": 2, "head_dim": 16, "d_ff": 64}


def config_of(law: str, corpus: str, steps: int, quick: bool) -> Any:
    """The configuration of a side; `steps` are those of `spans`, and the others have as many FLOPs."""
    from xlnet_jax import config as configs
    from xlnet_jax.model.flops import step_flops

    base = configs.load(os.path.join(os.path.dirname(__file__), "..", "configs", "quickstart.py"))
    model = dataclasses.replace(base.model, **QUICK if quick else {})

    def of(law: str) -> Any:
        return dataclasses.replace(
            base,
            model=model,
            data=dataclasses.replace(base.data, corpus=corpus, **LAWS[law]),
            optimizer=dataclasses.replace(base.optimizer, warmup_steps=min(base.optimizer.warmup_steps, steps // 4)),
            evaluation=dataclasses.replace(base.evaluation, final=False),
        )

    found = of(law)
    equal = round(steps * step_flops(of("spans")) / step_flops(found))
    size = math.gcd(equal, steps) if quick else base.train.steps_per_dispatch
    equal = max(size, round(equal / size) * size)
    result = dataclasses.replace(
        found,
        train=dataclasses.replace(found.train, steps=equal, steps_per_dispatch=size),
        checkpoint=dataclasses.replace(found.checkpoint, every=equal, keep=1),
    )
    configs.check(result)
    return result


def known_of(question: str, word_start_BN: np.ndarray, data: Any) -> np.ndarray:
    """Which tokens of the windows are given, bool [B, N]."""
    from xlnet_jax.data.batches import spans

    B, N = word_start_BN.shape
    rng = np.random.default_rng(0)
    if question == "sixth":
        draws_BX = rng.random((B, spans.draws_needed(N, data.mask_alpha, data.mask_beta)))
        return ~spans.sample(word_start_BN, np.ones((B, N), bool), round(N / 6), draws_BX, max_span=data.max_span,
                             alpha=data.mask_alpha, beta=data.mask_beta, kind=data.spans)  # fmt: skip
    if question == "half":
        return np.argsort(rng.random((B, N)), axis=1) < N // 2
    return np.broadcast_to(np.arange(N) < (N // 2 if question == "rest" else 0), (B, N))


def answers(model: Any, windows_BN: np.ndarray, known_BN: np.ndarray, orders: int) -> dict[str, np.ndarray]:
    """The joint log-likelihood of each window, nats [B], under each of ORDERS; [K, B] under the random ones."""
    from xlnet_jax.infer.orders import any_order
    from xlnet_jax.infer.score import Scorer

    score = Scorer(any_order(model.config, "this model"), model.params, model.config.data.segment_len, batch_size=64)
    asked = windows_BN.tolist(), known_BN.tolist()
    found = {name: np.array([each.joint_K[0] for each in score.log_prob(*asked, name)]) for name in ORDERS[:2]}
    random_KB = np.array([each.joint_K for each in score.log_prob(*asked, "random", orders)]).T
    return {**found, "random": random_KB.mean(axis=0), "best": random_KB.max(axis=0), "each": random_KB}


def run(folder: str, steps: int, count: int, orders: int, quick: bool) -> dict[str, Any]:
    import xlnet_jax
    from xlnet_jax.commands.quickstart import HELDOUT, TOKENIZER_SAMPLE_BYTES, speeches
    from xlnet_jax.commands.train import train
    from xlnet_jax.data.corpus.corpus import Corpus
    from xlnet_jax.data.prepare.pipeline import prepare
    from xlnet_jax.model.flops import step_flops

    began = time.monotonic()
    corpus = os.path.join(folder, "corpus")
    prepare([speeches()], corpus, vocab_size=2000, document="file", sentences="punctuation", heldout=HELDOUT,
            sample_bytes=TOKENIZER_SAMPLE_BYTES)  # fmt: skip
    heldout = Corpus(corpus, "heldout")
    starts = np.linspace(0, heldout.tokens - WINDOW, count).astype(int)
    windows_BN, _ = heldout.read(starts, WINDOW)
    characters_V, _ = heldout.tokenizer.text_lengths()
    budget, joint, known = {}, {}, {}
    for law in LAWS:
        config = config_of(law, corpus, steps, quick)
        workdir = os.path.join(folder, f"{law}_{steps}")
        trained = train(config, workdir)
        budget[law] = {
            "steps": config.train.steps,
            "flops": config.train.steps * step_flops(config),
            "fresh_tokens": config.train.steps * config.train.batch_size * config.data.reuse_len,
            "seconds": trained["seconds"]["steps"],
        }
        model = xlnet_jax.load(workdir)
        for question in QUESTIONS:
            known[question] = known_of(question, heldout.tokenizer.word_start[windows_BN], config.data)
            joint[law, question] = answers(model, windows_BN, known[question], orders)
    rows = []
    for question in QUESTIONS:
        unknown_BN = ~known[question]
        tokens_B, characters = unknown_BN.sum(axis=1), characters_V[windows_BN][unknown_BN].sum()
        for order in ORDERS:
            nats = {law: -joint[law, question][order] / tokens_B for law in LAWS}
            gains = {law: nats["spans"] - each for law, each in nats.items() if law != "spans"}
            rows.append({
                "question": question,
                "order": order,
                "nats": {law: float(each.mean()) for law, each in nats.items()},
                "error": {law: float(each.std(ddof=1) / math.sqrt(count)) for law, each in nats.items()},
                "bits_per_character": {
                    law: float(-joint[law, question][order].sum() / math.log(2) / characters) for law in LAWS
                },
                "gain": {law: float(each.mean()) for law, each in gains.items()},
                "gain_error": {law: float(each.std(ddof=1) / math.sqrt(count)) for law, each in gains.items()},
            })  # fmt: skip
    spread = {
        question: {
            law: float((joint[law, question]["each"].std(axis=0) / (~known[question]).sum(axis=1)).mean())
            for law in LAWS
        }
        for question in QUESTIONS
    }
    return {
        "rows": rows,
        "order_spread": spread,
        "budget": budget,
        "windows": count,
        "orders": orders,
        "seconds": time.monotonic() - began,
    }


def table(found: dict[str, Any]) -> str:
    lines = ["nats per unknown token (bits per character), and by how much a law is better than spans"]
    lines.append(f"{'unknown':8}{'order':10}" + "".join(f"{law:>16}" for law in LAWS)
                 + "".join(f"{law + ' better by':>26}" for law in list(LAWS)[1:]))  # fmt: skip
    for row in found["rows"]:
        sides = [f"{row['nats'][law]:.3f} ({row['bits_per_character'][law]:.3f})" for law in LAWS]
        gains = [f"{gain:+.3f} +- {row['gain_error'][law]:.3f}" for law, gain in row["gain"].items()]
        lines.append(f"{row['question']:8}{row['order']:10}" + "".join(f"{side:>16}" for side in sides)
                     + "".join(f"{gain:>26}" for gain in gains))  # fmt: skip
    for law, each in found["budget"].items():
        lines.append(f"{law}: {each['steps']} steps, {each['flops']:.3g} FLOPs, {each['fresh_tokens']:,} fresh tokens, "
                     f"{each['seconds']:.0f} s")  # fmt: skip
    spreads = ", ".join(
        f"{question} " + "/".join(f"{by[law]:.3f}" for law in LAWS) for question, by in found["order_spread"].items()
    )
    lines.append(f"standard deviation over random orders, nats per unknown token ({'/'.join(LAWS)}): {spreads}")
    return "\n".join(lines)


def picture(found: dict[str, Any], path: str) -> None:
    """Nats per unknown token under random orders; error lines are standard errors over the windows."""
    import _bars

    rows = [row for row in found["rows"] if row["order"] == "random"]
    sides = [{law: [row[figure][law] for row in rows] for law in LAWS} for figure in ("nats", "error")]
    _bars.draw(path, [row["question"] for row in rows], *sides, "nats per unknown token",
               "Held-out windows by what is unknown and the law of training")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print only the line of JSON")
    parser.add_argument("--quick", action="store_true", help="a tiny model for 20 steps, to try it")
    parser.add_argument("--folder", help="of corpus and runs (default: a temporary one)")
    parser.add_argument("--steps", type=int, default=2000, help="of `spans`")
    parser.add_argument("--windows", type=int, default=256)
    parser.add_argument("--orders", type=int, default=8, help="K random orders")
    parser.add_argument("--picture", help="an SVG file to write")
    given = parser.parse_args()
    steps, count, orders = (20, 16, 2) if given.quick else (given.steps, given.windows, given.orders)
    with tempfile.TemporaryDirectory() as temporary:
        found = run(given.folder or temporary, steps, count, orders, given.quick)
    if given.picture:
        picture(found, given.picture)
    if not given.json:
        print(table(found))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
