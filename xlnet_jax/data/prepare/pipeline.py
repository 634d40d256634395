"""Text to a corpus: `prepare`.

    find files -> cut into work units -> (train a tokenizer, or count a vocabulary)
               -> every unit on its own -> assemble

A unit's files depend only on the request, the text and the unit's number (see `work_unit`). So any
number of processes or machines may work (see `engine`), a killed run resumes with the missing
units, and the corpus is the same byte for byte.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from xlnet_jax.data import subwords
from xlnet_jax.data import vocabulary as vocabularies
from xlnet_jax.data.corpus import manifest as manifests
from xlnet_jax.data.prepare import datasets, marks, resume, work_unit
from xlnet_jax.data.prepare import engine as engines
from xlnet_jax.data.prepare.sources import Part, Source, find_sources, plan
from xlnet_jax.data.prepare.text import Request, TextReader, wrapped
from xlnet_jax.data.prepare.work_unit import in_threads
from xlnet_jax.data.tokenizer import Normalization, Tokenizer, TooLittleText, train_tokenizer
from xlnet_jax.data.vocabulary import class_of, open_tokenizer, unexportable
from xlnet_jax.errors import BadInput
from xlnet_jax.members import MEMBERS
from xlnet_jax.messages import quantity
from xlnet_jax.storage import files
from xlnet_jax.storage.files import Json

_BEFORE = {"vocabulary": "sentencepiece", "dataset": "", "unwrap": False}
# The tokenizer's sample consists of parts of this size, larger if the text has more parts than
# this: cutting a file in a bucket costs a request per part.
_SAMPLE_PART_BYTES, _SAMPLE_PARTS = 1_000_000, 20_000
_TRAINING_THREADS = 8  # fixed: the model's bytes depend on it
# Of a trained tokenizer: the most that the text gives.
_PIECES = (32_000, 16_000, 8_000, 4_000, 2_000, 1_000)
_TRAINED = ("sentencepiece", *subwords.LEVELS)  # the others are counted

_log = logging.getLogger("xlnet_jax")


def prepare(
    inputs: Sequence[str],
    output: str,
    *,
    tokenizer: str | None = None,
    vocabulary: str | None = None,
    family: str | None = None,
    dataset: str | None = None,
    vocab_size: int | None = None,
    sample_bytes: int = 100_000_000,
    seed: int = 0,
    document: str = "blank_line",
    sentences: str = "line",
    unwrap: bool = False,
    field: str = "text",
    uncased: bool = False,
    strip_accents: bool = False,
    nfkc: bool = False,
    heldout: float = 0.01,
    errors: str = "strict",
    page_tokens: int = 4096,
    shard_bytes: int | None = None,
    data_dir: str | None = None,
    workers: int | None = None,
    engine: str = "local",
    beam_options: Sequence[str] = (),
) -> Json:
    """Makes a corpus from text, or resumes where an earlier call with the same arguments stopped.

    Args:
      inputs: files, folders and glob patterns, on disk or `gs://`, and `tfds:NAME[:SPLIT]`; see
        `sources`.
      output: folder to write, on disk or `gs://`; new, empty, or started by the same request.
      tokenizer: what `vocabulary.open_tokenizer` opens, to use it; None makes one of the text.
      vocabulary: what is made: `sentencepiece`, `wordpiece` and `bytebpe` train on a sample of the
        text that is not held out; `words`, `characters` and `bytes` count a vocabulary. None = that
        of the data set or tokenizer, or `sentencepiece`.
      family: of the model that is to read the corpus, for its vocabulary and special pieces.
      dataset: `NAME` or `NAME:test` of `datasets`: the inputs are its files, read as they are.
      vocab_size: pieces of the trained tokenizer (None = the most of `_PIECES` that the text
        gives), or at most of the counted vocabulary (None = a million words, all characters and
        bytes).
      sample_bytes: text the tokenizer is trained on, at most (exceeded by less than one document).
      seed: of the sample and of the tokenizer's training.
      document, sentences, unwrap, field, heldout, errors, page_tokens: see `text.Request`.
      uncased, strip_accents, nfkc: steps of `tokenizer.Normalization` beside those that `tokenizer`
        was made with; or, of a vocabulary that is made here, beside none. A folder that was begun
        strips accents if it did so.
      shard_bytes: source text of a work unit, a shard per split; None = 64 MB, or 1 GB from 1 TB of
        text on.
      workers: processes of the engine `local`; None = one per core. Neither workers nor engine
        change the result.
      engine, beam_options: `local`, or `beam`, an Apache Beam pipeline with options such as
        `runner=DataflowRunner`.

    Returns the manifest. Raises BadInput: unusable text or options, a folder that belongs to
    something else, another request than the first, or a file that cannot be written. RestartMe: a
    worker process was killed, or a bucket did not answer; the same call resumes.
    """
    if "," in output:
        raise BadInput(
            f"--output={output}: commas separate the folders of data.corpus; choose a name without"
        )
    if beam_options and engine != "beam":
        raise BadInput("--beam_options is for --engine=beam; give both or neither")
    beam = list(beam_options) if engine == "beam" else None
    if beam is not None:
        engines.make_pipeline(beam, output)  # before anything is read
    asked = {"lower": uncased, "keep_accents": strip_accents, "nfkc": nfkc}
    switches = {name: name != "keep_accents" for name, is_on in asked.items() if is_on}
    published = datasets.parse(dataset) if dataset else None
    if published:
        if vocabulary not in (None, published.vocabulary):
            raise BadInput(
                f"--dataset={dataset} has a vocabulary of "
                f"{published.vocabulary}; leave --vocabulary out"
            )
        if switches or unwrap:
            raise BadInput(
                f"--dataset={dataset} is read as it is: leave out --uncased, "
                "--strip_accents, --nfkc and --unwrap"
            )
        vocabulary = published.vocabulary
    if unwrap and document == "line":
        raise BadInput(
            "--unwrap joins lines, and --document=line makes a document of "
            "each; leave one of both out"
        )
    with files.translate_errors(output):
        found = published.find(inputs) if published else find_sources(inputs, data_dir)
        # So 10 TB are 10,000 shards and not 156,250.
        shard_bytes = shard_bytes or (
            64_000_000 if sum(source.bytes for source in found) < 10**12 else 10**9
        )
        model = None if tokenizer is None else open_tokenizer(tokenizer)
        level = vocabulary or (model.level if model else MEMBERS[family or "xlnet"].vocabulary)
        if model and model.level != level:
            raise BadInput(
                f"--tokenizer={tokenizer} is one of {model.level}, "
                f"not of {level}; leave one of both out"
            )
        trained = {
            "vocab_size": vocab_size or _PIECES[0],
            "sample_bytes": sample_bytes,
            "seed": seed,
        }
        if switches and (
            level == "bytebpe" or (isinstance(model, subwords.Subwords) and model.folder)
        ):
            what = f"tokenizer {tokenizer or level}: it says itself what becomes of a text"
            raise BadInput(f"{what}; leave out --uncased, --strip_accents and --nfkc")
        if model and switches:
            model = _with_steps(model, switches)
        begun, rules = resume.begun(output), dict[str, bool]()
        given = Normalization(**{"keep_accents": begun.get("keep_accents", True)} | switches)
        normalization = model.normalization if model else given
        if published:
            normalization = Normalization(keep_accents=True, remove_space=False)
        elif level in subwords.LEVELS:
            # The tokenizer normalises itself, and training one makes a part of it of these.
            normalization = subwords.AS_IS
            rules = {} if model else {"uncased": given.lower, "keep_accents": given.keep_accents}
        request = Request(
            document,
            sentences,
            normalization,
            heldout,
            errors,
            page_tokens,
            field,
            level,
            dataset or "",
            unwrap,
        )
        options = {
            "format_version": manifests.FORMAT_VERSION,
            "tokenizer": None if model is None else model.sha256,
            # Here, because an option that differs is named in this order.
            **({} if level == "sentencepiece" else {"vocabulary": level}),
            **({"family": family} if family else {}),
            # Only a trained tokenizer depends on these.
            **({} if model else trained if level in _TRAINED else {"vocab_size": vocab_size}),
            **rules,
            # Without the fields that earlier versions did not have, so that what they started can
            # be resumed.
            **{
                name: value
                for name, value in dataclasses.asdict(request).items()
                if value != _BEFORE.get(name)
            },
            "shard_bytes": shard_bytes,
        }
        files.make_folder(output)
        with files.locked(output, "another `prepare` writes here"):
            resume.claim(output, options, found)
            for folder in (output, os.path.join(output, work_unit.FOLDER)):
                files.sweep(folder)
            resume.check_unchanged(output, found, TextReader(request))
            names = files.listing(output)
            if manifests.MANIFEST in names:
                _log.info("%s is finished already", output)
                files.remove(os.path.join(output, work_unit.FOLDER))
                return resume.check_finished(output)
            if published:
                units = published.plan(found, shard_bytes, ("train", published.heldout))
                # All splits are counted: so the vocabulary does not depend on which one is held
                # out.
                counted = published.plan(found, shard_bytes, datasets.SPLITS)
            else:
                units = counted = plan(found, shard_bytes, request.document)
            name = class_of(level).file_name
            path = os.path.join(output, name)
            if name not in names:
                if model is not None:
                    files.write(path, model.content)
                elif level in _TRAINED:
                    _train(path, found, request, given, vocab_size, sample_bytes, seed)
                else:
                    _log.info("counting %s", level)
                    engines.run(output, counted, None, request, workers, beam)
                    _write_vocabulary(path, output, counted, request, vocab_size)
            used = open_tokenizer(path, normalization)
            _say_families(used, family)
            if model is not None and used.sha256 != model.sha256:
                raise BadInput(
                    f"{path} is not {tokenizer}, though begun with it; "
                    f"remove {output} and prepare again"
                )
            engines.run(output, units, used, request, workers, beam)
            try:
                manifest = _assemble(output, units, used, options)
            except FileNotFoundError:
                # A bucket has no lock: another process may have done the same and finished first.
                if manifests.MANIFEST not in files.listing(output):
                    raise
                manifest = resume.check_finished(output)
            files.remove(os.path.join(output, work_unit.FOLDER))
            return manifest


def _with_steps(opened: Tokenizer, switches: Mapping[str, bool]) -> Tokenizer:
    """The tokenizer of `prepare --tokenizer` with further steps of normalisation. Raises BadInput
    if it takes none.
    """
    if opened.path.endswith(".txt") and "lower" in switches:  # uncased BERT
        switches = {**switches, "keep_accents": False}
    return open_tokenizer(opened.path, dataclasses.replace(opened.normalization, **switches))


def _train(
    path: str,
    sources: Sequence[Source],
    request: Request,
    normalization: Normalization,
    vocab_size: int | None,
    sample_bytes: int,
    seed: int,
) -> None:
    """Trains the tokenizer on parts of the text in random order, until there is enough."""
    part_bytes = max(_SAMPLE_PART_BYTES, sum(source.bytes for source in sources) // _SAMPLE_PARTS)
    parts = plan(sources, part_bytes, request.document)
    order = np.random.Generator(np.random.Philox(seed)).permutation(len(parts))
    reader = TextReader(request, normalization)
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
        if size >= sample_bytes:
            break
    _check_any(len(sample), held_out)
    # After a minute already: the corpus may take a day.
    marks.say(reader.dropped)
    if request.sentences == "punctuation" and not request.unwrap and (warning := wrapped(sample)):
        _log.warning("%s", warning)
    *larger, least = _PIECES if vocab_size is None else (vocab_size,)

    def train(pieces: int) -> None:
        _log.info("training a tokenizer of %d pieces on %d bytes of text", pieces, size)
        if request.vocabulary in subwords.LEVELS:
            subwords.train(sample, path, pieces, request.vocabulary, normalization)
        else:
            train_tokenizer(sample, path, pieces, seed, _TRAINING_THREADS)

    for pieces in larger:
        try:
            return train(pieces)
        except TooLittleText:
            _log.info("this text does not give %d pieces", pieces)
    train(least)


def _write_vocabulary(
    path: str, output: str, units: Sequence[tuple[Part, ...]], request: Request, bound: int | None
) -> None:
    """Adds up the units' counts and writes the vocabulary to `path`. Raises BadInput: no text, too
    small a bound, or a published data set with other counts than the published ones.
    """
    counts, of_file = Counter[str](), Counter[str]()
    for note in in_threads(files.read_json, work_unit.file_names(output, units, work_unit.COUNTS)):
        counts.update(note["counts"])
        of_file[note["sources"][0]["path"]] += note["tokens"]
    if not counts:
        raise BadInput(
            "no text to count: the inputs hold none, "
            "or all of it is held out; use a smaller --heldout"
        )
    if request.dataset:
        datasets.parse(request.dataset).check_words(of_file)
    vocabularies.write(path, request.vocabulary, counts, bound, verbatim=bool(request.dataset))


def _check_any(train: int, held_out: int) -> None:
    if not train and held_out:
        what = f"all of the text ({quantity(held_out, 'document')}) fell to the held-out split"
        raise BadInput(f"{what}; choose another folder and a smaller --heldout")
    if not train:
        raise BadInput("the inputs hold no text")


def _assemble(
    output: str, units: Sequence[tuple[Part, ...]], tokenizer: Tokenizer, options: Json
) -> Json:
    """Gives the shards their final names and writes the other files of the corpus; the manifest
    last.
    """
    notes = list(in_threads(resume.read_note, work_unit.file_names(output, units, "json")))
    for index, (note, parts) in enumerate(zip(notes, units, strict=True)):
        read = [(part["path"], part["start"], part["end"]) for part in note["sources"]]
        if note["tokenizer"] != tokenizer.sha256 or read != list(parts):
            made = (
                f"unit {index} was made with another tokenizer or from other "
                "text than the folder now says"
            )
            raise BadInput(f"{output}: {made}; remove the folder and prepare again")
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
        _log.warning("not UTF-8, and now U+FFFD: %s", quantity(counts["replaced"], "place"))
    if counts["empty"]:
        _log.warning("left out, without text: %s", quantity(counts["empty"], "document"))
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
    # TFDS reads the shards next to the files it writes, so it must write there itself.
    files.resolve(output)
    with files.translate_errors(output):
        manifests.write_tfds_metadata(output, manifest)
    files.write(os.path.join(output, manifests.MANIFEST), files.to_json(manifest))
    return manifest


def _say_families(tokenizer: Tokenizer, family: str | None) -> None:
    """Logs which models cannot be exported with this vocabulary; a warning if it is the one that
    was asked for.
    """
    refused = [name for name in MEMBERS if unexportable(tokenizer, name)]
    if family in refused or 0 < len(refused) < len(MEMBERS):  # of counted ones nobody expects it
        level = logging.WARNING if family in refused else logging.INFO
        _log.log(
            level,
            "models of %s train with this vocabulary, but cannot be exported to Hugging Face; "
            "--family=NAME makes one for them",
            ", ".join(refused),
        )


def _finish_split(output: str, split: str, entries: dict[int, Json], vocab_size: int) -> Json:
    """Renames the shards of a split and adds up the counts in `entries`, which the units' notes
    have, by unit.
    """
    names = [manifests.shard_name(split, number, len(entries)) for number in range(len(entries))]

    def finish(index: int, name: str) -> np.ndarray:
        shard, counts, note = (
            work_unit.file_name(output, index, end) for end in (split, f"{split}.npy", "json")
        )
        try:
            counts_V = files.int64_of(files.read(counts), vocab_size)
        except ValueError as error:
            raise BadInput(
                f"{counts} is damaged ({error}); remove {note} and rerun the same command"
            ) from error
        # An earlier attempt may have been killed after some of the renames, or another process
        # renames just now.
        with contextlib.suppress(FileNotFoundError):
            files.rename(shard, os.path.join(output, name))
        return counts_V

    total_V = np.zeros(vocab_size, np.int64)
    for counts_V in in_threads(finish, entries, names):  # not all at once: they would be gigabytes
        total_V += counts_V
    sizes = files.listing(output)
    for (index, entry), name in zip(entries.items(), names, strict=True):
        if sizes.get(name) != entry["shard"]["bytes"]:
            files.remove(work_unit.file_name(output, index, "json"))
            gone = work_unit.file_name(output, index, split)
            raise BadInput(f"{gone} has gone; rerun the same command, which makes it again")
    data = files.array_bytes(total_V)
    files.write(os.path.join(output, manifests.counts_name(split)), data)
    shards = [
        {"file": name, **entry["shard"]}
        for name, entry in zip(names, entries.values(), strict=True)
    ]
    return {
        **{name: sum(entry[name] for entry in entries.values()) for name in work_unit.COUNTED},
        "token_counts": manifests.counts_name(split),
        "token_counts_sha256": hashlib.sha256(data).hexdigest(),
        "shards": shards,
    }
