"""`prepare` from and to S3, and from the hub: the same bytes as on disk, also killed."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import data_fixtures as data
import fake_hub
import fake_s3
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import tiny

from xlnet_jax.data.corpus import manifest as manifests
from xlnet_jax.data.corpus.corpus import Corpus
from xlnet_jax.errors import RestartMe
from xlnet_jax.storage import files


@pytest.fixture
def store():
    with fake_s3.serve() as server:
        folder = pathlib.Path(data.text_folder())
        for path in sorted(folder.rglob("*.txt")):
            files.write(f"s3://bucket/text/{path.relative_to(folder)}", path.read_bytes())
        yield server


def _made(store):
    return {
        key.removeprefix("bucket/c/"): value
        for key, value in store.objects.items()
        if key.startswith("bucket/c/")
    }


def test_to_s3(store):
    data.make_corpus("s3://bucket/c")
    assert _made(store) == data.contents(data.corpus_path())
    found, wanted = (
        Corpus(path).read(np.array([0, 300]), 100) for path in ("s3://bucket/c", data.corpus_path())
    )
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_from_s3(store):
    found = data.make_corpus("s3://bucket/c", ["s3://bucket/text"])
    expected = manifests.read_manifest(data.corpus_path())
    for manifest in (found, expected):
        for source in manifest["sources"]:
            source["path"] = source["path"].partition("/text/")[2]
    assert found == expected


def test_s3_does_not_answer(store):
    store.fail_next(50, 503)
    with pytest.raises(RestartMe, match="s3://bucket/c.*: .*rerun the same command to resume"):
        data.make_corpus("s3://bucket/c")
    store.failures.clear()
    store.cut = 2
    data.make_corpus("s3://bucket/c")
    assert _made(store) == data.contents(data.corpus_path())


def _write_data(folder):
    """A data set of Parquet and text."""
    (folder / "below").mkdir(parents=True)
    (folder / "a.txt").write_text(data.synthetic_text(7, 60))
    table = pyarrow.table({"text": data.synthetic_text(8, 200).strip().split("\n\n")})
    pyarrow.parquet.write_table(table, folder / "below" / "b.parquet", row_group_size=50)


def test_from_the_hub(tmp_path):
    _write_data(tmp_path / "data")
    expected = data.make_corpus(tmp_path / "wanted", [str(tmp_path / "data")])
    with fake_hub.serve() as hub:
        hub.repositories["datasets/me/data"] = {
            name: content
            for name, content in data.contents(tmp_path / "data").items()
            if not name.endswith("/")
        }
        found = data.make_corpus(tmp_path / "found", ["hf://datasets/me/data"])
    for manifest in (found, expected):
        for source in manifest["sources"]:
            source["path"] = source["path"].partition("/data/")[2]
    assert found == expected and len({source["path"] for source in found["sources"]}) == 2


@pytest.mark.slow
def test_killed(store, tmp_path):
    _write_data(tmp_path / "data")
    with fake_hub.serve() as hub:
        hub.repositories["datasets/me/data"] = {"a.txt": (tmp_path / "data/a.txt").read_bytes()}
        _kill(store, hub)


def _kill(store, hub):
    words = [
        sys.executable,
        "-m",
        "xlnet_jax",
        "prepare",
        "--input=s3://bucket/text",
        "--input=hf://datasets/me/data",
        "--output=s3://bucket/c",
        f"--tokenizer={data.tokenizer_path()}",
        "--heldout=0.2",
        "--shard_bytes=8000",
        "--workers=1",
    ]
    environment = (
        os.environ | store.environment() | hub.environment() | {"PYTHONPATH": str(tiny.ROOT)}
    )
    with subprocess.Popen(words, env=environment, start_new_session=True) as process:
        while process.poll() is None and len(_made(store)) < 5:
            time.sleep(0.005)
        assert manifests.MANIFEST not in _made(store), "the kill comes too late"
        os.killpg(process.pid, signal.SIGKILL)
    subprocess.run(words, env=environment, check=True)
    found = _made(store)
    inputs = ["s3://bucket/text", "hf://datasets/me/data"]
    data.make_corpus("s3://bucket/other", inputs, page_tokens=4096)
    assert found == {
        key.removeprefix("bucket/other/"): value
        for key, value in store.objects.items()
        if key.startswith("bucket/other/")
    }
