"""`xlnet-jax prepare` and `corpus`: makes a corpus from text, verifies a corpus, prints samples."""

from __future__ import annotations

import shlex
import sys
from typing import Any

from xlnet_jax.data.corpus import verify as verifying
from xlnet_jax.data.prepare import pipeline
from xlnet_jax.data.prepare.options import PrepareOptions
from xlnet_jax.errors import BadInput
from xlnet_jax.messages import printable
from xlnet_jax.storage.files import Json


def prepare(
    input: list[str],
    tfds: list[str],
    beam_options: str,
    output: str,
    **options: Any,
) -> Json:
    """Calls `data.prepare.pipeline.prepare`. Returns the sizes of the corpus, and the next
    `command`.
    """
    inputs = [*input, *(f"tfds:{name}" for name in tfds)]
    if not inputs:
        raise BadInput(
            "no text; name it with --input=FILE_OR_FOLDER or --tfds=NAME[:VERSION][:SPLIT]"
        )
    beam = [option for option in beam_options.split(",") if option]
    manifest = pipeline.prepare(inputs, output, PrepareOptions(beam_options=beam, **options))
    dropped = dict(manifest.get("dropped", {}))
    return {
        "output": output,
        **{f"{name}_tokens": split["tokens"] for name, split in manifest["splits"].items()},
        "vocabulary": manifest["tokenizer"]["vocab_size"],
        "sha256": manifest["sha256"],
        "letters": dropped.pop("letters", None),
        "dropped": dropped,
        "command": f"xlnet-jax configure {shlex.quote(output)} --minutes=30 --output=config.py",
    }


def verify(path: str, workers: int | None) -> Json:
    """Compares a corpus with its hashes and counts. Raises BadInput after a line on stderr for each
    problem.
    """
    counts, problems = verifying.verify(path, workers)
    for problem in problems:
        print(printable(problem), file=sys.stderr)
    if problems:
        raise BadInput(
            f"{path} differs from the prepared corpus (problems: {len(problems)}); copy it again"
        )
    return {"ok": True, **counts}


def show_samples(result: Json) -> None:
    """Prints the samples as text."""
    for each in result["samples"]:
        print(f"{each['split']}, token {each['start']}:\n  {printable(each['text'])}\n")
