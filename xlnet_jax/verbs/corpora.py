"""Verbs that make a corpus and look into one."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from xlnet_jax.errors import BadInput
from xlnet_jax.messages import printable
from xlnet_jax.verbs import Verb


def _prepare_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--input", action="append", default=[], help="file, folder or glob, also gs://; repeatable")
    add("--tfds", action="append", default=[], metavar="NAME[:SPLIT]",
        help="data set of TFDS, prepared before; repeatable")  # fmt: skip
    add("--data_dir", help="where TFDS has its data sets (default: its own)")
    add("--field", default="text", help="field of a record that holds the text (default: text)")
    add("--output", required=True, help="folder of the corpus, also gs://")
    add("--tokenizer", help="SentencePiece model to use; without it one is trained")
    add("--vocab_size", type=int, default=32000, help="pieces to train (default 32000)")
    add("--document", choices=("blank_line", "file", "line"), default="blank_line",
        help="what ends a document (default: a blank line)")  # fmt: skip
    add("--sentences", choices=("line", "punctuation"), default="line",
        help="what ends a sentence: its line, or also . ! ? and the like (default: line)")  # fmt: skip
    add("--uncased", action="store_true", help="lower-case the text")
    add("--keep_accents", action="store_true", help="do not strip accents")
    add("--nfkc", action="store_true", help="compose characters at the end (NFKC), as Hangul needs it")
    add("--heldout", type=float, default=0.01, help="share of documents held out (default 0.01)")
    add("--errors", choices=("strict", "replace"), default="strict",
        help="what is not UTF-8, and empty documents: refuse, or replace and leave out")  # fmt: skip
    add("--sample_bytes", type=int, default=100_000_000, help="text the tokenizer is trained on")
    add("--seed", type=int, default=0, help="of the tokenizer's sample")
    add("--shard_bytes", type=int, default=64_000_000, help="source text of a work unit, and a shard")
    add("--workers", type=int, help="processes (default: the cores)")
    add("--engine", choices=("local", "beam"), default="local",
        help="local: processes of this machine (default); beam: an Apache Beam pipeline")  # fmt: skip
    add("--beam_options", default="", metavar="NAME=VALUE,...", help="of the Beam pipeline")


def _prepare(args: argparse.Namespace, _: list[str]) -> dict[str, Any]:
    from xlnet_jax.data.prepare.pipeline import prepare
    from xlnet_jax.data.tokenizer import Normalization

    inputs = [*args.input, *(f"tfds:{name}" for name in args.tfds)]
    if not inputs:
        raise BadInput("no text; name it with --input=FILE_OR_FOLDER or --tfds=NAME[:SPLIT]")
    manifest = prepare(
        inputs, args.output, tokenizer=args.tokenizer, vocab_size=args.vocab_size, document=args.document,
        sentences=args.sentences, heldout=args.heldout, errors=args.errors, sample_bytes=args.sample_bytes,
        seed=args.seed, field=args.field, data_dir=args.data_dir, shard_bytes=args.shard_bytes, workers=args.workers,
        engine=args.engine, beam_options=[option for option in args.beam_options.split(",") if option],
        normalization=Normalization(lower=args.uncased, keep_accents=args.keep_accents, nfkc=args.nfkc),
    )  # fmt: skip
    splits = {name: split["tokens"] for name, split in manifest["splits"].items()}
    return {"output": args.output, **{f"{name}_tokens": tokens for name, tokens in splits.items()},
            "sha256": manifest["sha256"], "dropped": manifest.get("dropped")}  # fmt: skip


def _corpus_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("corpus", metavar="DIR", help="folder that `xlnet-jax prepare` wrote, also gs://")


def _corpus_info(args: argparse.Namespace, _: list[str]) -> dict[str, Any]:
    from xlnet_jax.data.corpus import verify

    return verify.info(args.corpus)


def _verify_options(parser: argparse.ArgumentParser) -> None:
    _corpus_options(parser)
    parser.add_argument("--workers", type=int, help="shards at a time (default: the cores)")


def _corpus_verify(args: argparse.Namespace, _: list[str]) -> dict[str, Any]:
    from xlnet_jax.data.corpus import verify

    counts, problems = verify.verify(args.corpus, args.workers)
    for problem in problems:
        print(printable(problem), file=sys.stderr)
    if problems:
        raise BadInput(f"{args.corpus} is not what was prepared (problems: {len(problems)}); copy it again")
    return {"ok": True, **counts}


def _sample_options(parser: argparse.ArgumentParser) -> None:
    _corpus_options(parser)
    parser.add_argument("--split", choices=("train", "heldout"), default="train")
    parser.add_argument("--seed", type=int, default=0, help="of the choice (default 0)")
    parser.add_argument("--count", type=int, default=5, help="stretches (default 5)")
    parser.add_argument("--length", type=int, default=100, help="tokens of each (default 100)")


def _corpus_sample(args: argparse.Namespace, _: list[str]) -> dict[str, Any]:
    from xlnet_jax.data.corpus import verify

    return {"samples": verify.sample(args.corpus, args.split, args.seed, args.count, args.length)}


def _show_samples(result: dict[str, Any]) -> None:
    for each in result["samples"]:
        print(f"{each['split']}, token {each['start']}:\n  {printable(each['text'])}\n")


def _configure_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("corpus", metavar="DIR", help="folder that `xlnet-jax prepare` wrote; several with commas")
    parser.add_argument("--minutes", type=float, default=30.0, help="how long training may take (default 30)")
    parser.add_argument("--output", default="config.py", help="Python file to write (default: config.py)")
    parser.add_argument("--no_probe", action="store_true", help="estimate the speed; measuring takes about a minute")


def _configure(args: argparse.Namespace, _: list[str]) -> dict[str, Any]:
    from xlnet_jax.commands.configure import configure

    return configure(args.corpus, args.output, args.minutes, probe=not args.no_probe)


VERBS = (
    Verb("prepare", "Turn text into a corpus of token pages.",
         "xlnet-jax prepare --input=books/ --document=file --output=corpus",
         _prepare_options, _prepare, overrides=False),
    Verb("corpus info", "What is in a corpus and how it was made.", "xlnet-jax corpus info corpus --json",
         _corpus_options, _corpus_info, overrides=False),
    Verb("corpus verify", "Read a corpus from end to end, and hold it against every hash and count it has.",
         "xlnet-jax corpus verify gs://bucket/corpus --workers=8\n\n"
         "Every problem is a line on stderr, and the exit code is 2.",
         _verify_options, _corpus_verify, overrides=False),
    Verb("corpus sample", "Show stretches of a corpus as text: what the model will read.",
         "xlnet-jax corpus sample corpus --split=heldout --count=3 --length=200\n\n"
         "§ stands before a document, ¶ before a paragraph, | before a sentence.",
         _sample_options, _corpus_sample, _show_samples, overrides=False),
    Verb("configure", "Propose a configuration for a corpus, this machine and the time there is, and write the file.",
         "xlnet-jax configure corpus --minutes=30 --output=config.py",
         _configure_options, _configure, overrides=False),
)  # fmt: skip
