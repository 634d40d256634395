"""The verbs of the command line: the name, help, example and options of each, and the function that it calls.

Nothing here imports JAX until a verb runs: `--help` answers at once, and an error in a configuration is reported before
any device is used. A new verb is a run function and a `Verb` at the end of this file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from xlnet_jax import config as configs
from xlnet_jax import messages
from xlnet_jax.config.keys import key, mistake
from xlnet_jax.config.names import RENAMED_OPTIONS
from xlnet_jax.errors import LARGEST_INT, BadInput
from xlnet_jax.infer.options import MOST_ORDERS, Decoding, Fill, Generate, Options, Score, described
from xlnet_jax.messages import print_lines, suggest

MOST_ROWS = 2**22
"""Of a batch."""


class Option(NamedTuple):
    """An option of a verb, or a word without a name: the arguments of `add_argument`."""

    name: str
    keywords: dict[str, Any]
    field: Any = None
    """With the bounds of a number; see `config.keys.key`."""

    def check(self, value: Any) -> None:
        """Raises BadInput for a number out of range, and for an empty text where the default is another."""
        if isinstance(value, str):
            if not value and self.keywords.get("default") != "":
                needed = self.keywords.get("required") or not self.name.startswith("--")
                raise BadInput(f"{self.name} is empty; give a value{'' if needed else ', or leave it out'}")
        elif self.field is not None and value is not None and (wrong := mistake(self.field, value)):
            raise BadInput(f"{self.name}={value} {wrong}")


class Verb(NamedTuple):
    """One command.

    Attributes:
      name: `train`, or `corpus info` for a verb below another.
      help, example: a sentence, and a command that works; more lines may follow.
      run: takes the options as keywords and returns the result: with `--json` it is printed as one object; a list is
        always printed as one object per line. An option `config` is the file's name on the command line and the loaded
        `Config` here.
      options: all verbs also have `--json`.
      show: prints the result without `--json`.
      overrides: whether `--config.KEY=VALUE` words are accepted; without an option `config`, `run` takes them as
        `overrides`.
      stops: whether a signal ends it with exit code 42, as from a run that can be resumed.
      meets: whether all processes of a run call it, and wait for each other.
    """

    name: str
    help: str
    example: str
    run: Callable[..., dict[str, Any] | list[dict[str, Any]]]
    options: tuple[Option, ...] = ()
    show: Callable[[dict[str, Any]], None] = print_lines
    overrides: bool = True
    stops: bool = False
    meets: bool = False


def call(verb: Verb, options: dict[str, Any], overrides: list[str]) -> Any:
    """Checks the options, loads the configuration and runs the verb. Raises the errors of all three."""
    config = None

    def announce(code: int, line: str) -> None:
        _of("distributed.processes", "announce")(config, overrides, code, line)

    messages.output.command = verb.name
    messages.inform(announce if verb.meets else None)
    for word in overrides:
        if not (verb.overrides and word.startswith("--config.")):
            raise BadInput(unknown(verb, word))
    for option in verb.options:
        option.check(options[option.keywords.get("dest", option.name.lstrip("-"))])
    # Before the imports of the verb, which take seconds.
    with _of("run.signals", "stop_request")() if verb.stops else contextlib.nullcontext():
        if "config" in options:
            config = configs.load(options["config"], overrides)
            options = options | {"config": config}
        elif verb.overrides:
            options = options | {"overrides": overrides}
        return verb.run(**options)


def unknown(verb: Verb, word: str) -> str:
    """The message about a word that the verb does not know."""
    if not word.startswith("--"):
        together = any(option.keywords.get("nargs") == "*" for option in verb.options)
        return f"unknown word {word!r}; {'give all texts side by side' if together else 'see --help'}"
    if word.startswith("--config."):
        return f"unknown option {word!r}; this command takes no configuration keys"
    name = word.split("=")[0].lstrip("-")
    if name in RENAMED_OPTIONS:
        return f"unknown option {word!r}; it is called --{RENAMED_OPTIONS[name]} now"
    near = suggest(f"--{name}", [*(option.name for option in verb.options if option.name.startswith("--")), "--json"])
    if not near and verb.overrides:
        near = configs.suggest_key(name, "--config.")
    return f"unknown option {word!r}{near or '; see --help'}"


def _of(module: str, function: str) -> Callable[..., Any]:
    """A function of the package that is imported when it is called."""
    return lambda *args, **options: getattr(importlib.import_module(f"xlnet_jax.{module}"), function)(*args, **options)


def _option(name: str, help: str, default: Any = None, field: Any = None, **more: Any) -> Option:
    """An option of the type of its default; False makes a flag, `type` is for an option without a default."""
    if default is False:
        return Option(name, {"help": help, "action": "store_true"})
    kind = {"type": type(default)} if isinstance(default, int | float) else {}
    return Option(name, {"help": help, "default": default, **kind, **more}, field)


def _count(name: str, help: str, default: int | None = None, ge: int = 1, le: int = LARGEST_INT) -> Option:
    """An option that is a whole number from `ge` to `le`."""
    return _option(name, help, default, key(ge, help, ge=ge, le=le), type=int)


def _declared(options: type[Options], only: Sequence[str] = ()) -> tuple[Option, ...]:
    """The options that a declaration has, or `only` some."""
    return tuple(
        _option(f"--{field.name}", described(field), field.default, field, choices=field.metadata["choices"] or None)
        for field in dataclasses.fields(options)
        if not only or field.name in only
    )


def _compile(topology: str, slices: int, **options: Any) -> dict[str, Any]:
    from xlnet_jax.aot import topology as topologies

    topologies.check(topology, slices)
    topologies.prepare_environment()
    return _of("aot.report", "compile_for")(name=topology, slices=slices, **options)


def _texts(texts: str, more: str, batch: str, *options: Option) -> tuple[Option, ...]:
    """The options of a verb about texts, a file with more of them, and a checkpoint."""
    return (
        _option("texts", texts, nargs="*", metavar="TEXT"),
        _option("--input", f"more: a file with one per line{more}, or - for stdin"),
        *_CHECKPOINT,
        *options,
        _count("--batch_size", f"{batch} at a time (default 16)", 16, le=MOST_ROWS),
    )


_CORPUS = _option("path", "folder that `xlnet-jax prepare` wrote, also gs://", metavar="DIR")
_CONFIG = _option("--config", "Python file; --config.KEY=VALUE changes a key", required=True)
_CHECKPOINT = (
    _option("--workdir", "of the training run; --config.KEY=VALUE changes a key", required=True),
    _count("--step", "checkpoint (default: the newest)", ge=0),
)

_STOPS = (
    _count("--stop_at", "save and stop after this step"),
    _option("--dry_run", "check everything up to the first step; write nothing", False),
)

VERBS = (
    Verb("prepare", "Turn text into a corpus of token pages.",
         "xlnet-jax prepare --input=books/ --document=file --output=corpus", _of("commands.corpus", "prepare"), (
            _option("--input", "file, folder or glob, also gs://; repeatable", [], action="append"),
            _option("--tfds", "data set of TFDS, already prepared; repeatable", [], action="append",
                    metavar="NAME[:SPLIT]"),
            _option("--data_dir", "where TFDS has its data sets (default: its own)"),
            _option("--field", "field of a record that holds the text (default: text)", "text"),
            _option("--output", "folder of the corpus, also gs://", required=True),
            _option("--tokenizer", "spiece.model, tokenizer.json, vocab.txt, vocab.json (with merges.txt) or "
                    "vocabulary.json to use, or the folder of one; without it one is made"),
            _option("--vocabulary", "train a SentencePiece model (default), WordPiece or BPE of bytes, or count words, "
                    "characters or bytes",
                    choices=("sentencepiece", "wordpiece", "bytebpe", "words", "characters", "bytes")),
            _count("--vocab_size", "pieces to train (default 32000), or the most to keep of those counted", None, 10,
                   10**6),
            _option("--dataset", "the published files of enwik8, text8 or wikitext103; :test holds out the test split",
                    metavar="NAME[:test]"),
            _option("--document", "what ends a document (default: a blank line)", "blank_line",
                    choices=("blank_line", "file", "line")),
            _option("--sentences", "what ends a sentence: its line, or also . ! ? and the like (default: line)", "line",
                    choices=("line", "punctuation")),
            _option("--uncased", "lower-case the text", False),
            _option("--keep_accents", "do not strip accents", False),
            _option("--nfkc", "compose characters at the end (NFKC), as Hangul needs it", False),
            _option("--heldout", "share of documents held out (default 0.01)", 0.01, key(0.01, "", lt=1)),
            _option("--errors", "text that is not UTF-8, and empty documents: refuse, or replace and leave out",
                    "strict", choices=("strict", "replace")),
            _count("--sample_bytes", "text the tokenizer is trained on", 100_000_000, le=10**12),
            _count("--seed", "of the tokenizer's sample", 0, 0, 2**32 - 1),
            _count("--shard_bytes", "source text of a work unit, and a shard (default: 64 MB, or 1 GB from 1 TB on)",
                   le=10**12),
            _count("--workers", "processes (default: the cores)"),
            _option("--engine", "local: processes of this machine (default); beam: an Apache Beam pipeline", "local",
                    choices=("local", "beam")),
            _option("--beam_options", "of the Beam pipeline", "", metavar="NAME=VALUE,..."),
        ), overrides=False, stops=True),
    Verb("corpus info", "Show the contents of a corpus and how it was made.", "xlnet-jax corpus info corpus --json",
         _of("data.corpus.verify", "info"), (_CORPUS,), overrides=False),
    Verb("corpus verify", "Read a whole corpus and compare it with all its hashes and counts.",
         "xlnet-jax corpus verify gs://bucket/corpus --workers=8\n\n"
         "Every problem is a line on stderr, and the exit code is 2.",
         _of("commands.corpus", "verify"), (_CORPUS, _count("--workers", "shards at a time (default: the cores)")),
         overrides=False),
    Verb("corpus sample", "Show excerpts of a corpus as text: what the model will read.",
         "xlnet-jax corpus sample corpus --split=heldout --count=3 --length=200\n\n"
         "§ starts a document, ¶ a paragraph, | a sentence.",
         _of("data.corpus.verify", "sample"), (
            _CORPUS,
            _option("--split", "(default: train)", "train", choices=("train", "heldout")),
            _count("--seed", "of the choice (default 0)", 0, 0, 2**64 - 1),
            _count("--count", "number of excerpts (default 5)", 5, le=10**5),
            _count("--length", "tokens of each (default 100)", 100, le=10**6),
        ), _of("commands.corpus", "show_samples"), overrides=False),
    Verb("configure", "Write a configuration file that suits a corpus, this machine and the time available.",
         "xlnet-jax configure corpus --minutes=30 --output=config.py", _of("commands.configure", "configure"), (
            _option("corpus", "folder that `xlnet-jax prepare` wrote; several with commas", metavar="DIR"),
            _option("--minutes", "how long training may take (default 30)", 30.0),
            _option("--output", "Python file to write (default: config.py)", "config.py"),
            _option("--family", "of the model (default: xlnet)", "xlnet",
                    choices=tuple(configs.FAMILIES)),
        ), overrides=False),
    Verb("train", "Pretrain, or resume, in a work directory.",
         "xlnet-jax train --config=configs/xlnet_base.py --config.data.corpus=corpus --workdir=run",
         _of("commands.train", "train"), (
            _CONFIG,
            _option("--workdir", "folder for checkpoints, metrics and manifest, also gs://", required=True),
            _option("--branch", "start from the whole state of another run: a decay branch", metavar="RUN[@STEP]"),
            *_STOPS,
        ), stops=True, meets=True),
    Verb("finetune", "Train a task on labelled examples from a pretrained model, or resume.",
         "xlnet-jax finetune --config=configs/finetune/sst2.py --config.checkpoint.init_from=run --workdir=sst2",
         _of("commands.finetune", "finetune"), (
            _CONFIG,
            _option("--workdir", "new folder for checkpoints, scores and predictions, also gs://", required=True),
            _count("--seeds", "runs with different seeds, below the work directory (default 1)", 1, le=1000),
            *_STOPS,
        ), stops=True, meets=True),
    Verb("predict", "Labels, scores, answers or vectors of texts, from a fine-tuned model; one JSON object per line.",
         "xlnet-jax predict --workdir=sst2 'A fine film.' 'A dull one.'\n\n"
         "Several texts of one example, such as a pair, are separated by a tab, or are a JSON object of an --input.",
         _of("commands.predict", "predict"), (
            _option("texts", "examples", nargs="*", metavar="TEXT"),
            _option("--input", "more examples: a file with one per line (.jsonl: a JSON object), or - for stdin"),
            *_CHECKPOINT,
            _count("--batch_size", "examples at a time; does not change the result", le=MOST_ROWS),
            *_declared(Decoding, ("temperature", "top_k", "top_p", "seed")),
         ), stops=True, meets=True),
    Verb("fill", "Fill the gaps of texts with a permutation model; one JSON object per line, or as text on a terminal.",
         "xlnet-jax fill --workdir=run 'The [MASK] of the union' 'We [MASK:2-8] peace.' --order=confidence\n\n"
         "[MASK] is one missing piece, [MASK:5] five, [MASK:2-8] a number that the seed draws.",
         _of("commands.texts", "fill_shown"),
         _texts("texts with [MASK]", " (.jsonl: objects with `text`)", "texts", *_declared(Fill)), stops=True),
    Verb("generate", "Continue texts, from left to right or in any order; one JSON object per line, or as text on a "
         "terminal.",
         "xlnet-jax generate --workdir=run 'Once upon a time' --tokens=200 --top_p=0.9",
         _of("commands.texts", "generate_shown"),
         _texts("texts to continue", "", "texts", _option("--prompt", "such a text; repeatable", [], action="append"),
                *_declared(Generate)), stops=True),
    Verb("score", "Log-likelihood of texts, or of a part of each given the rest; one JSON object per line.",
         "xlnet-jax score --workdir=run 'The end of the war.' 'The end of the car.'\n"
         "echo '{\"before\": \"The \", \"text\": \"end\", \"after\": \" of the war.\"}' | "
         "xlnet-jax score --workdir=run --input=-",
         _of("commands.texts", "score"),
         _texts("texts of which nothing is given", " (.jsonl: text, before, after)", "texts times orders",
                *_declared(Score)), stops=True, meets=True),
    Verb("inspect", "Show one training example, or count parameters.",
         "xlnet-jax inspect --config=configs/xlnet_base.py --config.data.corpus=corpus --step=3",
         _of("commands.inspect", "inspect"), (
            _option("--config", "Python file; --config.KEY=VALUE changes a key", dest="path"),
            _option("--workdir", "run or imported model, in place of --config"),
            _count("--step", "(default 0)", 0, 0),
            _count("--row", "(default 0)", 0, 0),
            _option("--output", "PNG of the content and the query mask"),
            _option("--parameters", "count parameters and tensors instead", False),
        ), _of("commands.inspect", "show")),
    Verb("compile", "Compile the training step for TPUs without having one: memory, collectives, projected speed.",
         "xlnet-jax compile --config=configs/xlnet_large.py --topology=v5e:16x16", _compile, (
            _CONFIG,
            _option("--topology", "chips of a slice, such as v3:16x16, v4:8x8x4, v6e:16x16", required=True),
            _count("--slices", "equal slices, joined by a network (default 1)", 1),
            _count("--phase", "of a run with phases, counted from 0 (default 0)", 0, 0),
            _option("--budget", "search the largest batch per device that fits: many compilations", False),
        ), _of("aot.report", "print_report")),
    Verb("quickstart", "The whole way on real prose in about five minutes.",
         "xlnet-jax quickstart --workdir=runs/quickstart", _of("commands.quickstart", "quickstart"), (
            _option("--workdir", "(default: runs/quickstart)", "runs/quickstart"),
            _option("--config", "Python file", "configs/quickstart.py"),
        ), _of("commands.quickstart", "show")),
    Verb("doctor", "Check this machine before a launch: a line for each check; exit code 2 if one would stop it.",
         "xlnet-jax doctor --workdir=gs://BUCKET/run --corpus=gs://BUCKET/corpus",
         _of("commands.doctor", "doctor"), (
            _option("--workdir", "of the run: rights and space"),
            _option("--corpus", "folder that `xlnet-jax prepare` wrote; several with commas", metavar="DIR"),
        ), _of("commands.doctor", "show"), overrides=False),
    Verb("evaluate", "Held-out loss; left to right, and with --factorization_order, also bits per character.",
         "xlnet-jax evaluate --workdir=run --json\n"
         "xlnet-jax evaluate --workdir=run --target_share=0.5 --orders=8",
         _of("commands.evaluate", "run"), (
            *_CHECKPOINT,
            _count("--batch_size", "rows at a time; does not change the result", le=MOST_ROWS),
            _count("--blocks", "score only the first blocks (default: all)", ge=0),
            _count("--streams", "left to right: rows of text, which start without memory (default: few)"),
            _count("--memory_len", "left to right: memory slots (default: as in training)", ge=0),
            _count("--segment_len", "left to right: tokens of a segment (default: as in training)"),
            _count("--clamp_len", "left to right: clip relative distances to this (default: as in training)", ge=-1),
            _option("--same_length", "left to right: every query sees as many tokens as there are slots", False),
            _option("--context", "left to right: instead, the loss by the length of the context, and a plot", False),
            _option("--against", "with --context: the work directory of another model; repeatable", [],
                    action="append", metavar="DIR"),
            _option("--factorization_order", "permutation model: targets of this order law (default: as in training)",
                    choices=("spans", "uniform", "left_within")),
            _option("--target_share", "permutation model: instead, joint likelihoods of windows with this share "
                    "unknown, by order", type=float, metavar="SHARE"),
            _count("--orders", "with --target_share: random orders (default 8)", le=MOST_ORDERS),
            _count("--windows", "with --target_share: windows of each corpus, 0 = all (default 64)", ge=0),
            _option("--sliding", "absolute positions: every token from a full window of its own (slow)", False),
        ), stops=True, meets=True),
    Verb("compare", "Train several configurations with several seeds, score all by one estimator, and write a page.",
         "xlnet-jax compare --configs=configs/compare/clm.py,configs/compare/plm_spans.py --corpus=corpus "
         "--workdir=compared", _of("commands.compare", "compare"), (
            _option("--configs", "Python files, separated by commas; the first sets the budget", required=True,
                    metavar="FILE,..."),
            _option("--corpus", "folder that `xlnet-jax prepare` wrote", required=True, metavar="DIR"),
            _option("--workdir", "folder of all runs, and of compare.json and page.html", required=True),
            _count("--seeds", "runs of each configuration (default 5); with fewer nothing is claimed", 5, le=1000),
            _option("--equal", "what all spend as much of in training: flops (default) or tokens", "flops",
                    choices=("flops", "tokens")),
            _option("--only", "do this run alone, as a job of a cluster", metavar="NAME:SEED"),
            _count("--windows", "windows of held-out text (default 32)", 32, le=10**6),
            _count("--length", "tokens of a window (default: what every system reads at a time)", ge=2, le=10**6),
            _count("--orders", "random orders for half of a window (default 2)", 2, le=MOST_ORDERS),
        ), _of("commands.compare", "show"), stops=True),
    Verb("export", "Write a checkpoint for another library.",
         "xlnet-jax export --workdir=run --format=huggingface --output=exported",
         _of("commands.export", "export"), (
            *_CHECKPOINT,
            _option("--format", "orbax: the parameters alone (default: huggingface)", "huggingface",
                    choices=("huggingface", "orbax")),
            _option("--output", "new folder, also gs://", required=True),
            _count("--average", "mean of so many saves, that one and those before it (default 1)", 1, le=1000),
            _count("--shard_bytes", "largest file of weights in a Hugging Face folder (default: 5 GB)", 5 * 10**9,
                   le=2**63 - 1),
        )),
    Verb("import", "Make a work directory of a model from elsewhere: Hugging Face, TensorFlow, Orbax.",
         "xlnet-jax import xlnet_cased_L-12_H-768_A-12 --workdir=imported\n\n"
         "--config.KEY=VALUE sets what the source does not: memory, segment length, dropout.",
         _of("commands.import_", "import_"), (
            _option("source", "folder, or the common part of the names of a TensorFlow checkpoint's files"),
            _option("--workdir", "new folder, also gs://", required=True),
            _option("--tokenizer", "file of a tokenizer (default: the one beside the parameters), or the symbols of a "
                    "Transformer-XL, one a line"),
        )),
)  # fmt: skip
