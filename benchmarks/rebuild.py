"""What checkpoints without the memory cost, on the quick start: held-out loss, bytes and seconds.

    python benchmarks/rebuild.py --json

Runs of `--steps` steps: one undisturbed, with the memory in its checkpoints; one that stops and resumes every
`--every` steps with `checkpoint.memory=rebuild`; and one that resumes with an empty memory instead. A second
undisturbed run, with another seed of the data, shows how much two runs differ anyway. The learning rate decays to 0 at
`--steps`, and the whole held-out split is scored.
"""

from __future__ import annotations

import argparse
import json
import logging
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Iterable
from typing import Any
from unittest import mock

from saves import corpus_of

PATH = str(pathlib.Path(__file__).parent.parent / "configs" / "quickstart.py")


class Rebuilds(logging.Handler):
    """Keeps the seconds of each, from the log."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg.startswith("memory rebuilt"):
            *_, seconds = record.args
            self.seconds.append(seconds)


def trained(workdir: str, words: Iterable[str], stops: Iterable[int]) -> dict[str, Any]:
    """The evaluation of a run that stops at these steps and is started again, and `checkpoint_bytes`."""
    from xlnet_jax.commands.evaluate import evaluate
    from xlnet_jax.commands.train import train
    from xlnet_jax.config import load

    for stop in stops:
        train(load(PATH, list(words)), workdir, stop_at=stop)
    scores = evaluate(workdir)
    files = pathlib.Path(workdir, "checkpoints", str(scores["step"])).rglob("*")
    found = {name: scores[name] for name in ("loss", "loss_without_memory")}
    found["checkpoint_bytes"] = sum(path.stat().st_size for path in files if path.is_file())
    print(f"{workdir}: {found}", file=sys.stderr, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--steps", type=int, default=300, help="of each run (default 300; the quick start has 800)")
    parser.add_argument("--every", type=int, default=25, help="steps between two starts (default 25)")
    args = parser.parse_args()
    from xlnet_jax.config import load
    from xlnet_jax.train import resume

    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    log, rebuilds = logging.getLogger("xlnet_jax"), Rebuilds()
    log.setLevel(logging.INFO)
    log.addHandler(rebuilds)
    log.propagate = False
    once, often = (args.steps,), (*range(args.every, args.steps, args.every), args.steps)
    with tempfile.TemporaryDirectory() as folder:
        words = [
            f"--config.data.corpus={corpus_of(folder, load(PATH).model.vocab_size)}",
            f"--config.log.compilation_cache={folder}/cache", f"--config.train.steps={args.steps}",
            f"--config.checkpoint.every={args.every}", "--config.evaluation.final=false",
            # Stops are between dispatches.
            "--config.train.steps_per_dispatch=5",
        ]  # fmt: skip
        rebuild = [*words, "--config.checkpoint.memory=rebuild"]
        runs = {
            "undisturbed": trained(f"{folder}/undisturbed", words, once),
            "other_seed": trained(f"{folder}/other_seed", [*words, "--config.seeds.data=2"], once),
            "rebuild": trained(f"{folder}/rebuild", rebuild, often),
        }
        # As if no earlier segment had an effect.
        with mock.patch.object(resume, "_first_in_memory", lambda config, plan, step: step):
            runs["empty"] = trained(f"{folder}/empty", rebuild, often)
    first, *later = rebuilds.seconds
    result = {
        "steps": args.steps,
        "starts": len(often),
        "rebuilds": len(rebuilds.seconds),
        "first_rebuild_seconds": first,
        "later_rebuild_seconds": statistics.median(later),
        **{f"{run}_{name}": value for run, found in runs.items() for name, value in found.items()},
    }
    if args.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:32} {value:.4f}" if isinstance(value, float) else f"{name:32} {value}")


if __name__ == "__main__":
    main()
