"""The command line: parse, load the configuration, call one function.

Modules are imported inside the commands, so that `--help` answers at once and a mistake in a config is told before any
device is touched. With `--json` one JSON object goes to stdout and everything else to stderr.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from typing import Any

from xlnet_jax import __version__
from xlnet_jax.errors import BadInput, XLNetError


def main(argv: list[str] | None = None) -> int:
    """Runs one command; returns the exit code of `errors`."""
    args, overrides = make_parser().parse_known_args(argv)
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", force=True)
    logging.getLogger("xlnet_jax").setLevel(logging.INFO)
    try:
        result = args.run(args, overrides)
    except XLNetError as error:
        print(f"xlnet-jax {args.command}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"xlnet-jax {args.command}: interrupted", file=sys.stderr)
        return 130
    if args.json:
        print(json.dumps(result), flush=True)
    else:
        for name, value in result.items():
            print(f"{name:24} {value:.6g}" if isinstance(value, float) else f"{name:24} {value}")
    return 0


def make_parser() -> argparse.ArgumentParser:
    """All commands, each with an example."""
    parser = argparse.ArgumentParser(prog="xlnet-jax", description="Pretrain XLNet in JAX.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Any, what: str, example: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name, help=what, description=what, epilog=f"example:\n  {example}", allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        sub.set_defaults(run=run)
        sub.add_argument("--json", action="store_true", help="print one JSON object on stdout")
        return sub

    prepare = command("prepare", _prepare, "Turn text into a corpus of token pages.",
                      "xlnet-jax prepare --input=books/ --document=file --output=corpus")  # fmt: skip
    prepare.add_argument("--input", action="append", required=True, help="file, folder (its *.txt) or glob; repeatable")
    prepare.add_argument("--output", required=True, help="folder of the corpus")
    prepare.add_argument("--tokenizer", help="SentencePiece model to use; without it one is trained")
    prepare.add_argument("--vocab_size", type=int, default=32000, help="pieces to train (default 32000)")
    prepare.add_argument("--document", choices=("blank_line", "file", "line"), default="blank_line",
                         help="what ends a document (default: a blank line)")  # fmt: skip
    prepare.add_argument("--sentences", choices=("line", "punctuation"), default="line",
                         help="what ends a sentence: its line, or also . ! ? and the like (default: line)")  # fmt: skip
    prepare.add_argument("--uncased", action="store_true", help="lower-case the text")
    prepare.add_argument("--keep_accents", action="store_true", help="do not strip accents")
    prepare.add_argument("--heldout", type=float, default=0.01, help="share of documents held out (default 0.01)")
    prepare.add_argument("--errors", choices=("strict", "replace"), default="strict", help="undecodable bytes")
    prepare.add_argument("--sample_bytes", type=int, default=100_000_000, help="text the tokenizer is trained on")
    prepare.add_argument("--seed", type=int, default=0, help="of the tokenizer's sample")
    prepare.add_argument("--workers", type=int, help="processes (default: the cores)")

    train = command(
        "train",
        _train,
        "Pretrain, or resume, in a work directory.",
        "xlnet-jax train --config=configs/xlnet_base.py --config.data.corpus=corpus --workdir=run",
    )
    _config_options(train)
    train.add_argument("--workdir", required=True, help="checkpoints, metrics and manifest go here")
    train.add_argument("--stop_at", type=int, help="save and stop in order after this step")
    train.add_argument("--dry_run", action="store_true", help="check everything up to the first step; write nothing")

    evaluate = command("evaluate", _evaluate, "Held-out permutation-LM loss of a checkpoint.",
                       "xlnet-jax evaluate --workdir=run --json")  # fmt: skip
    evaluate.add_argument("--workdir", required=True, help="of the training run; --config.KEY=VALUE changes a key")
    evaluate.add_argument("--step", type=int, help="checkpoint (default: the newest)")
    evaluate.add_argument("--batch_size", type=int, help="rows at a time; does not change the result")
    evaluate.add_argument("--blocks", type=int, default=0, help="score only the first blocks (default: all)")

    export = command("export", _export, "Write a checkpoint for another library.",
                     "xlnet-jax export --workdir=run --format=huggingface --output=exported")  # fmt: skip
    export.add_argument("--workdir", required=True, help="of the training run")
    export.add_argument("--step", type=int, help="checkpoint (default: the newest)")
    export.add_argument("--format", choices=("huggingface",), default="huggingface")
    export.add_argument("--output", required=True, help="new folder")

    inspect = command(
        "inspect",
        _inspect,
        "Show one training example, or count parameters.",
        "xlnet-jax inspect --config=configs/xlnet_base.py --config.data.corpus=corpus --step=3",
    )
    _config_options(inspect)
    inspect.add_argument("--step", type=int, default=0)
    inspect.add_argument("--row", type=int, default=0)
    inspect.add_argument("--output", help="PNG of the content and the query mask")
    inspect.add_argument("--parameters", action="store_true", help="count parameters and tensors instead")

    quickstart = command("quickstart", _quickstart, "The whole way on real prose in about five minutes.",
                         "xlnet-jax quickstart --workdir=runs/quickstart")  # fmt: skip
    quickstart.add_argument("--workdir", default="runs/quickstart")
    quickstart.add_argument("--config", default="configs/quickstart.py", help="Python file")
    return parser


def _config_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", required=True, help="Python file; --config.KEY=VALUE changes a key")


def _no_overrides(overrides: list[str]) -> None:
    if overrides:
        raise BadInput(f"unknown option {overrides[0]!r}; see --help")


def _prepare(args: argparse.Namespace, overrides: list[str]) -> dict[str, Any]:
    _no_overrides(overrides)
    from xlnet_jax.data.prepare import prepare
    from xlnet_jax.data.tokenizer import Normalization

    manifest = prepare(
        args.input, args.output, tokenizer=args.tokenizer, vocab_size=args.vocab_size, document=args.document,
        sentences=args.sentences, heldout=args.heldout, errors=args.errors, sample_bytes=args.sample_bytes,
        seed=args.seed, workers=args.workers,
        normalization=Normalization(lower=args.uncased, keep_accents=args.keep_accents),
    )  # fmt: skip
    splits = {name: split["tokens"] for name, split in manifest["splits"].items()}
    return {"output": args.output, **{f"{name}_tokens": tokens for name, tokens in splits.items()},
            "sha256": manifest["sha256"]}  # fmt: skip


def _train(args: argparse.Namespace, overrides: list[str]) -> dict[str, Any]:
    from xlnet_jax.config import load

    config = load(args.config, overrides)
    from xlnet_jax.train.loop import train

    return train(config, args.workdir, stop_at=args.stop_at, dry_run=args.dry_run)


def _evaluate(args: argparse.Namespace, overrides: list[str]) -> dict[str, Any]:
    from xlnet_jax.evaluate import evaluate

    if args.batch_size is not None:
        overrides = [*overrides, f"--config.evaluation.batch_size={args.batch_size}"]
    return evaluate(args.workdir, step=args.step, blocks=args.blocks, overrides=overrides)


def _export(args: argparse.Namespace, overrides: list[str]) -> dict[str, Any]:
    from xlnet_jax.export.run import export

    return export(args.workdir, args.output, step=args.step, overrides=overrides)


def _inspect(args: argparse.Namespace, overrides: list[str]) -> dict[str, Any]:
    from xlnet_jax.config import load

    config = load(args.config, overrides)
    from xlnet_jax import inspect

    if args.parameters:
        if args.output:
            raise BadInput("--output draws an example; leave it out with --parameters")
        return inspect.count_parameters(config)
    shown = inspect.example(config, args.step, args.row)
    if args.output:
        inspect.draw(shown, args.output)
    if args.json:
        return shown
    inspect.print_example(shown)
    return {}


def _quickstart(args: argparse.Namespace, overrides: list[str]) -> dict[str, Any]:
    from xlnet_jax.config import load

    config = load(args.config, overrides)
    from xlnet_jax.quickstart import quickstart

    result = quickstart(config, args.workdir, float(os.environ.get("XLNET_INSTALL_SECONDS", "0")))
    # Without --json the table it has printed says it all.
    return result if args.json else {}
