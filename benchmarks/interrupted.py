"""Two runs of the quick start, of which one is killed three times: the losses of every step,
whether they are equal.

    python benchmarks/interrupted.py --json > docs/figures/resumed.json
    python benchmarks/interrupted.py --tiny                    a tiny model, killed once, to try it

The second run gets SIGKILL as soon as it has written some steps, and the same command starts it
again; a checkpoint is saved every `EVERY` steps. `done` are the steps that it had written when it
was killed, `starts` those it started from.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import _tiny
from saves import corpus_of

STEPS, EVERY, KILLS = 160, 20, (35, 70, 125)
TINY = 100, 25, (30,)


def lines(workdir: str, name: str) -> list[dict]:
    """The complete lines of a file of the run."""
    path = pathlib.Path(workdir, name)
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def started(corpus: str, workdir: str, tiny: bool) -> subprocess.Popen:
    """The command that starts a run and goes on with it."""
    steps, every, _ = TINY if tiny else (STEPS, EVERY, KILLS)
    keys = [
        f"data.corpus={corpus}",
        f"train.steps={steps}",
        f"checkpoint.every={every}",
        "train.steps_per_dispatch=5",
        "evaluation.final=false",
        "optimizer.warmup_steps=20",
    ]
    words = [*(f"--config.{key}" for key in keys), *(_tiny.WORDS if tiny else ())]
    command = [
        sys.executable,
        "-m",
        "xlnet_jax",
        "train",
        "--config=quickstart",
        f"--workdir={workdir}",
        *words,
    ]
    return subprocess.Popen(command, stdout=sys.stderr)


def measured(tiny: bool) -> dict[str, list]:
    """See above."""
    with tempfile.TemporaryDirectory() as folder:
        corpus, whole, killed = corpus_of(folder, 2000, tiny), f"{folder}/whole", f"{folder}/killed"
        done = []
        for steps in TINY[2] if tiny else KILLS:
            run = started(corpus, killed, tiny)
            while run.poll() is None and len(lines(killed, "metrics.jsonl")) < steps:
                time.sleep(0.05)
            run.kill()
            run.wait()
            done.append(len(lines(killed, "metrics.jsonl")))
        for workdir in (killed, whole):
            if started(corpus, workdir, tiny).wait():
                raise SystemExit(f"{workdir} did not end")
        losses = {
            name: [line["loss"] for line in lines(workdir, "metrics.jsonl")]
            for name, workdir in (("whole", whole), ("killed", killed))
        }
        starts = [line["step"] for line in lines(killed, "runs.jsonl")][1:]
    return {**losses, "done": done, "starts": starts}


def main() -> None:
    """Prints the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tiny", action="store_true", help="tiny sizes, to try it: the figures mean nothing"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    given = parser.parse_args()
    found = measured(given.tiny)
    equal = sum(a == b for a, b in zip(found["whole"], found["killed"], strict=True))
    print(
        json.dumps(found)
        if given.json
        else f"{equal} of {len(found['whole'])} losses are equal; {found['starts']}"
    )


if __name__ == "__main__":
    main()
