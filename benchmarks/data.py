"""Speed and memory of the data engine: text to corpus, corpus to batches.

    python benchmarks/data.py [--json] [--folder DIR]

Everything is measured in one run, in processes that may use one core. Figures:

  examples_per_second_per_core          examples of the published layout (T=512, R=256, 85 targets) from the corpus on
                                        disk to finished batches: pages, segments, spans, orders
  prepare_over_encode                   tokens per second of `prepare` with a given tokenizer / those of SentencePiece
                                        alone on the same lines: median of pairs measured one after the other
  prepare_tokens_per_second_per_core    the numerator of that ratio, median
  peak_rss_bytes_10mb, _200mb           peak memory of a `prepare` process on this much text, with a given tokenizer

The text is 46 MB of real prose from two packages; for 200 MB it is repeated, which does not affect memory.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import _texts

PAIRS = 5
BATCH = 64
STEPS = 24


def on_one_core(function, *arguments):
    """Calls a function of this module in a new process that may use one core."""
    with multiprocessing.get_context("spawn").Pool(1, pin) as pool:
        return pool.apply(function, arguments)


def pin() -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def prepare(text: str, output: str, tokenizer: str | None, **options) -> dict:
    from xlnet_jax.data.prepare.pipeline import prepare

    return prepare([text], output, tokenizer=tokenizer, heldout=0.01, workers=1, **options)


def pair(text: str, folder: str, tokenizer: str) -> tuple[float, float]:
    """Tokens per second of SentencePiece on the lines of the text, and of `prepare` on its files."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=tokenizer)
    lines = []
    for name in sorted(os.listdir(text)):
        with open(os.path.join(text, name), encoding="utf-8") as file:
            lines += [line for line in file.read().split("\n") if line]
    prepare(text_of(folder, "warm", 100_000), os.path.join(folder, "warm-corpus"), tokenizer)  # imports
    output = os.path.join(folder, "corpus")
    shutil.rmtree(output, ignore_errors=True)
    began = time.perf_counter()
    tokens = sum(map(len, processor.encode(lines, num_threads=1)))
    middle = time.perf_counter()
    manifest = prepare(text, output, tokenizer)
    end = time.perf_counter()
    prepared = sum(split["tokens"] for split in manifest["splits"].values())
    return tokens / (middle - began), prepared / (end - middle)


def text_of(folder: str, name: str, size: int) -> str:
    path = os.path.join(folder, name)
    if not os.path.isdir(path):
        _texts.write(_texts.speeches() + _texts.reviews(folder), path, size)
    return path


def examples(corpus: str) -> tuple[float, float]:
    """Examples per second, with a cold and with a warm page cache."""
    import numpy as np

    from xlnet_jax.config import Config, DataConfig, ModelConfig, TrainConfig
    from xlnet_jax.data.batches.loader import TrainDispatches, prefetched
    from xlnet_jax.data.batches.mixture import open_mixture
    from xlnet_jax.data.batches.stream import extend_plan

    with open(os.path.join(corpus, "manifest.json"), encoding="utf-8") as file:
        vocab_size = json.load(file)["tokenizer"]["vocab_size"]
    config = Config(
        data=DataConfig(corpus=corpus, read_threads=1, workers=0),
        model=ModelConfig(vocab_size=vocab_size),
        train=TrainConfig(batch_size=BATCH, steps_per_dispatch=1),
    )
    plan = extend_plan((), 0, BATCH, config.data.windows_per_block)
    rates = []
    mixture = open_mixture(config)
    for _ in range(2):
        dispatches = TrainDispatches(mixture, config, plan, np.arange(BATCH), 0, STEPS)
        began = time.perf_counter()
        count = sum(batch.tokens.shape[1] for batch in prefetched(dispatches, config))
        rates.append(count / (time.perf_counter() - began))
    return rates[0], rates[1]


def peak_memory(text: str, output: str, tokenizer: str) -> int:
    """Peak resident memory of the process of the command line, in bytes."""
    shutil.rmtree(output, ignore_errors=True)
    # Read by the process itself: the figure for its parent would include the parent's own memory before the exec.
    program = "import sys; from xlnet_jax import cli; cli.main(sys.argv[1:]); print(open('/proc/self/status').read())"
    words = ["prepare", f"--input={text}", f"--output={output}", f"--tokenizer={tokenizer}", "--workers=1"]
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True)
    if not os.path.exists(os.path.join(output, "manifest.json")):
        sys.exit(f"prepare did not finish: {done.stderr}")
    shutil.rmtree(output)
    return int(re.findall(r"VmHWM:\s*(\d+) kB", done.stdout)[0]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--folder", help="folder for text and corpora (default: a temporary folder)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or temporary
        os.makedirs(folder, exist_ok=True)
        text = text_of(folder, "text", 46_000_000)
        trained = os.path.join(folder, "trained")
        prepare(text, trained, None, vocab_size=32000, sample_bytes=20_000_000)
        tokenizer = os.path.join(trained, "spiece.model")
        pairs = [on_one_core(pair, text, folder, tokenizer) for _ in range(PAIRS)]
        cold, warm = on_one_core(examples, trained)
        result = {
            "examples_per_second_per_core": cold,
            "examples_per_second_per_core_cached_pages": warm,
            "prepare_over_encode": statistics.median(prepared / encoded for encoded, prepared in pairs),
            "prepare_tokens_per_second_per_core": statistics.median(prepared for _, prepared in pairs),
            "encode_tokens_per_second_per_core": statistics.median(encoded for encoded, _ in pairs),
        }
        for name, size in (("10mb", 10_000_000), ("200mb", 200_000_000)):
            path = text_of(folder, name, size)
            result[f"peak_rss_bytes_{name}"] = peak_memory(path, os.path.join(folder, "memory"), tokenizer)
    if args.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:44} {value:,.3f}" if value < 100 else f"{name:44} {value:,.0f}")


if __name__ == "__main__":
    main()
