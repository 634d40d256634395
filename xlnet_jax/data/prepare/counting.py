"""Counts the vocabulary of a corpus, unit by unit like the corpus itself: `Vocabulary` says what is counted.

Words are counted in the training text alone: the others become `<unk>`. Characters and bytes are counted in all text,
held out or not, because every one of them needs a piece.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

from xlnet_jax.data import vocabulary
from xlnet_jax.data.prepare import datasets
from xlnet_jax.data.prepare.sources import Part
from xlnet_jax.data.prepare.text import Request, TextReader
from xlnet_jax.data.prepare.work_unit import COUNTS, file_name, in_threads
from xlnet_jax.errors import BadInput
from xlnet_jax.storage import files


def count_unit(output: str, index: int, parts: tuple[Part, ...], request: Request) -> int:
    """Writes the counts of one work unit; returns the number of pieces. Raises BadInput as `TextReader.documents`."""
    note = file_name(output, index, COUNTS)
    reader, counts, tokens = TextReader(request), Counter[str](), 0
    with files.translate_errors(note):
        for part in parts:
            for document in reader.documents(part):
                of_document = vocabulary.count(itertools.chain.from_iterable(document), request.vocabulary)
                tokens += of_document.total()
                if request.vocabulary != "words" or request.split_of(document, part) == "train":
                    counts.update(of_document)
        content = {"sources": reader.read(parts), "tokens": tokens, "counts": counts}
        files.write(note, files.to_json(content, indent=None))
    return tokens


def write_vocabulary(
    path: str, output: str, units: Sequence[tuple[Part, ...]], request: Request, bound: int | None
) -> None:
    """Adds up the counts of all units and writes the vocabulary to `path`; see `vocabulary.write`.

    Raises BadInput: no text, too small a bound, or a published data set with other counts than the published ones.
    """
    counts, of_file = Counter[str](), Counter[str]()
    for note in in_threads(lambda index: files.read_json(file_name(output, index, COUNTS)), range(len(units))):
        counts.update(note["counts"])
        of_file[note["sources"][0]["path"]] += note["tokens"]
    if not counts:
        raise BadInput("no text to count: the inputs hold none, or all of it is held out; use a smaller --heldout")
    if request.dataset:
        datasets.parse(request.dataset).check_words(of_file)
    vocabulary.write(path, request.vocabulary, counts, bound, verbatim=bool(request.dataset))
