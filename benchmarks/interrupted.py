"""Two runs of the quick start, of which one is killed three times: the losses of every step, whether they are equal.

    python benchmarks/interrupted.py --json > docs/figures/resumed.json

The second run gets SIGKILL as soon as it has written some steps, and the same command starts it again; a checkpoint is
saved every `EVERY` steps. `done` are the steps that it had written when it was killed, `starts` those it started from.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

from saves import corpus_of

STEPS, EVERY, KILLS = 160, 20, (35, 70, 125)


def lines(workdir: str, name: str) -> list[dict]:
    """The complete lines of a file of the run."""
    path = pathlib.Path(workdir, name)
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def started(corpus: str, workdir: str) -> subprocess.Popen:
    """The command that starts a run and goes on with it."""
    keys = [f"data.corpus={corpus}", f"train.steps={STEPS}", f"checkpoint.every={EVERY}", "train.steps_per_dispatch=5",
            "evaluation.final=false", "optimizer.warmup_steps=20"]  # fmt: skip
    return subprocess.Popen([sys.executable, "-m", "xlnet_jax", "train", "--config=quickstart", f"--workdir={workdir}",
                             *(f"--config.{key}" for key in keys)], stdout=sys.stderr)  # fmt: skip


def measured() -> dict[str, list]:
    """See above."""
    with tempfile.TemporaryDirectory() as folder:
        corpus, whole, killed = corpus_of(folder, 2000), f"{folder}/whole", f"{folder}/killed"
        done = []
        for steps in KILLS:
            run = started(corpus, killed)
            while run.poll() is None and len(lines(killed, "metrics.jsonl")) < steps:
                time.sleep(0.05)
            run.kill()
            run.wait()
            done.append(len(lines(killed, "metrics.jsonl")))
        for workdir in (killed, whole):
            if started(corpus, workdir).wait():
                raise SystemExit(f"{workdir} did not end")
        losses = {name: [line["loss"] for line in lines(workdir, "metrics.jsonl")]
                  for name, workdir in (("whole", whole), ("killed", killed))}  # fmt: skip
        starts = [line["step"] for line in lines(killed, "runs.jsonl")][1:]
    return {**losses, "done": done, "starts": starts}


def main() -> None:
    """Prints the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    found = measured()
    equal = sum(a == b for a, b in zip(found["whole"], found["killed"], strict=True))
    print(json.dumps(found) if parser.parse_args().json else f"{equal} of {STEPS} losses are equal; {found['starts']}")


if __name__ == "__main__":
    main()
