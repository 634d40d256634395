"""`xlnet-jax corpus`: what is in it, whether it is whole, and what it reads like."""

import hashlib
import json
import os
import pathlib
import re
import shutil

import data_fixtures as data
import numpy as np
import pytest
from special_ids import EOD

from xlnet_jax.cli import main
from xlnet_jax.data.corpus import pages, verify
from xlnet_jax.data.corpus.corpus import Corpus
from xlnet_jax.data.corpus.manifest import MANIFEST, content_hash, read_manifest
from xlnet_jax.storage import files


@pytest.fixture
def copy(tmp_path):
    """A copy of the corpus that a test may break."""
    return pathlib.Path(shutil.copytree(data.corpus_path(), tmp_path / "corpus"))


def command(capsys, *words):
    """Exit code, stdout, and the lines of stderr that are not of the log."""
    code = main(["corpus", *map(str, words)])
    out, err = capsys.readouterr()
    return code, out, err.splitlines()


def test_info_and_verify(capsys):
    code, out, err = command(capsys, "info", data.corpus_path(), "--json")
    found = json.loads(out)
    assert (code, err) == (0, [])
    manifest, splits = (
        read_manifest(data.corpus_path()),
        [Corpus(data.corpus_path(), s) for s in ("train", "heldout")],
    )
    assert found["documents"] == sum(corpus.documents for corpus in splits)
    assert found["tokens"] == sum(corpus.tokens for corpus in splits)
    assert (
        found["shards"] == sum(len(split["shards"]) for split in manifest["splits"].values()) == 8
    )
    assert (found["vocabulary"], found["sha256"]) == (data.VOCAB_SIZE, manifest["sha256"])
    assert (found["format_version"], found["page_tokens"], found["sources"]) == (
        2,
        data.PAGE_TOKENS,
        5,
    )
    assert (
        found["documents"] <= found["paragraphs"] <= found["sentences"]
        and found["options"] == manifest["options"]
    )
    assert found["splits"]["heldout"]["tokens"] == splits[1].tokens
    code, out, _ = command(capsys, "info", data.corpus_path())
    lines = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert code == 0 and lines["splits.heldout.tokens"] == str(splits[1].tokens)
    assert lines["options.normalization.lower"] == "False"
    counts, problems = verify.verify(data.corpus_path(), workers=1)
    assert not problems and counts["tokens"] == found["tokens"]
    assert (
        command(capsys, "verify", data.corpus_path(), "--json", "--workers=2")[1]
        == f"{json.dumps({'ok': True, **counts})}\n"
    )


def test_verify_tells_all_problems(copy, capsys):
    shards = [shard["file"] for shard in read_manifest(str(copy))["splits"]["train"]["shards"]]
    first = (copy / shards[0]).read_bytes()
    place = len(first[:65536].rstrip(b"\0")) // 2
    (copy / shards[0]).write_bytes(first[:place] + bytes([first[place] ^ 1]) + first[place + 1 :])
    (copy / shards[1]).unlink()
    (copy / shards[2]).write_bytes((copy / shards[2]).read_bytes() + b"more")
    (copy / "spiece.model").write_bytes(b"x")
    (copy / "features.json").unlink()
    (copy / "token_counts-heldout.npy").write_bytes(b"x")
    code, out, err = command(capsys, "verify", copy, "--json")
    assert code == 2 and json.loads(out)["exit_code"] == 2 and len(err) == 7
    assert (
        err[-1]
        == f"xlnet-jax corpus: {copy} differs from the prepared corpus (problems: 6); copy it again"
    )
    wanted = (
        "spiece.model: not a SentencePiece model",
        "features.json is missing",
        rf"{shards[0]}, page \d+ is damaged \(Corrupted",
        f"{shards[1]}: No such file",
        rf"{shards[2]} has \d+ bytes, not",
        "token_counts-heldout.npy does not match its hash",
    )
    assert all(map(re.search, wanted, err)), err


def edited(copy, change):
    """Changes the manifest so that it is at one with itself, and returns the problems."""
    manifest = json.loads((copy / MANIFEST).read_text())
    change(manifest)
    manifest["sha256"] = content_hash(manifest)
    (copy / MANIFEST).write_text(json.dumps(manifest))
    return verify.verify(str(copy))[1]


@pytest.mark.parametrize("counted", ["documents", "sentences", "paragraphs"])
def test_counts_of_the_manifest(copy, counted):
    train = read_manifest(str(copy))["splits"]["train"]
    change = -1 if counted == "documents" else 1
    (problem,) = edited(
        copy,
        lambda manifest: manifest["splits"]["train"].update({counted: train[counted] + change}),
    )
    assert problem == (
        f"{copy}: train has {train[counted]} {counted}, the manifest says {train[counted] + change}"
    )


def test_counts_of_tokens(copy):
    counts = Corpus(str(copy)).token_counts
    counts[9:11] += np.array([1, -1]) if counts[10] else np.array([-1, 1])
    data_ = files.array_bytes(counts)
    (copy / "token_counts-train.npy").write_bytes(data_)
    digest = hashlib.sha256(data_).hexdigest()
    (problem,) = edited(
        copy, lambda manifest: manifest["splits"]["train"].update(token_counts_sha256=digest)
    )
    assert "token_counts-train.npy: piece 9 occurs" in problem


@pytest.mark.parametrize(
    ("array", "offset", "value", "words"),
    [
        # A document that starts amid one.
        ("starts", -1, 7, "flags do not match the ends of its documents"),
        # And no sentence.
        ("starts", 1, pages.DOCUMENT_START, "flags do not match the ends of its documents"),
        ("starts", 0, pages.SENTENCE_START, "flags do not match the ends of its documents"),
        ("tokens", None, 9, "its last document has no end"),
    ],
)
def test_flags_that_make_no_sense(copy, array, offset, value, words):
    entry = read_manifest(str(copy))["splits"]["train"]["shards"][0]
    parts = list(pages.scan(str(copy / entry["file"]), entry, data.PAGE_TOKENS, data.VOCAB_SIZE))
    arrays = dict(
        zip(("tokens", "starts"), map(np.concatenate, zip(*parts, strict=True)), strict=True)
    )
    ends = np.flatnonzero(arrays["tokens"] == EOD)
    arrays[array][-1 if offset is None else ends[0] + offset] = value
    os.remove(copy / entry["file"])
    writer = pages.PageWriter(str(copy / entry["file"]), data.PAGE_TOKENS)
    writer.write(**arrays)
    new = writer.close()
    (problem,) = edited(copy, lambda manifest: manifest["splits"]["train"]["shards"][0].update(new))
    assert entry["file"] in problem and words in problem


def test_sample(capsys):
    words = (
        "sample",
        data.corpus_path(),
        "--split=heldout",
        "--count=7",
        "--length=60",
        "--seed=3",
    )
    code, out, err = command(capsys, *words, "--json")
    found = json.loads(out)["samples"]
    assert (code, err, len(found)) == (0, [], 7)
    assert {"samples": found} == verify.sample(data.corpus_path(), "heldout", 3, 7, 60)
    assert {"samples": found} != verify.sample(data.corpus_path(), "heldout", 4, 7, 60)
    corpus = Corpus(data.corpus_path(), "heldout")
    for each in found:
        tokens, flags = (array[0] for array in corpus.read_flags(np.array([each["start"]]), 60))
        for bit, sign in (
            (pages.DOCUMENT_START, "§"),
            (pages.PARAGRAPH_START, "¶"),
            (pages.SENTENCE_START, "|"),
        ):
            assert each["text"].count(sign) == np.count_nonzero(flags & bit)
        assert each["text"].startswith("…") == (flags[0] == 0)
        plain = re.sub("[§¶|… ]", "", each["text"])
        assert plain == corpus.tokenizer.decode(tokens).replace(" ", "")
    code, out, _ = command(capsys, *words)
    assert code == 0 and out.count("heldout, token ") == 7 and found[0]["text"] in out
    (whole,) = verify.sample(data.corpus_path(), "heldout", 0, 1, 10**6)["samples"]
    assert (whole["start"], whole["tokens"]) == (0, corpus.tokens) and whole["text"].startswith(
        "§ ¶ | "
    )
    assert whole["text"].count("§") == corpus.documents
    amid = verify._text(corpus, tokens[:5], np.zeros(5, np.uint8))
    assert amid.startswith("…") and "|" not in amid


def test_bad_requests(capsys, tmp_path):
    assert command(capsys, "verify", tmp_path)[0] == 2
    assert command(capsys, "info", tmp_path / "none")[2][0].endswith(
        "otherwise make a corpus with `xlnet-jax prepare`"
    )
    assert command(capsys, "info", data.corpus_path(), "--fast")[2] == [
        "xlnet-jax corpus: unknown option '--fast'; see --help"
    ]
    with pytest.raises(SystemExit):
        main(["corpus", "--help"])
    assert "example:\n  xlnet-jax corpus " in capsys.readouterr().out
