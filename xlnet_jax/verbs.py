"""The verbs of the command line: the name, help, example and options of each, and the function that it calls.

Nothing here imports JAX until a verb runs: `--help` answers at once, and an error in a configuration is reported before
any device is used. A new verb is a run function and a `Verb` at the end of this file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from xlnet_jax.errors import BadInput
from xlnet_jax.messages import duration, printable

Option = tuple[str, dict[str, Any]]
"""The arguments of `add_argument`."""


def print_lines(values: dict[str, Any], prefix: str = "") -> None:
    """One `name value` per line, such as `splits.train.tokens 5000`; seconds as `1 h 02 min`."""
    for name, value in values.items():
        if isinstance(value, dict):
            print_lines(value, f"{prefix}{name}.")
            continue
        if isinstance(value, float):
            is_time = "seconds" in f"{prefix}{name}".split(".") or name.endswith("_seconds")
            value = duration(value) if is_time else f"{value:.6g}"
        print(f"{prefix + name:24} {printable(str(value))}")


class Verb(NamedTuple):
    """One command.

    Attributes:
      name: `train`, or `corpus info` for a verb below another.
      help: one sentence.
      example: a command that works; more lines may follow.
      run: takes the options as keywords and returns the result: with `--json` it is printed as one object. If
        `overrides`, it also takes `overrides`, the `--config.KEY=VALUE` words.
      options: all verbs also have `--json`.
      show: prints the result without `--json`.
      overrides: whether `--config.KEY=VALUE` words are accepted.
    """

    name: str
    help: str
    example: str
    run: Callable[..., dict[str, Any]]
    options: tuple[Option, ...] = ()
    show: Callable[[dict[str, Any]], None] = print_lines
    overrides: bool = True


def _option(name: str, help: str, default: Any = None, **more: Any) -> Option:
    """An option of the type of its default; False makes a flag, `type` is for an option without a default."""
    if default is False:
        return name, {"help": help, "action": "store_true"}
    kind = {"type": type(default)} if isinstance(default, int | float) else {}
    return name, {"help": help, "default": default, **kind, **more}


def _load(path: str, overrides: list[str]) -> Any:
    from xlnet_jax.config import load

    return load(path, overrides)


def _prepare(
    input: list[str], tfds: list[str], uncased: bool, keep_accents: bool, nfkc: bool, beam_options: str,
    output: str, **options: Any,
) -> dict[str, Any]:  # fmt: skip
    from xlnet_jax.data.prepare.pipeline import prepare
    from xlnet_jax.data.tokenizer import Normalization

    inputs = [*input, *(f"tfds:{name}" for name in tfds)]
    if not inputs:
        raise BadInput("no text; name it with --input=FILE_OR_FOLDER or --tfds=NAME[:SPLIT]")
    manifest = prepare(
        inputs, output, beam_options=[option for option in beam_options.split(",") if option],
        normalization=Normalization(lower=uncased, keep_accents=keep_accents, nfkc=nfkc), **options,
    )  # fmt: skip
    tokens = {f"{name}_tokens": split["tokens"] for name, split in manifest["splits"].items()}
    return {"output": output, **tokens, "sha256": manifest["sha256"], "dropped": manifest.get("dropped")}


def _corpus_info(corpus: str) -> dict[str, Any]:
    from xlnet_jax.data.corpus import verify

    return verify.info(corpus)


def _corpus_verify(corpus: str, workers: int | None) -> dict[str, Any]:
    from xlnet_jax.data.corpus import verify

    counts, problems = verify.verify(corpus, workers)
    for problem in problems:
        print(printable(problem), file=sys.stderr)
    if problems:
        raise BadInput(f"{corpus} is not what was prepared (problems: {len(problems)}); copy it again")
    return {"ok": True, **counts}


def _corpus_sample(corpus: str, **options: Any) -> dict[str, Any]:
    from xlnet_jax.data.corpus import verify

    return {"samples": verify.sample(corpus, **options)}


def _show_samples(result: dict[str, Any]) -> None:
    for each in result["samples"]:
        print(f"{each['split']}, token {each['start']}:\n  {printable(each['text'])}\n")


def _configure(no_probe: bool, **options: Any) -> dict[str, Any]:
    from xlnet_jax.commands.configure import configure

    return configure(**options, probe=not no_probe)


def _train(config: str, overrides: list[str], **options: Any) -> dict[str, Any]:
    from xlnet_jax.run.signals import stop_request

    # Before the imports, which take seconds.
    with stop_request():
        loaded = _load(config, overrides)
        from xlnet_jax.commands.train import train

        return train(loaded, **options)


def _inspect(
    config: str, overrides: list[str], step: int, row: int, output: str | None, parameters: bool
) -> dict[str, Any]:
    if output and parameters:
        raise BadInput("--output draws an example; leave it out with --parameters")
    if output and os.path.isdir(output):
        raise BadInput(f"--output={output} is a folder; name a picture in it: {output}/masks.png")
    loaded = _load(config, overrides)
    from xlnet_jax.commands import inspect

    if parameters:
        return inspect.count_parameters(loaded)
    shown = inspect.example(loaded, step, row)
    if output:
        inspect.draw(shown, output)
    return shown


def _show_inspected(result: dict[str, Any]) -> None:
    from xlnet_jax.commands.inspect import print_example

    print_lines(result) if "parameters" in result else print_example(result)


def _compile(config: str, overrides: list[str], topology: str, slices: int, budget: bool) -> dict[str, Any]:
    loaded = _load(config, overrides)
    from xlnet_jax.aot import topology as topologies

    topologies.check(topology, slices)
    topologies.prepare_environment()
    from xlnet_jax.aot.report import compile_for

    return compile_for(loaded, topology, slices, budget)


def _show_compiled(result: dict[str, Any]) -> None:
    from xlnet_jax.aot.report import print_report

    print_report(result)


def _quickstart(config: str, overrides: list[str], workdir: str) -> dict[str, Any]:
    loaded = _load(config, overrides)
    from xlnet_jax.commands.quickstart import quickstart

    return quickstart(loaded, workdir, float(os.environ.get("XLNET_INSTALL_SECONDS", "0")))


def _evaluate(overrides: list[str], batch_size: int | None, **options: Any) -> dict[str, Any]:
    from xlnet_jax.run.signals import stop_request

    with stop_request():
        from xlnet_jax.commands.evaluate import evaluate

        if batch_size is not None:
            overrides = [*overrides, f"--config.evaluation.batch_size={batch_size}"]
        return evaluate(**options, overrides=overrides)


def _export(format: str, **options: Any) -> dict[str, Any]:
    from xlnet_jax.commands.export import export

    del format  # there is one
    return export(**options)


_CORPUS = _option("corpus", "folder that `xlnet-jax prepare` wrote, also gs://", metavar="DIR")
_CONFIG = _option("--config", "Python file; --config.KEY=VALUE changes a key", required=True)
_CHECKPOINT = (
    _option("--workdir", "of the training run; --config.KEY=VALUE changes a key", required=True),
    _option("--step", "checkpoint (default: the newest)", type=int),
)

VERBS = (
    Verb("prepare", "Turn text into a corpus of token pages.",
         "xlnet-jax prepare --input=books/ --document=file --output=corpus", _prepare, (
            _option("--input", "file, folder or glob, also gs://; repeatable", [], action="append"),
            _option("--tfds", "data set of TFDS, already prepared; repeatable", [], action="append",
                    metavar="NAME[:SPLIT]"),
            _option("--data_dir", "where TFDS has its data sets (default: its own)"),
            _option("--field", "field of a record that holds the text (default: text)", "text"),
            _option("--output", "folder of the corpus, also gs://", required=True),
            _option("--tokenizer", "SentencePiece model to use; without it one is trained"),
            _option("--vocab_size", "pieces to train (default 32000)", 32000),
            _option("--document", "what ends a document (default: a blank line)", "blank_line",
                    choices=("blank_line", "file", "line")),
            _option("--sentences", "what ends a sentence: its line, or also . ! ? and the like (default: line)", "line",
                    choices=("line", "punctuation")),
            _option("--uncased", "lower-case the text", False),
            _option("--keep_accents", "do not strip accents", False),
            _option("--nfkc", "compose characters at the end (NFKC), as Hangul needs it", False),
            _option("--heldout", "share of documents held out (default 0.01)", 0.01),
            _option("--errors", "text that is not UTF-8, and empty documents: refuse, or replace and leave out",
                    "strict", choices=("strict", "replace")),
            _option("--sample_bytes", "text the tokenizer is trained on", 100_000_000),
            _option("--seed", "of the tokenizer's sample", 0),
            _option("--shard_bytes", "source text of a work unit, and a shard (default: 64 MB, or 1 GB from 1 TB on)",
                    type=int),
            _option("--workers", "processes (default: the cores)", type=int),
            _option("--engine", "local: processes of this machine (default); beam: an Apache Beam pipeline", "local",
                    choices=("local", "beam")),
            _option("--beam_options", "of the Beam pipeline", "", metavar="NAME=VALUE,..."),
        ), overrides=False),
    Verb("corpus info", "Show the contents of a corpus and how it was made.", "xlnet-jax corpus info corpus --json",
         _corpus_info, (_CORPUS,), overrides=False),
    Verb("corpus verify", "Read a whole corpus and compare it with all its hashes and counts.",
         "xlnet-jax corpus verify gs://bucket/corpus --workers=8\n\n"
         "Every problem is a line on stderr, and the exit code is 2.",
         _corpus_verify, (_CORPUS, _option("--workers", "shards at a time (default: the cores)", type=int)),
         overrides=False),
    Verb("corpus sample", "Show excerpts of a corpus as text: what the model will read.",
         "xlnet-jax corpus sample corpus --split=heldout --count=3 --length=200\n\n"
         "§ starts a document, ¶ a paragraph, | a sentence.", _corpus_sample, (
            _CORPUS,
            _option("--split", "(default: train)", "train", choices=("train", "heldout")),
            _option("--seed", "of the choice (default 0)", 0),
            _option("--count", "number of excerpts (default 5)", 5),
            _option("--length", "tokens of each (default 100)", 100),
        ), _show_samples, overrides=False),
    Verb("configure", "Write a configuration file that suits a corpus, this machine and the time available.",
         "xlnet-jax configure corpus --minutes=30 --output=config.py", _configure, (
            _option("corpus", "folder that `xlnet-jax prepare` wrote; several with commas", metavar="DIR"),
            _option("--minutes", "how long training may take (default 30)", 30.0),
            _option("--output", "Python file to write (default: config.py)", "config.py"),
            _option("--no_probe", "estimate the speed; measuring takes about a minute", False),
        ), overrides=False),
    Verb("train", "Pretrain, or resume, in a work directory.",
         "xlnet-jax train --config=configs/xlnet_base.py --config.data.corpus=corpus --workdir=run", _train, (
            _CONFIG,
            _option("--workdir", "folder for checkpoints, metrics and manifest, also gs://", required=True),
            _option("--stop_at", "save and stop after this step", type=int),
            _option("--dry_run", "check everything up to the first step; write nothing", False),
        )),
    Verb("inspect", "Show one training example, or count parameters.",
         "xlnet-jax inspect --config=configs/xlnet_base.py --config.data.corpus=corpus --step=3", _inspect, (
            _CONFIG,
            _option("--step", "(default 0)", 0),
            _option("--row", "(default 0)", 0),
            _option("--output", "PNG of the content and the query mask"),
            _option("--parameters", "count parameters and tensors instead", False),
        ), _show_inspected),
    Verb("compile", "Compile the training step for TPUs without having one: memory, collectives, projected speed.",
         "xlnet-jax compile --config=configs/xlnet_large.py --topology=v5e:16x16", _compile, (
            _CONFIG,
            _option("--topology", "chips of a slice, such as v3:16x16, v4:8x8x4, v6e:16x16", required=True),
            _option("--slices", "equal slices, joined by a network (default 1)", 1),
            _option("--budget", "search the largest batch per device that fits: many compilations", False),
        ), _show_compiled),
    Verb("quickstart", "The whole way on real prose in about five minutes.",
         "xlnet-jax quickstart --workdir=runs/quickstart", _quickstart, (
            _option("--workdir", "(default: runs/quickstart)", "runs/quickstart"),
            _option("--config", "Python file", "configs/quickstart.py"),
        ), lambda _: None),  # it has printed its own table
    Verb("evaluate", "Held-out permutation-LM loss of a checkpoint.", "xlnet-jax evaluate --workdir=run --json",
         _evaluate, (
            *_CHECKPOINT,
            _option("--batch_size", "rows at a time; does not change the result", type=int),
            _option("--blocks", "score only the first blocks (default: all)", 0),
        )),
    Verb("export", "Write a checkpoint for another library.",
         "xlnet-jax export --workdir=run --format=huggingface --output=exported", _export, (
            *_CHECKPOINT,
            _option("--format", "(default: huggingface)", "huggingface", choices=("huggingface",)),
            _option("--output", "new folder", required=True),
        )),
)  # fmt: skip
