"""Whose a folder is: begun by the same request or another, finished and whole or not, or somebody
else's.
"""

import json
import logging
import os
import pathlib
import shutil

import data_fixtures as data
import pytest

from xlnet_jax.data.corpus import manifest as manifests
from xlnet_jax.data.corpus.corpus import Corpus
from xlnet_jax.data.prepare import pipeline as module
from xlnet_jax.data.tokenizer import train_tokenizer
from xlnet_jax.errors import BadInput
from xlnet_jax.storage import files


@pytest.mark.parametrize("name", ["corpus-train", "token_counts-heldout", "spiece", "manifest"])
@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_finished_folder_that_is_not_whole(tmp_path, name, damage):
    path = tmp_path / "c"
    shutil.copytree(data.corpus_path(), path)
    victim = sorted(path.glob(f"{name}*"))[-1]
    if damage == "missing":
        victim.unlink()
    else:
        victim.write_bytes(victim.read_bytes()[:-9])
    before = data.contents(path)
    if (name, damage) == ("manifest", "missing"):
        # Without it the folder is not finished.
        data.make_corpus(path)
        assert data.contents(path) == data.contents(data.corpus_path())
        return
    message = (
        "is missing|: No such file"
        if damage == "missing"
        else "has .* bytes, not|does not match|: not a |is damaged"
    )
    with pytest.raises(
        BadInput, match=f"{victim.name}.?({message}).*, or remove .*c and prepare again"
    ):
        data.make_corpus(path)
    assert data.contents(path) == before


@pytest.mark.parametrize(
    "damage", [b"", b"[1]", b'{"options": 1}', b"\xff", b'{"options": {}, "sources": [3]}']
)
def test_a_broken_request(tmp_path, damage):
    shutil.copytree(data.corpus_path(), tmp_path / "c")
    (tmp_path / "c" / "prepare.json").write_bytes(damage)
    with pytest.raises(
        BadInput, match="prepare.json is damaged .*; put it back, or choose another folder"
    ):
        data.make_corpus(tmp_path / "c")


def _begun(tmp_path, monkeypatch):
    """A folder with some units done, and what is not."""
    with monkeypatch.context() as patch:
        patch.setattr(manifests, "write_tfds_metadata", lambda *_: os.listdir(tmp_path / "nowhere"))
        with pytest.raises(
            BadInput, match="nowhere: No such file or directory; fix this and rerun the same"
        ):
            data.make_corpus(tmp_path / "c")
    return tmp_path / "c"


def test_what_killed_processes_leave_is_cleared_away(tmp_path, monkeypatch):
    folder = _begun(tmp_path, monkeypatch)
    (folder / "manifest.json.123.tmp").write_text("{")
    (folder / "units" / "00001.scratch.123.tmp").mkdir()
    (folder / "units" / "00001.scratch.123.tmp" / "train").write_text("x")
    data.make_corpus(folder)
    assert data.contents(folder) == data.contents(data.corpus_path())
    (folder / "prepare.json.5.tmp").write_text("{")
    (folder / "units").mkdir()
    data.make_corpus(folder)
    assert data.contents(folder) == data.contents(data.corpus_path())


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        (
            "corpus-train.array_record-00001-of-00004",
            None,
            "units/.*.train has gone; rerun the same command, which",
        ),
        ("units/00002.json", b"{", "00002.json is damaged"),
        ("units/00002.json", b"{}", "00002.json is damaged .*no sources"),
        (
            "units/00002.train.npy",
            b"junk",
            r"is damaged \(not an int64 array .*; remove .*00002.json and rerun",
        ),
    ],
)
def test_what_is_damaged_in_a_begun_folder_is_told_and_made_anew(
    tmp_path, monkeypatch, name, damage, message
):
    folder = _begun(tmp_path, monkeypatch)
    (folder / name).unlink()
    if damage is not None:
        (folder / name).write_bytes(damage)
    with pytest.raises(BadInput, match=message):
        data.make_corpus(folder)
    if damage is not None:
        (folder / "units" / "00002.json").unlink()
    data.make_corpus(folder)
    assert data.contents(folder) == data.contents(data.corpus_path())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heldout": 0.3}, "was begun with heldout=0.2, not 0.3"),
        ({"page_tokens": 128}, "was begun with page_tokens=64, not 128"),
        ({"tokenizer": None}, "was begun with tokenizer="),
        ({"uncased": True}, "was begun with normalization="),
    ],
)
def test_other_options_are_refused(tmp_path, change, message):
    shutil.copytree(data.corpus_path(), tmp_path / "c")
    before = data.contents(tmp_path / "c")
    with pytest.raises(BadInput, match=message):
        data.make_corpus(tmp_path / "c", **change)
    assert data.contents(tmp_path / "c") == before


def test_other_text_is_refused(tmp_path):
    (path,) = data.write(tmp_path, a=data.synthetic_text(9, 50))
    data.make_corpus(tmp_path / "c", [path])
    os.utime(path, (1, 1))
    data.make_corpus(tmp_path / "c", [path])  # touched, and the same
    content = pathlib.Path(path).read_text()
    pathlib.Path(path).write_text(content.swapcase())
    with pytest.raises(BadInput, match="a.txt was changed after"):
        data.make_corpus(tmp_path / "c", [path])
    pathlib.Path(path).write_text(content + "more")
    with pytest.raises(BadInput, match=f"a.txt={len(content)} bytes, not {len(content) + 4}"):
        data.make_corpus(tmp_path / "c", [path])
    with pytest.raises(BadInput, match="b.txt=None bytes, not 4"):
        data.write(tmp_path, a=content, b="Bado")
        data.make_corpus(tmp_path / "c", [path, str(tmp_path / "b.txt")])


def test_a_failed_start_may_be_given_other_options(tmp_path):
    with pytest.raises(BadInput, match="--vocab_size=30000: .*Please set it to a value <= "):
        data.make_corpus(tmp_path / "c", tokenizer=None, vocab_size=30_000)
    manifest = data.make_corpus(tmp_path / "c", tokenizer=None, vocab_size=data.VOCAB_SIZE)
    assert (
        manifest["tokenizer"]["vocab_size"]
        == Corpus(str(tmp_path / "c")).tokenizer.vocab_size
        == data.VOCAB_SIZE
    )


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


def test_another_tokenizer_in_the_same_place(tmp_path):
    """In one process, which keeps the tokenizer it has loaded."""
    first = data.make_corpus(tmp_path / "c", tokenizer=None, vocab_size=150)
    shutil.rmtree(tmp_path / "c")
    second = data.make_corpus(tmp_path / "c", tokenizer=None, vocab_size=data.VOCAB_SIZE)
    fresh = data.make_corpus(tmp_path / "d", tokenizer=None, vocab_size=data.VOCAB_SIZE)
    assert (
        second == fresh
        and second["splits"]["train"]["tokens"] != first["splits"]["train"]["tokens"]
    )


def test_two_at_once(tmp_path):
    os.makedirs(tmp_path / "c")
    with (
        files.locked(str(tmp_path / "c"), "the test"),
        pytest.raises(BadInput, match="another `prepare` writes here"),
    ):
        data.make_corpus(tmp_path / "c")
    data.make_corpus(tmp_path / "c")


@pytest.mark.parametrize(
    "swap", ["given tokenizer", "units made with another", "units of other text"]
)
def test_a_corpus_is_never_put_together_from_two_tokenizers_or_texts(tmp_path, monkeypatch, swap):
    with monkeypatch.context() as patch:
        patch.setattr(module, "_assemble", interrupt)
        with pytest.raises(KeyboardInterrupt):
            data.make_corpus(tmp_path / "c")
    if swap == "given tokenizer":
        other = str(tmp_path / "other.model")
        train_tokenizer(
            data.synthetic_text(5, 300).split("\n"), other, data.VOCAB_SIZE, seed=0, threads=2
        )
        shutil.copy(other, tmp_path / "c" / "spiece.model")
        message = "spiece.model is not .*, though begun with it"
    else:
        path = tmp_path / "c" / "units" / "00001.json"
        note = json.loads(path.read_text())
        if swap == "units made with another":
            note["tokenizer"] = "0" * 64
        else:
            note["sources"][0]["end"] -= 1
        path.write_text(json.dumps(note))
        message = "unit 1 was made with another tokenizer or from other text"
    with pytest.raises(BadInput, match=message):
        data.make_corpus(tmp_path / "c")


def interrupt(*_):
    raise KeyboardInterrupt
