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
    manifest = read_manifest(data.corpus_path())
    for counted in ("documents", "paragraphs", "sentences", "tokens"):
        of_splits = [split[counted] for split in manifest["splits"].values()]
        assert found[counted] == sum(of_splits)
        assert [split[counted] for split in found["splits"].values()] == of_splits
    assert (found["shards"], found["sources"], found["vocabulary"]) == (8, 5, data.VOCAB_SIZE)
    for name in ("sha256", "format_version", "page_tokens", "options"):
        assert found[name] == manifest[name]
    code, out, _ = command(capsys, "info", data.corpus_path())
    lines = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert code == 0 and lines["tokens"] == str(found["tokens"])
    assert lines["options.normalization.lower"] == "False"
    counts, problems = verify.verify(data.corpus_path(), workers=1)
    assert not problems and counts["tokens"] == found["tokens"]
    _, out, _ = command(capsys, "verify", data.corpus_path(), "--json", "--workers=2")
    assert json.loads(out) == {"ok": True, **counts}


def test_verify_tells_all_problems(copy, capsys):
    damaged, missing, longer = (
        copy / shard["file"] for shard in read_manifest(str(copy))["splits"]["train"]["shards"][:3]
    )
    content = bytearray(damaged.read_bytes())
    content[len(content[:65536].rstrip(b"\0")) // 2] ^= 1
    damaged.write_bytes(content)
    missing.unlink()
    longer.write_bytes(longer.read_bytes() + b"more")
    (copy / "spiece.model").write_bytes(b"x")
    (copy / "features.json").unlink()
    (copy / "token_counts-heldout.npy").write_bytes(b"x")
    (copy / "document_lengths-heldout.npy").unlink()
    (copy / "document_lengths-train.npy").write_bytes(b"x")
    code, out, err = command(capsys, "verify", copy, "--json")
    assert code == 2 and json.loads(out)["exit_code"] == 2 and len(err) == 9
    assert "differs from the prepared corpus (problems: 8); copy it again" in err[-1]
    wanted = (
        "spiece.model: not a SentencePiece model",
        "features.json is missing",
        rf"{damaged}, page \d+ is damaged \(Corrupted",
        f"{missing}: No such file",
        rf"{longer} has \d+ bytes, not",
        "document_lengths-train.npy does not match its hash",
        "token_counts-heldout.npy does not match its hash",
        "document_lengths-heldout.npy is missing or cannot be read",
    )
    assert all(map(re.search, wanted, err)), err


def edited(copy, change):
    """Changes the manifest so that it is at one with itself, and returns the problems."""
    manifest = json.loads((copy / MANIFEST).read_text())
    change(manifest)
    manifest["sha256"] = content_hash(manifest)
    (copy / MANIFEST).write_text(json.dumps(manifest))
    return verify.verify(str(copy))[1]


def test_counts_of_the_manifest(copy):
    train = read_manifest(str(copy))["splits"]["train"]
    right = {"documents": train["documents"], "sentences": train["sentences"]}
    wrong = {"documents": right["documents"] - 1, "sentences": right["sentences"] + 1}
    problems = edited(copy, lambda manifest: manifest["splits"]["train"].update(wrong))
    assert "document_lengths-train.npy is damaged (not an int32 array of" in problems[0]
    assert problems[1:] == [
        f"{copy}: train has {right[name]} {name}, the manifest says {wrong[name]}" for name in right
    ]


def test_counts_of_tokens(copy):
    counts = Corpus(str(copy)).token_counts.copy()
    counts[9:11] = counts[[10, 9]]
    content = files.array_bytes(counts)
    (copy / "token_counts-train.npy").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    (problem,) = edited(
        copy, lambda manifest: manifest["splits"]["train"].update(token_counts_sha256=digest)
    )
    assert "token_counts-train.npy: piece 9 occurs" in problem


def test_lengths_of_documents(copy):
    """Two documents change places; then a corpus without the file, as older versions wrote it."""
    lengths = Corpus(str(copy)).lengths.copy()
    place = int(np.flatnonzero(np.diff(lengths))[0])
    lengths[[place, place + 1]] = lengths[[place + 1, place]]
    file = copy / "document_lengths-train.npy"
    file.write_bytes(files.array_bytes(lengths))
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    (problem,) = edited(
        copy, lambda manifest: manifest["splits"]["train"].update(document_lengths_sha256=digest)
    )
    assert problem == f"{file}: the pages have documents of other lengths"
    file.unlink()
    older = edited(
        copy, lambda manifest: manifest["splits"]["train"].pop("document_lengths_sha256")
    )
    assert older == []


@pytest.mark.parametrize(
    ("offset", "value"),
    [
        (-1, pages.DOCUMENT_START | pages.SENTENCE_START),  # a document that starts amid one
        (0, pages.SENTENCE_START),  # the end of a document starts a sentence
        (1, pages.DOCUMENT_START),  # and a document no sentence
    ],
)
def test_flags_that_make_no_sense(copy, offset, value):
    def change(tokens, starts):
        starts[np.flatnonzero(tokens == EOD)[0] + offset] = value

    (problem,) = rewritten(copy, change)
    assert "flags do not match the ends of its documents" in problem


def test_a_shard_that_ends_amid_a_document(copy):
    def change(tokens, starts):
        tokens[-1] = 9

    (problem,) = rewritten(copy, change)
    assert "its last document has no end" in problem


def rewritten(copy, change):
    """Changes the first shard, with the right hashes, and returns the problems."""
    entry = read_manifest(str(copy))["splits"]["train"]["shards"][0]
    path = str(copy / entry["file"])
    parts = list(pages.scan(path, entry, data.PAGE_TOKENS, data.VOCAB_SIZE))
    tokens, starts = map(np.concatenate, zip(*parts, strict=True))
    change(tokens, starts)
    os.remove(path)
    writer = pages.PageWriter(path, data.PAGE_TOKENS)
    writer.write(tokens, starts)
    new = writer.close()
    problems = edited(copy, lambda manifest: manifest["splits"]["train"]["shards"][0].update(new))
    assert all(entry["file"] in problem for problem in problems)
    return problems


def test_sample(capsys):
    options = ("--split=heldout", "--count=7", "--length=60", "--seed=3")
    code, out, err = command(capsys, "sample", data.corpus_path(), *options, "--json")
    found = json.loads(out)
    assert (code, err, len(found["samples"])) == (0, [], 7)
    assert found == verify.sample(data.corpus_path(), "heldout", 3, 7, 60)
    assert found != verify.sample(data.corpus_path(), "heldout", 4, 7, 60)
    corpus = Corpus(data.corpus_path(), "heldout")
    for each in found["samples"]:
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
    code, out, _ = command(capsys, "sample", data.corpus_path(), *options)
    assert code == 0 and out.count("heldout, token ") == 7 and found["samples"][0]["text"] in out
    (whole,) = verify.sample(data.corpus_path(), "heldout", 0, 1, 10**6)["samples"]
    assert (whole["start"], whole["tokens"]) == (0, corpus.tokens)
    assert whole["text"].startswith("§ ¶ | ") and whole["text"].count("§") == corpus.documents
    amid = verify._text(corpus, tokens[:5], np.zeros(5, np.uint8))
    assert amid.startswith("…") and "|" not in amid


def test_bad_requests(capsys, tmp_path):
    assert command(capsys, "verify", tmp_path)[0] == 2
    assert command(capsys, "info", data.corpus_path(), "--fast")[2] == [
        "xlnet-jax corpus: unknown option '--fast'; see --help"
    ]
    with pytest.raises(SystemExit):
        main(["corpus", "--help"])
    assert "example:\n  xlnet-jax corpus " in capsys.readouterr().out
