"""`prepare` from and to a bucket: the same bytes as on disk, also killed, also twice at once."""

import functools
import logging
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

import data_fixtures as data
import fake_gcs
import pytest
import tiny

from xlnet_jax.data.corpus import manifest as manifests
from xlnet_jax.data.prepare import pipeline as module
from xlnet_jax.errors import BadInput, RestartMe
from xlnet_jax.storage import files

ROOT = str(tiny.ROOT)
# gcsfs sends 5 MB at a time, and aiohttp thinks 1 MB is much.
pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    data.corpus_path()  # its folder is none of this test's temporary files
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with fake_gcs.serve() as server:
        for path in sorted(pathlib.Path(data.text_folder()).rglob("*.txt")):
            server.objects[f"bucket/text/{path.relative_to(data.text_folder())}"] = (
                path.read_bytes()
            )
        yield server


_prepare = functools.partial(data.make_corpus, "gs://bucket/c")


def _objects(bucket, folder="bucket/c/"):
    return {
        key.removeprefix(folder): value
        for key, value in bucket.objects.items()
        if key.startswith(folder)
    }


def test_to_a_bucket(bucket, tmp_path, caplog):
    _prepare()
    assert _objects(bucket) == data.contents(data.corpus_path())
    assert os.listdir(tmp_path) == []
    with caplog.at_level(logging.INFO, "xlnet_jax"):
        _prepare()
    assert "is finished already" in caplog.text
    shard = "bucket/c/corpus-train.array_record-00000-of-00004"
    del bucket.objects[shard]
    with pytest.raises(BadInput, match=f"gs://{shard} is missing"):
        _prepare()


def test_from_a_bucket(bucket):
    found, expected = _prepare(["gs://bucket/text"]), manifests.read_manifest(data.corpus_path())
    for manifest in (found, expected):
        for source in manifest["sources"]:
            source["path"] = source["path"].partition("/text/")[2]
    assert found == expected


def test_another_request_is_refused_before_anything_is_made(bucket):
    begun = {"options": {"heldout": 0.5}, "sources": {}, "mtime_ns": {}}
    files.write("gs://bucket/c/prepare.json", files.to_json(begun))
    with pytest.raises(BadInput, match="gs://bucket/c was begun with "):
        _prepare()
    bucket.objects.clear()
    bucket.objects["bucket/c/thesis.tex"] = b""
    with pytest.raises(BadInput, match="holds other files .thesis.tex"):
        _prepare()


@pytest.mark.parametrize("moment", ["in_threads", "_finish_split", "_assemble"])
def test_another_was_faster(bucket, monkeypatch, moment):
    """Two at once on the same request: the other one finishes between any two steps of this one."""
    original = getattr(module, moment)

    def meanwhile(*arguments):
        monkeypatch.setattr(module, moment, original)
        _prepare()
        return original(*arguments)

    monkeypatch.setattr(module, moment, meanwhile)
    _prepare()
    assert getattr(module, moment) is original
    assert _objects(bucket) == data.contents(data.corpus_path())


def test_a_bucket_that_does_not_answer(bucket):
    bucket.down = True
    with pytest.raises(RestartMe, match="gs://bucket/c.*: .*rerun the same command to resume"):
        _prepare()
    bucket.down = False
    _prepare()


@pytest.mark.slow
def test_a_run_reads_its_corpus_there_in_processes(bucket, tmp_path):
    _prepare()
    words = [
        sys.executable,
        "-m",
        "xlnet_jax",
        "train",
        f"--config={ROOT}/tests/tiny_config.py",
        f"--workdir={tmp_path}/run",
        "--config.data.workers=2",
        "--config.train.steps=6",
        "--config.data.corpus=gs://bucket/c",
        f"--config.model.vocab_size={data.VOCAB_SIZE}",
    ]
    environment = os.environ | bucket.environment() | {"PYTHONPATH": ROOT}
    subprocess.run(words, env=environment, check=True)
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 6


@pytest.mark.slow
def test_killed(bucket):
    words = [
        sys.executable,
        "-m",
        "xlnet_jax",
        "prepare",
        "--input=gs://bucket/text",
        "--output=gs://bucket/c",
        f"--tokenizer={data.tokenizer_path()}",
        "--heldout=0.2",
        "--shard_bytes=8000",
        "--workers=2",
    ]
    environment = os.environ | bucket.environment() | {"PYTHONPATH": ROOT}
    data.make_corpus("gs://bucket/undisturbed", ["gs://bucket/text"], page_tokens=4096)
    expected = _objects(bucket, "bucket/undisturbed/")
    for _ in range(2):
        enough = len(_objects(bucket)) + random.randint(1, len(expected) // 5)
        with subprocess.Popen(words, env=environment, start_new_session=True) as process:
            while process.poll() is None and len(_objects(bucket)) < enough:
                time.sleep(0.005)
            time.sleep(random.uniform(0, 0.05))
            assert manifests.MANIFEST not in _objects(bucket), "the kill comes too late"
            os.killpg(process.pid, signal.SIGKILL)
    subprocess.run(words, env=environment, check=True)
    assert _objects(bucket) == expected
