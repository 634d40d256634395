"""Speed and memory of the data engine: text to corpus, corpus to batches.

    python benchmarks/data.py [--json] [--folder DIR]
    python benchmarks/data.py --tiny                  little text, of one package, to try it

Everything is measured in one run, all but `bucket_` in processes that may use one core. Figures:

  examples_per_second_per_core          examples of the published layout (T=512, R=256, 85 targets)
                                        from the corpus on disk to finished batches: pages,
                                        segments, spans, orders
  prepare_over_encode                   tokens per second of `prepare` with a given tokenizer /
                                        those of SentencePiece alone on the same lines: median of
                                        pairs measured one after the other
  prepare_tokens_per_second_per_core    the numerator of that ratio, median
  peak_rss_bytes_10mb, _200mb           peak memory of a `prepare` process on this much text, with a
                                        given tokenizer
  bucket_seconds_per_step               batches of 16 rows from a bucket that answers each request
                                        after 50 ms, through the loader as it is by default (four
                                        threads); and one after the other: _serial
  bucket_requests_per_step, bucket_bytes_per_request
  open_seconds, open_peak_rss_bytes     to open both splits of a corpus of 156,250 work units (10 TB
                                        of text in units of 64 MB) in a bucket that answers at once;
                                        with the bytes of its manifest, and how many requests read
                                        and list it

The text is 46 MB of real prose from two packages; for 200 MB it is repeated, which does not affect
memory.
"""

from __future__ import annotations

import argparse
import hashlib
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

# For fake_gcs.
sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests"))

PAIRS, TINY_PAIRS = 5, 1
BATCH = 64
STEPS = 24
UNITS, TINY_UNITS = 156_250, 10


def on_one_core(function, *arguments):
    """Calls a function of this module in a new process that may use one core."""
    with multiprocessing.get_context("spawn").Pool(1, pin) as pool:
        return pool.apply(function, arguments)


def pin() -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def prepare(text: str, output: str, tokenizer: str | None, **options) -> dict:
    from xlnet_jax.data.prepare.options import PrepareOptions
    from xlnet_jax.data.prepare.pipeline import prepare

    return prepare(
        [text],
        output,
        PrepareOptions(tokenizer=tokenizer, workers=1, **{"heldout": 0.01} | options),
    )


def pair(text: str, warm: str, folder: str, tokenizer: str) -> tuple[float, float]:
    """Tokens per second of SentencePiece on the lines of the text, and of `prepare` on its
    files.
    """
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=tokenizer)
    lines = []
    for name in sorted(os.listdir(text)):
        with open(os.path.join(text, name), encoding="utf-8") as file:
            lines += [line for line in file.read().split("\n") if line]
    prepare(warm, os.path.join(folder, "warm-corpus"), tokenizer)  # imports
    output = os.path.join(folder, "corpus")
    shutil.rmtree(output, ignore_errors=True)
    began = time.perf_counter()
    tokens = sum(map(len, processor.encode(lines, num_threads=1)))
    middle = time.perf_counter()
    manifest = prepare(text, output, tokenizer)
    end = time.perf_counter()
    prepared = sum(split["tokens"] for split in manifest["splits"].values())
    return tokens / (middle - began), prepared / (end - middle)


def text_of(folder: str, name: str, size: int, tiny: bool = False) -> str:
    path = os.path.join(folder, name)
    if not os.path.isdir(path):
        _texts.write(_texts.speeches() + ([] if tiny else _texts.reviews(folder)), path, size)
    return path


def dispatches(corpus: str, rows: int, **options):
    """Dispatches of one step, with the configuration that they are built with; `options` are those
    of `Corpus`.
    """
    import numpy as np

    from xlnet_jax.config import Config, DataConfig, ModelConfig, TrainConfig
    from xlnet_jax.data.batches.loader import TrainDispatches
    from xlnet_jax.data.batches.mixture import Mixture
    from xlnet_jax.data.batches.stream import extend_plan
    from xlnet_jax.data.corpus.corpus import Corpus

    mixture = Mixture((Corpus(corpus, **options),))
    config = Config(
        data=DataConfig(corpus=corpus, workers=0),
        model=ModelConfig(vocab_size=mixture.tokenizer.vocab_size),
        train=TrainConfig(batch_size=rows, steps_per_dispatch=1),
    )
    plan = extend_plan((), 0, rows, config.data.windows_per_block)
    return TrainDispatches(mixture, config, plan, np.arange(rows), 0, STEPS), config


def examples(corpus: str) -> tuple[float, float]:
    """Examples per second in one thread, with a cold and with a warm page cache."""
    from xlnet_jax.data.batches.loader import prefetched

    built, config = dispatches(corpus, BATCH)
    config = config.changed(data={"read_threads": 1})
    rates = []
    for _ in range(2):
        began = time.perf_counter()
        count = sum(batch.tokens.shape[1] for batch in prefetched(built, config))
        rates.append(count / (time.perf_counter() - began))
    return rates[0], rates[1]


def from_bucket(corpus: str, cache_bytes: int) -> dict[str, float]:
    """Batches of 16 rows from a bucket that answers each request after 50 ms, with few pages in
    memory.
    """
    import fake_gcs

    from xlnet_jax.data.batches.loader import prefetched

    with fake_gcs.serve() as server:
        for name in os.listdir(corpus):
            with open(os.path.join(corpus, name), "rb") as file:
                server.objects[f"bucket/corpus/{name}"] = file.read()
        built, config = dispatches("gs://bucket/corpus", 16, cache_bytes=cache_bytes)
        server.delay = 0.05
        seconds = []
        for read in (
            lambda: [built(step) for step in range(STEPS)],
            lambda: list(prefetched(built, config)),
        ):
            server.requests.clear()
            began = time.perf_counter()
            read()
            seconds.append((time.perf_counter() - began) / STEPS)
        ranges = [request[2].removeprefix("bytes=").split("-") for request in server.requests]
        return {
            "bucket_seconds_per_step": seconds[1],
            "bucket_seconds_per_step_serial": seconds[0],
            "bucket_requests_per_step": len(ranges) / STEPS,
            "bucket_bytes_per_request": statistics.mean(
                int(last) + 1 - int(first) for first, last in ranges
            ),
        }


def large_corpus(corpus: str, units: int) -> dict[str, float]:
    """Opens both splits of a corpus in a bucket, whose manifest is generated and whose shards exist
    in name only.
    """
    import fake_gcs
    import numpy as np

    from xlnet_jax.data.corpus import manifest as manifests
    from xlnet_jax.storage import files

    manifest = manifests.read_manifest(corpus)
    with fake_gcs.serve() as server:
        for split, entry in manifest["splits"].items():
            shard = entry["shards"][0] | {"bytes": 1}
            entry["shards"] = [
                shard | {"file": manifests.shard_name(split, i, units)} for i in range(units)
            ]
            entry |= {name: units for name in ("documents", "sentences", "paragraphs")}
            counts = np.zeros(manifest["tokenizer"]["vocab_size"], np.int64)
            counts[0] = units * shard["tokens"]
            data = files.array_bytes(counts)
            entry |= {
                "tokens": units * shard["tokens"],
                "token_counts_sha256": hashlib.sha256(data).hexdigest(),
            }
            server.objects[f"bucket/c/{entry['token_counts']}"] = data
            server.objects |= {f"bucket/c/{each['file']}": b"x" for each in entry["shards"]}
        manifest["sources"] = manifest["sources"][:1] * units
        manifest["sha256"] = manifests.content_hash(manifest)
        server.objects["bucket/c/manifest.json"] = files.to_json(manifest)
        server.objects["bucket/c/spiece.model"] = files.read(os.path.join(corpus, "spiece.model"))
        program = """
import time
from xlnet_jax.data.corpus.corpus import Corpus
began = time.perf_counter()
train = Corpus("gs://bucket/c")
heldout = Corpus("gs://bucket/c", "heldout", opened=train)
print("seconds:", time.perf_counter() - began, open("/proc/self/status").read())
"""
        environment = os.environ | server.environment()
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, env=environment
        )
        if done.returncode:
            sys.exit(f"the large corpus did not open: {done.stderr}")
        asked = [path for _, path, _ in server.requests]
        return {
            "open_seconds": float(re.findall(r"seconds: (\S+)", done.stdout)[0]),
            "open_peak_rss_bytes": int(re.findall(r"VmHWM:\s*(\d+) kB", done.stdout)[0]) * 1024,
            "open_listing_requests": sum("prefix=c" in path for path in asked),
            "open_manifest_reads": sum("manifest.json" in path for path in asked),
            "open_manifest_bytes": len(server.objects["bucket/c/manifest.json"]),
        }


def peak_memory(text: str, output: str, tokenizer: str) -> int:
    """Peak resident memory of the process of the command line, in bytes."""
    shutil.rmtree(output, ignore_errors=True)
    # Read by the process itself: the figure for its parent would include the parent's own memory
    # before the exec.
    program = (
        "import sys; from xlnet_jax import cli; cli.main(sys.argv[1:]); "
        "print(open('/proc/self/status').read())"
    )
    words = [
        "prepare",
        f"--input={text}",
        f"--output={output}",
        f"--tokenizer={tokenizer}",
        "--workers=1",
    ]
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True)
    if not os.path.exists(os.path.join(output, "manifest.json")):
        sys.exit(f"prepare did not finish: {done.stderr}")
    shutil.rmtree(output)
    return int(re.findall(r"VmHWM:\s*(\d+) kB", done.stdout)[0]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--tiny", action="store_true", help="tiny sizes, to try it: the figures mean nothing"
    )
    parser.add_argument(
        "--folder", help="folder for text and corpora (default: a temporary folder)"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or temporary
        os.makedirs(folder, exist_ok=True)
        share = 300 if args.tiny else 1
        text = text_of(folder, "text", 46_000_000 // share, args.tiny)
        warm = text_of(folder, "warm", 100_000, args.tiny)
        trained = os.path.join(folder, "trained")
        tiny = {"vocab_size": 1000, "heldout": 0.5} if args.tiny else {"vocab_size": 32000}
        prepare(text, trained, None, sample_bytes=20_000_000, **tiny)
        tokenizer = os.path.join(trained, "spiece.model")
        pairs = [
            on_one_core(pair, text, warm, folder, tokenizer)
            for _ in range(TINY_PAIRS if args.tiny else PAIRS)
        ]
        cold, warm = on_one_core(examples, trained)
        result = {
            "examples_per_second_per_core": cold,
            "examples_per_second_per_core_cached_pages": warm,
            "prepare_over_encode": statistics.median(
                prepared / encoded for encoded, prepared in pairs
            ),
            "prepare_tokens_per_second_per_core": statistics.median(
                prepared for _, prepared in pairs
            ),
            "encode_tokens_per_second_per_core": statistics.median(encoded for encoded, _ in pairs),
            **on_one_core(large_corpus, trained, TINY_UNITS if args.tiny else UNITS),
        }
        sharded = os.path.join(folder, "sharded")
        prepare(text, sharded, tokenizer, shard_bytes=2_000_000 // share)
        # In two threads at least: the bucket is one of them.
        result |= from_bucket(sharded, 2_000_000 // share)
        for name, size in (("10mb", 10_000_000), ("200mb", 200_000_000)):
            path = text_of(folder, name, size // share, args.tiny)
            result[f"peak_rss_bytes_{name}"] = peak_memory(
                path, os.path.join(folder, "memory"), tokenizer
            )
    if args.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:44} {value:,.3f}" if value < 100 else f"{name:44} {value:,.0f}")


if __name__ == "__main__":
    main()
