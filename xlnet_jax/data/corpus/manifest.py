"""The manifest of a corpus: its contents, how they were made, every hash. Written last: it means "finished".

    format_version       2
    sha256               of the content; see `content_hash`
    page_tokens
    tokenizer            file, sha256, vocab_size
    normalization        the fields of `tokenizer.Normalization`
    splits.NAME          tokens, documents, sentences, paragraphs, token_counts (a file), token_counts_sha256, and
                shards   a list of: file, tokens, pages, bytes, sha256 (of the file), content (of its tokens and starts)
    options              of `prepare`
    replaced, empty      number of places that were not UTF-8; number of documents without text
    dropped              may be absent: letters, marks, hangul; see `prepare.marks.NAMES`
    sources              a list of: path, start, end, sha256; every range of text that was read

Format 1 had no paragraphs and no hash of the token counts, and did not count empty documents: these are null.
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

from xlnet_jax.data.corpus.pages import features
from xlnet_jax.data.tokenizer import SPECIAL_PIECES, Normalization, Tokenizer
from xlnet_jax.data.vocabulary import Vocabulary
from xlnet_jax.errors import BadInput, check_link, summary
from xlnet_jax.messages import suggest_file
from xlnet_jax.storage import files

FORMAT_VERSION = 2
DATASET_NAME = "corpus"
MANIFEST = "manifest.json"
REQUEST = "prepare.json"
TOKENIZERS = (Tokenizer.file_name, Vocabulary.file_name)

FEWEST_HELDOUT = 10_000
"""Tokens; with the published shares 3,300 of them are targets."""
MOST_HELDOUT = 20
"""Percent that are advised at most."""

_LARGEST = 2**62  # so that sums and products of a few numbers stay int64
LARGEST_PAGE = 2**24
_SHA256 = re.compile(r"[0-9a-f]{64}")


def shard_name(split: str, index: int, count: int) -> str:
    """File name of a shard, from the template of TFDS."""
    return f"{DATASET_NAME}-{split}.array_record-{index:05d}-of-{count:05d}"


def counts_name(split: str) -> str:
    """File name of the token counts of a split."""
    return f"token_counts-{split}.npy"


def content_hash(manifest: dict[str, Any]) -> str:
    """SHA-256 of the content of a corpus: the vocabulary, and the tokens and starts of every shard in order.

    It does not depend on the page size, the compression, the location of the corpus, or the version of the format.
    """
    content = [manifest["tokenizer"]["sha256"]]
    content += [[name, [shard["content"] for shard in split["shards"]]] for name, split in manifest["splits"].items()]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def write_tfds_metadata(path: str, manifest: dict[str, Any]) -> None:
    """Writes the files that TFDS needs: `tfds.builder_from_directory(path).as_data_source("train")`."""
    import tensorflow_datasets as tfds

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


class NoCorpus(BadInput):
    """Nothing is at the path, and nothing of a like name beside it."""


def read_manifest(path: str) -> dict[str, Any]:
    """As `open_folder`, without the listing."""
    return open_folder(path)[0]


def open_folder(path: str) -> tuple[dict[str, Any], dict[str, int]]:
    """Lists the folder of a finished corpus and reads its manifest, once each.

    Returns:
      The manifest, converted to the newest format and checked for consistency; and the names in the folder, each with
      its bytes.

    Raises:
      BadInput: there is none, it is damaged or was edited, or this program does not know its format.
      RestartMe: the bucket does not answer.
    """
    name = os.path.join(path, MANIFEST)
    check_link("corpus", path)
    try:
        sizes = files.listing(path)
        if not sizes:
            if near := suggest_file(path):
                raise BadInput(f"{path}: no such folder{near}")
            raise NoCorpus(f"{path}: no such folder, or nothing in it; make a corpus with `xlnet-jax prepare`")
        if MANIFEST not in sizes:
            if REQUEST in sizes:
                raise BadInput(
                    f"the corpus in {path} is not finished; rerun its `xlnet-jax prepare` command, which resumes or "
                    "says what to change"
                )
            raise BadInput(f"{path} is not a corpus: it has no {MANIFEST}; make one with `xlnet-jax prepare`")
        data = files.read(name)
    except OSError as error:
        raise BadInput(f"{path}: {summary(error)}; name the folder of a corpus") from error
    return parse(data, name), sizes


def parse(data: bytes, name: str) -> dict[str, Any]:
    """Parses the bytes of a manifest; `name` is its file, for messages. Result and errors as in `open_folder`."""
    try:
        manifest = json.loads(data)
        _check(isinstance(manifest, dict), "it", manifest, "an object")
        version = manifest.get("format_version")
        _check(type(version) is int and version > 0, "format_version", version, "a positive number")
        if version > FORMAT_VERSION:
            raise BadInput(
                f"{name} has format {_short(version)}, this program reads up to {FORMAT_VERSION}; install a newer "
                "version of this program, or prepare the corpus again"
            )
        if version == 1:
            manifest = _upgrade_1(manifest)
        _check_manifest(manifest)
    # Deep nesting raises RecursionError.
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{name} is damaged: {summary(error)}; copy the corpus again") from error
    return manifest


def _upgrade_1(manifest: dict[str, Any]) -> dict[str, Any]:
    """Format 1 to 2."""
    for name in ("splits", "normalization", "options"):
        _check(isinstance(manifest.get(name), dict), name, manifest.get(name), "an object")
    splits = manifest["splits"]
    for name, split in splits.items():
        _check(isinstance(split, dict), f"splits.{name}", split, "an object")
    return manifest | {
        "format_version": 2,
        "normalization": manifest["normalization"] | {"nfkc": False},
        "splits": {name: split | {"paragraphs": None, "token_counts_sha256": None} for name, split in splits.items()},
        "options": manifest["options"] | {"field": None},
        "empty": None,
    }


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _check(good: bool, where: str, value: Any, wanted: str) -> None:
    if not good:
        raise ValueError(f"{where} is {_short(value)}, not {wanted}")


def _check_keys(value: Any, where: str, keys: set[str]) -> None:
    _check(isinstance(value, dict), where, value, "an object")
    if missing := sorted(keys - value.keys()):
        raise ValueError(f"{where} has no {missing[0]}")
    if unknown := sorted(value.keys() - keys):
        raise ValueError(f"{where} has an unknown key {_short(unknown[0])}")


def _check_number(value: Any, where: str, low: int, high: int = _LARGEST) -> None:
    _check(type(value) is int and low <= value <= high, where, value, f"a number from {low} to {high}")


def _check_hash(value: Any, where: str) -> None:
    _check(isinstance(value, str) and _SHA256.fullmatch(value) is not None, where, value, "a SHA-256")


def _check_manifest(manifest: dict[str, Any]) -> None:
    """Raises ValueError unless every value in a manifest of the newest format has a usable type and range."""
    keys = "format_version sha256 page_tokens tokenizer normalization splits options replaced empty sources"
    _check_keys({name: value for name, value in manifest.items() if name != "dropped"}, "it", set(keys.split()))
    _check_hash(manifest["sha256"], "sha256")
    _check_number(manifest["page_tokens"], "page_tokens", 1, LARGEST_PAGE)
    tokenizer = manifest["tokenizer"]
    _check_keys(tokenizer, "tokenizer", {"file", "sha256", "vocab_size"})
    _check(tokenizer["file"] in TOKENIZERS, "tokenizer.file", tokenizer["file"], " or ".join(TOKENIZERS))
    _check_hash(tokenizer["sha256"], "tokenizer.sha256")
    _check_number(tokenizer["vocab_size"], "tokenizer.vocab_size", len(SPECIAL_PIECES), 2**31 - 1)
    normalization = manifest["normalization"]
    _check_keys(normalization, "normalization", {field.name for field in dataclasses.fields(Normalization)})
    for name, value in normalization.items():
        _check(isinstance(value, bool), f"normalization.{name}", value, "true or false")
    _check(isinstance(manifest["options"], dict), "options", manifest["options"], "an object")
    chosen = manifest["options"].get("normalization")
    # Format 1 had no nfkc.
    same = isinstance(chosen, dict) and {"nfkc": False} | chosen == normalization
    _check(same, "normalization", normalization, "that of the options")
    splits = manifest["splits"]
    _check(isinstance(splits, dict) and "train" in splits, "splits", splits, "an object with `train` in it")
    _check(splits.keys() <= {"train", "heldout"}, "splits", list(splits), "`train` and perhaps `heldout`")
    for name, split in splits.items():
        _check_split(split, name, manifest["page_tokens"])
    try:
        # The options are only printed, but that must work: no NaN, no lone surrogate.
        json.dumps(manifest["options"], ensure_ascii=False, allow_nan=False).encode()
    except ValueError as error:
        raise ValueError(f"options cannot be printed: {error}") from error
    _check_number(manifest["replaced"], "replaced", 0)
    if manifest["empty"] is not None:
        _check_number(manifest["empty"], "empty", 0)
    if "dropped" in manifest:
        _check_keys(manifest["dropped"], "dropped", {"letters", "marks", "hangul"})
        for name, value in manifest["dropped"].items():
            _check_number(value, f"dropped.{name}", 0)
    _check_sources(manifest["sources"])
    if content_hash(manifest) != manifest["sha256"]:
        raise ValueError("its content does not match its own sha256")


def _check_split(split: Any, name: str, page_tokens: int) -> None:
    where = f"splits.{name}"
    keys = {"tokens", "documents", "sentences", "paragraphs", "token_counts", "token_counts_sha256", "shards"}
    _check_keys(split, where, keys)
    shards = split["shards"]
    _check(isinstance(shards, list) and len(shards) > 0, f"{where}.shards", shards, "a list of shards")
    for index, shard in enumerate(shards):
        place = f"{where}.shards[{index}]"
        _check_keys(shard, place, {"file", "tokens", "pages", "bytes", "sha256", "content"})
        file = shard_name(name, index, len(shards))
        _check(shard["file"] == file, f"{place}.file", shard["file"], file)
        for key in ("tokens", "pages", "bytes"):
            _check_number(shard[key], f"{place}.{key}", 1)
        for key in ("sha256", "content"):
            _check_hash(shard[key], f"{place}.{key}")
        pages = -(-shard["tokens"] // page_tokens)
        reason = f"{pages}, which follows from its tokens and {page_tokens=}"
        _check(shard["pages"] == pages, f"{place}.pages", shard["pages"], reason)
    tokens = sum(shard["tokens"] for shard in shards)
    _check_number(split["tokens"], f"{where}.tokens", 1)
    _check(split["tokens"] == tokens, f"{where}.tokens", split["tokens"], f"{tokens}, the sum of its shards")
    # A document has at least a sentence and an EOD, a paragraph at least a sentence, a sentence at least a token.
    _check_number(split["documents"], f"{where}.documents", 1, tokens // 2)
    _check_number(split["sentences"], f"{where}.sentences", split["documents"], tokens - split["documents"])
    if split["paragraphs"] is not None:
        _check_number(split["paragraphs"], f"{where}.paragraphs", split["documents"], split["sentences"])
    file = counts_name(name)
    _check(split["token_counts"] == file, f"{where}.token_counts", split["token_counts"], file)
    if split["token_counts_sha256"] is not None:
        _check_hash(split["token_counts_sha256"], f"{where}.token_counts_sha256")


def _check_sources(sources: Any) -> None:
    _check(isinstance(sources, list), "sources", sources, "a list")
    for index, source in enumerate(sources):
        place = f"sources[{index}]"
        _check(isinstance(source, dict), place, source, "an object")
        _check(isinstance(source.get("path"), str), f"{place}.path", source.get("path"), "the name of a file")
        _check_number(source.get("start"), f"{place}.start", 0)
        _check_number(source.get("end"), f"{place}.end", source["start"])
        _check_hash(source.get("sha256"), f"{place}.sha256")


def little_heldout(manifest: dict[str, Any]) -> str | None:
    """What is wrong with a held-out split that is missing or small, and the option that mends it; else None."""
    tokens = {name: split["tokens"] for name, split in manifest["splits"].items()}
    heldout, everything = tokens.get("heldout", 0), sum(tokens.values())
    if heldout >= FEWEST_HELDOUT:
        return None
    what = f"none of the documents, of {everything:,} tokens, fell to the held-out split"
    if heldout:
        what = f"the held-out split has {heldout:,} of {everything:,} tokens, and the loss of fewer than " \
            f"{FEWEST_HELDOUT:,} is mostly chance"  # fmt: skip
    return f"{what}; {hold_out_more(manifest)}"


def hold_out_more(manifest: dict[str, Any]) -> str:
    """The advice that makes the held-out split of this text large enough, or as large as training can spare."""
    tokens = {name: split["tokens"] for name, split in manifest["splits"].items()}
    heldout, everything = tokens.get("heldout", 0), sum(tokens.values())
    if 100 * heldout >= MOST_HELDOUT * everything:
        return "prepare more text"
    percent = math.ceil(100 * max(FEWEST_HELDOUT, 2 * heldout) / everything)
    return f"prepare it with a larger share, such as --heldout={min(percent, MOST_HELDOUT) / 100:g}"
