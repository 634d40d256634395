"""Packing whole documents into rows, `data.documents=whole`: seconds, memory, and how full the rows
are.

    python benchmarks/packing.py [--documents=60_000_000] [--json]
    python benchmarks/packing.py --corpus=DIR --segment_len 1024 512 --frame=1
    python benchmarks/packing.py --tiny                                few documents, to try it

Without a corpus the lengths are made up: log-normal, with mean and spread of the 20,000 proteins of
Debian's `mmseqs2-examples` and of the characters of molecules of PyPI's `molsets`. Every token is a
target. A separate process computes each row of the table. Columns:

  documents, pieces   pieces are more, because long documents are cut
  seconds             to make the table, on one core
  gigabytes           peak memory of the process, with the lengths
  table               megabytes of the table without the lengths
  rows                of an epoch
  fill                the share of positions with text or the tokens around it
  row_ms              milliseconds to read the pieces of a row, in random order
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import pickle
import re
import time
from typing import Any

import numpy as np

from xlnet_jax.data.batches.packing import pack
from xlnet_jax.data.corpus.corpus import Corpus

MADE_UP = {"proteins": (453, 0.87), "molecules": (36, 0.13)}
"""Mean and spread (standard deviation of the logarithm) of the lengths."""
SEGMENTS = {"proteins": (1024, 512), "molecules": (256, 128)}
READ = 2000  # rows


def lengths_of(text: str, documents: int) -> tuple[np.ndarray, bool]:
    """The lengths of documents, and whether EOD counts; `text` is a kind or the folder of a
    corpus.
    """
    if text not in MADE_UP:
        corpus = Corpus(text)
        return corpus.lengths, corpus.tokenizer.special.eod is not None
    (mean, spread), random = MADE_UP[text], np.random.Generator(np.random.Philox(0))
    lengths = np.empty(documents, np.int32)
    for part in np.array_split(lengths, max(1, documents // 1_000_000)):
        part[:] = np.maximum(1, random.lognormal(np.log(mean) - spread**2 / 2, spread, len(part)))
    lengths += 1  # EOD
    return lengths, True


def packed(text: str, documents: int, segment_len: int, frame: int) -> dict[str, Any]:
    """The columns of one row."""
    lengths, eod = lengths_of(text, documents)
    began = time.perf_counter()
    packing = pack(lengths, eod, segment_len, frame, segment_len, lambda length: length)
    seconds = time.perf_counter() - began
    with open("/proc/self/status") as status:
        (peak,) = re.findall(r"VmHWM:\s*(\d+) kB", status.read())
    rows = np.random.Generator(np.random.Philox(1)).integers(0, packing.rows, READ)
    began = time.perf_counter()
    for row in rows:
        packing.row(row)
    read = time.perf_counter() - began
    pieces = packing.groups.pieces
    used = int(lengths.sum(dtype=np.int64)) - eod * len(lengths) + frame * pieces
    return {
        "text": os.path.basename(text.rstrip("/")),
        "segment_len": segment_len,
        "documents": len(lengths),
        "pieces": pieces,
        "seconds": seconds,
        "gigabytes": int(peak) * 1024 / 1e9,
        "table": (len(pickle.dumps(packing)) - lengths.nbytes) / 1e6,
        "rows": packing.rows,
        "fill": used / (packing.rows * segment_len),
        "row_ms": read / READ * 1000,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=60_000_000, help="made-up documents")
    parser.add_argument("--text", choices=MADE_UP, nargs="+", default=list(MADE_UP))
    parser.add_argument("--corpus", help="folder of a corpus, whose training split is packed")
    parser.add_argument("--segment_len", type=int, nargs="+", help="T")
    parser.add_argument("--frame", type=int, default=1, help="tokens around each text (default 1)")
    parser.add_argument(
        "--tiny", action="store_true", help="tiny sizes, to try it: the figures mean nothing"
    )
    parser.add_argument("--json", action="store_true", help="end with a line of JSON")
    args = parser.parse_args()
    documents = 5000 if args.tiny else args.documents
    texts = [args.corpus] if args.corpus else args.text
    rows = []
    print(
        f"{'':10}{'T':>6}{'documents':>12}{'pieces':>12}{'seconds':>9}{'gigabytes':>11}{'table':>8}"
        f"{'rows':>12}{'fill':>9}{'row_ms':>8}"
    )
    for text in texts:
        for segment_len in args.segment_len or SEGMENTS.get(text, (1024, 512)):
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                row = pool.apply(packed, (text, documents, segment_len, args.frame))
            rows.append(row)
            print(
                "{text:10.10}{segment_len:6}{documents:12,}{pieces:12,}{seconds:9.1f}"
                "{gigabytes:11.2f}{table:8.1f}{rows:12,}{fill:9.2%}{row_ms:8.3f}".format(**row),
                flush=True,
            )
    if args.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
