"""The commands of the command line: name, help, example, options and function of each.

A new command is a run function and a `Command` (see `options`) in this file.
"""

from __future__ import annotations

from typing import Any

from xlnet_jax import messages
from xlnet_jax.infer.options import MOST_ORDERS, Decoding, Fill, Generate, Score
from xlnet_jax.keys import key
from xlnet_jax.members import MEMBERS
from xlnet_jax.options import Command, Option, count, declared_options, imported, option

MOST_ROWS = 2**22
"""Largest batch size of a command."""

TOPICS = {
    "data": ("prepare", "corpus", "inspect"),
    "train": ("quickstart", "configure", "train", "finetune", "glue", "evaluate", "compare"),
    "use": ("fill", "generate", "score", "predict", "export", "import"),
    "operate": ("doctor", "compile", "report"),
}
"""First words of commands by topic, for `--help` and docs/cli.md."""


def compile_for(topology: str, slices: int, units: bool, **options: Any) -> dict[str, Any]:
    """Calls `aot.report.compile_for` in the environment that JAX reads when it is imported."""
    from xlnet_jax.aot import topology as topologies

    topologies.check_topology(topology, slices)
    topologies.prepare_environment()
    result = imported("aot.report:compile_for")(name=topology, slices=slices, **options)
    if not (units or messages.output.json):
        (result["account"] or {}).pop("units", None)
    return result


def _texts(texts: str, more: str, batch: str, *options: Option) -> tuple[Option, ...]:
    """Returns the options of a command about texts: texts, a file of texts, and a checkpoint."""
    return (
        option("texts", texts, nargs="*", metavar="TEXT"),
        option("--input", f"file of more texts, one per line{more}, or - for stdin"),
        *_CHECKPOINT,
        *options,
        count("--batch_size", f"{batch} at a time (default 16)", 16, le=MOST_ROWS),
    )


_CORPUS = option(
    "path", "folder that `xlnet-jax prepare` wrote, also gs:// or s3://", metavar="DIR"
)
_FILE = "Python file or name of a packaged configuration; --config.KEY=VALUE changes a key"
_CONFIG = option("--config", f"{_FILE} (default: the configuration of the resumed run)")
_RUN = option(
    "--workdir", "work directory of the run; --config.KEY=VALUE changes a key", required=True
)
_CHECKPOINT = _RUN, count("--step", "checkpoint (default: the newest)", ge=0)
_BEST_CHECKPOINT = (
    _RUN,
    count(
        "--step",
        "checkpoint (default: the one with the best dev score, or the newest if none was scored)",
        ge=0,
    ),
)

_STOPS = (
    count("--stop_at", "save and stop after this step"),
    option("--dry_run", "check everything up to the first step; write nothing", False),
)

COMMANDS = (
    Command(
        "prepare",
        "Turn text into a corpus of token pages.",
        "xlnet-jax prepare --input=books/ --document=file --output=corpus",
        "commands.corpus:prepare",
        (
            option(
                "--input",
                "file, folder or glob, also gs://, s3:// or hf://; repeatable",
                [],
                action="append",
            ),
            option(
                "--tfds",
                "data set of TFDS, already prepared; repeatable",
                [],
                action="append",
                metavar="NAME[:VERSION][:SPLIT]",
            ),
            option("--data_dir", "folder of the TFDS data sets (default: TFDS's own)"),
            option("--field", "field or column of a record with the text (default: text)", "text"),
            option("--output", "folder of the corpus, also gs:// or s3://", required=True),
            option(
                "--tokenizer",
                "spiece.model, tokenizer.json, vocab.txt, vocab.json (with merges.txt), "
                "vocabulary.json, or a folder with one (default: a new one)",
            ),
            option(
                "--vocabulary",
                "train SentencePiece, WordPiece or byte BPE, or count words, characters, bytes or "
                "what --pattern matches",
                choices=(
                    "sentencepiece",
                    "wordpiece",
                    "bytebpe",
                    "words",
                    "characters",
                    "bytes",
                    "pattern",
                ),
            ),
            option(
                "--pattern",
                "--vocabulary=pattern: regular expression that matches one piece; docs/data.md has "
                "the expression for SMILES (Schwaller et al. 2019)",
                metavar="REGEX",
            ),
            option(
                "--family",
                "model family, which sets the kind of vocabulary (default: xlnet)",
                choices=tuple(MEMBERS),
            ),
            count(
                "--vocab_size",
                "number of pieces to train (default: the largest of 32000, 16000, 8000, 4000, "
                "2000, 1000 that the text gives), or largest number of counted entries to keep",
                None,
                10,
                10**6,
            ),
            option(
                "--dataset",
                "published files of enwik8, text8 or wikitext103; :test holds out the test split",
                metavar="NAME[:test]",
            ),
            option(
                "--document",
                "end of a document (default: a blank line)",
                "blank_line",
                choices=("blank_line", "file", "line"),
            ),
            option(
                "--sentences",
                "end of a sentence: the line, or also . ! ? and the like (default: line)",
                "line",
                choices=("line", "punctuation"),
            ),
            option("--unwrap", "join the lines of each paragraph first", False),
            option("--uncased", "lower-case the text", False),
            option(
                "--strip_accents",
                "remove accents, umlauts and other marks, as the released XLNet does",
                False,
            ),
            option(
                "--nfkc",
                "compose characters (NFKC) as the last step; Hangul needs it after --strip_accents",
                False,
            ),
            option(
                "--heldout",
                "share of documents held out (default 0.01)",
                0.01,
                key(0.01, "", "[0, 1)"),
            ),
            option(
                "--errors",
                "strict refuses text that is not UTF-8 and empty documents; replace replaces bad "
                "bytes and leaves out empty documents",
                "strict",
                choices=("strict", "replace"),
            ),
            count(
                "--sample_bytes", "bytes of text that train the tokenizer", 100_000_000, le=10**12
            ),
            count("--seed", "seed of the tokenizer's sample", 0, 0, 2**32 - 1),
            count(
                "--shard_bytes",
                "bytes of text of a work unit and its shard (default: 64 MB, or 1 GB from 1 TB on)",
                le=10**12,
            ),
            count("--workers", "processes (default: the cores)"),
            option(
                "--engine",
                "processes of this machine (local), or an Apache Beam pipeline (beam)",
                "local",
                choices=("local", "beam"),
            ),
            option("--beam_options", "options of the Beam pipeline", "", metavar="NAME=VALUE,..."),
        ),
        overrides=False,
        stops=True,
    ),
    Command(
        "corpus info",
        "Show the contents of a corpus and how it was made.",
        "xlnet-jax corpus info corpus --json",
        "data.corpus.verify:info",
        (_CORPUS,),
        overrides=False,
    ),
    Command(
        "corpus verify",
        "Read a whole corpus and compare it with all its hashes and counts.",
        "xlnet-jax corpus verify gs://bucket/corpus --workers=8\n\n"
        "Each problem is a line on stderr; then the exit code is 2.",
        "commands.corpus:verify",
        (_CORPUS, count("--workers", "shards at a time (default: the cores)")),
        overrides=False,
    ),
    Command(
        "corpus sample",
        "Show excerpts of a corpus as text: what the model will read.",
        "xlnet-jax corpus sample corpus --split=heldout --count=3 --length=200\n\n"
        "§ starts a document, ¶ a paragraph, | a sentence.",
        "data.corpus.verify:sample",
        (
            _CORPUS,
            option(
                "--split", "split to show (default: train)", "train", choices=("train", "heldout")
            ),
            count("--seed", "seed of the choice (default 0)", 0, 0, 2**64 - 1),
            count("--count", "number of excerpts (default 5)", 5, le=10**5),
            count("--length", "tokens of an excerpt (default 100)", 100, le=10**6),
        ),
        "commands.corpus:show_samples",
        overrides=False,
    ),
    Command(
        "configure",
        "Write a configuration file that suits a corpus, this machine and the time available.",
        "xlnet-jax configure corpus --minutes=30 --output=config.py",
        "commands.configure:configure",
        (
            option(
                "corpus",
                "folder that `xlnet-jax prepare` wrote; several with commas",
                metavar="DIR",
            ),
            option("--minutes", "how long training may take (default 30)", 30.0),
            option("--output", "Python file to write (default: config.py)", "config.py"),
            option(
                "--family",
                "model family (default: the --family of the corpus, or xlnet)",
                choices=tuple(MEMBERS),
            ),
            option(
                "--objective",
                "mdm: masked diffusion (default: the usual objective of the family)",
                choices=("mdm",),
            ),
        ),
        overrides=False,
    ),
    Command(
        "train",
        "Pretrain, or resume, in a work directory.",
        "xlnet-jax train --config=configs/xlnet_base.py --config.data.corpus=corpus --workdir=run",
        "commands.train:train",
        (
            _CONFIG,
            option(
                "--workdir",
                "folder of checkpoints, metrics and manifest, also gs://",
                required=True,
            ),
            option(
                "--branch",
                "start from the whole state of another run, for example for a decay branch",
                metavar="RUN[@STEP]",
            ),
            *_STOPS,
        ),
        "commands.train:show",
        stops=True,
        meets=True,
    ),
    Command(
        "finetune",
        "Train a task on labelled examples from a pretrained model, or resume.",
        "xlnet-jax finetune --config=configs/finetune/sst2.py "
        "--config.checkpoint.init_from=run --workdir=sst2",
        "commands.finetune:finetune",
        (
            _CONFIG,
            option(
                "--workdir",
                "folder of checkpoints, scores and predictions, also gs://",
                required=True,
            ),
            count(
                "--seeds",
                "runs with different seeds, in folders of the work directory (default 1)",
                1,
                le=1000,
            ),
            *_STOPS,
        ),
        "commands.train:show",
        stops=True,
        meets=True,
    ),
    Command(
        "glue",
        "Fine-tune the nine tasks of GLUE from its files, and average their scores.",
        "xlnet-jax glue --data=glue_data --config.checkpoint.init_from=run --workdir=glue",
        "commands.glue:glue",
        (
            option(
                "--data",
                "folder of CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE and WNLI, each with "
                "train.tsv and dev.tsv",
                required=True,
            ),
            option("--workdir", "folder of a run for each task, also gs://", required=True),
        ),
        stops=True,
    ),
    Command(
        "predict",
        "Predict labels, scores, answers or vectors with a fine-tuned model; one JSON object per "
        "line.",
        "xlnet-jax predict --workdir=sst2 'A fine film.' 'A dull one.'\n\n"
        "Tabs separate the texts of one example, such as a pair; an --input has them in columns.",
        "commands.predict:predict",
        (
            option("texts", "examples", nargs="*", metavar="TEXT"),
            option(
                "--input",
                "file of more examples, like a training file or one per line, or - for stdin",
            ),
            option("--skip_bad", "do not fail because of unusable examples", False),
            *_BEST_CHECKPOINT,
            count("--batch_size", "examples at a time; does not change the result", le=MOST_ROWS),
            *declared_options(Decoding, ("temperature", "top_k", "top_p", "seed")),
        ),
        stops=True,
        meets=True,
    ),
    Command(
        "fill",
        "Fill the gaps of texts; one JSON object per line, or text on a terminal.",
        "xlnet-jax fill --workdir=run 'The [MASK] of the union' 'We [MASK:2-8] peace.' "
        "--order=confidence\n\n"
        "[MASK] is one missing piece, [MASK:5] five, [MASK:2-8] a number that the seed draws;\n"
        "--top=5 shows the five best pieces for the only [MASK] of a text.",
        "commands.texts:fill_shown",
        _texts(
            "texts with [MASK]", " (.jsonl: objects with `text`)", "texts", *declared_options(Fill)
        ),
        stops=True,
    ),
    Command(
        "generate",
        "Continue texts, left to right or in any order of tokens; one JSON object per line, or "
        "text on a terminal.",
        "xlnet-jax generate --workdir=run 'Once upon a time' --tokens=200 --top_p=0.9",
        "commands.texts:generate_shown",
        _texts(
            "texts to continue",
            "",
            "texts",
            option("--prompt", "text to continue; repeatable", [], action="append"),
            *declared_options(Generate),
        ),
        stops=True,
    ),
    Command(
        "score",
        "Compute the log-likelihood of texts, or of a part given the rest; one JSON object per "
        "line.",
        "xlnet-jax score --workdir=run 'The end of the war.' 'The end of the car.'\n"
        'echo \'{"before": "The ", "text": "end", "after": " of the war."}\' | '
        "xlnet-jax score --workdir=run --input=-",
        "commands.texts:score",
        _texts(
            "texts to score as a whole",
            " (.jsonl: text, before, after)",
            "texts times orders",
            *declared_options(Score),
        ),
        stops=True,
        meets=True,
    ),
    Command(
        "inspect",
        "Show one training example, or count parameters.",
        "xlnet-jax inspect --config=configs/xlnet_base.py --config.data.corpus=corpus --step=3",
        "commands.inspect:inspect",
        (
            option("--config", _FILE, dest="path"),
            option("--workdir", "run or imported model, instead of --config"),
            count("--step", "training step (default 0)", 0, 0),
            count("--row", "row of the batch (default 0)", 0, 0),
            option("--output", "PNG file for the content and query masks"),
            option("--parameters", "count parameters and tensors, and show no example", False),
        ),
        "commands.inspect:show",
    ),
    Command(
        "compile",
        "Compile the training step for TPUs that this machine lacks: memory, collectives, speed.",
        "xlnet-jax compile --config=configs/xlnet_large.py --topology=v5e:16x16",
        "command_list:compile_for",
        (
            option("--config", _FILE, required=True),
            option(
                "--topology",
                "chips of a slice, such as v3:16x16, v4:8x8x4, v6e:16x16",
                required=True,
            ),
            count("--slices", "equal slices, joined by a network (default 1)", 1),
            count("--phase", "phase of the run, from 0 (default 0)", 0, 0),
            option(
                "--budget",
                "search the largest batch per device that fits, by many compilations",
                False,
            ),
            option("--units", "also print the used units of each kernel; --json has them", False),
        ),
        "aot.report:print_report",
    ),
    Command(
        "quickstart",
        "Run all steps, from text to a trained model, in about five minutes.",
        "xlnet-jax quickstart --workdir=runs/quickstart",
        "commands.quickstart:quickstart",
        (
            option(
                "--workdir", "folder of all outputs (default: runs/quickstart)", "runs/quickstart"
            ),
            option(
                "--config",
                "Python file or name of a packaged configuration (default: quickstart)",
                "quickstart",
            ),
        ),
        "commands.quickstart:show",
    ),
    Command(
        "doctor",
        "Check this machine before a launch, a line per check; exit code 2 if a launch would fail.",
        "xlnet-jax doctor --workdir=gs://BUCKET/run --corpus=gs://BUCKET/corpus",
        "commands.doctor:doctor",
        (
            option("--workdir", "work directory, for rights and space"),
            option(
                "--corpus",
                "folder that `xlnet-jax prepare` wrote; several with commas",
                metavar="DIR",
            ),
        ),
        "commands.doctor:show",
        overrides=False,
    ),
    Command(
        "evaluate",
        "Score held-out text: the loss of the split (split mode), the loss by the length of the "
        "context (context mode), or joint likelihoods (joint mode).",
        "xlnet-jax evaluate --workdir=run --json\n"
        "xlnet-jax evaluate --workdir=run --target_share=0.5 --orders=8",
        "commands.evaluate:run",
        (
            *_CHECKPOINT,
            count("--batch_size", "rows at a time; does not change the result", le=MOST_ROWS),
            count(
                "--blocks",
                "split mode: number of blocks to score, evenly spread (default: all)",
                ge=0,
            ),
            count(
                "--streams",
                "split mode, left to right: number of streams, each of which starts without memory "
                "(default: one stream for every 10 * (memory + segment) tokens of the split, at "
                "least 1, at most train.batch_size)",
            ),
            count("--memory_len", "left to right: memory slots (default: as in training)", ge=0),
            count("--segment_len", "left to right: tokens of a segment (default: as in training)"),
            count(
                "--clamp_len",
                "left to right: bound on relative distances (default: as in training)",
                ge=-1,
            ),
            option(
                "--same_length",
                "left to right: each query sees as many tokens as the memory has slots",
                False,
            ),
            option(
                "--context",
                "context mode, left to right: the loss by the length of the context, and a plot",
                False,
            ),
            option(
                "--against",
                "context mode: the work directory of another model; repeatable",
                [],
                action="append",
                metavar="DIR",
            ),
            option(
                "--factorization_order",
                "split mode, permutation model: order distribution of the targets (default: as in "
                "training)",
                choices=("spans", "uniform", "left_within"),
            ),
            option(
                "--target_share",
                "joint mode, permutation model: joint likelihoods, by order, of windows with this "
                "share of unknown tokens",
                type=float,
                metavar="SHARE",
            ),
            count("--orders", "joint mode: random orders (default 8)", le=MOST_ORDERS),
            count(
                "--windows",
                "joint mode: windows of each corpus, 0 = all (default 64)",
                ge=0,
            ),
            option(
                "--sliding",
                "split mode, vanilla: predict every token from the full window before it (slow)",
                False,
            ),
        ),
        stops=True,
        meets=True,
    ),
    Command(
        "compare",
        "Train configurations with several seeds, score all runs in the same way, and write a "
        "page.",
        "xlnet-jax compare "
        "--configs=configs/compare/objectives/clm.py,configs/compare/objectives/plm_spans.py "
        "--corpus=corpus --workdir=compared",
        "commands.compare:compare",
        (
            option(
                "--configs",
                "Python files, with commas; the first sets the budget",
                required=True,
                metavar="FILE,...",
            ),
            option(
                "--corpus", "folder that `xlnet-jax prepare` wrote", required=True, metavar="DIR"
            ),
            option("--workdir", "folder of all runs, compare.json and page.html", required=True),
            count(
                "--seeds",
                "runs of each configuration; with fewer than 5, no difference is reported as "
                "significant (`named`) (default 5)",
                5,
                le=1000,
            ),
            option(
                "--equal",
                "unit of the equal training budget: flops (default) or tokens",
                "flops",
                choices=("flops", "tokens"),
            ),
            option("--only", "the only run to do, for a job of a cluster", metavar="NAME:SEED"),
            count(
                "--windows",
                "windows of held-out text, or whole documents (default 32)",
                32,
                le=10**6,
            ),
            count(
                "--length",
                "tokens of a window, or of the longest document (default: the most that fit a "
                "segment of every configuration)",
                ge=2,
                le=10**6,
            ),
            count("--orders", "random orders of the measure `half` (default 2)", 2, le=MOST_ORDERS),
            option(
                "--finetune",
                "configuration files of tasks, with commas; each run is fine-tuned on each task",
                metavar="FILE,...",
            ),
        ),
        "commands.compare:show",
        stops=True,
    ),
    Command(
        "report",
        "Write an HTML page about runs, even unfinished ones.",
        "xlnet-jax report runs/quickstart/run --output=report.html",
        "commands.report:report",
        (
            option(
                "workdirs", "work directories of runs, also gs://", nargs="*", metavar="WORKDIR"
            ),
            option("--output", "file to write (default: report.html)", "report.html"),
        ),
        "commands.report:show",
        overrides=False,
    ),
    Command(
        "export",
        "Write a checkpoint for another library.",
        "xlnet-jax export --workdir=run --format=huggingface --output=exported",
        "commands.export:export",
        (
            *_BEST_CHECKPOINT,
            option(
                "--format",
                "orbax: parameters only (default: huggingface)",
                "huggingface",
                choices=("huggingface", "orbax"),
            ),
            option("--output", "new folder, also gs://, s3:// or hf://OWNER/NAME", required=True),
            option("--every", "export all kept checkpoints, each into OUTPUT/step_N", False),
            count(
                "--average",
                "number of checkpoints, up to --step, whose mean is exported (default 1)",
                1,
                le=1000,
            ),
            count(
                "--shard_bytes",
                "largest weight file of a Hugging Face folder (default: 5 GB)",
                5 * 10**9,
                le=2**63 - 1,
            ),
        ),
    ),
    Command(
        "import",
        "Make a work directory from a model of Hugging Face, TensorFlow or Orbax.",
        "xlnet-jax import xlnet_cased_L-12_H-768_A-12 --workdir=imported\n\n"
        "--config.KEY=VALUE sets keys that the source lacks: memory, segment length, dropout.",
        "commands.import_:import_",
        (
            option(
                "source",
                "folder, also gs://, s3:// or hf://, or common prefix of the files of a TensorFlow "
                "checkpoint",
            ),
            option("--workdir", "new folder, also gs://", required=True),
            option(
                "--tokenizer",
                "tokenizer file (default: beside the parameters), or symbols of a Transformer-XL, "
                "one per line",
            ),
        ),
    ),
)
