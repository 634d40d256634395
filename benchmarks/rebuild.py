"""What checkpoints without the memory cost, on the quick start: held-out loss, bytes and seconds.

    python benchmarks/rebuild.py --json
    python benchmarks/rebuild.py --tiny                        a tiny model, 6 steps and two runs,
                                                               to try it

Runs of `--steps` steps: one undisturbed; one that stops and resumes every `--every` steps with
`checkpoint.memory=rebuild`; and one that resumes with an empty memory instead. A second undisturbed
run, with another seed of the data and the memory in its checkpoints, shows how much two runs differ
anyway. The learning rate decays to 0 at `--steps`, and the whole held-out split is scored. A resume
from the last checkpoint but one compares the same parameters with the same batch: `after_a_resume`
are the training losses of the next step.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import pathlib
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterable
from typing import Any
from unittest import mock

import _tiny
from saves import corpus_of

DISPATCH = 5
"""Steps; stops are between dispatches."""
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
    """The evaluation of a run that stops at these steps and is started again, and
    `checkpoint_bytes`.
    """
    from xlnet_jax.commands.evaluate import evaluate
    from xlnet_jax.commands.train import train
    from xlnet_jax.config import load

    for stop in stops:
        train(load(PATH, list(words)), workdir, stop_at=stop)
    scores = evaluate(workdir)
    files = pathlib.Path(workdir, "checkpoints", str(scores["step"])).rglob("*")
    found = {name: scores[name] for name in ("heldout_loss", "loss_without_memory")}
    found["checkpoint_bytes"] = sum(path.stat().st_size for path in files if path.is_file())
    print(f"{workdir}: {found}", file=sys.stderr, flush=True)
    return found


def after_a_resume(undisturbed: str, words: list[str], step: int) -> dict[str, float]:
    """The loss of the segment after `step` with a carried, a rebuilt and an empty memory."""
    from xlnet_jax.commands.train import train
    from xlnet_jax.config import load
    from xlnet_jax.run.workdir import line_of

    losses = {"carried": line_of(undisturbed, "metrics", step + 1)["loss"]}
    for name, how in (("rebuilt", contextlib.nullcontext()), ("empty", nothing_rebuilt())):
        workdir = shutil.copytree(undisturbed, f"{undisturbed}_{name}")
        for later in pathlib.Path(workdir, "checkpoints").iterdir():
            if int(later.name) > step:
                shutil.rmtree(later)
        with how:
            train(load(PATH, words), workdir, stop_at=step + DISPATCH)
        losses[name] = line_of(workdir, "metrics", step + 1)["loss"]
    print(f"after a resume: {losses}", file=sys.stderr, flush=True)
    return losses


def nothing_rebuilt() -> contextlib.AbstractContextManager[Any]:
    """A resume without a saved memory starts with an empty one: as if no earlier segment had an
    effect.
    """
    from xlnet_jax.train import launch

    return mock.patch.object(launch, "_first_in_memory", lambda config, plan, step: step)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--tiny", action="store_true", help="tiny sizes, to try it: the figures mean nothing"
    )
    parser.add_argument(
        "--steps", type=int, default=300, help="of each run (default 300; the quick start has 800)"
    )
    parser.add_argument(
        "--every", type=int, default=25, help="steps between two starts (default 25)"
    )
    args = parser.parse_args()
    if args.tiny:
        args.steps, args.every = 6, 2
    from xlnet_jax.config import load

    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    log, rebuilds = logging.getLogger("xlnet_jax"), Rebuilds()
    log.setLevel(logging.INFO)
    log.addHandler(rebuilds)
    log.propagate = False
    once, often = (args.steps,), (*range(args.every, args.steps, args.every), args.steps)
    with tempfile.TemporaryDirectory() as folder:
        words = [
            f"--config.data.corpus={corpus_of(folder, load(PATH).model.vocab_size, args.tiny)}",
            f"--config.log.compilation_cache={folder}/cache",
            f"--config.train.steps={args.steps}",
            f"--config.checkpoint.every={args.every}",
            "--config.evaluation.final=false",
            f"--config.train.steps_per_dispatch={DISPATCH}",
            *(_tiny.WORDS if args.tiny else ()),
        ]
        rebuild = [*words, "--config.checkpoint.memory=rebuild"]
        runs = {
            "undisturbed": trained(f"{folder}/undisturbed", rebuild, once),
            "rebuild": trained(f"{folder}/rebuild", rebuild, often),
        }
        first, *later = rebuilds.seconds
        if not args.tiny:
            runs["other_seed"] = trained(
                f"{folder}/other_seed", [*words, "--config.seeds.data=2"], once
            )
            with nothing_rebuilt():
                runs["empty"] = trained(f"{folder}/empty", rebuild, often)
        losses = after_a_resume(f"{folder}/undisturbed", rebuild, often[-2])
    result = {
        "steps": args.steps,
        "starts": len(often),
        "rebuilds": 1 + len(later),
        "first_rebuild_seconds": first,
        "later_rebuild_seconds": statistics.median(later),
        **{f"{run}_{name}": value for run, found in runs.items() for name, value in found.items()},
        **{f"after_a_resume_{name}": loss for name, loss in losses.items()},
    }
    if args.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:32} {value:.4f}" if isinstance(value, float) else f"{name:32} {value}")


if __name__ == "__main__":
    main()
