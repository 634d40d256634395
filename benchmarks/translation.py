"""Translation learned from the messages of programs, which Debian's packages have in many
languages.

    python benchmarks/translation.py --output=MESSAGES [--language=es] [--json]
        half an hour on two cores
    python benchmarks/translation.py --tiny
        made-up messages, to try it

A message catalogue (`LOCALE/es/LC_MESSAGES/git.mo`) is parallel text: one message of the program
and its translation. Whole packages are held out, and no message of theirs is trained on. The run is
the one of configs/transformer/ messages.py in MESSAGES/run; if it is stopped, the same command goes
on with it.

Figures, of the held-out packages:

  pairs            messages by package, and in train.jsonl, dev.jsonl (of the packages that are
                   trained on) and heldout.jsonl; longer ones than `LONGEST` characters, of several
                   lines, or untranslated are left out
  bleu, chrf       by sacrebleu, 0 to 100: of the model; of the message itself, untranslated (copy);
                   and of the translation of the training message with the most similar characters
                   (nearest: cosine of TF-IDF weights of groups of three)
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import pathlib
import struct
import tempfile
from collections.abc import Iterator
from typing import Any

import _tiny
import numpy as np
import sacrebleu
from scipy import sparse

from xlnet_jax import config as configs
from xlnet_jax.commands.finetune import finetune
from xlnet_jax.commands.predict import predict
from xlnet_jax.data.prepare.options import PrepareOptions
from xlnet_jax.data.prepare.pipeline import prepare

CONFIG = pathlib.Path(__file__).resolve().parents[1] / "configs" / "transformer" / "messages.py"
HELDOUT = ("bash", "tar", "wget")
LONGEST = 120
DEV_EVERY = 40
VOCABULARY = 4000
Pair = tuple[str, str]


def catalogue(data: bytes) -> Iterator[Pair]:
    """The messages of a .mo file with their translations; of a plural the singular. GNU gettext,
    section 10.3.
    """
    order = "<" if data[:4] == b"\xde\x12\x04\x95" else ">"
    count, *tables = struct.unpack_from(f"{order}3I", data, 8)
    for number in range(count):
        texts = []
        for table in tables:
            length, start = struct.unpack_from(f"{order}2I", data, table + 8 * number)
            texts.append(data[start : start + length].split(b"\0")[0].decode(errors="replace"))
        yield texts[0].rpartition("\4")[2].strip(), texts[1].strip()


def usable(pair: Pair) -> bool:
    """Whether it is one line that was translated."""
    source, target = pair
    known = bool(source and target) and source != target and "\ufffd" not in source + target
    return known and "\n" not in source + target and max(len(source), len(target)) <= LONGEST


def read_packages(locale: str, language: str) -> dict[str, list[Pair]]:
    """The usable pairs of each catalogue; lists of names of languages and countries (iso-codes) are
    no text.
    """
    paths = sorted(pathlib.Path(locale, language, "LC_MESSAGES").glob("*.mo"))
    return {
        path.stem: [pair for pair in catalogue(path.read_bytes()) if usable(pair)]
        for path in paths
        if not path.stem.startswith("iso_")
    }


def split(packages: dict[str, list[Pair]]) -> dict[str, list[Pair]]:
    """`train`, `dev` and `heldout`: each source once, and no source on two sides."""
    sides: dict[str, dict[str, str]] = {"train": {}, "dev": {}, "heldout": {}}
    for name, pairs in packages.items():
        for source, target in pairs if name not in HELDOUT else ():
            sides["train"].setdefault(source, target)
    for number, source in enumerate(sorted(sides["train"])):
        if number % DEV_EVERY == 0:
            sides["dev"][source] = sides["train"].pop(source)
    known = {source.casefold() for side in ("train", "dev") for source in sides[side]}
    for name in HELDOUT:
        for source, target in packages.get(name, ()):
            if source.casefold() not in known:
                sides["heldout"].setdefault(source, target)
    return {name: list(pairs.items()) for name, pairs in sides.items()}


def nearest(train: list[Pair], sources: list[str]) -> list[str]:
    """The target of the most similar source."""
    index: dict[str, int] = collections.defaultdict(lambda: len(index))

    def counts(texts: list[str]) -> sparse.csr_matrix:
        rows = [
            collections.Counter(f" {text.casefold()} "[i : i + 3] for i in range(len(text)))
            for text in texts
        ]
        places = [
            (r, index[gram], count) for r, row in enumerate(rows) for gram, count in row.items()
        ]
        r, c, values = map(np.array, zip(*places, strict=True))
        return sparse.csr_matrix((values.astype(float), (r, c)), (len(texts), 1 + int(c.max())))

    have = counts([source for source, _ in train])
    V = have.shape[1]
    asked = counts(sources)[:, :V]
    weight_V = np.log(len(train) / np.maximum((have > 0).sum(axis=0).A1, 1))
    have, asked = (each @ sparse.diags(weight_V) for each in (have, asked))
    norm_N = np.sqrt(have.multiply(have).sum(axis=1).A1)
    likeness = asked @ (sparse.diags(1 / np.maximum(norm_N, 1e-9)) @ have).T
    return [train[at][1] for at in np.asarray(likeness.argmax(axis=1)).ravel()]


def scores(said: list[str], wanted: list[str]) -> dict[str, float]:
    return {
        "bleu": sacrebleu.corpus_bleu(said, [wanted]).score,
        "chrf": sacrebleu.corpus_chrf(said, [wanted]).score,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--output", help="folder for the pairs and the run (default: a temporary folder)"
    )
    parser.add_argument("--locale", default="/usr/share/locale")
    parser.add_argument("--language", default="es")
    parser.add_argument("--steps", type=int, default=0, help="0: as in the configuration")
    parser.add_argument(
        "--tiny",
        action="store_true",
        help="made-up messages and two steps: the figures mean nothing",
    )
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        result = measured(parser, asked, pathlib.Path(asked.output or temporary))
    if asked.json:
        print(json.dumps(result))
        return
    counts = result["packages"]
    print(
        f"{len(counts)} packages; pairs: {result['pairs']}; the largest: "
        f"{collections.Counter(counts).most_common(8)}"
    )
    print(
        f"held out: {', '.join(f'{name} {counts[name]}' for name in HELDOUT)}; "
        f"checkpoint of step {result['step']}"
    )
    print(f"{'':10}{'BLEU':>8}{'chrF':>8}")
    for name in ("copy", "nearest", "model"):
        print(f"{name:10}{result[name]['bleu']:8.1f}{result[name]['chrf']:8.1f}")


def made_up() -> dict[str, list[Pair]]:
    """Of two packages to train on, and of those that are held out: a message is translated by other
    vowels.
    """
    names = ("git", "make", *HELDOUT)
    sources = {
        name: [f"cannot open file {name} {number}" for number in range(40)] for name in names
    }
    other = str.maketrans("aeiou", "oaeui")
    return {
        name: [(source, source.translate(other)) for source in texts]
        for name, texts in sources.items()
    }


def measured(
    parser: argparse.ArgumentParser, asked: argparse.Namespace, folder: pathlib.Path
) -> dict[str, Any]:
    """All figures."""
    packages = made_up() if asked.tiny else read_packages(asked.locale, asked.language)
    if missing := [name for name in HELDOUT if not packages.get(name)]:
        parser.error(f"{asked.locale}/{asked.language} has no messages of {', '.join(missing)}")
    sides = split(packages)
    folder.mkdir(parents=True, exist_ok=True)
    for name, pairs in sides.items():
        lines = (
            json.dumps({"source": source, "target": target}, ensure_ascii=False) + "\n"
            for source, target in pairs
        )
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    (folder / "text.txt").write_text(
        "".join(f"{text}\n" for pair in sides["train"] for text in pair), encoding="utf-8"
    )
    counts = {name: len(pairs) for name, pairs in packages.items() if pairs}
    result: dict[str, Any] = {
        "language": asked.language,
        "packages": counts,
        "pairs": {name: len(pairs) for name, pairs in sides.items()},
    }

    sources, wanted = (list(texts) for texts in zip(*sides["heldout"], strict=True))
    result["copy"] = scores(sources, wanted)
    result["nearest"] = scores(nearest(sides["train"], sources), wanted)
    if not (folder / "corpus").exists():
        prepare(
            [str(folder / "text.txt")],
            str(folder / "corpus"),
            PrepareOptions(
                vocabulary="bytebpe",
                vocab_size=_tiny.VOCABULARY if asked.tiny else VOCABULARY,
                document="line",
                heldout=0.01,
                workers=1,
            ),
        )
    keys = {"train": "train.jsonl", "dev": "dev.jsonl", "tokenizer": "corpus/tokenizer.json"}
    config = configs.load(str(CONFIG)).changed(
        finetune={name: str(folder / path) for name, path in keys.items()}
    )
    config = config.changed(train={"steps": asked.steps}) if asked.steps else config
    if asked.tiny:
        config = config.changed(
            model=_tiny.MODEL,
            log=_tiny.LOG,
            train={"steps": 2, "batch_size": 2},
            optimizer={"warmup_steps": 1},
            checkpoint={"every": 2},
            evaluation={"every": 2},
            finetune={"max_answer": 40, "beam": 1},
        )
    trained = finetune(config, str(folder / "run"))
    beam = ["--config.finetune.beam=4"]
    found = predict(str(folder / "run"), input=str(folder / "heldout.jsonl"), overrides=beam)
    result |= {"step": trained["step"], "dev_chrf": trained["score"]}
    result["model"] = scores([each["target"] for each in found], wanted)
    return result


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    main()
