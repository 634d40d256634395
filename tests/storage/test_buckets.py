"""A bucket in place of a disk: the fake one of the tests, and a corpus read from it."""

import errno
import hashlib
import os
import pathlib
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import data_fixtures as data
import fake_gcs
import numpy as np
import pytest
import tiny
from array_record.python import array_record_module
from etils import epath

from xlnet_jax.data.corpus import shard_cache, verify
from xlnet_jax.data.corpus.corpus import Corpus
from xlnet_jax.data.corpus.manifest import read_manifest
from xlnet_jax.errors import BadInput, RestartMe

GOLDEN = str(tiny.TESTS / "golden" / "corpus_v1")
# gcsfs sends 5 MB at a time, and aiohttp thinks 1 MB is much.
pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")


@pytest.fixture
def bucket():
    with fake_gcs.serve() as server:
        yield server


def test_epath(bucket, monkeypatch):
    monkeypatch.setattr(fake_gcs, "PAGE_SIZE", 2)
    folder = epath.Path("gs://bucket/folder")
    assert not folder.is_dir() and not (folder / "a").exists()
    text, large = b"line\r\n\r\n\n--", os.urandom(6_000_000)
    for name, content in {"a": text, "b": b"", "c": large, "below/d": b"d"}.items():
        (folder / name).write_bytes(content)
        assert (folder / name).read_bytes() == content == bucket.objects[f"bucket/folder/{name}"]
        assert (folder / name).stat().length == len(content)
    assert sorted(path.name for path in folder.iterdir()) == ["a", "b", "below", "c"]
    assert folder.is_dir() and (folder / "below").is_dir()
    (folder / "a").rename(folder / "moved")
    (folder / "b").unlink()
    (folder / "c").copy(folder / "copied")
    assert sorted(bucket.objects) == [f"bucket/folder/{name}" for name in ("below/d", "c", "copied", "moved")]
    folder.rmtree()
    assert not bucket.objects


def test_failures_and_listings_of_old(bucket):
    path = epath.Path("gs://bucket/a")
    assert not path.exists()
    bucket.objects["bucket/a"] = b"a"
    bucket.fail_next(2, 503)
    assert path.read_bytes() == b"a"
    bucket.down = True
    with pytest.raises(Exception, match="disconnected|reset"):
        path.exists()
    bucket.down = False
    assert path.exists()


def test_array_record_and_another_process(bucket):
    name = "corpus-train.array_record-00000-of-00001"
    with open(os.path.join(GOLDEN, name), "rb") as file:
        bucket.objects[f"bucket/{name}"] = file.read()
    expected = array_record_module.ArrayRecordReader(os.path.join(GOLDEN, name)).read([3, 40])
    reader = array_record_module.ArrayRecordReader(f"gs://bucket/{name}", "readahead_buffer_size:0")
    assert reader.num_records() == 43 and reader.read([3, 40]) == expected
    program = f"""
from etils import epath
from array_record.python import array_record_module
print(array_record_module.ArrayRecordReader("gs://bucket/{name}").num_records())
epath.Path("gs://bucket/new").write_text(str(epath.Path("gs://bucket/{name}").stat().length))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | bucket.environment(), capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("43\n", "")
    assert bucket.objects["bucket/new"] == b"131072"


ADDRESS = "gs://bucket/corpus"


@pytest.fixture
def corpus_in(bucket):
    """The server, with the tests' corpus in it."""
    for path in pathlib.Path(data.corpus_path()).iterdir():
        bucket.objects[f"bucket/corpus/{path.name}"] = path.read_bytes()
    bucket.requests.clear()
    return bucket


def shard_names(split="train"):
    return [shard["file"] for shard in read_manifest(data.corpus_path())["splits"][split]["shards"]]


def shard_reads(server):
    return [path for method, path, _ in server.requests if "array_record-" in path and "alt=media" in path]


def same(corpus, split="train"):
    local = Corpus(data.corpus_path(), split)
    starts = np.random.Generator(np.random.Philox(0)).integers(0, local.tokens, 8)
    for length in (100, 20):
        for found, wanted in zip(corpus.read(starts, length), local.read(starts, length), strict=True):
            np.testing.assert_array_equal(found, wanted)
    whole = corpus.read(np.array([0]), local.tokens)[0]
    np.testing.assert_array_equal(whole, local.read(np.array([0]), local.tokens)[0])
    assert (corpus.sha256, corpus.tokens) == (local.sha256, local.tokens)
    np.testing.assert_array_equal(corpus.token_counts, local.token_counts)
    assert corpus.tokenizer.sha256 == local.tokenizer.sha256


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_a_corpus_is_read_from_a_bucket(corpus_in, split):
    corpus = Corpus(ADDRESS, split)
    assert not shard_reads(corpus_in)  # opening it asks for sizes only
    same(corpus, split)
    assert len(shard_reads(corpus_in)) > corpus.manifest["splits"][split]["shards"][0]["pages"]
    same(pickle.loads(pickle.dumps(corpus)), split)


def test_shards_are_copied_once(corpus_in, tmp_path):
    cache = tmp_path / "a" / "cache"
    corpus = Corpus(ADDRESS, shard_cache=str(cache))
    assert not list(cache.iterdir())
    # Threads that want the same shards at the same time.
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda start: corpus.read(np.array([start]), 1000), range(0, 8000, 500)))
    same(corpus)
    names = shard_names()
    assert len(shard_reads(corpus_in)) == len(names) > 2
    shards = corpus.manifest["splits"]["train"]["shards"]
    copies = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in cache.iterdir()}
    assert copies == {f"{shard['sha256']}.array_record": shard["sha256"] for shard in shards}
    for name in names:  # from now on nobody needs them
        del corpus_in.objects[f"bucket/corpus/{name}"]
    same(pickle.loads(pickle.dumps(corpus)))
    corpus_in.down = True
    same(pickle.loads(pickle.dumps(corpus)))


def test_processes_share_the_copies(corpus_in, tmp_path):
    program = f"""
import numpy as np
from xlnet_jax.data.corpus.corpus import Corpus
corpus = Corpus({ADDRESS!r}, shard_cache={str(tmp_path)!r})
print(corpus.read(np.array([0]), corpus.tokens)[0].sum())
"""
    command = [sys.executable, "-c", program]
    environment = os.environ | corpus_in.environment()
    running = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    local = Corpus(data.corpus_path())
    assert {process.communicate()[0] for process in running} == {
        f"{local.read(np.array([0]), local.tokens)[0].sum()}\n"
    }
    assert len(shard_reads(corpus_in)) == len(shard_names())


def test_a_bad_copy_is_made_again(corpus_in, tmp_path, monkeypatch):
    monkeypatch.setattr(shard_cache, "_BLOCK", 50_000)  # a shard in several requests
    same(Corpus(ADDRESS, shard_cache=str(tmp_path)))
    first, second, *rest = sorted(tmp_path.iterdir())
    whole = first.read_bytes(), second.read_bytes()
    first.write_bytes(whole[0][:-1])
    second.write_bytes(whole[1][:300] + b"\1" + whole[1][301:])
    (tmp_path / f"{rest[0].name}.part").write_bytes(b"left by a process that was killed")
    rest[0].unlink()
    corpus_in.requests.clear()
    same(Corpus(ADDRESS, shard_cache=str(tmp_path)))
    assert (first.read_bytes(), second.read_bytes()) == whole
    assert len(shard_reads(corpus_in)) == 3 * -(-len(whole[0]) // 50_000)
    assert len(list(tmp_path.iterdir())) == len(shard_names())
    # A copy that somebody removes while the corpus is open.
    corpus = Corpus(ADDRESS, shard_cache=str(tmp_path))
    same(corpus)
    first.unlink()
    corpus._reader.cache_clear()
    corpus._pages.clear()
    same(corpus)
    assert first.exists()


def test_what_has_no_room_is_read_from_the_bucket(corpus_in, tmp_path, monkeypatch, caplog):
    size = len(corpus_in.objects[f"bucket/corpus/{shard_names()[0]}"])
    same(Corpus(ADDRESS, shard_cache=str(tmp_path / "two"), shard_cache_bytes=2 * size))
    assert len(list((tmp_path / "two").iterdir())) == 2
    assert [record.message for record in caplog.records] == [
        f"shard cache {tmp_path}/two is full: reading {ADDRESS}/{shard_names()[2]} and others from the bucket"
    ]
    monkeypatch.setattr(shard_cache, "_LEFT_FREE", 1.0)
    same(Corpus(ADDRESS, shard_cache=str(tmp_path / "disk")))
    assert not list((tmp_path / "disk").iterdir()) and len(caplog.records) == 2
    monkeypatch.setattr(shard_cache, "_LEFT_FREE", 0.0)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shard_cache, "download", full)
    same(Corpus(ADDRESS, shard_cache=str(tmp_path / "full")))
    assert not list((tmp_path / "full").iterdir()) and len(caplog.records) == 3


def test_a_cache_that_cannot_be(corpus_in, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="shard cache .*/file: File exists; choose another folder"):
        Corpus(ADDRESS, shard_cache=str(tmp_path / "file"))
    with pytest.raises(BadInput, match="must be on the local disk"):
        Corpus(ADDRESS, shard_cache="gs://bucket/cache")
    # A corpus on disk needs no copies.
    same(Corpus(data.corpus_path(), shard_cache=str(tmp_path / "unused")))
    assert not (tmp_path / "unused").exists()


def told(kind, words, call):
    with pytest.raises(kind, match=words) as error:
        call()
    assert "\n" not in str(error.value)


def read_all(corpus):
    return corpus.read(np.array([0]), corpus.tokens)


@pytest.mark.parametrize("cached", [False, True])
def test_missing_and_damaged_objects(corpus_in, tmp_path, cached):
    options = {"shard_cache": str(tmp_path)} if cached else {}
    address = f"{ADDRESS}/{shard_names()[1]}"
    key = address.removeprefix("gs://")
    opened, whole = Corpus(ADDRESS, **options), corpus_in.objects[key]
    place = len(whole[:65536].rstrip(b"\0")) // 2  # amid the pages, behind which come zeros
    corpus_in.objects[key] = whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
    damaged = "does not match its hash in the manifest" if cached else r"page \d+ is damaged \(Corrupted"
    told(BadInput, f"{address}.*{damaged}.*; copy the corpus again", lambda: read_all(opened))
    del corpus_in.objects[key]
    told(BadInput, f"{address}.*missing.*; copy the corpus again", lambda: read_all(Corpus(ADDRESS, **options)))
    told(BadInput, f"{address}.*missing.*; copy the corpus again", lambda: read_all(opened))
    corpus_in.objects[key] = whole[:-1]
    told(BadInput, f"{address} has {len(whole) - 1} bytes, not {len(whole)}", lambda: Corpus(ADDRESS, **options))
    corpus_in.objects[key] = whole
    same(Corpus(ADDRESS, **options))
    assert not list(tmp_path.glob("*.part"))


def test_no_such_corpus(bucket):
    told(BadInput, "corpus gs://bucket/none: no such folder", lambda: Corpus("gs://bucket/none"))
    bucket.objects["bucket/begun/prepare.json"] = b"{}"
    told(BadInput, "is not finished", lambda: Corpus("gs://bucket/begun"))


def test_the_bucket_does_not_answer(corpus_in, tmp_path, monkeypatch):
    corpus = Corpus(ADDRESS, shard_cache=str(tmp_path))
    corpus_in.fail_next(3, 503)
    assert corpus.read(np.array([0]), 5)[0].shape == (1, 5)
    corpus_in.down = True
    told(RestartMe, "disconnected|reset", lambda: read_all(corpus))
    told(RestartMe, "disconnected|reset", lambda: Corpus(ADDRESS))
    told(RestartMe, "disconnected|reset", lambda: verify.verify(ADDRESS))
    corpus_in.down = False
    same(corpus)
    # Without copies ArrayRecord's own client asks; what is of no use to repeat it says at once, the rest after a while.
    direct = Corpus(ADDRESS)
    direct.read(np.array([0]), 5)
    corpus_in.fail_next(9, 403)
    told(BadInput, "missing from its bucket or not readable .*403", lambda: direct.read(np.array([500]), 5))
    corpus_in.failures.clear()

    class Gone:
        def read(self, numbers):
            raise RuntimeError(EXHAUSTED)

    monkeypatch.setattr(direct, "_reader", lambda shard: (f"{ADDRESS}/x", Gone()))
    told(RestartMe, f"{ADDRESS}/x: the bucket does not answer .*rerun the same command", lambda: read_all(direct))


# What it says after a quarter of an hour.
EXHAUSTED = (
    "Retry policy exhausted, with a last message of PerformWork() - CURL error [52]=Server returned nothing "
    "(no headers, no data); reading gs://bucket/a; at byte 0; Could not read from the underlying reader; at byte 0"
)


def test_verify_in_a_bucket(corpus_in):
    counts, problems = verify.verify(ADDRESS, workers=2)
    assert (counts, problems) == verify.verify(data.corpus_path()) and not problems
    first, second = shard_names("heldout")[:2]
    del corpus_in.objects[f"bucket/corpus/{first}"]
    whole = corpus_in.objects[f"bucket/corpus/{second}"]
    corpus_in.objects[f"bucket/corpus/{second}"] = whole[:100] + b"\1\2" + whole[102:]
    _, problems = verify.verify(ADDRESS)
    assert len(problems) == 2 and problems[0].startswith(f"{ADDRESS}/{first} cannot be read")
    assert problems[1].startswith(f"{ADDRESS}/{second}")
