"""The manifest of a corpus: its contents, how they were made, and every hash. It is written last
and means "finished".

    format_version       2
    sha256               of the content; see `content_hash`
    page_tokens
    tokenizer            file, sha256, vocab_size
    normalization        the fields of `tokenizer.Normalization`
    splits.NAME          tokens, documents, sentences, paragraphs, token_counts (a file),
                         token_counts_sha256, document_lengths_sha256 (may be absent: of the file
                         document_lengths-NAME.npy), and
                shards   a list of: file, tokens, pages, bytes, sha256 (of the file), content (of
                         its tokens and starts)
    options              of `prepare`
    replaced, empty      number of places that were not UTF-8; number of documents without text
    dropped              may be absent: letters, marks, hangul; see `prepare.marks.NAMES`
    unknown              may be absent: pieces (the number in all splits), example (a word)
    sources              a list of: path, start, end, sha256; every range of text that was read

A manifest of another format is refused.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import re
from typing import Any

from etils import epath

from xlnet_jax.data import unknown
from xlnet_jax.data.corpus.pages import features
from xlnet_jax.data.subwords import Subwords
from xlnet_jax.data.tokenizer import SPECIAL_PIECES, Normalization, Tokenizer
from xlnet_jax.data.vocabulary import Vocabulary
from xlnet_jax.errors import BadInput, check_link, summary
from xlnet_jax.messages import suggest_file
from xlnet_jax.storage import files
from xlnet_jax.storage.files import Json

FORMAT_VERSION = 2
DATASET_NAME = "corpus"
MANIFEST = "manifest.json"
REQUEST = "prepare.json"
TOKENIZERS = (Tokenizer.file_name, Vocabulary.file_name, Subwords.file_name)

FEWEST_HELDOUT = 10_000
"""Number of held-out tokens below which a warning is logged; at the published shares 3,300 of them
are targets.
"""
MOST_HELDOUT = 20
"""Largest percentage of held-out text that a message advises."""

LARGEST_PAGE = 2**24
_NUMBER = range(2**62 + 1)  # so that sums and products of a few numbers stay int64
_SHA256 = re.compile(r"[0-9a-f]{64}")

# Rules for values: a type, a range, a hash, an object with these keys, or a list; a tuple also
# allows null.
_SHARD = {
    "file": str,
    "tokens": _NUMBER[1:],
    "pages": _NUMBER[1:],
    "bytes": _NUMBER[1:],
    "sha256": _SHA256,
    "content": _SHA256,
}
_SPLIT = {
    "tokens": _NUMBER[1:],
    "documents": _NUMBER,
    "sentences": _NUMBER,
    "paragraphs": _NUMBER,
    "token_counts": str,
    "token_counts_sha256": _SHA256,
    "document_lengths_sha256": _SHA256,
    "shards": [_SHARD],
}
_MANIFEST = {
    "format_version": int,
    "sha256": _SHA256,
    "page_tokens": range(1, LARGEST_PAGE + 1),
    "tokenizer": {"file": str, "sha256": _SHA256, "vocab_size": range(len(SPECIAL_PIECES), 2**31)},
    "normalization": dict.fromkeys(
        (field.name for field in dataclasses.fields(Normalization)), bool
    ),
    "splits": {"train": _SPLIT, "heldout": _SPLIT},
    "options": dict,
    "replaced": _NUMBER,
    "empty": _NUMBER,
    "dropped": {"letters": _NUMBER, "marks": _NUMBER, "hangul": _NUMBER},
    "unknown": {"pieces": _NUMBER, "example": (None, str)},
    "sources": [{"path": str, "start": _NUMBER, "end": _NUMBER, "sha256": _SHA256}],
}
_MAY_BE_ABSENT = {"heldout", "document_lengths_sha256", "dropped", "unknown"}


def shard_name(split: str, index: int, count: int) -> str:
    """Returns the file name of a shard, from the template of TFDS."""
    return f"{DATASET_NAME}-{split}.array_record-{index:05d}-of-{count:05d}"


def array_name(kind: str, split: str) -> str:
    """Returns the file name of the `token_counts` or the `document_lengths` of a split."""
    return f"{kind}-{split}.npy"


def content_hash(manifest: Json) -> str:
    """Returns the SHA-256 of the content of a corpus: of the vocabulary, and of the tokens and
    starts of every shard in order.

    It does not depend on the page size, the compression, the place of the corpus, or the version of
    the format.
    """
    content = [manifest["tokenizer"]["sha256"]]
    content += [
        [name, [shard["content"] for shard in split["shards"]]]
        for name, split in manifest["splits"].items()
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def write_tfds_metadata(path: str, manifest: Json) -> None:
    """Writes, on disk, the files that TFDS needs:
    `tfds.builder_from_directory(path).as_data_source("train")`.
    """
    import tensorflow_datasets as tfds

    # TFDS looks for the names of the shards beside these files; the shards may be in a bucket.
    names = {shard["file"] for split in manifest["splits"].values() for shard in split["shards"]}
    absent = [os.path.join(path, name) for name in names.difference(os.listdir(path))]
    for name in absent:
        open(name, "xb").close()
    template = tfds.core.ShardedFileTemplate(
        data_dir=epath.Path(path), dataset_name=DATASET_NAME, filetype_suffix="array_record"
    )
    tfds.folder_dataset.write_metadata(
        data_dir=path,
        features=features(manifest["page_tokens"]),
        split_infos=[
            tfds.core.SplitInfo(
                name=name,
                shard_lengths=[shard["pages"] for shard in split["shards"]],
                num_bytes=sum(shard["bytes"] for shard in split["shards"]),
                filename_template=template.replace(split=name),
            )
            for name, split in manifest["splits"].items()
        ],
        version=f"{FORMAT_VERSION}.0.0",
        check_data=False,  # its check needs TensorFlow
    )
    for name in absent:
        os.remove(name)


def read_manifest(path: str) -> Json:
    """Returns the manifest as `open_folder` reads it."""
    return open_folder(path)[0]


def open_folder(path: str) -> tuple[Json, dict[str, int]]:
    """Reads and checks the manifest of a finished corpus; also returns the size of each
    file in the folder by name, in bytes.

    Raises BadInput: the manifest is missing or damaged, was edited, or has another format.
    RestartMe: the bucket does not answer.
    """
    name = os.path.join(path, MANIFEST)
    check_link("corpus", path)
    try:
        sizes = files.listing(path)
        if not sizes:
            if near := suggest_file(path):
                raise BadInput(f"{path}: no such folder{near}")
            raise BadInput(
                f"{path}: no such folder, or nothing in it; if it has moved, name "
                "its folder (key data.corpus); otherwise make a corpus with "
                "`xlnet-jax prepare`"
            )
        if MANIFEST not in sizes:
            if REQUEST in sizes:
                raise BadInput(
                    f"the corpus in {path} is not finished; rerun its `xlnet-jax "
                    "prepare` command, which resumes or says what to change"
                )
            raise BadInput(
                f"{path} is not a corpus: it has no {MANIFEST}; make one with `xlnet-jax prepare`"
            )
        data = files.read(name)
    except OSError as error:
        raise BadInput(f"{path}: {summary(error)}; name the folder of a corpus") from error
    return parse(data, name), sizes


def parse(data: bytes, name: str) -> Json:
    """Parses and checks the bytes of a manifest; `name` is its file, for messages. Raises as
    `open_folder`.
    """
    try:
        manifest = json.loads(data)
        _check_value(manifest, "", dict)
        version = manifest.get("format_version")
        _check(type(version) is int and version > 0, "format_version", version, "a positive number")
        if version != FORMAT_VERSION:
            raise BadInput(
                f"{name} has format {version!r:.60}, this version reads "
                f"{FORMAT_VERSION}; run `xlnet-jax prepare` again, or use the "
                "version that wrote it"
            )
        _check_value(manifest, "", _MANIFEST)
        file, normalization = manifest["tokenizer"]["file"], manifest["normalization"]
        _check(file in TOKENIZERS, "tokenizer.file", file, " or ".join(TOKENIZERS))
        _check(
            (manifest["options"].get("normalization") == normalization),
            "normalization",
            normalization,
            "the normalization of the options",
        )
        for part, split in manifest["splits"].items():
            _check_split(split, part, manifest["page_tokens"])
        for part in ("options", "unknown"):
            try:
                # They are only printed, which fails for NaN and for a lone surrogate.
                json.dumps(manifest.get(part), ensure_ascii=False, allow_nan=False).encode()
            except ValueError as error:
                raise ValueError(f"{part} cannot be printed: {error}") from error
        for index, source in enumerate(manifest["sources"]):
            _check_value(source["end"], f"sources[{index}].end", _NUMBER[source["start"] :])
        if content_hash(manifest) != manifest["sha256"]:
            raise ValueError("its content does not match its own sha256")
    except (ValueError, RecursionError) as error:  # RecursionError: nested too deeply
        raise BadInput(f"{name} is damaged: {summary(error)}; copy the corpus again") from error
    return manifest


def _check(good: bool, where: str, value: Any, wanted: str) -> None:
    if not good:
        text = repr(value)
        raise ValueError(
            f"{where or 'it'} is {text if len(text) <= 60 else f'{text[:57]}...'}, not {wanted}"
        )


def _check_value(value: Any, where: str, rule: Any) -> None:
    """Raises ValueError unless a value follows a rule, such as `_MANIFEST`."""
    match rule:
        case type():
            _check(type(value) is rule, where, value, files.IN_JSON[rule])
        case range():
            within = type(value) is int and value in rule
            _check(within, where, value, f"a number from {rule.start} to {rule.stop - 1}")
        case str():
            _check(value == rule, where, value, rule)
        case re.Pattern():
            _check(
                isinstance(value, str) and rule.fullmatch(value) is not None,
                where,
                value,
                "a SHA-256",
            )
        case (None, other):
            if value is not None:
                _check_value(value, where, other)
        case [each]:
            _check_value(value, where, list)
            for index, item in enumerate(value):
                _check_value(item, f"{where}[{index}]", each)
        case dict():
            _check_value(value, where, dict)
            for name in sorted(rule.keys() - value.keys() - _MAY_BE_ABSENT):
                raise ValueError(f"{where or 'it'} has no {name}")
            for name, inner in value.items():
                if name not in rule:
                    raise ValueError(f"{where or 'it'} has an unknown key {name!r:.60}")
                _check_value(inner, f"{where}.{name}".removeprefix("."), rule[name])


def _check_split(split: Json, name: str, page_tokens: int) -> None:
    where, shards = f"splits.{name}", split["shards"]
    for index, shard in enumerate(shards):
        file, pages = shard_name(name, index, len(shards)), -(-shard["tokens"] // page_tokens)
        _check_value(shard["file"], f"{where}.shards[{index}].file", file)
        _check(
            shard["pages"] == pages,
            f"{where}.shards[{index}].pages",
            shard["pages"],
            f"{pages}, which follows from its tokens and page_tokens={page_tokens!r}",
        )
    tokens, documents = sum(shard["tokens"] for shard in shards), split["documents"]
    _check(
        split["tokens"] == tokens,
        f"{where}.tokens",
        split["tokens"],
        f"{tokens}, the sum of its shards",
    )
    # A document and a paragraph have at least one sentence, a sentence at least one token.
    rules = {
        "documents": range(1, tokens + 1),
        "sentences": range(documents, tokens + 1),
        "paragraphs": range(documents, split["sentences"] + 1),
        "token_counts": array_name("token_counts", name),
    }
    _check_value(split, where, _SPLIT | rules)


def warn_of_unknown(manifest: Json, path: str) -> None:
    """Logs a warning if a corpus has unknown text; see `unknown.warn`. Published data sets get no
    warning: their rare words are unknown on purpose.
    """
    if (found := manifest.get("unknown")) and not manifest["options"].get("dataset"):
        tokens = sum(split["tokens"] for split in manifest["splits"].values())
        unknown.warn(found["pieces"], tokens, path, lambda: found["example"])


FEW_DOCUMENTS = 20
"""Number of documents below which all may belong to one split."""


def little_heldout(manifest: Json) -> str | None:
    """Returns a message if the held-out split is missing or small, with the option that corrects
    it; otherwise None.
    """
    tokens = {name: split["tokens"] for name, split in manifest["splits"].items()}
    heldout, everything = tokens.get("heldout", 0), sum(tokens.values())
    if heldout >= FEWEST_HELDOUT:
        return None
    what = f"none of the documents, of {everything:,} tokens, is in the held-out split"
    if heldout:
        of_all = f"{heldout:,} of {everything:,} tokens"
        what = (
            f"the held-out split has {of_all}, and the loss of fewer than "
            f"{FEWEST_HELDOUT:,} is mostly chance"
        )
    if 100 * heldout >= MOST_HELDOUT * everything:
        return f"{what}; prepare more text"
    documents = sum(split["documents"] for split in manifest["splits"].values())
    # A split has whole documents, so few documents may give less than the requested share: the
    # advice is twice that share.
    given = manifest["options"].get("heldout", 0)
    percent = min(
        math.ceil(100 * max(max(FEWEST_HELDOUT, 2 * heldout) / everything, 2 * given)), MOST_HELDOUT
    )
    advice = (
        f"prepare it with another --output and a larger share, such as --heldout={percent / 100:g}"
    )
    if percent <= 100 * given:
        advice = "prepare more text"
    if documents < FEW_DOCUMENTS:
        advice += (
            f", or divide it into more documents than {documents}, "
            "because no document is split (--document=blank_line)"
        )
    return f"{what}; {advice}"
