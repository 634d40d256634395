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
from xlnet_jax.errors import BadInput, RestartMe, XLNetError


def program() -> None:
    """The console script: `main`, and the end of the process."""
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    if code == RestartMe.exit_code:
        # All is saved and closed. A thread that still waits for data or a disk would hold a normal exit back forever.
        os._exit(code)
    sys.exit(code)


def main(argv: list[str] | None = None) -> int:
    """Runs one command; returns the exit code of `errors`."""
    args, overrides = make_parser().parse_known_args(argv)
    # A terminal may not be able to show every character of a corpus.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    # It logs whole tracebacks of what we say in a line.
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", force=True)
    logging.getLogger("xlnet_jax").setLevel(logging.INFO)
    try:
        for word in sys.argv if argv is None else argv:
            if any("\ud800" <= character <= "\udfff" for character in word):
                raise BadInput(f"{ascii(word)} is not UTF-8; give names and values that are")
        result = args.run(args, overrides)
    except XLNetError as error:
        print(f"xlnet-jax {args.command}: {error}", file=sys.stderr)
        return _leave(error.exit_code)
    except KeyboardInterrupt:
        print(f"xlnet-jax {args.command}: interrupted", file=sys.stderr)
        return _leave(130)
    if args.json:
        print(json.dumps(result), flush=True)
    else:
        for name, value in result.items():
            print(f"{name:24} {value:.6g}" if isinstance(value, float) else f"{name:24} {value}")
    return 0


def _leave(code: int) -> int:
    """The exit code; where other processes take part in the run, this one ends here."""
    if distributed := sys.modules.get("xlnet_jax.parallel.processes"):
        distributed.end_process(code)
    return code


def make_parser() -> argparse.ArgumentParser:
    """All commands, each with an example."""
    parser = argparse.ArgumentParser(prog="xlnet-jax", description="Pretrain XLNet in JAX.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Any, what: str, example: str, among: Any = commands) -> argparse.ArgumentParser:
        sub = among.add_parser(
            name, help=what, description=what, epilog=f"example:\n  {example}", allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        sub.set_defaults(run=run)
        sub.add_argument("--json", action="store_true", help="print one JSON object on stdout")
        return sub

    prepare = command("prepare", _prepare, "Turn text into a corpus of token pages.",
                      "xlnet-jax prepare --input=books/ --document=file --output=corpus")  # fmt: skip
    prepare.add_argument("--input", action="append", default=[],
                         help="file, folder or glob, also gs://; repeatable")  # fmt: skip
    prepare.add_argument("--tfds", action="append", default=[], metavar="NAME[:SPLIT]",
                         help="data set of TFDS, prepared before; repeatable")  # fmt: skip
    prepare.add_argument("--data_dir", help="where TFDS has its data sets (default: its own)")
    prepare.add_argument("--field", default="text", help="field of a record that holds the text (default: text)")
    prepare.add_argument("--output", required=True, help="folder of the corpus, also gs://")
    prepare.add_argument("--tokenizer", help="SentencePiece model to use; without it one is trained")
    prepare.add_argument("--vocab_size", type=int, default=32000, help="pieces to train (default 32000)")
    prepare.add_argument("--document", choices=("blank_line", "file", "line"), default="blank_line",
                         help="what ends a document (default: a blank line)")  # fmt: skip
    prepare.add_argument("--sentences", choices=("line", "punctuation"), default="line",
                         help="what ends a sentence: its line, or also . ! ? and the like (default: line)")  # fmt: skip
    prepare.add_argument("--uncased", action="store_true", help="lower-case the text")
    prepare.add_argument("--keep_accents", action="store_true", help="do not strip accents")
    prepare.add_argument("--nfkc", action="store_true", help="compose characters at the end (NFKC), as Hangul needs it")
    prepare.add_argument("--heldout", type=float, default=0.01, help="share of documents held out (default 0.01)")
    prepare.add_argument("--errors", choices=("strict", "replace"), default="strict",
                         help="what is not UTF-8, and empty documents: refuse, or replace and leave out")  # fmt: skip
    prepare.add_argument("--sample_bytes", type=int, default=100_000_000, help="text the tokenizer is trained on")
    prepare.add_argument("--seed", type=int, default=0, help="of the tokenizer's sample")
    prepare.add_argument("--shard_bytes", type=int, default=64_000_000, help="source text of a work unit, and a shard")
    prepare.add_argument("--workers", type=int, help="processes (default: the cores)")
    prepare.add_argument("--engine", choices=("local", "beam"), default="local",
                         help="local: processes of this machine (default); beam: an Apache Beam pipeline")  # fmt: skip
    prepare.add_argument("--beam_options", default="", metavar="NAME=VALUE,...", help="of the Beam pipeline")

    what = "Look into a corpus, or check all of it."
    whats = commands.add_parser("corpus", help=what, description=what, allow_abbrev=False).add_subparsers(
        dest="what", required=True, metavar="WHAT"
    )
    command("info", _corpus_info, "What is in a corpus and how it was made.",
            "xlnet-jax corpus info corpus --json", whats)  # fmt: skip
    verify = command(
        "verify",
        _corpus_verify,
        "Read a corpus from end to end, and hold it against every hash and count it has.",
        "xlnet-jax corpus verify gs://bucket/corpus --workers=8\n\n"
        "Every problem is a line on stderr, and the exit code is 2.",
        whats,
    )
    verify.add_argument("--workers", type=int, help="shards at a time (default: the cores)")
    sample = command(
        "sample",
        _corpus_sample,
        "Show stretches of a corpus as text: what the model will read.",
        "xlnet-jax corpus sample corpus --split=heldout --count=3 --length=200\n\n"
        "§ stands before a document, ¶ before a paragraph, | before a sentence.",
        whats,
    )
    sample.add_argument("--split", choices=("train", "heldout"), default="train")
    sample.add_argument("--seed", type=int, default=0, help="of the choice (default 0)")
    sample.add_argument("--count", type=int, default=5, help="stretches (default 5)")
    sample.add_argument("--length", type=int, default=100, help="tokens of each (default 100)")
    for sub in whats.choices.values():
        sub.add_argument("corpus", metavar="DIR", help="folder that `xlnet-jax prepare` wrote, also gs://")

    configure = command(
        "configure",
        _configure,
        "Propose a configuration for a corpus, this machine and the time there is, and write the file.",
        "xlnet-jax configure corpus --minutes=30 --output=config.py",
    )
    configure.add_argument("corpus", metavar="DIR", help="folder that `xlnet-jax prepare` wrote; several with commas")
    configure.add_argument("--minutes", type=float, default=30.0, help="how long training may take (default 30)")
    configure.add_argument("--output", default="config.py", help="Python file to write (default: config.py)")
    configure.add_argument("--no_probe", action="store_true", help="estimate the speed; measuring takes about a minute")

    train = command(
        "train",
        _train,
        "Pretrain, or resume, in a work directory.",
        "xlnet-jax train --config=configs/xlnet_base.py --config.data.corpus=corpus --workdir=run",
    )
    _config_options(train)
    train.add_argument("--workdir", required=True, help="checkpoints, metrics and manifest go here, also gs://")
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

    compiling = command(
        "compile",
        _compile,
        "Compile the training step for TPUs that are not here: memory, collectives, and a projection of the speed.",
        "xlnet-jax compile --config=configs/xlnet_large.py --topology=v5e:16x16",
    )
    _config_options(compiling)
    compiling.add_argument("--topology", required=True, help="chips of a slice, such as v3:16x16, v4:8x8x4, v6e:16x16")
    compiling.add_argument("--slices", type=int, default=1, help="equal slices, joined by a network (default 1)")
    compiling.add_argument("--budget", action="store_true",
                           help="search the largest batch per device that fits: many compilations")  # fmt: skip

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


def _corpus_info(args: argparse.Namespace, overrides: list[str]) -> dict[str, Any]:
    _no_overrides(overrides)
    from xlnet_jax.data.corpus import verify

    found = verify.info(args.corpus)
    return found if args.json else _flat(found)


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """One name per value, such as `splits.train.tokens`."""
    flat = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat


def _corpus_verify(args: argparse.Namespace, overrides: list[str]) -> dict[str, Any]:
    _no_overrides(overrides)
    from xlnet_jax.data.corpus import verify

    counts, problems = verify.verify(args.corpus, args.workers)
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        raise BadInput(f"{args.corpus} is not what was prepared (problems: {len(problems)}); copy it again")
    return {"ok": True, **counts}


def _corpus_sample(args: argparse.Namespace, overrides: list[str]) -> dict[str, Any]:
    _no_overrides(overrides)
    from xlnet_jax.data.corpus import verify

    samples = verify.sample(args.corpus, args.split, args.seed, args.count, args.length)
    if args.json:
        return {"samples": samples}
    for each in samples:
        print(f"{each['split']}, token {each['start']}:\n  {each['text']}\n")
    return {}


def _configure(args: argparse.Namespace, overrides: list[str]) -> dict[str, Any]:
    _no_overrides(overrides)
    from xlnet_jax.commands.configure import configure

    return configure(args.corpus, args.output, args.minutes, probe=not args.no_probe)


def _train(args: argparse.Namespace, overrides: list[str]) -> dict[str, Any]:
    from xlnet_jax.run.signals import stop_request

    # Before the imports, which take seconds.
    with stop_request():
        from xlnet_jax.config import load

        config = load(args.config, overrides)
        from xlnet_jax.commands.train import train

        return train(config, args.workdir, stop_at=args.stop_at, dry_run=args.dry_run)


def _evaluate(args: argparse.Namespace, overrides: list[str]) -> dict[str, Any]:
    from xlnet_jax.run.signals import stop_request

    with stop_request():
        from xlnet_jax.commands.evaluate import evaluate

        if args.batch_size is not None:
            overrides = [*overrides, f"--config.evaluation.batch_size={args.batch_size}"]
        return evaluate(args.workdir, step=args.step, blocks=args.blocks, overrides=overrides)


def _export(args: argparse.Namespace, overrides: list[str]) -> dict[str, Any]:
    from xlnet_jax.commands.export import export

    return export(args.workdir, args.output, step=args.step, overrides=overrides)


def _inspect(args: argparse.Namespace, overrides: list[str]) -> dict[str, Any]:
    from xlnet_jax.config import load

    config = load(args.config, overrides)
    from xlnet_jax.commands import inspect

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


def _compile(args: argparse.Namespace, overrides: list[str]) -> dict[str, Any]:
    from xlnet_jax.config import load

    config = load(args.config, overrides)
    from xlnet_jax.aot import topology

    topology.check(args.topology, args.slices)
    topology.prepare_environment()
    from xlnet_jax.aot.report import compile_for, print_report

    result = compile_for(config, args.topology, args.slices, args.budget)
    if args.json:
        return result
    print_report(result)
    return {}


def _quickstart(args: argparse.Namespace, overrides: list[str]) -> dict[str, Any]:
    from xlnet_jax.config import load

    config = load(args.config, overrides)
    from xlnet_jax.commands.quickstart import quickstart

    result = quickstart(config, args.workdir, float(os.environ.get("XLNET_INSTALL_SECONDS", "0")))
    # Without --json the table it has printed says it all.
    return result if args.json else {}
