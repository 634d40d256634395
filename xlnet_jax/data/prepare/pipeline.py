"""Text to a corpus: `prepare`.

    find files -> cut into work units -> (train a tokenizer) -> every unit on its own -> put together

A unit's files depend on the request, the text and the unit's number, and on nothing else (see `unit`). So any number of
processes or machines may work (see `engine`), a killed run goes on with the units that are missing, and the corpus is
the same byte for byte.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from xlnet_jax.data.corpus import manifest as manifests
from xlnet_jax.data.corpus import pages
from xlnet_jax.data.prepare import engine as engines
from xlnet_jax.data.prepare import marks, resume, work_unit
from xlnet_jax.data.prepare.sources import Part, Source, find_sources, plan
from xlnet_jax.data.prepare.text import DOCUMENT_RULES, SENTENCE_RULES
from xlnet_jax.data.tokenizer import Normalization, Tokenizer, train_tokenizer
from xlnet_jax.errors import BadInput
from xlnet_jax.storage import files

_PLAIN = Normalization()
# The tokenizer's sample is made of parts of the text of this size, or of the largest number of parts: to cut a file in
# a bucket costs a request per part.
_SAMPLE_PART_BYTES, _SAMPLE_PARTS = 1_000_000, 20_000
_TRAINING_THREADS = 8  # fixed: the model's bytes depend on it
_LARGEST_VOCABULARY = 1_000_000
_REQUESTS = 16  # to a bucket, at a time

_log = logging.getLogger("xlnet_jax")
_In = TypeVar("_In")
_Out = TypeVar("_Out")


def prepare(
    inputs: Sequence[str],
    output: str,
    *,
    tokenizer: str | None = None,
    vocab_size: int = 32000,
    document: str = "blank_line",
    sentences: str = "line",
    field: str = "text",
    normalization: Normalization = _PLAIN,
    heldout: float = 0.01,
    errors: str = "strict",
    sample_bytes: int = 100_000_000,
    seed: int = 0,
    page_tokens: int = 4096,
    shard_bytes: int = 64_000_000,
    data_dir: str | None = None,
    workers: int | None = None,
    engine: str = "local",
    beam_options: Sequence[str] = (),
) -> dict[str, Any]:
    """Makes a corpus from text, or goes on where an earlier call with the same arguments stopped.

    Args:
      inputs: files, folders and glob patterns, on disk or `gs://`, and `tfds:NAME[:SPLIT]`; see `sources`.
      output: folder to write, on disk or `gs://`; new, empty, or begun by the same request.
      tokenizer: SentencePiece model to use; None trains one on a sample of the text that is not held out.
      vocab_size: pieces of the trained tokenizer.
      document: what a document is: `blank_line`, `file` or `line`; see `text`.
      sentences: what a sentence is: `line` or `punctuation`; see `text`.
      field: where records are read, the one that holds the text.
      normalization: applied to every sentence.
      heldout: share of the documents that go to the split `heldout`; 0 = none.
      errors: bytes that are not UTF-8, and documents without a sentence: `strict` refuses both, `replace` puts U+FFFD
        there, leaves out, and counts.
      sample_bytes: text the tokenizer is trained on, at most (exceeded by less than one document).
      seed: of the sample and of the tokenizer's training.
      page_tokens: tokens of a page.
      shard_bytes: source text of a work unit, which becomes one shard per split.
      data_dir: where TFDS has its data sets.
      workers: processes of the engine `local`; None = one per core. Neither these nor the engine change the result.
      engine: `local`, processes of this machine, or `beam`, an Apache Beam pipeline.
      beam_options: of the pipeline, such as `runner=DataflowRunner`.

    Returns:
      The manifest.

    Raises:
      BadInput: unusable text or options, a folder that belongs to something else, another request than the first, or a
        file that cannot be written.
      RestartMe: a worker process was killed, or a bucket did not answer; the same call goes on.
    """
    _check_choices(
        document=(document, DOCUMENT_RULES),
        sentences=(sentences, SENTENCE_RULES),
        errors=(errors, ("strict", "replace")),
        engine=(engine, engines.ENGINES),
    )
    if not 0 <= heldout < 1:
        raise BadInput(f"--heldout={heldout} must lie in [0, 1)")
    if not 0 <= seed < 2**32:
        raise BadInput(f"--seed={seed} must lie in [0, 2^32)")
    if not 10 <= vocab_size <= _LARGEST_VOCABULARY:
        raise BadInput(f"--vocab_size={vocab_size} must lie in [10, {_LARGEST_VOCABULARY}]")
    if page_tokens > manifests.LARGEST_PAGE:
        raise BadInput(f"--page_tokens={page_tokens} must be at most {manifests.LARGEST_PAGE}")
    _check_positive(sample_bytes=sample_bytes, page_tokens=page_tokens, shard_bytes=shard_bytes, workers=workers)
    if engine == "beam":
        engines.make_pipeline(beam_options)
    elif beam_options:
        raise BadInput("--beam_options is for --engine=beam; give both or neither")
    request = work_unit.Request(document, sentences, normalization, heldout, errors, page_tokens, field)
    with files.translate_errors(output):
        found = find_sources(inputs, data_dir)
        model = None if tokenizer is None else Tokenizer(tokenizer)
        options = {
            "format_version": manifests.FORMAT_VERSION,
            "tokenizer": None if model is None else model.sha256,
            # What only a trained tokenizer depends on is no part of a request that brings its own.
            **({"vocab_size": vocab_size, "sample_bytes": sample_bytes, "seed": seed} if model is None else {}),
            **dataclasses.asdict(request),
            "shard_bytes": shard_bytes,
        }
        files.make_folder(output)
        with files.locked(output, "another `prepare` writes here"):
            times = resume.claim(output, options, found)
            for folder in (output, os.path.join(output, work_unit.FOLDER)):
                files.sweep(folder)
            resume.check_unchanged(output, found, times, request.reader())
            there = files.listing(output)
            if manifests.MANIFEST in there:
                manifest = resume.check_finished(output)
                files.remove(os.path.join(output, work_unit.FOLDER))
                _log.info("%s is finished already", output)
                return manifest
            units = plan(found, shard_bytes, document)
            path = os.path.join(output, manifests.TOKENIZER)
            if manifests.TOKENIZER not in there:
                if tokenizer is None:
                    _train(path, found, request, vocab_size, sample_bytes, seed)
                else:
                    files.write(path, files.read(tokenizer))
            used = Tokenizer(path, normalization)
            if model is not None and used.sha256 != model.sha256:
                raise BadInput(f"{path} is not {tokenizer}, though begun with it; remove {output} and prepare again")
            _run_units(output, units, used, request, engine, workers, beam_options)
            return _finish(output, units, used, options)


def _check_choices(**choices: tuple[str, Sequence[str]]) -> None:
    for name, (value, allowed) in choices.items():
        if value not in allowed:
            raise BadInput(f"--{name}={value} is not one of {', '.join(allowed)}")


def _check_positive(**numbers: int | None) -> None:
    for name, value in numbers.items():
        if value is not None and value < 1:
            raise BadInput(f"--{name}={value} must be at least 1")


def _train(
    path: str, sources: Sequence[Source], request: work_unit.Request, vocab_size: int, sample_bytes: int, seed: int
) -> None:
    """Trains the tokenizer on parts of the text in random order, until there is enough."""
    part_bytes = max(_SAMPLE_PART_BYTES, sum(source.bytes for source in sources) // _SAMPLE_PARTS)
    parts = plan(sources, part_bytes, request.document)
    order = np.random.Generator(np.random.Philox(seed)).permutation(len(parts))
    reader = request.reader()
    sample: list[str] = []
    size = held_out = 0
    for document in (each for index in order for part in parts[index] for each in reader.documents(part)):
        if request.held_out(document):
            held_out += 1
            continue
        for paragraph in document:
            sample.extend(paragraph)
            size += sum(len(sentence.encode()) for sentence in paragraph)
        if size >= sample_bytes:
            break
    _check_any(len(sample), held_out)
    # After a minute, and not only at the end of a day.
    if warning := reader.dropped.warning():
        _log.warning("%s", warning)
    _log.info("training a tokenizer of %d pieces on %d bytes of text", vocab_size, size)
    train_tokenizer(sample, path, vocab_size, seed, _TRAINING_THREADS)


def _check_any(train: int, held_out: int) -> None:
    if not train and held_out:
        raise BadInput(
            f"all {held_out} documents fell to the held-out split; choose another folder and a smaller --heldout"
        )
    if not train:
        raise BadInput("the inputs hold no text")


def _run_units(
    output: str,
    units: Sequence[tuple[Part, ...]],
    tokenizer: Tokenizer,
    request: work_unit.Request,
    engine: str,
    workers: int | None,
    beam_options: Sequence[str],
) -> None:
    folder = os.path.join(output, work_unit.FOLDER)
    files.make_folder(folder)
    there = files.listing(folder)
    jobs = [
        engines.Job(output, index, parts, tokenizer.path, tokenizer.sha256, request)
        for index, parts in enumerate(units)
        if os.path.basename(work_unit.file_name(output, index, "json")) not in there
    ]
    if len(jobs) < len(units):
        _log.info("%s: going on, %d of %d units are done", output, len(units) - len(jobs), len(units))
    engines.run(jobs, engine, workers, beam_options, len(units))


def _finish(
    output: str, units: Sequence[tuple[Part, ...]], tokenizer: Tokenizer, options: dict[str, Any]
) -> dict[str, Any]:
    """Puts the corpus together. In a bucket, which has no lock, another process may do the same, and be faster."""
    try:
        manifest = _put_together(output, units, tokenizer, options)
    except FileNotFoundError:
        if manifests.MANIFEST not in files.listing(output):
            raise
        manifest = resume.check_finished(output)
    files.remove(os.path.join(output, work_unit.FOLDER))
    for split, entry in manifest["splits"].items():
        counts = ", ".join(f"{entry[name]:,} {name}" for name in work_unit.COUNTED)
        _log.info("%s: %s", split, counts)
    return manifest


def _put_together(
    output: str, units: Sequence[tuple[Part, ...]], tokenizer: Tokenizer, options: dict[str, Any]
) -> dict[str, Any]:
    """Gives the shards their final names and writes what stands beside them; the manifest last."""
    notes = _each(lambda index: resume.read_note(work_unit.file_name(output, index, "json")), range(len(units)))
    for index, (note, parts) in enumerate(zip(notes, units, strict=True)):
        read = [(part["path"], part["start"], part["end"]) for part in note["sources"]]
        if note["tokenizer"] != tokenizer.sha256 or read != [dataclasses.astuple(part) for part in parts]:
            raise BadInput(
                f"{output}: unit {index} was made with another tokenizer or from other text than the folder now says; "
                "remove the folder and prepare again"
            )
    splits = {}
    for split in work_unit.SPLITS:
        having = [index for index, note in enumerate(notes) if split in note["splits"]]
        if having:
            splits[split] = _finish_split(output, split, having, [notes[index]["splits"][split] for index in having])
    _check_any("train" in splits, splits["heldout"]["documents"] if "heldout" in splits else 0)
    if options["heldout"] and "heldout" not in splits:
        _log.warning("no document fell to the held-out split; with few documents use a larger --heldout")
    replaced, empty = (sum(note[name] for note in notes) for name in ("replaced", "empty"))
    if replaced:
        _log.warning("%d places were not UTF-8 and became U+FFFD", replaced)
    if empty:
        _log.warning("%d documents hold no text and were left out", empty)
    dropped = sum((marks.Counts(**note["dropped"]) for note in notes), marks.Counts())
    if warning := dropped.warning():
        _log.warning("%s", warning)
    manifest = {
        "format_version": manifests.FORMAT_VERSION,
        "sha256": "",
        "page_tokens": options["page_tokens"],
        "tokenizer": {"file": manifests.TOKENIZER, "sha256": tokenizer.sha256, "vocab_size": tokenizer.vocab_size},
        "normalization": options["normalization"],
        "splits": splits,
        "options": options,
        "replaced": replaced,
        "empty": empty,
        "dropped": dataclasses.asdict(dropped),
        "sources": [part for note in notes for part in note["sources"]],
    }
    manifest["sha256"] = manifests.content_hash(manifest)
    # TFDS looks for the shards beside what it writes, so it must write there itself.
    files.resolve(output)
    with files.translate_errors(output):
        manifests.write_tfds_metadata(output, manifest)
    files.write(os.path.join(output, manifests.MANIFEST), files.to_json(manifest))
    return manifest


def _finish_split(output: str, split: str, units: list[int], entries: list[dict[str, Any]]) -> dict[str, Any]:
    def counted(index: int) -> np.ndarray:
        path = work_unit.file_name(output, index, f"{split}.npy")
        try:
            return files.read_array(path)
        except (ValueError, EOFError) as error:
            files.remove(work_unit.file_name(output, index, "json"))
            raise BadInput(f"{path} is damaged; rerun the same command, which makes it again") from error

    counts = np.sum(_each(counted, units), axis=0)
    names = [manifests.shard_name(split, number, len(units)) for number in range(len(units))]
    shards = [{"file": name, **entry["shard"]} for name, entry in zip(names, entries, strict=True)]

    there = files.listing(output)

    def settle(job: tuple[int, dict[str, Any]]) -> None:
        index, shard = job
        early, final = work_unit.file_name(output, index, split), os.path.join(output, shard["file"])
        try:
            if files.at(early).seeks and pages.file_hash(early) != shard["sha256"]:
                files.remove(work_unit.file_name(output, index, "json"))
                raise BadInput(f"{early} was damaged after it was made; rerun the same command, which makes it again")
            files.rename(early, final)
        except FileNotFoundError:
            # An earlier attempt may have been killed after some of the renames.
            # Or another process is at the same, just now.
            if shard["bytes"] not in (there.get(shard["file"]), files.listing(output).get(shard["file"])):
                files.remove(work_unit.file_name(output, index, "json"))
                raise BadInput(f"{early} has gone; rerun the same command, which makes it again") from None

    _each(settle, zip(units, shards, strict=True))
    data = files.array_bytes(counts)
    files.write(os.path.join(output, manifests.counts_name(split)), data)
    return {
        "tokens": sum(shard["tokens"] for shard in shards),
        **{name: sum(entry[name] for entry in entries) for name in work_unit.COUNTED[1:]},
        "token_counts": manifests.counts_name(split),
        "token_counts_sha256": hashlib.sha256(data).hexdigest(),
        "shards": shards,
    }


def _each(function: Callable[[_In], _Out], items: Iterable[_In]) -> list[_Out]:
    """In a bucket every request costs a round trip, so many at a time."""
    with ThreadPoolExecutor(_REQUESTS) as threads:
        return list(threads.map(function, items))
