"""How long saves block the training loop: the quick-start model, one save per 100 steps.

    python benchmarks/saves.py --json
    python benchmarks/saves.py --tiny                          a tiny model for 4 steps, to try it

A run of `--steps` steps on the text of the quick start. The seconds come from the run's own
accounting (`run/goodput.py`): the time in which the loop copies the state to the host, flushes
metrics, and waits for the writer of the previous save. The CPU seconds of the writer are measured
separately, with nothing else running: the CPU time of the process over some saves and waits.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import statistics
import sys
import tempfile
import time

import _tiny

EVERY = 100
SAVES = 5


def corpus_of(folder: str, vocab_size: int, tiny: bool = False) -> str:
    """Prepares the corpus of the quick start, or a `tiny` one."""
    if tiny:
        return _tiny.corpus(folder)
    from xlnet_jax.commands import quickstart
    from xlnet_jax.data.prepare.options import PrepareOptions
    from xlnet_jax.data.prepare.pipeline import prepare

    corpus = os.path.join(folder, "corpus")
    prepare(
        [quickstart.speeches()],
        corpus,
        PrepareOptions(
            vocab_size=vocab_size,
            document="file",
            sentences="punctuation",
            heldout=quickstart.HELDOUT,
            sample_bytes=quickstart.TOKENIZER_SAMPLE_BYTES,
        ),
    )
    return corpus


def writer_cpu_seconds(config, workdir: str) -> float:
    """CPU seconds of one save in all threads, from the copy to the last byte."""
    import jax

    from xlnet_jax.checkpoint.store import Checkpoints
    from xlnet_jax.config import CheckpointConfig
    from xlnet_jax.distributed.mesh import make_mesh
    from xlnet_jax.train.recipe import make_recipe
    from xlnet_jax.train.step import build_step, create_state

    mesh = make_mesh(config.mesh)
    with jax.set_mesh(mesh):
        recipe = make_recipe(config)
        trees = jax.block_until_ready(create_state(build_step(recipe, mesh))).split()
    spent = []
    with Checkpoints(workdir, CheckpointConfig(keep=2)) as checkpoints:
        for step in range(SAVES + 1):
            began = time.process_time()
            checkpoints.save(step, trees, {})
            checkpoints.wait()
            spent.append(time.process_time() - began)
    # The first save also imports modules and starts threads.
    return statistics.median(spent[1:])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--tiny", action="store_true", help="tiny sizes, to try it: the figures mean nothing"
    )
    parser.add_argument(
        "--steps", type=int, default=400, help="of the run; one save per 100 (default 400)"
    )
    parser.add_argument("--folder", help="folder for everything (default: a temporary folder)")
    args = parser.parse_args()
    from xlnet_jax.commands.train import train
    from xlnet_jax.config import load

    every, args.steps = (2, 4) if args.tiny else (EVERY, args.steps)

    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    configs = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "configs")
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or temporary
        os.makedirs(folder, exist_ok=True)
        vocab_size = load(os.path.join(configs, "quickstart.py")).model.vocab_size
        corpus = corpus_of(folder, vocab_size, args.tiny)
        run = os.path.join(folder, f"run{random.randrange(10**6)}")
        words = [
            f"--config.data.corpus={corpus}",
            f"--config.checkpoint.every={every}",
            *(_tiny.WORDS if args.tiny else ()),
        ]
        config = load(os.path.join(configs, "quickstart.py"), words)
        seconds = train(config, run, stop_at=args.steps)["seconds"]
        loop = seconds["steps"] + seconds["data"] + seconds["save"]
        result = {
            "steps": args.steps,
            "saves": -(-args.steps // every),
            "blocked_seconds": seconds["save"],
            "loop_seconds": loop,
            "blocked_share": seconds["save"] / loop,
            "writer_cpu_seconds_per_save": writer_cpu_seconds(config, os.path.join(run, "alone")),
        }
    if args.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:30} {value:.4f}" if isinstance(value, float) else f"{name:30} {value}")


if __name__ == "__main__":
    main()
