"""The tiny forms: sizes, text and corpus that `--tiny` takes, and all scripts of this folder run
with it.

    python benchmarks/_tiny.py [NAME ...]

Two scripts run at a time, each in a process that compiles as the tests do. A line for each says
what it took; of one that fails it shows the output, and the exit code is 1. The figures mean
nothing: what is tested is that there are any.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
LIBTPU = ("attention", "kernel_schedule", "loss", "topologies")
"""They compile for TPUs, with a library that ends the process on a flag for CPUs alone."""
SCRIPTS = sorted(path.stem for path in HERE.glob("*.py") if not path.name.startswith("_"))
VOCABULARY = 300
MODEL = {"layers": 1, "d_model": 16, "heads": 2, "head_dim": 8, "d_ff": 32}
LOG = {"tensorboard": False, "compilation_cache": os.environ.get("JAX_COMPILATION_CACHE_DIR", "")}
KEYS = {
    **{f"model.{name}": value for name, value in MODEL.items()},
    "model.vocab_size": VOCABULARY,
    "model.memory_len": 16,
    "data.segment_len": 32,
    "data.reuse_len": 16,
    "data.num_predict": 5,
    "train.batch_size": 2,
    "train.steps_per_dispatch": 1,
    "optimizer.warmup_steps": 1,
    "evaluation.blocks": 2,
    "evaluation.final": False,
    **{f"log.{name}": value for name, value in LOG.items()},
}
"""Of configs/quickstart.py: scripts with the same shapes share their compiled programs."""
WORDS = [f"--config.{name}={value}" for name, value in KEYS.items()]


def text(folder: str, files: int = 3) -> str:
    """A folder with some files of the quick start's text."""
    from xlnet_jax.commands.quickstart import speeches

    few = os.path.join(folder, "speeches")
    os.makedirs(few, exist_ok=True)
    for path in sorted(pathlib.Path(speeches()).glob("*.txt"))[:files]:
        shutil.copy(path, few)
    return few


def corpus(folder: str, **options: Any) -> str:
    """A corpus of it, with `options` of `prepare`."""
    from xlnet_jax.data.prepare.options import PrepareOptions
    from xlnet_jax.data.prepare.pipeline import prepare

    made = os.path.join(folder, "corpus")
    options = {"vocab_size": VOCABULARY, "heldout": 0.3} | options
    prepare(
        [text(folder)],
        made,
        PrepareOptions(document="file", sentences="punctuation", workers=1, **options),
    )
    return made


def run(name: str, environment: dict[str, str]) -> tuple[str, float, str | None]:
    """The seconds of a script, and why it failed, if it did: its output must end with JSON."""
    began = time.perf_counter()
    if name in LIBTPU:
        environment = environment | {"XLA_FLAGS": ""}
    done = subprocess.run(
        [sys.executable, HERE / f"{name}.py", "--tiny", "--json"],
        capture_output=True,
        text=True,
        env=environment,
    )
    why = None if done.returncode == 0 else f"exit code {done.returncode}"
    try:
        json.loads((done.stdout.splitlines() or [""])[-1])
    except ValueError:
        why = why or "the last line is no JSON"
    return name, time.perf_counter() - began, why and f"{why}\n{done.stdout}{done.stderr}"


def main(names: list[str]) -> int:
    """Runs all of them, or some."""
    sys.path.append(str(HERE.parent / "tests"))
    import compiling

    compiling.set_flags()
    failed, began = 0, time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")]),
            "JAX_PLATFORMS": "cpu",
            "XDG_CACHE_HOME": folder,
            "JAX_COMPILATION_CACHE_DIR": os.path.join(folder, "xlnet_jax"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
        }
        for name, seconds, why in pool.map(lambda name: run(name, environment), names or SCRIPTS):
            failed += why is not None
            print(f"{name:20} {seconds:5.1f} s  {why or 'passed'}", flush=True)
    print(
        f"{len(names or SCRIPTS) - failed} passed, {failed} failed in "
        f"{time.perf_counter() - began:.1f}s"
    )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
