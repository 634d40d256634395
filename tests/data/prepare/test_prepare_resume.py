"""Whose a folder is: begun by the same request or another, finished and whole or not, or somebody
else's.
"""

import json
import logging
import os
import pathlib
import shutil

import data_fixtures as data
import numpy as np
import pytest

from xlnet_jax.data.corpus import manifest as manifests
from xlnet_jax.data.prepare import pipeline as module
from xlnet_jax.data.tokenizer import train_tokenizer
from xlnet_jax.errors import BadInput
from xlnet_jax.storage import files


@pytest.fixture
def copy(tmp_path):
    """A copy of the corpus that a test may break."""
    return pathlib.Path(shutil.copytree(data.corpus_path(), tmp_path / "c"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("corpus-train.array_record-00003-of-00004", " is missing.*"),
        ("token_counts-heldout.npy", " does not match.*"),
        ("document_lengths-heldout.npy", " does not match.*"),
    ],
)
def test_a_finished_folder_that_is_not_whole(copy, name, message):
    if "missing" in message:
        (copy / name).unlink()
    else:
        (copy / name).write_bytes((copy / name).read_bytes()[:-9])
    before = data.contents(copy)
    with pytest.raises(BadInput, match=f"{name}{message}, or remove .*c and prepare again"):
        data.make_corpus(copy)
    assert data.contents(copy) == before


def test_a_finished_folder_without_its_manifest_is_finished_again(copy):
    (copy / "manifest.json").unlink()
    data.make_corpus(copy)
    assert data.contents(copy) == data.contents(data.corpus_path())


@pytest.mark.parametrize("damage", [b"", b"[1]", b"{}"])
def test_a_broken_request(copy, damage):
    (copy / "prepare.json").write_bytes(damage)
    with pytest.raises(
        BadInput, match="prepare.json is damaged .*; put it back, or choose another folder"
    ):
        data.make_corpus(copy)


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """A folder with all units done, and no manifest."""
    with monkeypatch.context() as patch:
        patch.setattr(manifests, "write_tfds_metadata", lambda *_: os.listdir(tmp_path / "nowhere"))
        with pytest.raises(
            BadInput, match="nowhere: No such file or directory; fix this and rerun the same"
        ):
            data.make_corpus(tmp_path / "c")
    return tmp_path / "c"


def test_what_killed_processes_leave_is_cleared_away(begun):
    (begun / "manifest.json.123.tmp").write_text("{")
    (begun / "units" / "00001.scratch.123.tmp").mkdir()
    (begun / "units" / "00001.scratch.123.tmp" / "train").write_text("x")
    data.make_corpus(begun)
    assert data.contents(begun) == data.contents(data.corpus_path())
    (begun / "prepare.json.5.tmp").write_text("{")
    (begun / "units").mkdir()
    data.make_corpus(begun)
    assert data.contents(begun) == data.contents(data.corpus_path())


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("units/00002.json", b"{", "00002.json is damaged"),
        ("units/00002.json", b"{}", "00002.json is damaged .*no sources"),
        (
            "units/00002.train.npy",
            b"junk",
            r"is damaged \(not an int64 array .*; remove .*00002.json and rerun",
        ),
        (
            "units/00002.train.npy",  # of an earlier version
            files.array_bytes(np.zeros(data.VOCAB_SIZE, np.int64)),
            r"is damaged \(not an int64 array .*; remove .*00002.json and rerun",
        ),
    ],
)
def test_what_is_damaged_in_a_begun_folder_is_told_and_made_anew(begun, name, damage, message):
    (begun / name).write_bytes(damage)
    with pytest.raises(BadInput, match=message):
        data.make_corpus(begun)
    (begun / "units" / "00002.json").unlink()
    data.make_corpus(begun)
    assert data.contents(begun) == data.contents(data.corpus_path())


def test_a_shard_that_has_gone_is_made_anew(begun):
    (begun / "corpus-train.array_record-00001-of-00004").unlink()
    with pytest.raises(BadInput, match="units/.*.train has gone; rerun the same command, which"):
        data.make_corpus(begun)
    data.make_corpus(begun)
    assert data.contents(begun) == data.contents(data.corpus_path())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"page_tokens": 128}, "was begun with page_tokens=64, not 128"),
        ({"tokenizer": None}, "was begun with tokenizer="),
    ],
)
def test_other_options_are_refused(copy, change, message):
    before = data.contents(copy)
    with pytest.raises(BadInput, match=message):
        data.make_corpus(copy, **change)
    assert data.contents(copy) == before


def test_other_text_is_refused(tmp_path):
    content = data.synthetic_text(9, 50)
    inputs = data.write(tmp_path, a=content)
    data.make_corpus(tmp_path / "c", inputs)
    os.utime(inputs[0], (1, 1))
    data.make_corpus(tmp_path / "c", inputs)  # touched, and the same
    for texts, said in (
        ({"a": content.swapcase()}, "a.txt was changed after"),
        ({"a": content + "more"}, f"a.txt={len(content)} bytes, not {len(content) + 4}"),
        ({"a": content, "b": "Bado"}, "b.txt=None bytes, not 4"),
    ):
        with pytest.raises(BadInput, match=said):
            data.make_corpus(tmp_path / "c", data.write(tmp_path, **texts))


def test_a_failed_start_may_be_given_other_options(tmp_path):
    with pytest.raises(BadInput, match="--vocab_size=30000: .*Please set it to a value <= "):
        data.make_corpus(tmp_path / "c", tokenizer=None, vocab_size=30_000)
    manifest = data.make_corpus(tmp_path / "c", tokenizer=None, vocab_size=data.VOCAB_SIZE)
    assert manifest["tokenizer"]["vocab_size"] == data.VOCAB_SIZE


@pytest.mark.parametrize("vocabulary", ["sentencepiece", "bytebpe"])
def test_by_default_a_tokenizer_has_the_most_pieces_that_the_text_gives(
    vocabulary, tmp_path, caplog, monkeypatch
):
    monkeypatch.setattr(module, "_PIECES", (30_000, 270, 260))
    with caplog.at_level(logging.INFO, "xlnet_jax"):
        manifest = data.make_corpus(tmp_path / "c", tokenizer=None, vocabulary=vocabulary)
    assert manifest["tokenizer"]["vocab_size"] == 270 and "tokenizer of 270 pieces" in caplog.text
    assert "does not give 30000 pieces" in caplog.text
    assert "of 260 pieces" not in caplog.text
    monkeypatch.setattr(module, "_PIECES", (30_000,))
    with pytest.raises(BadInput, match="no tokenizer of --vocab_size=30000"):
        data.make_corpus(tmp_path / "d", tokenizer=None, vocabulary=vocabulary)


def test_two_at_once(tmp_path):
    os.makedirs(tmp_path / "c")
    with (
        files.locked(str(tmp_path / "c"), "the test"),
        pytest.raises(BadInput, match="another `prepare` writes here"),
    ):
        data.make_corpus(tmp_path / "c")


def test_a_corpus_is_never_put_together_from_two_tokenizers(begun, tmp_path):
    other = str(tmp_path / "other.model")
    train_tokenizer(
        data.synthetic_text(5, 300).split("\n"), other, data.VOCAB_SIZE, seed=0, threads=2
    )
    shutil.copy(other, begun / "spiece.model")
    with pytest.raises(BadInput, match=r"spiece.model is not .*, though begun with it"):
        data.make_corpus(begun)


@pytest.mark.parametrize("key", ["tokenizer", "sources"])
def test_units_of_another_tokenizer_or_text_are_refused(begun, key):
    path = begun / "units" / "00001.json"
    note = json.loads(path.read_text())
    if key == "tokenizer":
        note["tokenizer"] = "0" * 64
    else:
        note["sources"][0]["end"] -= 1
    path.write_text(json.dumps(note))
    with pytest.raises(BadInput, match="unit 1 was made with another tokenizer or from other text"):
        data.make_corpus(begun)
