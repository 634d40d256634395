"""`xlnet-jax corpus`: the contents of a corpus, a check of every hash and count, and samples of its
text.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from xlnet_jax.data.corpus import corpus as corpora
from xlnet_jax.data.corpus import pages
from xlnet_jax.data.corpus.manifest import array_name, open_folder, read_manifest, warn_of_unknown
from xlnet_jax.data.tokenizer import Tokenizer
from xlnet_jax.data.workers import cores
from xlnet_jax.errors import BadInput, summary
from xlnet_jax.messages import progress_bar
from xlnet_jax.storage import files
from xlnet_jax.storage.files import Json

_LARGEST_SAMPLE = 10**7  # tokens: people read the samples
_BITS = {
    "documents": pages.DOCUMENT_START,
    "sentences": pages.SENTENCE_START,
    "paragraphs": pages.PARAGRAPH_START,
}
_COUNTED = (*_BITS, "tokens")
_TFDS = ("dataset_info.json", "features.json")
_MARKS = ((pages.DOCUMENT_START, "§"), (pages.PARAGRAPH_START, "¶"), (pages.SENTENCE_START, "|"))

Counts = tuple[np.ndarray, np.ndarray]
"""Counts of a shard: int64 [V + 3], how often each piece occurs, then the numbers of documents,
sentences and paragraphs; and int32 [documents], the tokens of each document.
"""


def info(path: str) -> Json:
    """Returns the figures of the manifest, in total and by split. Raises BadInput."""
    manifest = read_manifest(path)
    warn_of_unknown(manifest, path)
    splits = {
        name: {
            **{counted: split[counted] for counted in _COUNTED},
            "shards": len(split["shards"]),
            "pages": sum(shard["pages"] for shard in split["shards"]),
            "bytes": sum(shard["bytes"] for shard in split["shards"]),
        }
        for name, split in manifest["splits"].items()
    }
    return {
        **{
            counted: sum(split[counted] for split in splits.values())
            for counted in (*_COUNTED, "shards", "bytes")
        },
        "vocabulary": manifest["tokenizer"]["vocab_size"],
        "unknown": manifest.get("unknown"),
        "sha256": manifest["sha256"],
        "format_version": manifest["format_version"],
        "page_tokens": manifest["page_tokens"],
        "sources": len({source["path"] for source in manifest["sources"]}),
        "replaced": manifest["replaced"],
        "empty": manifest["empty"],
        "splits": splits,
        # `vocab_size` is a bound, by default the largest size that is tried; `vocabulary` is the
        # size that was made.
        "options": {
            name: value for name, value in manifest["options"].items() if name != "vocab_size"
        },
    }


def verify(path: str, workers: int | None = None) -> tuple[Json, list[str]]:
    """Reads the whole corpus and compares it with every hash and count of its manifest.

    `workers` shards are read at the same time (None = one per core), with a few MB of memory each;
    shards in a bucket are copied one by one to the system's folder for temporary files. Returns the
    number of shards, their bytes and tokens; and all problems, a line for each. Raises BadInput:
    the manifest cannot be used. RestartMe: the bucket does not answer.
    """
    manifest, sizes = open_folder(path)
    problems: list[str] = []
    special = Tokenizer.special
    try:
        special = corpora.read_tokenizer(path, manifest).special
    except BadInput as error:
        problems.append(str(error))
    problems += [
        f"{os.path.join(path, name)} is missing or empty" for name in _TFDS if not sizes.get(name)
    ]
    shards = [shard for split in manifest["splits"].values() for shard in split["shards"]]
    known = {shard["file"] for shard in shards}
    extra = sorted(name for name in sizes if ".array_record-" in name and name not in known)
    problems += [
        f"{os.path.join(path, name)} belongs to no split of the manifest" for name in extra
    ]
    with (
        ThreadPoolExecutor(workers or cores()) as threads,
        progress_bar("shards", len(shards)) as bar,
    ):

        def count(shard: Json) -> Counts | BadInput:
            counts = _count_shard(path, shard, manifest, special.eod)
            bar.advance(bar.task_ids[0])
            return counts

        try:
            counted = {
                name: threads.map(count, split["shards"])
                for name, split in manifest["splits"].items()
            }
            for name, of_shards in counted.items():
                problems += _check_split(path, manifest, name, of_shards)
        finally:
            threads.shutdown(cancel_futures=True)
    return {
        "shards": len(shards),
        **{name: sum(shard[name] for shard in shards) for name in ("bytes", "tokens")},
    }, problems


def _count_shard(path: str, shard: Json, manifest: Json, eod: int | None) -> Counts | BadInput:
    """Reads and counts a shard. Checks its hashes and also its flags, which may be inconsistent
    under a correct hash.

    Returns the error instead of the counts if the shard is damaged or its copy from a bucket fails.
    """
    address = copy = os.path.join(path, shard["file"])
    page_tokens, vocab_size = manifest["page_tokens"], manifest["tokenizer"]["vocab_size"]
    counts = np.zeros(vocab_size + len(_BITS), np.int64)
    first: list[np.ndarray] = []  # token of each document
    ended = True  # whether the previous token ended a document
    try:
        with files.local_copy(address) as copy:
            for page, (tokens, starts) in enumerate(
                pages.scan(copy, shard, page_tokens, vocab_size)
            ):
                ends, begins = tokens == eod, (starts & pages.DOCUMENT_START).astype(bool)
                after_end = np.concatenate([[ended], ends[:-1]])
                if eod is None:
                    # A document may start anywhere, and a shard starts with a document.
                    after_end |= begins
                if (
                    (begins != after_end).any()
                    or (starts[ends] != 0).any()
                    or not (starts[starts != 0] & pages.SENTENCE_START).all()
                ):
                    raise BadInput(
                        f"{copy}, page {page}: the flags do not match the ends of its documents"
                    )
                ended = bool(ends[-1])
                first.append(page * page_tokens + np.flatnonzero(begins))
                counts[:vocab_size] += np.bincount(tokens, minlength=vocab_size)
                counts[vocab_size:] += [np.count_nonzero(starts & bit) for bit in _BITS.values()]
    except BadInput as error:
        return BadInput(str(error).replace(copy, address))
    except FileNotFoundError:
        return BadInput(f"{address} cannot be read: it is missing; copy the corpus again")
    except OSError as error:
        return BadInput(
            f"{address}: {summary(error)}; set TMPDIR to a folder with room for a shard"
        )
    if not ended and eod is not None:
        return BadInput(f"{address}: its last document has no end")
    return counts, np.diff(np.concatenate(first), append=shard["tokens"]).astype(np.int32)


def _check_split(
    path: str, manifest: Json, name: str, of_shards: Iterable[Counts | BadInput]
) -> Iterator[str]:
    """Yields the damage of the shards of a split and, if there is none, the differences between
    the manifest and the sums over the shards.
    """
    split, found = manifest["splits"][name], []
    totals, lengths, is_whole = 0, hashlib.sha256(), True
    for of_shard in of_shards:
        if isinstance(of_shard, BadInput):
            yield str(of_shard)
            is_whole = False
        else:
            totals = totals + of_shard[0]
            lengths.update(of_shard[1].data)
    for read in (corpora.read_counts, corpora.read_lengths):
        try:
            found.append(read(path, manifest, name))
        except BadInput as error:
            yield str(error)
            found.append(None)
    counts, length_D = found
    if not is_whole:
        return
    pieces, marks = np.split(totals, [-len(_BITS)])
    if counts is not None and (counts != pieces).any():
        piece = int((counts != pieces).argmax())
        yield (
            f"{os.path.join(path, split['token_counts'])}: piece {piece} occurs {pieces[piece]} "
            f"times in the pages, but is counted {counts[piece]} times"
        )
    if length_D is not None and hashlib.sha256(length_D).digest() != lengths.digest():
        file = os.path.join(path, array_name("document_lengths", name))
        yield f"{file}: the pages have documents of other lengths"
    for counted, mark in zip(_BITS, marks.tolist(), strict=True):
        if split[counted] != mark:
            yield f"{path}: {name} has {mark} {counted}, the manifest says {split[counted]}"


def sample(path: str, split: str, seed: int, count: int, length: int) -> Json:
    """Returns `samples`: random excerpts of a split as text, of `length` tokens each, or all of a
    shorter split.

    An excerpt has the index of its first token and its text, with § before a document, ¶ before a
    paragraph, | before a sentence, and … at its start if it starts within a sentence. Equal
    arguments give equal excerpts. Raises BadInput for an unusable or damaged corpus.
    """
    if count * length > _LARGEST_SAMPLE:
        raise BadInput(
            f"--count={count} times --length={length} must be at most {_LARGEST_SAMPLE:,} tokens"
        )
    corpus = corpora.Corpus(path, split)
    length = min(length, corpus.tokens)
    starts = np.random.Generator(np.random.Philox(seed)).integers(
        0, corpus.tokens - length + 1, count
    )
    excerpts = [
        {
            "split": split,
            "start": int(start),
            "tokens": length,
            "text": _text(corpus, tokens, flags),
        }
        for start in starts  # one at a time: pages of all excerpts may not fit into memory
        for tokens, flags in zip(*corpus.read_flags(np.array([start]), length), strict=True)
    ]
    return {"samples": excerpts}


def _text(corpus: corpora.Corpus, tokens: np.ndarray, flags: np.ndarray) -> str:
    cuts = np.flatnonzero(flags).tolist()
    parts = [corpus.tokenizer.decode(tokens[: cuts[0] if cuts else None])]
    parts[0] = f"…{parts[0]}" if parts[0] or not cuts else ""
    for first, end in itertools.pairwise([*cuts, len(tokens)]):
        mark = " ".join(sign for bit, sign in _MARKS if flags[first] & bit)
        parts.append(f"{mark} {corpus.tokenizer.decode(tokens[first:end])}")
    return " ".join(part for part in parts if part)
