"""The manifest: other formats, and every single thing that may be wrong in it."""

import dataclasses
import json

import pytest

from xlnet_jax.data.corpus.manifest import content_hash, parse, shard_name
from xlnet_jax.data.tokenizer import Normalization
from xlnet_jax.errors import BadInput

HASH = "0" * 64


def split(name, tokens, documents, sentences):
    """The entry of a split of one shard."""
    shard = {
        "file": shard_name(name, 0, 1),
        "tokens": tokens,
        "pages": -(-tokens // 64),
        "bytes": 131072,
        "sha256": HASH,
        "content": HASH,
    }
    return {
        "tokens": tokens,
        "documents": documents,
        "sentences": sentences,
        "paragraphs": documents,
        "token_counts": f"token_counts-{name}.npy",
        "token_counts_sha256": HASH,
        "shards": [shard],
    }


def whole():
    """A manifest with nothing unknown."""
    normalization = dataclasses.asdict(Normalization())
    manifest = {
        "format_version": 2,
        "page_tokens": 64,
        "tokenizer": {"file": "spiece.model", "sha256": HASH, "vocab_size": 200},
        "normalization": normalization,
        "splits": {"train": split("train", 2732, 22, 91), "heldout": split("heldout", 205, 2, 6)},
        "options": {"document": "blank_line", "heldout": 0.2, "normalization": dict(normalization)},
        "replaced": 0,
        "empty": 0,
        "sources": [
            {"path": f"/text/{name}.txt", "start": 0, "end": 1751, "sha256": HASH} for name in "ab"
        ],
    }
    return manifest | {"sha256": content_hash(manifest)}


def refused(text, *words):
    with pytest.raises(BadInput) as error:
        parse(
            text if isinstance(text, bytes) else json.dumps(text).encode(), "folder/manifest.json"
        )
    message = str(error.value)
    assert (
        message.startswith("folder/manifest.json ") and "\n" not in message and len(message) < 400
    )
    for word in words:
        assert word in message


def test_other_formats():
    assert parse(json.dumps(whole()).encode(), "") == whole()
    for version in (1, 3):
        told = (
            f"has format {version}, this version reads 2; "
            "run `xlnet-jax prepare` again, or use the version that"
        )
        refused({"format_version": version}, told)  # whatever else it has
    for version in (0, True, "1", None):
        refused(whole() | {"format_version": version}, "is damaged: format_version is")


def test_no_json():
    refused(b"", "is damaged", "Expecting value")
    refused(b"\xff\xfe\x00", "is damaged")
    refused(b"[" * 100_000, "is damaged", "recursion")
    refused([], "it is [], not an object")


# Path in the manifest (integers count shards and sources), value, words of the message.
@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("sha256", "0" * 64, "does not match its own sha256"),
        (
            "page_tokens",
            128,
            "shards[0].pages is 43, not 22, which follows from its tokens and page_tokens=128",
        ),
        ("page_tokens", 0, "page_tokens is 0, not a number from 1"),
        (
            "tokenizer.file",
            "../spiece.model",
            "tokenizer.file is '../spiece.model', not spiece.model",
        ),
        ("normalization.nfkc", 1, "normalization.nfkc is 1, not true or false"),
        ("normalization", {"lower": True}, "normalization has no keep_accents"),
        ("splits.more\nlines", {}, "splits has an unknown key 'more\\nlines'"),
        ("splits.train.shards.0", None, "splits.train.shards[0] is None, not an object"),
        (
            "splits.train.shards.0.file",
            "../x",
            "splits.train.shards[0].file is '../x', not corpus-train.array_record-",
        ),
        (
            "splits.train.shards.0.tokens",
            2731,
            "splits.train.tokens is 2732, not 2731, the sum of its shards",
        ),
        ("splits.train.documents", 0, "splits.train.documents is 0, not a number from 1"),
        (
            "splits.train.sentences",
            2733,
            "splits.train.sentences is 2733, not a number from 22 to 2732",
        ),
        (
            "splits.train.paragraphs",
            92,
            "splits.train.paragraphs is 92, not a number from 22 to 91",
        ),
        ("splits.train.token_counts", "token_counts-heldout.npy", "splits.train.token_counts"),
        ("splits.train.document_lengths_sha256", "x", "document_lengths_sha256 is 'x', not a SHA"),
        ("options.more", float("nan"), "options cannot be printed"),
        ("options.more", "\ud800", "options cannot be printed"),
        ("unknown", {"pieces": 1, "example": "\ud800"}, "unknown cannot be printed"),
        ("sources.1.end", -1, "sources[1].end is -1"),
        ("other", 5, "it has an unknown key 'other'"),
    ],
)
def test_everything_in_it_is_checked(path, value, words):
    manifest = whole()
    *above, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    place = manifest
    for part in above:
        place = place[part]
    place[last] = value
    refused(manifest, "is damaged: ", words, "copy the corpus again")
