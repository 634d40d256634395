"""The manifest: formats old and new, and every single thing that may be wrong in it."""

import copy
import hashlib
import json
import pickle
import shutil

import numpy as np
import pytest
import tiny

from xlnet_jax.data.corpus import manifest as manifests
from xlnet_jax.data.corpus.corpus import Corpus
from xlnet_jax.data.corpus.manifest import MANIFEST, parse, read_manifest
from xlnet_jax.errors import BadInput

GOLDEN = tiny.TESTS / "golden" / "corpus_v1"

# SHA-256 of the tokens and of where sentences start in the corpus of format 1, read by the program that wrote it.
READ_BY_FORMAT_1 = {
    "train": "952acc0f4e1303982ab583b6b175ae7d072e0fc34255079929728b7085e6e69f",
    "heldout": "aeb1906bb3a40bcddbba33c3b150b07a088d18ced9a447e2f5fd1f4fd3cfd278",
}


def newest():
    """A manifest of the newest format with nothing unknown."""
    manifest = copy.deepcopy(read_manifest(str(GOLDEN)))
    for split in manifest["splits"].values():
        split |= {"paragraphs": split["documents"], "token_counts_sha256": "0" * 64}
    return manifest | {"empty": 0}


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_a_corpus_of_format_1_reads_as_it_did(split):
    assert json.loads((GOLDEN / MANIFEST).read_text())["format_version"] == 1
    corpus = Corpus(str(GOLDEN), split)
    tokens, starts = corpus.read(np.array([0]), corpus.tokens)
    digest = hashlib.sha256(tokens.astype("<i4").tobytes() + starts.tobytes()).hexdigest()
    assert digest == READ_BY_FORMAT_1[split]
    # By this a run finds its corpus again.
    assert corpus.sha256 == "b3856c23f85ddbc77e10f7e13f410ec0b642ee61e463447012f271d339989ee2"
    np.testing.assert_array_equal(corpus.token_counts, np.bincount(tokens[0], minlength=200))
    assert corpus.tokenizer.normalization.nfkc is False
    entry = corpus.manifest["splits"][split]
    assert corpus.manifest["format_version"] == manifests.FORMAT_VERSION == 2
    assert (entry["paragraphs"], entry["token_counts_sha256"], corpus.manifest["empty"]) == (None, None, None)
    assert corpus.manifest["options"]["field"] is None
    assert pickle.loads(pickle.dumps(corpus)).read(np.array([5]), 9)[0].tolist() == tokens[:, 5:14].tolist()


def refused(text, *words):
    with pytest.raises(BadInput) as error:
        parse(text if isinstance(text, bytes) else json.dumps(text).encode(), "folder/manifest.json")
    message = str(error.value)
    assert message.startswith("folder/manifest.json ") and "\n" not in message and len(message) < 400
    for word in words:
        assert word in message


def test_other_formats():
    assert parse(json.dumps(newest()).encode(), "") == newest()
    refused(newest() | {"format_version": 3}, "has format 3, this program reads up to 2", "install a newer version")
    for version in (0, -1, True, 1.0, "1", None):
        refused(newest() | {"format_version": version}, "is damaged: format_version is", "copy the corpus again")
    without = newest()
    del without["format_version"]
    refused(without, "format_version is None")
    # What format 2 added is no part of format 1, and is not taken from it.
    old = json.loads((GOLDEN / MANIFEST).read_text())
    assert parse(json.dumps(old | {"empty": "x"}).encode(), "")["empty"] is None


def test_no_json():
    refused(b"", "is damaged", "Expecting value")
    refused(b"\xff\xfe\x00", "is damaged")
    refused(b"[" * 100_000, "is damaged", "recursion")
    refused(b'{"format_version": ' + b"9" * 5000 + b"}", "is damaged")
    refused([], "it is [], not an object")
    refused({"format_version": 1}, "is damaged: KeyError: splits")
    for splits in ({"a\nb": 1}, [], None):
        refused({"format_version": 1, "normalization": {}, "options": {}, "splits": splits}, "is damaged: ")


# Path in the manifest (integers count shards and sources), value, words of the message.
@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("sha256", "0" * 64, "does not match its own sha256"),
        ("page_tokens", 128, "shards[0].pages is 43, not 22, which follows from its tokens and page_tokens=128"),
        ("page_tokens", 0, "page_tokens is 0, not a number from 1"),
        ("tokenizer.file", "../spiece.model", "tokenizer.file is '../spiece.model', not spiece.model"),
        ("tokenizer.vocab_size", 8, "tokenizer.vocab_size is 8, not a number from 9"),
        ("tokenizer.more", 1, "tokenizer has an unknown key 'more'"),
        ("normalization.nfkc", 1, "normalization.nfkc is 1, not true or false"),
        ("normalization", {"lower": True}, "normalization has no keep_accents"),
        ("splits", [], "splits is [], not an object"),
        ("splits.more\nlines", {}, "splits has an unknown key 'more\\nlines'"),
        ("splits.train.shards.0", None, "splits.train.shards[0] is None, not an object"),
        ("splits.train.shards.0.file", "../x", "splits.train.shards[0].file is '../x', not corpus-train.array_record-"),
        ("splits.train.shards.0.tokens", 2731, "splits.train.tokens is 2732, not 2731, the sum of its shards"),
        ("splits.train.documents", 0, "splits.train.documents is 0, not a number from 1"),
        ("splits.train.sentences", 2733, "splits.train.sentences is 2733, not a number from 22 to 2732"),
        ("splits.train.paragraphs", 92, "splits.train.paragraphs is 92, not a number from 22 to 91"),
        ("splits.train.token_counts", "token_counts-heldout.npy", "splits.train.token_counts"),
        ("options.more", float("nan"), "options cannot be printed"),
        ("options.more", "\ud800", "options cannot be printed"),
        ("sources.1.end", -1, "sources[1].end is -1"),
        ("other", 5, "it has an unknown key 'other'"),
    ],
)  # fmt: skip
def test_everything_in_it_is_checked(path, value, words):
    manifest = newest()
    *above, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    place = manifest
    for part in above:
        place = place[part]
    place[last] = value
    refused(manifest, "is damaged: ", words, "copy the corpus again")


def test_nothing_may_be_left_out():
    def paths(value, path=()):
        for name, below in value.items() if isinstance(value, dict) else enumerate(value):
            yield (*path, name)
            if isinstance(below, dict | list) and name != "options":
                yield from paths(below, (*path, name))

    everything = list(paths(newest()))
    assert len(everything) > 50
    for *above, last in everything:
        manifest = newest()
        place = manifest
        for part in above:
            place = place[part]
        del place[last]
        if above != ["sources"]:  # may be fewer
            refused(manifest, "is damaged", "copy the corpus again")


def test_a_manifest_that_cannot_be_opened(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="Not a directory; name the folder of a corpus"):
        read_manifest(str(tmp_path / "file"))
    shutil.copytree(GOLDEN, tmp_path / "corpus")
    (tmp_path / "corpus" / MANIFEST).unlink()
    (tmp_path / "corpus" / MANIFEST).mkdir()
    with pytest.raises(BadInput, match="is not finished"):
        read_manifest(str(tmp_path / "corpus"))
    with pytest.raises(BadInput, match="of the addresses only gs://BUCKET/"):
        read_manifest("s3://bucket/corpus")
