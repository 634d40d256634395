"""Text to a corpus: `prepare`.

    find files -> cut into work units -> (train a tokenizer) -> every unit on its own -> put together

A unit's files depend on the request, the text and the unit's number, and on nothing else (see `unit`). So any number of
processes may work, a killed run goes on with the units that are missing, and the corpus is the same byte for byte.
"""

from __future__ import annotations

import dataclasses
import glob
import hashlib
import json
import logging
import multiprocessing
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import numpy as np

from xlnet_jax import files
from xlnet_jax.data import manifest as manifests
from xlnet_jax.data import text, unit
from xlnet_jax.data.tokenizer import Normalization, Tokenizer, train_tokenizer
from xlnet_jax.errors import BadInput, RestartMe

_PLAIN = Normalization()
_COUNTED = ("tokens", "documents", "sentences")
_SAMPLE_PART_BYTES = 1_000_000  # the tokenizer's sample is made of parts of the text of about this size
_TRAINING_THREADS = 8  # fixed: the model's bytes depend on it

_log = logging.getLogger("xlnet_jax")


def prepare(
    inputs: Sequence[str],
    output: str,
    *,
    tokenizer: str | None = None,
    vocab_size: int = 32000,
    document: str = "blank_line",
    sentences: str = "line",
    normalization: Normalization = _PLAIN,
    heldout: float = 0.01,
    errors: str = "strict",
    sample_bytes: int = 100_000_000,
    seed: int = 0,
    page_tokens: int = 4096,
    shard_bytes: int = 64_000_000,
    workers: int | None = None,
) -> dict[str, Any]:
    """Makes a corpus from text files, or goes on where an earlier call with the same arguments stopped.

    Args:
      inputs: text files (UTF-8), folders (all `*.txt` below them) and glob patterns.
      output: folder to write; new, empty, or begun by the same request.
      tokenizer: SentencePiece model to use; None trains one on a sample of the text that is not held out.
      vocab_size: pieces of the trained tokenizer.
      document: what a document is: `blank_line`, `file` or `line`; see `text`.
      sentences: what a sentence is: `line` or `punctuation`; see `text`.
      normalization: applied to every sentence.
      heldout: share of the documents that go to the split `heldout`; 0 = none.
      errors: bytes that are not UTF-8: `strict` refuses them, `replace` puts U+FFFD there and counts them.
      sample_bytes: text the tokenizer is trained on, at most (exceeded by less than one document).
      seed: of the sample and of the tokenizer's training.
      page_tokens: tokens of a page.
      shard_bytes: source text of a work unit, which becomes one shard per split.
      workers: processes; None = one per core. Never changes the result.

    Returns:
      The manifest.

    Raises:
      BadInput: unusable text or options, a folder that belongs to something else, or another request than the first.
      RestartMe: a worker process was killed; the same call goes on.
    """
    _check_options(document, sentences, heldout, errors, vocab_size, sample_bytes, page_tokens, shard_bytes, workers)
    request = unit.Request(document, sentences, normalization, heldout, errors, page_tokens)
    sources = text.find_sources(inputs)
    model = None if tokenizer is None else Tokenizer(tokenizer)
    options = {
        "format_version": manifests.FORMAT_VERSION,
        "tokenizer": None if model is None else model.sha256,
        # What only a trained tokenizer depends on is no part of a request that brings its own.
        **({"vocab_size": vocab_size, "sample_bytes": sample_bytes, "seed": seed} if model is None else {}),
        **dataclasses.asdict(request),
        "shard_bytes": shard_bytes,
    }
    os.makedirs(output, exist_ok=True)
    with files.locked(output, "another `prepare` writes here"):
        _claim(output, options, sources)
        _check_unchanged(output, sources)
        if os.path.exists(os.path.join(output, manifests.MANIFEST)):
            shutil.rmtree(os.path.join(output, unit.FOLDER), ignore_errors=True)
            _log.info("%s is finished already", output)
            return manifests.read_manifest(output)
        units = text.plan(sources, shard_bytes, document)
        path = os.path.join(output, manifests.TOKENIZER)
        if not os.path.exists(path):
            if tokenizer is None:
                _train(path, sources, request, vocab_size, sample_bytes, seed)
            else:
                with open(tokenizer, "rb") as file:
                    files.write(path, file.read())
        used = Tokenizer(path, normalization)
        _run_units(output, units, used, request, workers)
        return _finish(output, len(units), used, options)


def _check_options(document, sentences, heldout, errors, vocab_size, sample_bytes, page_tokens, shard_bytes, workers):
    choices = {
        "document": (document, text.DOCUMENT_RULES),
        "sentences": (sentences, text.SENTENCE_RULES),
        "errors": (errors, ("strict", "replace")),
    }
    for name, (value, allowed) in choices.items():
        if value not in allowed:
            raise BadInput(f"--{name}={value} is not one of {', '.join(allowed)}")
    if not 0 <= heldout < 1:
        raise BadInput(f"--heldout={heldout} must lie in [0, 1)")
    numbers = {"vocab_size": vocab_size, "sample_bytes": sample_bytes, "page_tokens": page_tokens}
    for name, value in {**numbers, "shard_bytes": shard_bytes, "workers": workers}.items():
        if value is not None and value < 1:
            raise BadInput(f"--{name}={value} must be at least 1")


def _claim(output: str, options: dict[str, Any], sources: list[text.Source]) -> None:
    """Writes the request, or checks that the folder was begun by the same one."""
    path = os.path.join(output, manifests.REQUEST)
    now = {
        "options": json.loads(files.to_json(options)),
        "sources": {source.path: source.bytes for source in sources},
        "mtime_ns": {source.path: source.mtime_ns for source in sources},
    }
    others = sorted(name for name in os.listdir(output) if not name.startswith(manifests.REQUEST))
    if not os.path.exists(path) and others:
        raise BadInput(f"{output} holds other files ({others[0]}, ...); choose a new folder")
    if not others:
        # Also where an earlier attempt failed before it had made anything: the fix may be another option.
        files.write(path, files.to_json(now))
        return
    first = files.read_json(path)
    for name in {**first["options"], **now["options"]}:
        was, is_now = first["options"].get(name), now["options"].get(name)
        # What strict reading let through is read the same by replacing, so that much may change.
        if was != is_now and (name, was) != ("errors", "strict"):
            raise BadInput(
                f"{output} was begun with {name}={was}, not {is_now}; use the same options, or another folder"
            )
    for name in {**first["sources"], **now["sources"]}:
        was, is_now = first["sources"].get(name, "no"), now["sources"].get(name, "none")
        if was != is_now:
            raise BadInput(
                f"{output} was begun with other text: {name} had {was} bytes, now {is_now}; use the same files, or "
                "another folder"
            )


def _check_unchanged(output: str, sources: list[text.Source]) -> None:
    """Checks that text already used is still what it was; reads it only where a file's time has changed."""
    times = files.read_json(os.path.join(output, manifests.REQUEST))["mtime_ns"]
    touched = {source.path for source in sources if source.mtime_ns != times[source.path]}
    if not touched:
        return
    if os.path.exists(os.path.join(output, manifests.MANIFEST)):
        used = manifests.read_manifest(output)["sources"]
    else:
        notes = sorted(glob.glob(os.path.join(glob.escape(output), unit.FOLDER, "*.json")))
        used = [part for path in notes for part in files.read_json(path)["sources"]]
    for part in used:
        if part["path"] in touched:
            with open(part["path"], "rb") as file:
                file.seek(part["start"])
                digest = hashlib.sha256(file.read(part["end"] - part["start"])).hexdigest()
            if digest != part["sha256"]:
                raise BadInput(f"{part['path']} was changed after {output} was begun; use another folder")


def _train(
    path: str, sources: list[text.Source], request: unit.Request, vocab_size: int, sample_bytes: int, seed: int
) -> None:
    """Trains the tokenizer on parts of the text in random order, until there is enough."""
    parts = text.plan(sources, _SAMPLE_PART_BYTES, request.document)
    order = np.random.Generator(np.random.Philox(seed)).permutation(len(parts))
    reader = request.reader()
    sample: list[str] = []
    size = held_out = 0
    for document in (each for index in order for part in parts[index] for each in reader.documents(part)):
        if request.held_out(document):
            held_out += 1
            continue
        sample.extend(document)
        size += sum(len(sentence.encode()) for sentence in document)
        if size >= sample_bytes:
            break
    _check_any(len(sample), held_out)
    _log.info("training a tokenizer of %d pieces on %d bytes of text", vocab_size, size)
    train_tokenizer(sample, path, vocab_size, seed, _TRAINING_THREADS)


def _check_any(train: int, held_out: int) -> None:
    if not train and held_out:
        raise BadInput(f"all {held_out} documents fell to the held-out split; use --heldout=0, or more documents")
    if not train:
        raise BadInput("the inputs hold no text")


def _run_units(
    output: str, units: list[tuple[text.Part, ...]], tokenizer: Tokenizer, request: unit.Request, workers: int | None
) -> None:
    os.makedirs(os.path.join(output, unit.FOLDER), exist_ok=True)
    missing = [index for index in range(len(units)) if not os.path.exists(unit.file_name(output, index, "json"))]
    if len(missing) < len(units):
        _log.info("%s: going on, %d of %d units are done", output, len(units) - len(missing), len(units))
    workers = min(workers or len(os.sched_getaffinity(0)), len(missing))
    # Starting a process takes seconds: not for the sake of one unit.
    if workers <= 1:
        for index in missing:
            _log_unit(unit.prepare_unit(output, index, units[index], tokenizer, request), index, len(units))
        return
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), unit.die_with_parent)
    try:
        jobs = {
            pool.submit(unit.prepare_unit, output, index, units[index], tokenizer, request): index for index in missing
        }
        for job in as_completed(jobs):
            _log_unit(job.result(), jobs[job], len(units))
    except BrokenProcessPool as error:
        raise RestartMe(
            f"{output}: a worker process was killed (out of memory?); give the same command again, it goes on, with "
            f"fewer than --workers={workers} if memory is short"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _log_unit(tokens: int, index: int, count: int) -> None:
    _log.info("unit %d of %d: %d tokens", index + 1, count, tokens)


def _finish(output: str, units: int, tokenizer: Tokenizer, options: dict[str, Any]) -> dict[str, Any]:
    """Gives the shards their final names and writes what stands beside them; the manifest last."""
    notes = [files.read_json(unit.file_name(output, index, "json")) for index in range(units)]
    splits = {}
    for split in unit.SPLITS:
        having = [index for index, note in enumerate(notes) if split in note["splits"]]
        if having:
            splits[split] = _finish_split(output, split, having, [notes[index]["splits"][split] for index in having])
    _check_any("train" in splits, splits["heldout"]["documents"] if "heldout" in splits else 0)
    if options["heldout"] and "heldout" not in splits:
        _log.warning("no document fell to the held-out split; with few documents use a larger --heldout")
    replaced = sum(note["replaced"] for note in notes)
    if replaced:
        _log.warning("%d places were not UTF-8 and became U+FFFD", replaced)
    manifest = {
        "format_version": manifests.FORMAT_VERSION,
        "sha256": "",
        "page_tokens": options["page_tokens"],
        "tokenizer": {"file": manifests.TOKENIZER, "sha256": tokenizer.sha256, "vocab_size": tokenizer.vocab_size},
        "normalization": options["normalization"],
        "splits": splits,
        "options": options,
        "replaced": replaced,
        "sources": [part for note in notes for part in note["sources"]],
    }
    manifest["sha256"] = manifests.content_hash(manifest)
    manifests.write_tfds_metadata(output, manifest)
    files.write(os.path.join(output, manifests.MANIFEST), files.to_json(manifest))
    shutil.rmtree(os.path.join(output, unit.FOLDER))
    for split, entry in splits.items():
        _log.info("%s: %d tokens, %d documents, %d sentences", split, *(entry[name] for name in _COUNTED))
    return manifest


def _finish_split(output: str, split: str, units: list[int], entries: list[dict[str, Any]]) -> dict[str, Any]:
    shards = []
    for number, (index, entry) in enumerate(zip(units, entries, strict=True)):
        name, early_name = manifests.shard_name(split, number, len(units)), unit.file_name(output, index, split)
        # An earlier attempt may have been killed after some of the renames.
        if os.path.exists(early_name):
            os.replace(early_name, os.path.join(output, name))
        shards.append({"file": name, **entry["shard"]})
    counts = np.sum([np.load(unit.file_name(output, index, split + ".npy")) for index in units], axis=0)
    files.write_array(os.path.join(output, manifests.counts_name(split)), counts)
    return {
        "tokens": sum(shard["tokens"] for shard in shards),
        "documents": sum(entry["documents"] for entry in entries),
        "sentences": sum(entry["sentences"] for entry in entries),
        "token_counts": manifests.counts_name(split),
        "shards": shards,
    }
