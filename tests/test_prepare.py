"""Preparing: what is written, that it is the same however it was made, and what is refused."""

import json
import logging
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import data_fixtures as data
import numpy as np
import pytest

from xlnet_jax import files
from xlnet_jax.data import manifest as manifests
from xlnet_jax.data import pages, unit
from xlnet_jax.data import prepare as module
from xlnet_jax.data.corpus import Corpus
from xlnet_jax.data.prepare import prepare
from xlnet_jax.data.tokenizer import EOD, Normalization
from xlnet_jax.errors import BadInput, RestartMe

SETTINGS = {"heldout": data.HELDOUT, "page_tokens": data.PAGE_TOKENS, "shard_bytes": 8000, "workers": 1}


def _prepare(output, inputs=None, **changes):
    settings = {"tokenizer": data.tokenizer_path(), **SETTINGS, **changes}
    return prepare(inputs or [data.text_folder()], str(output), **settings)


def _files(path):
    return {file.name: file.read_bytes() for file in sorted(pathlib.Path(path).iterdir())}


def _texts(path, split="train"):
    corpus = Corpus(str(path), split)
    tokens = corpus.read(np.array([0]), corpus.tokens)[0][0]
    return [corpus.tokenizer.decode(part) for part in np.split(tokens, np.flatnonzero(tokens == EOD) + 1)[:-1]]


def _write(tmp_path, **contents):
    for name, content in contents.items():
        (tmp_path / f"{name}.txt").write_bytes(content if isinstance(content, bytes) else content.encode())
    return [str(tmp_path / f"{name}.txt") for name in contents]


def test_end_of_document_belongs_to_the_last_sentence(tmp_path):
    inputs = _write(tmp_path, a="Bado kilu.\nMeno.\n\n\nRasi\n", b="Tuve")
    manifest = _prepare(tmp_path / "c", inputs, heldout=0.0)
    corpus = Corpus(str(tmp_path / "c"))
    encoded = corpus.tokenizer.encode(["Bado kilu.", "Meno.", "Rasi", "Tuve"])
    expected = [*encoded[0], *encoded[1], EOD, *encoded[2], EOD, *encoded[3], EOD]
    tokens, starts = corpus.read(np.array([0]), corpus.tokens)
    assert tokens[0].tolist() == expected
    begins = np.cumsum([0, len(encoded[0]), len(encoded[1]) + 1, len(encoded[2]) + 1])
    assert np.flatnonzero(starts[0]).tolist() == begins.tolist()
    assert list(manifest["splits"]) == ["train"]
    train = manifest["splits"]["train"]
    assert (train["tokens"], train["documents"], train["sentences"]) == (len(expected), 3, 4)


def test_sentences_without_pieces_are_none(tmp_path):
    # Zero-width spaces are no white space to Python, and nothing to SentencePiece.
    inputs = _write(tmp_path, a="Bado\n\u200b\n\n\u200b\n\nMeno\n")
    train = _prepare(tmp_path / "c", inputs, heldout=0.0)["splits"]["train"]
    assert (train["documents"], train["sentences"]) == (2, 2)


@pytest.mark.parametrize(("document", "count"), [("blank_line", 2), ("file", 1), ("line", 3)])
def test_document_rules_reach_the_corpus(tmp_path, document, count):
    inputs = _write(tmp_path, a="Bado.\nMeno.\n\nRasi\n")
    assert _prepare(tmp_path / "c", inputs, heldout=0.0, document=document)["splits"]["train"]["documents"] == count


def test_normalization_is_kept_in_the_corpus(tmp_path):
    inputs = _write(tmp_path, a="BÁDO  KILU")
    _prepare(tmp_path / "c", inputs, heldout=0.0, normalization=Normalization(lower=True))
    assert _texts(tmp_path / "c") == ["bado kilu"]
    assert Corpus(str(tmp_path / "c")).tokenizer.normalization == Normalization(lower=True)


def test_heldout_is_disjoint_and_holds_duplicates_together(tmp_path):
    train, heldout = _texts(data.corpus_path()), _texts(data.corpus_path(), "heldout")
    assert not set(train) & set(heldout)
    assert len(train) + len(heldout) == len(data.documents_of(data.text_folder()))
    assert 0.1 < len(heldout) / (len(train) + len(heldout)) < 0.3
    # The same documents elsewhere, in another order and twice, fall on the same sides.
    documents = data.documents_of(data.text_folder())
    content = "\n\n".join("\n".join(document) for document in [*documents[::-1], *documents])
    _prepare(tmp_path / "c", _write(tmp_path, a=content))
    assert sorted(_texts(tmp_path / "c", "heldout")) == sorted(2 * heldout)


def test_two_workers_write_the_same_bytes(tmp_path):
    _prepare(tmp_path / "c", workers=2)
    one, two = _files(data.corpus_path()), _files(tmp_path / "c")
    assert sum(name.startswith("corpus-train") for name in one) > 2
    assert one == two


class _Killed(Exception):
    pass


@pytest.mark.parametrize("place", ["first unit", "third unit", "inside a unit", "after the renames"])
def test_interrupted_and_given_again(tmp_path, monkeypatch, caplog, place):
    calls = []

    def stop_at(number, function):
        def replacement(*args, **kwargs):
            calls.append(args)
            if len(calls) == number:
                raise _Killed
            return function(*args, **kwargs)

        return replacement

    with monkeypatch.context() as patch:
        if place == "inside a unit":
            patch.setattr(pages.PageWriter, "write", stop_at(4, pages.PageWriter.write))
        elif place == "after the renames":
            patch.setattr(manifests, "write_tfds_metadata", stop_at(1, manifests.write_tfds_metadata))
        else:
            number = 1 if place == "first unit" else 3
            patch.setattr(unit, "prepare_unit", stop_at(number, unit.prepare_unit))
        with pytest.raises(_Killed):
            _prepare(tmp_path / "c")
    with pytest.raises(BadInput, match="is not finished"):
        Corpus(str(tmp_path / "c"))
    with caplog.at_level(logging.INFO, "xlnet_jax"):
        _prepare(tmp_path / "c")
    assert ("going on" in caplog.text) == (place != "first unit")
    assert _files(tmp_path / "c") == _files(data.corpus_path())


def _children(pid):
    return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _runs(pid):
    # A process that has ended may stay in the table, as a zombie, until it is waited for.
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="needs /proc")
def test_killed_process_leaves_nothing_running_and_goes_on(tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    for index in range(12):
        (text / f"{index}.txt").write_text(data.synthetic_text(index, 1500))
    settings = {"tokenizer": data.tokenizer_path(), "heldout": 0.1, "page_tokens": 256, "shard_bytes": 1}
    program = f"""
from xlnet_jax.data.prepare import prepare
if __name__ == "__main__":
    prepare([{str(text)!r}], {str(tmp_path / "c")!r}, workers=2, document="file", **{settings!r})
"""
    (tmp_path / "main.py").write_text(program)
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    process = subprocess.Popen([sys.executable, str(tmp_path / "main.py")], env=os.environ | {"PYTHONPATH": root})
    notes = tmp_path / "c" / "units"
    for _ in range(600):
        if process.poll() is not None or (notes.exists() and any(name.suffix == ".json" for name in notes.iterdir())):
            break
        time.sleep(0.05)
    workers = _children(process.pid)
    assert len(workers) >= 2 and not (tmp_path / "c" / "manifest.json").exists()
    process.send_signal(signal.SIGKILL)
    process.wait()
    for _ in range(200):
        if not any(map(_runs, workers)):
            break
        time.sleep(0.05)
    assert not any(map(_runs, workers))
    done = prepare([str(text)], str(tmp_path / "c"), workers=1, document="file", **settings)
    fresh = prepare([str(text)], str(tmp_path / "d"), workers=1, document="file", **settings)
    assert done["sha256"] == fresh["sha256"]
    assert _files(tmp_path / "c") == _files(tmp_path / "d")


def test_finished_is_left_alone(tmp_path, caplog):
    shutil.copytree(data.corpus_path(), tmp_path / "c")
    before = {name: os.stat(tmp_path / "c" / name).st_mtime_ns for name in os.listdir(tmp_path / "c")}
    with caplog.at_level(logging.INFO, "xlnet_jax"):
        manifest = _prepare(tmp_path / "c", workers=2)
    assert "is finished already" in caplog.text
    assert manifest == json.loads((tmp_path / "c" / "manifest.json").read_text())
    assert before == {name: os.stat(tmp_path / "c" / name).st_mtime_ns for name in os.listdir(tmp_path / "c")}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heldout": 0.3}, "was begun with heldout=0.2, not 0.3"),
        ({"page_tokens": 128}, "was begun with page_tokens=64, not 128"),
        ({"tokenizer": None}, "was begun with tokenizer="),
        ({"normalization": Normalization(lower=True)}, "was begun with normalization="),
    ],
)
def test_other_options_are_refused(tmp_path, change, message):
    shutil.copytree(data.corpus_path(), tmp_path / "c")
    before = _files(tmp_path / "c")
    with pytest.raises(BadInput, match=message):
        _prepare(tmp_path / "c", **change)
    assert _files(tmp_path / "c") == before


def test_other_text_is_refused(tmp_path):
    (path,) = _write(tmp_path, a=data.synthetic_text(9, 50))
    _prepare(tmp_path / "c", [path])
    os.utime(path, (1, 1))
    _prepare(tmp_path / "c", [path])  # touched, and the same
    content = pathlib.Path(path).read_text()
    pathlib.Path(path).write_text(content.swapcase())
    with pytest.raises(BadInput, match="a.txt was changed after"):
        _prepare(tmp_path / "c", [path])
    pathlib.Path(path).write_text(content + "more")
    with pytest.raises(BadInput, match=f"had {len(content)} bytes, now {len(content) + 4}"):
        _prepare(tmp_path / "c", [path])
    with pytest.raises(BadInput, match="b.txt had no bytes"):
        _write(tmp_path, a=content, b="Bado")
        _prepare(tmp_path / "c", [path, str(tmp_path / "b.txt")])


def test_bytes_that_are_not_utf8(tmp_path):
    inputs = _write(tmp_path, a="Bado.\n\n" * 40 + "\nBado kilu.\n", b=b"Meno \xff ba.\n")
    with pytest.raises(BadInput, match=r"b.txt: not UTF-8 at byte 5; .*--errors=replace"):
        _prepare(tmp_path / "c", inputs, heldout=0.0, shard_bytes=50)
    assert any(name.endswith(".json") for name in os.listdir(tmp_path / "c" / "units"))
    # The advice works in the same folder, and gives what it gives in a new one.
    manifest = _prepare(tmp_path / "c", inputs, heldout=0.0, shard_bytes=50, errors="replace")
    fresh = _prepare(tmp_path / "d", inputs, heldout=0.0, shard_bytes=50, errors="replace")
    assert manifest["replaced"] == 1 and manifest == fresh


def test_a_failed_start_may_be_given_other_options(tmp_path):
    with pytest.raises(BadInput, match="--vocab_size=30000 is too large for this text; use at most"):
        _prepare(tmp_path / "c", tokenizer=None, vocab_size=30_000)
    manifest = _prepare(tmp_path / "c", tokenizer=None, vocab_size=data.VOCAB_SIZE)
    assert manifest["tokenizer"]["vocab_size"] == Corpus(str(tmp_path / "c")).tokenizer.vocab_size == data.VOCAB_SIZE


def test_the_tokenizer_sees_a_seeded_sample_without_the_heldout_documents(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_SAMPLE_PART_BYTES", 1000)
    samples = []

    def train(texts, path, *_):
        samples.append(list(texts))
        shutil.copy(data.tokenizer_path(), path)

    monkeypatch.setattr(module, "train_tokenizer", train)
    for name, changes in {"a": {}, "b": {}, "c": {"seed": 1}, "d": {"sample_bytes": 10**9}}.items():
        _prepare(tmp_path / name, tokenizer=None, **{"sample_bytes": 5000, **changes})
    assert samples[0] == samples[1] != samples[2]
    assert 5000 <= sum(map(len, samples[0])) < 6000
    request = unit.Request("blank_line", "line", Normalization(), data.HELDOUT, "strict", data.PAGE_TOKENS)
    kept = [each for each in data.documents_of(data.text_folder()) if not request.held_out(each)]
    assert sorted(samples[3]) == sorted(sentence for document in kept for sentence in document)


def test_no_text(tmp_path):
    for tokenizer in (None, data.tokenizer_path()):
        with pytest.raises(BadInput, match="the inputs hold no text"):
            _prepare(tmp_path / f"c{tokenizer is None}", _write(tmp_path, a=" \n\n", b=""), tokenizer=tokenizer)
    with pytest.raises(BadInput, match="all 1 documents fell to the held-out split; use --heldout=0"):
        _prepare(tmp_path / "d", _write(tmp_path, a="Bado kilu"), heldout=1 - 1e-9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"document": "page"}, "--document=page is not one of blank_line, file, line"),
        ({"sentences": "nltk"}, "--sentences=nltk is not one of"),
        ({"errors": "ignore"}, "--errors=ignore is not one of"),
        ({"heldout": 1.0}, "--heldout=1.0 must lie in"),
        ({"workers": 0}, "--workers=0 must be at least 1"),
        ({"page_tokens": 0}, "--page_tokens=0 must be at least 1"),
    ],
)
def test_options_are_checked_first(tmp_path, change, message):
    with pytest.raises(BadInput, match=message) as error:
        _prepare(tmp_path / "c", **change)
    assert error.value.exit_code == 2 and not (tmp_path / "c").exists()


def test_folder_of_something_else(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(BadInput, match="holds other files .thesis.tex"):
        _prepare(tmp_path)


def test_two_at_once(tmp_path):
    os.makedirs(tmp_path / "c")
    with files.locked(str(tmp_path / "c"), "the test"), pytest.raises(BadInput, match="another `prepare` writes here"):
        _prepare(tmp_path / "c")
    _prepare(tmp_path / "c")


def test_killed_worker(tmp_path, monkeypatch):
    monkeypatch.setattr(unit, "prepare_unit", _die)
    with pytest.raises(RestartMe, match="a worker process was killed") as error:
        _prepare(tmp_path / "c", workers=2)
    assert error.value.exit_code == 42


def _die(*_):
    os._exit(9)
