"""Text to a corpus: `prepare`.

    find files -> cut into work units -> (train a tokenizer, or count a vocabulary)
               -> make each unit separately -> assemble

A unit's files depend only on the request, the text and the unit's number (see `work_unit`). So any
number of processes or machines may work (see `engine`), a killed run resumes with the missing
units, and the corpus is always the same, byte for byte.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import os
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from xlnet_jax.data import patterns, subwords
from xlnet_jax.data import vocabulary as vocabularies
from xlnet_jax.data.corpus import manifest as manifests
from xlnet_jax.data.corpus import pages
from xlnet_jax.data.prepare import datasets, marks, resume, work_unit
from xlnet_jax.data.prepare import engine as engines
from xlnet_jax.data.prepare.datasets import Dataset
from xlnet_jax.data.prepare.options import DEFAULTS, PrepareOptions
from xlnet_jax.data.prepare.sources import Source, Unit, find_sources, plan
from xlnet_jax.data.prepare.text import Request, TextReader, wrapped
from xlnet_jax.data.prepare.work_unit import in_threads
from xlnet_jax.data.tokenizer import Normalization, Tokenizer, TooLittleText, train_tokenizer
from xlnet_jax.data.vocabulary import Vocabulary, open_tokenizer, unexportable
from xlnet_jax.errors import BadInput
from xlnet_jax.members import MEMBERS
from xlnet_jax.messages import quantity
from xlnet_jax.storage import files
from xlnet_jax.storage.files import Json

# The size of a part of the tokenizer's sample, and about the largest number of parts of the text. A
# larger text has larger parts, because cutting a file in a bucket costs a request per part.
_SAMPLE_PART_BYTES, _SAMPLE_PARTS = 1_000_000, 20_000
_TRAINING_THREADS = 8  # fixed: the model's bytes depend on it
# Default sizes of a trained tokenizer, tried in this order until the text has enough pieces.
_PIECES = (32_000, 16_000, 8_000, 4_000, 2_000, 1_000)
_TRAINED = ("sentencepiece", *subwords.LEVELS)  # the others are counted

_log = logging.getLogger("xlnet_jax")


class _Corpus(NamedTuple):
    """A corpus to make: the options of `prepare` with all defaults resolved."""

    output: str
    options: PrepareOptions
    sources: Sequence[Source]
    published: Dataset | None
    tokenizer: Tokenizer | None
    """The given tokenizer; None makes one."""
    training: Normalization
    """Steps for the text on which a tokenizer is trained."""
    request: Request

    @property
    def shard_bytes(self) -> int:
        """Bytes of source text per unit: 10 TB give 10,000 shards instead of 156,250."""
        is_small = sum(source.bytes for source in self.sources) < 10**12
        return self.options.shard_bytes or (64_000_000 if is_small else 10**9)

    def record(self) -> Json:
        """Returns the options that `prepare.json` holds and that every later call must repeat. The
        first difference, in their order, is reported.
        """
        options, level, given = self.options, self.request.vocabulary, self.tokenizer
        record: Json = {
            "format_version": manifests.FORMAT_VERSION,
            "tokenizer": given and given.sha256,
            **({} if level == "sentencepiece" else {"vocabulary": level}),
            # Without the default values of `Request`, so that a corpus that an earlier version
            # began, without these fields, can be resumed.
            **{
                name: value
                for name, value in dataclasses.asdict(self.request).items()
                if value != getattr(Request, name, None)
            },
            "shard_bytes": self.shard_bytes,
        }
        if options.family:
            record["family"] = options.family
        if not given:
            record["vocab_size"] = options.vocab_size
            if level in _TRAINED:
                record |= {
                    "vocab_size": options.vocab_size or _PIECES[0],
                    "sample_bytes": options.sample_bytes,
                    "seed": options.seed,
                }
            if level in subwords.LEVELS:  # the steps become a part of the tokenizer
                record |= {
                    "uncased": self.training.lower,
                    "keep_accents": self.training.keep_accents,
                }
        return record


def prepare(inputs: Sequence[str], output: str, options: PrepareOptions = DEFAULTS) -> Json:
    """Makes a corpus from text, or resumes where an earlier call with the same arguments stopped.

    Args:
      inputs: files, folders and glob patterns, on disk or at an address of fsspec, and
        `tfds:NAME[:VERSION][:SPLIT]`; see `sources`.
      output: folder to write, also an address; new, empty, or started by the same request.
      options: see `PrepareOptions`.

    Returns the manifest. Raises BadInput: unusable text or options, a folder with other content, a
    request that differs from the first, or a file that cannot be written. RestartMe: a worker
    process was killed, or a bucket did not answer; the same call resumes.
    """
    if "," in output:
        raise BadInput(
            f"--output={output}: commas separate the folders of data.corpus; "
            "choose a name without commas"
        )
    published = datasets.parse(options.dataset) if options.dataset else None
    _check_options(options, published)
    if options.engine == "beam":
        engines.make_pipeline(options.beam_options, output)  # before anything is read
    with files.translate_errors(output):
        sources = published.find(inputs) if published else find_sources(inputs, options.data_dir)
        corpus = _resolve(output, options, sources, published)
        files.make_folder(output)
        with files.locked(output, "another `prepare` writes here"):
            resume.claim(output, corpus.record(), sources)
            units = os.path.join(output, work_unit.FOLDER)
            for folder in (output, units):
                files.sweep(folder)
            resume.check_unchanged(output, sources, TextReader(corpus.request))
            if manifests.MANIFEST in files.listing(output):
                _log.info("%s is finished already", output)
                manifest = resume.check_finished(output)
            else:
                manifest = _make(corpus)
            files.remove(units)
            return manifest


def _check_options(options: PrepareOptions, published: Dataset | None) -> None:
    """Raises BadInput for options that exclude each other."""
    if options.beam_options and options.engine != "beam":
        raise BadInput("--beam_options is for --engine=beam; give both or neither")
    if published and options.vocabulary not in (None, published.vocabulary):
        raise BadInput(
            f"--dataset={options.dataset} has a vocabulary of "
            f"{published.vocabulary}; leave --vocabulary out"
        )
    if published and (options.steps() or options.unwrap):
        raise BadInput(
            f"--dataset={options.dataset} is read as it is: leave out --uncased, "
            "--strip_accents, --nfkc and --unwrap"
        )
    if options.unwrap and options.document == "line":
        raise BadInput(
            "--unwrap joins lines, and --document=line makes a document of each line; leave out "
            "one of the two"
        )


def _resolve(
    output: str, options: PrepareOptions, sources: Sequence[Source], published: Dataset | None
) -> _Corpus:
    """Returns the corpus that the options ask for. Raises BadInput for a tokenizer that does not
    fit.
    """
    given = None if options.tokenizer is None else open_tokenizer(options.tokenizer)
    level = (published.vocabulary if published else options.vocabulary) or (
        given.level if given else MEMBERS[options.family or "xlnet"].vocabulary
    )
    if given and given.level != level:
        raise BadInput(
            f"--tokenizer={options.tokenizer} is one of {given.level}, "
            f"not of {level}; leave out one of the two options"
        )
    steps = options.steps()
    if steps and (level == "bytebpe" or (isinstance(given, subwords.Subwords) and given.folder)):
        raise BadInput(
            f"tokenizer {options.tokenizer or level}: its normalisation is fixed; leave out "
            "--uncased, --strip_accents and --nfkc"
        )
    if given and steps:
        if given.path.endswith(".txt") and options.uncased:  # uncased BERT drops accents
            steps["keep_accents"] = False
        given = open_tokenizer(given.path, dataclasses.replace(given.normalization, **steps))
    training = Normalization(**{"keep_accents": resume.keeps_accents(output)} | steps)
    normalization = given.normalization if given else training
    if published:
        normalization = Normalization(keep_accents=True, remove_space=False)
    elif level in subwords.LEVELS:
        normalization = subwords.AS_IS  # the tokenizer normalises
    request = Request(
        options.document,
        options.sentences,
        normalization,
        options.heldout,
        options.errors,
        options.page_tokens,
        options.field,
        level,
        options.dataset or "",
        options.unwrap,
        _pattern(options, level, given),
    )
    return _Corpus(output, options, sources, published, given, training, request)


def _pattern(options: PrepareOptions, level: str, given: Tokenizer | None) -> str:
    """Returns the pattern of the vocabulary, or "" for another level. Raises BadInput for a pattern
    that is missing, left over, or cannot be used.
    """
    pattern = ""
    if level == "pattern":
        pattern = given.pattern if given else options.pattern
        if pattern is None:
            raise BadInput(
                "--vocabulary=pattern needs --pattern=REGEX, which matches one piece; "
                "docs/data.md has the pattern for SMILES"
            )
        patterns.cutter(pattern)
    if options.pattern not in (None, pattern):
        raise BadInput(
            f"--pattern={options.pattern} needs --vocabulary=pattern, or a --tokenizer of the same "
            "pattern; give one of them, or leave --pattern out"
        )
    return pattern


def _make(corpus: _Corpus) -> Json:
    """Makes the tokenizer and all units, and assembles them; returns the manifest."""
    output, options, sources = corpus.output, corpus.options, corpus.sources
    # Planned only once, because this reads parts of every large file.
    if published := corpus.published:
        units = published.plan(sources, corpus.shard_bytes, ("train", published.heldout))
    else:
        units = plan(sources, corpus.shard_bytes, corpus.request.document)
    tokenizer = _write_tokenizer(corpus, units)
    refused = [name for name in MEMBERS if unexportable(tokenizer, name)]
    # No message if every member refuses: these are words or bytes, and nobody expects their export.
    if options.family in refused or 0 < len(refused) < len(MEMBERS):
        _log.log(
            logging.WARNING if options.family in refused else logging.INFO,
            "models of %s train with this vocabulary, but cannot be exported to Hugging Face; "
            "--family=NAME makes one for them",
            ", ".join(refused),
        )
    engines.run_units(output, units, tokenizer, corpus.request, options)
    try:
        return _assemble(output, units, tokenizer, corpus.record())
    except FileNotFoundError:
        # A bucket has no lock: another process may have finished the same corpus first.
        if manifests.MANIFEST not in files.listing(output):
            raise
        return resume.check_finished(output)


def _write_tokenizer(corpus: _Corpus, units: list[Unit]) -> Tokenizer:
    """Copies, trains or counts the tokenizer of a folder that has none yet, and opens it. Raises
    BadInput: no text, a `vocab_size` that is too small, word counts that differ from the published
    ones, or another tokenizer in the folder.
    """
    output, request, given = corpus.output, corpus.request, corpus.tokenizer
    kinds = {"sentencepiece": Tokenizer, **dict.fromkeys(subwords.LEVELS, subwords.Subwords)}
    name = kinds.get(request.vocabulary, Vocabulary).file_name
    path = os.path.join(output, name)
    if name not in files.listing(output):
        if given:
            files.write(path, given.content)
        elif request.vocabulary in _TRAINED:
            _train(path, corpus)
        else:
            _log.info("counting %s", request.vocabulary)
            if corpus.published:
                # All splits, so that the vocabulary does not depend on the held-out split.
                units = corpus.published.plan(corpus.sources, corpus.shard_bytes, datasets.SPLITS)
            engines.run_units(output, units, None, request, corpus.options)
            counts, of_file = Counter[str](), Counter[str]()
            for note in in_threads(
                files.read_json, work_unit.file_names(output, units, work_unit.COUNTS)
            ):
                counts.update(note["counts"])
                of_file[note["sources"][0]["path"]] += note["tokens"]
            if not counts:
                raise BadInput(
                    "no text to count: the inputs hold none, "
                    "or all of it is held out; use a smaller --heldout"
                )
            if corpus.published:
                corpus.published.check_words(of_file)
            bound, verbatim = corpus.options.vocab_size, corpus.published is not None
            vocabularies.write_counted(
                path, request.vocabulary, counts, bound, verbatim, request.pattern
            )
    tokenizer = open_tokenizer(path, request.normalization)
    if given and tokenizer.sha256 != given.sha256:
        raise BadInput(
            f"{path} is not {corpus.options.tokenizer}, though begun with it; "
            f"remove {output} and prepare again"
        )
    return tokenizer


def _train(path: str, corpus: _Corpus) -> None:
    """Trains the tokenizer on parts of the text in random order, until the sample is full."""
    request, options, sources = corpus.request, corpus.options, corpus.sources
    part_bytes = max(_SAMPLE_PART_BYTES, sum(source.bytes for source in sources) // _SAMPLE_PARTS)
    parts = plan(sources, part_bytes, request.document)
    order = np.random.Generator(np.random.Philox(options.seed)).permutation(len(parts))
    reader = TextReader(request, corpus.training)
    sample: list[str] = []
    size = held_out = 0
    for document in (
        each for index in order for part in parts[index] for each in reader.documents(part)
    ):
        if request.held_out(document):
            held_out += 1
            continue
        for paragraph in document:
            sample.extend(paragraph)
            size += sum(len(sentence.encode()) for sentence in paragraph)
        if size >= options.sample_bytes:
            break
    _check_any(len(sample), held_out)
    # Warn now, after about a minute, because the corpus may take a day.
    marks.say(reader.dropped)
    if request.sentences == "punctuation" and not request.unwrap and (warning := wrapped(sample)):
        _log.warning("%s", warning)
    sizes = _PIECES if options.vocab_size is None else (options.vocab_size,)
    for pieces in sizes:
        _log.info("training a tokenizer of %d pieces on %d bytes of text", pieces, size)
        try:
            if request.vocabulary in subwords.LEVELS:
                subwords.train(sample, path, pieces, request.vocabulary, corpus.training)
            else:
                train_tokenizer(sample, path, pieces, options.seed, _TRAINING_THREADS)
            return
        except TooLittleText:
            if pieces == sizes[-1]:
                raise
            _log.info("this text does not give %d pieces", pieces)


def _check_any(train: int, held_out: int) -> None:
    """Raises BadInput if there is no text for training."""
    if not train and held_out:
        raise BadInput(
            f"all of the text ({quantity(held_out, 'document')}) fell to the "
            "held-out split; choose another --output and a smaller --heldout"
        )
    if not train:
        raise BadInput("the inputs hold no text")


def _assemble(output: str, units: Sequence[Unit], tokenizer: Tokenizer, options: Json) -> Json:
    """Renames the shards to their final names and writes the other files of the corpus, the
    manifest last. Returns the manifest.
    """
    notes = list(in_threads(resume.read_note, work_unit.file_names(output, units, "json")))
    for index, (note, parts) in enumerate(zip(notes, units, strict=True)):
        read = [(part["path"], part["start"], part["end"]) for part in note["sources"]]
        if note["tokenizer"] != tokenizer.sha256 or read != list(parts):
            raise BadInput(
                f"{output}: unit {index} was made with another tokenizer or from other text than "
                "the rest of the folder; remove the folder and prepare again"
            )
    splits = {}
    for split in work_unit.SPLITS:
        entries = {
            index: note["splits"][split]
            for index, note in enumerate(notes)
            if split in note["splits"]
        }
        if entries:
            splits[split] = _finish_split(output, split, entries, tokenizer.vocab_size)
    _check_any("train" in splits, splits["heldout"]["documents"] if "heldout" in splits else 0)
    counts = {name: sum(note[name] for note in notes) for name in ("replaced", "empty")}
    if counts["replaced"]:
        _log.warning(
            "replaced by U+FFFD, because it is not UTF-8: %s", quantity(counts["replaced"], "place")
        )
    if counts["empty"]:
        _log.warning("left out, because empty: %s", quantity(counts["empty"], "document"))
    dropped = {name: sum(note["dropped"][name] for note in notes) for name in marks.NAMES}
    marks.say(dropped)
    manifest = {
        "format_version": manifests.FORMAT_VERSION,
        "sha256": "",
        "page_tokens": options["page_tokens"],
        "tokenizer": {
            "file": tokenizer.file_name,
            "sha256": tokenizer.sha256,
            "vocab_size": tokenizer.vocab_size,
        },
        "normalization": options["normalization"],
        "splits": splits,
        "options": options,
        **counts,
        "dropped": dropped,
        "unknown": {
            "pieces": sum(note.get("unknown", 0) for note in notes),
            "example": max(note.get("example", "") for note in notes) or None,
        },
        "sources": [part for note in notes for part in note["sources"]],
    }
    manifests.warn_of_unknown(manifest, output)
    if options["heldout"] and (warning := manifests.little_heldout(manifest)):
        _log.warning("%s", warning)
    manifest["sha256"] = manifests.content_hash(manifest)
    with files.translate_errors(output), files.on_disk(output) as folder:
        manifests.write_tfds_metadata(folder, manifest)
    files.write(os.path.join(output, manifests.MANIFEST), files.to_json(manifest))
    return manifest


def _finish_split(output: str, split: str, entries: dict[int, Json], vocab_size: int) -> Json:
    """Renames the shards of a split, adds up their counts, joins the lengths of their documents,
    and returns the split's entry in the manifest. `entries` holds the split's entry in the note of
    each unit, by unit number.
    """
    names = [manifests.shard_name(split, number, len(entries)) for number in range(len(entries))]

    def finish(index: int, name: str) -> list[np.ndarray]:
        shard, counts, note = (
            work_unit.file_name(output, index, end) for end in (split, f"{split}.npy", "json")
        )
        documents = entries[index]["documents"]
        try:
            numbers = files.numbers_of(files.read(counts), vocab_size + documents)
        except ValueError as error:
            raise BadInput(
                f"{counts} is damaged ({error}); remove {note} and rerun the same command"
            ) from error
        # An earlier, killed attempt or a concurrent process may already have renamed the shard.
        with contextlib.suppress(FileNotFoundError):
            files.rename(shard, os.path.join(output, name))
        return np.split(numbers, [vocab_size])

    totals = {name: sum(entry[name] for entry in entries.values()) for name in work_unit.COUNTED}
    total_V = np.zeros(vocab_size, np.int64)
    sums, lengths = (
        manifests.array_name(kind, split) for kind in ("token_counts", "document_lengths")
    )
    with files.scratch(os.path.join(output, lengths)) as folder:
        path = os.path.join(folder, lengths)
        with open(files.temporary(path), "wb") as file:
            file.write(files.npy_header(totals["documents"], np.int32))
            for counts_V, length_D in in_threads(finish, entries, names):
                total_V += counts_V  # one by one: all may be gigabytes
                file.write(length_D.astype(np.int32))
        files.publish(path)
        lengths_sha256 = pages.file_hash(path)
        files.rename(path, os.path.join(output, lengths))
    sizes, shards = files.listing(output), []
    for (index, entry), name in zip(entries.items(), names, strict=True):
        if sizes.get(name) != entry["shard"]["bytes"]:
            files.remove(work_unit.file_name(output, index, "json"))
            gone = work_unit.file_name(output, index, split)
            raise BadInput(f"{gone} has gone; rerun the same command, which makes it again")
        shards.append({"file": name, **entry["shard"]})
    data = files.array_bytes(total_V)
    files.write(os.path.join(output, sums), data)
    return {
        **totals,
        "token_counts": sums,
        "token_counts_sha256": hashlib.sha256(data).hexdigest(),
        "document_lengths_sha256": lengths_sha256,
        "shards": shards,
    }
