"""How fast a network trains on whole documents in rows, beside `data.documents=joined`: tokens of
text per second, on the CPU, in one run.

    python benchmarks/documents.py [--corpus=DIR] [--segment_len=256] [--objectives plm] [--json]
    python benchmarks/documents.py --tiny              one objective, tiny sizes, to try it

Both sides train the same network (4 layers, width 128, float32, dropout, no memory) on the same
corpus with the same T, rows and target slots (P = R = T), in turns of four steps in one process.
Without a corpus the documents are made up: 20,000 with the lengths of molecules (`packing.py`), of
30 letters. Columns:

  text                share of the positions with a token of text, the rest is EOD and padding
  targets             targets per token of text
  build_ms            milliseconds to build the batch of a step, on one core, by itself
  step_ms             milliseconds of a step, with the wait for its batch: median of turns
  text_per_second     tokens of text that are trained on per second: median of turns
  ratio               of whole over joined: median over rounds
  text_per_cpu_second tokens of text over CPU seconds of all turns, and `cpu_ratio` of whole over
                      joined: depend less on what else the machine does
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from _sides import STEPS, Ours, dispatches
from _turns import Turn, taken, timed
from packing import lengths_of

from xlnet_jax.batch import NEVER, Batch
from xlnet_jax.config import Config, DataConfig, ModelConfig, TrainConfig, check
from xlnet_jax.data.batches.loader import prefetched
from xlnet_jax.data.corpus.corpus import Corpus

SIDES = {"joined": {"documents": "joined"}, "whole": {"documents": "whole", "pairs": "none"}}
OBJECTIVES = {"plm": {"factorization_order": "uniform"}, "clm": {"objective": "clm"}}
BUILT = 20
"""Dispatches that are built to measure it."""


def write_corpus(folder: str, documents: int) -> str:
    """A corpus of made-up molecules; its folder."""
    from xlnet_jax.data.prepare.options import PrepareOptions
    from xlnet_jax.data.prepare.pipeline import prepare

    random, (lengths, _) = np.random.default_rng(2), lengths_of("molecules", documents)
    path, corpus = (os.path.join(folder, name) for name in ("text.txt", "corpus"))
    with open(path, "w") as file:
        file.writelines(
            "".join(map(chr, random.integers(ord("A"), ord("A") + 30, n - 1))) + "\n"
            for n in lengths.tolist()
        )
    options = PrepareOptions(document="line", vocabulary="characters", heldout=0, workers=1)
    prepare([path], corpus, options)
    return corpus


class Side:
    """A network that trains on the documents of a corpus."""

    def __init__(self, corpus: str, data: dict[str, Any], args: argparse.Namespace):
        tokenizer, segment_len = Corpus(corpus).tokenizer, args.segment_len
        sizes = dict(layers=4, d_model=128, heads=4, head_dim=32, d_ff=512)
        if args.tiny:
            sizes = dict(layers=1, d_model=16, heads=2, head_dim=8, d_ff=32)
        rates = dict(dropout=args.dropout, attention_dropout=args.dropout)
        lengths = dict(segment_len=segment_len, reuse_len=segment_len, num_predict=segment_len)
        config = Config(
            model=ModelConfig(
                vocab_size=tokenizer.vocab_size,
                memory_len=0,
                compute_dtype="float32",
                **sizes,
                **rates,
            ),
            data=DataConfig(windows_per_block=1, **lengths, **data),
            train=TrainConfig(batch_size=2 if args.tiny else 8, steps_per_dispatch=STEPS),
        )
        check(config)
        self.text_ids = tokenizer.text_ids
        build = dispatches(config, corpus)
        example = build(0)  # makes the table of the rows
        began = time.perf_counter()
        for index in range(BUILT):
            build(1 + index)
        self.build_ms = (time.perf_counter() - began) / BUILT / STEPS * 1000
        self.batches = prefetched(build, config)
        self.ours = Ours(config, "cpu", example)
        self.positions = example.tokens.size
        for _ in range(2):
            self.turn()

    def turn(self) -> Turn:
        """Trains for a dispatch; the result has the tokens of text and the targets."""
        *took, batch = timed(self._train)
        text = np.isin(batch.tokens, self.text_ids) & (batch.rank != NEVER)
        return Turn(*took, (text.sum(), (batch.target_weights != 0).sum()))

    def _train(self) -> Batch:
        batch = next(self.batches)
        self.ours.steps(iter([batch]))
        return batch

    def columns(self, turns: list[Turn]) -> dict[str, float]:
        """The columns of one row."""
        seconds, cpu, counts = map(np.array, zip(*turns, strict=True))
        text, targets = counts.T
        return {
            "text": text.sum() / (self.positions * len(text)),
            "targets": targets.sum() / text.sum(),
            "build_ms": self.build_ms,
            "step_ms": float(np.median(seconds)) / STEPS * 1000,
            "text_per_second": float(np.median(text / seconds)),
            "text_per_cpu_second": text.sum() / cpu.sum(),
        }


def trained(corpus: str, objective: str, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The rows of the table for one objective."""
    sides = {
        name: Side(corpus, OBJECTIVES[objective] | documents, args)
        for name, documents in SIDES.items()
    }
    turns = taken({name: side.turn for name, side in sides.items()}, args.rounds)
    rates = {name: np.array([x.result[0] / x.seconds for x in turns[name]]) for name in SIDES}
    rows = {name: side.columns(turns[name]) for name, side in sides.items()}
    for documents, columns in rows.items():
        yield {
            "objective": objective,
            "documents": documents,
            "segment_len": args.segment_len,
            "dropout": args.dropout,
            **columns,
            "ratio": float(np.median(rates[documents] / rates["joined"])),
            "cpu_ratio": columns["text_per_cpu_second"] / rows["joined"]["text_per_cpu_second"],
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", help="folder of a corpus, in place of made-up documents")
    parser.add_argument("--objectives", nargs="+", choices=OBJECTIVES, default=list(OBJECTIVES))
    parser.add_argument("--dropout", type=float, default=0.1, help="everywhere (default 0.1)")
    parser.add_argument("--segment_len", type=int, default=256, help="T (default 256)")
    parser.add_argument("--rounds", type=int, default=15, help="of turns (default 15)")
    parser.add_argument(
        "--tiny", action="store_true", help="tiny sizes, to try it: the figures mean nothing"
    )
    parser.add_argument("--json", action="store_true", help="end with a line of JSON")
    args = parser.parse_args()
    if args.tiny:
        args.objectives, args.segment_len, args.rounds = ["plm"], 64, 1
    rows, load = [], os.getloadavg()[0]
    print(
        f"{'':12}{'text':>8}{'targets':>9}{'build_ms':>10}{'step_ms':>9}{'text_per_second':>17}"
        f"{'ratio':>7}{'text_per_cpu_second':>21}{'cpu_ratio':>11}"
    )
    with tempfile.TemporaryDirectory() as folder:
        corpus = args.corpus or write_corpus(folder, 1000 if args.tiny else 20_000)
        for objective in args.objectives:
            for row in trained(corpus, objective, args):
                rows.append(row)
                print(
                    "{objective:5}{documents:7}{text:8.2%}{targets:9.3f}{build_ms:10.2f}"
                    "{step_ms:9.1f}{text_per_second:17,.0f}{ratio:7.3f}"
                    "{text_per_cpu_second:21,.0f}{cpu_ratio:11.3f}".format(**row),
                    flush=True,
                )
    print(f"load average before and after: {load:.2f} {os.getloadavg()[0]:.2f}")
    if args.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
