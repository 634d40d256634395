"""`prepare` from and to S3: the same bytes as on disk, also killed."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import data_fixtures as data
import fake_s3
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
    found, wanted = (Corpus(path) for path in ("s3://bucket/c", data.corpus_path()))
    assert (found.read([0, 300], 100) == wanted.read([0, 300], 100))[0].all()


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


@pytest.mark.slow
def test_killed(store):
    words = [
        sys.executable,
        "-m",
        "xlnet_jax",
        "prepare",
        "--input=s3://bucket/text",
        "--output=s3://bucket/c",
        f"--tokenizer={data.tokenizer_path()}",
        "--heldout=0.2",
        "--shard_bytes=8000",
        "--workers=1",
    ]
    environment = os.environ | store.environment() | {"PYTHONPATH": str(tiny.ROOT)}
    with subprocess.Popen(words, env=environment, start_new_session=True) as process:
        while process.poll() is None and len(_made(store)) < 5:
            time.sleep(0.005)
        assert manifests.MANIFEST not in _made(store), "the kill comes too late"
        os.killpg(process.pid, signal.SIGKILL)
    subprocess.run(words, env=environment, check=True)
    found = _made(store)
    data.make_corpus("s3://bucket/other", ["s3://bucket/text"], page_tokens=4096)
    assert found == {
        key.removeprefix("bucket/other/"): value
        for key, value in store.objects.items()
        if key.startswith("bucket/other/")
    }
