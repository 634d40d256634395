"""A work directory in a bucket: the same run as on disk, also killed; one run at a time; lines,
events, errors.
"""

import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

import data_fixtures
import fake_gcs
import jax
import pytest
import shared
import tiny
from shared import finish, wait_until

from xlnet_jax import cli
from xlnet_jax.checkpoint.store import Checkpoints
from xlnet_jax.errors import BadInput, RestartMe
from xlnet_jax.run import lock, metrics, programs
from xlnet_jax.run.metrics import MetricsWriter, read_jsonl
from xlnet_jax.storage import files
from xlnet_jax.train import loop

RUN = "gs://bucket/run"
STEPS = 12
# Large objects are sent whole, and aiohttp thinks 1 MB is much.
pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    data_fixtures.corpus_path()  # its folder is none of this test's temporary files
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (tmp_path / "scratch").mkdir()
    with fake_gcs.serve() as server:
        yield server


# As separate processes


def start(*words, job=""):
    return subprocess.Popen(
        [sys.executable, "-m", "xlnet_jax", *words, "--json"],
        env=shared.environment() | {"XLNET_JOB_ID": job},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def train_words(workdir, *options):
    short = (f"--config.train.steps={STEPS}", "--config.checkpoint.io_deadline_seconds=3")
    return [word for word in shared.train_words(workdir, *short, *options) if word != "--json"]


def steps_of(file):
    return [line["step"] for line in read_jsonl(RUN, file)]


def result(workdir):
    """What a run leaves: every array, the plan, and what every step measured."""
    return shared.arrays(workdir, STEPS), shared.steps(workdir)


@pytest.mark.slow
def test_killed_in_the_middle_of_a_save_it_ends_as_on_disk(bucket, tmp_path, pytestconfig, capsys):
    disk, cache = str(tmp_path / "run"), pytestconfig.cache.mkdir("xla_one_device")
    finish(start(*train_words(disk, f"--config.log.compilation_cache={cache}")))
    # The step that was compiled for the one serves the other.
    for path in cache.glob("jit_steps*-cache"):
        bucket.objects[f"bucket/run/compilation_cache/{path.name}"] = path.read_bytes()
    # A save that is cut off: the arrays of step 8 never arrive, however often they are sent.
    bucket.refused = {"POST .*checkpoints(%2F|/)8(%2F|/)params.*ocdbt": 503}
    process = start(*train_words(RUN), job="job")
    wait_until(bucket.refusals.total, process)
    twelve = b'"step": 12'
    path = "bucket/run/metrics/000000000001.jsonl"
    wait_until(lambda: twelve in bucket.objects.get(path, b""), process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    bucket.refused = {}
    assert any("/checkpoints/8/" in key for key in bucket.objects)
    assert "bucket/run/checkpoints/4/commit_success.txt" in bucket.objects
    with Checkpoints(RUN) as checkpoints:
        assert checkpoints.steps() == [4]
    out, err = finish(start(*train_words(RUN), job="job"))
    assert (
        f"taking the lock over from process {process.pid} on" in err and "resuming at step 4" in err
    )
    assert "compilation cache: hit" in err
    assert json.loads(out)["step"] == STEPS and result(RUN) == result(disk)
    assert steps_of("runs.jsonl") == [0, 4]
    assert "bucket/run/lock.json" not in bucket.objects
    cache = f"--config.log.compilation_cache={RUN}/compilation_cache"
    scored = []
    for place in (RUN, disk):
        assert command("evaluate", f"--workdir={place}", "--blocks=2", "--json", cache) == 0
        scored.append(capsys.readouterr().out)
    assert scored[0] == scored[1] and json.loads(scored[0])["step"] == STEPS
    assert any("compilation_cache/jit_run" in key for key in bucket.objects), (
        "who names it may write there"
    )
    exported = [str(tmp_path / name) for name in ("of_bucket", "of_disk")]
    for place, output in zip((RUN, disk), exported, strict=True):
        assert command("export", f"--workdir={place}", f"--output={output}") == 0
    assert data_fixtures.contents(exported[0]) == data_fixtures.contents(exported[1])


# In this process


def command(*words):
    return cli.main(list(words))


@pytest.fixture
def words(pytestconfig):
    """Of a run in the bucket that shares its compilation with other tests."""
    return train_words(RUN, f"--config.log.compilation_cache={pytestconfig.cache.mkdir('xla')}")


@pytest.mark.slow
def test_a_bucket_that_goes_away_in_the_middle(bucket, words, monkeypatch, capfd):
    save = loop.Run._save
    # As the launch scripts set it. A restart by hand waits for a sign of life first.
    monkeypatch.setenv("XLNET_JOB_ID", "job")

    def away_at_eight(self, step, state, **how):
        self.checkpoints.wait()
        bucket.down = step == 8
        save(self, step, state, **how)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Run, "_save", away_at_eight)
        assert command(*words) == 42
    said = capfd.readouterr().err
    assert "Traceback" not in said
    end = said.splitlines()[-1]
    assert end.startswith(f"xlnet-jax train: the metrics up to step 8: {RUN}/")
    assert "run the same command" in end
    bucket.down = False
    # It answers with errors, but for a short time.
    monkeypatch.setattr(
        loop.Run, "_save", lambda *args, **how: (bucket.fail_next(3, 503), save(*args, **how))
    )
    assert command(*words) == 0
    said = capfd.readouterr().err
    assert "taking the lock over from process" in said and "resuming at step 4" in said
    assert steps_of("metrics.jsonl") == [*range(1, STEPS + 1)]
    with Checkpoints(RUN) as checkpoints:
        assert checkpoints.steps()[0] == STEPS


@pytest.mark.parametrize(
    ("pattern", "status"),
    [
        ("POST .*lock.json|POST .*/upload/", 403),
        ("GET .*config.json", 403),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (("upload", 404), ("POST .*ocdbt", 403))
        ),
    ],
)
def test_a_bucket_that_refuses(bucket, words, capfd, pattern, status):
    bucket.refused = {pattern: status}
    assert command(*words) == 2
    said = capfd.readouterr().err
    assert "Traceback" not in said and "Error" not in said.replace("Error reading", "")
    last = said.splitlines()[-1]
    assert last.startswith("xlnet-jax train: ") and f" {RUN}" in last and len(last) < 500, last
    assert not any("commit_success" in key for key in bucket.objects)


@pytest.mark.parametrize(
    ("status", "expected"),
    [(403, BadInput), (404, BadInput), (429, RestartMe), (503, RestartMe), (None, RestartMe)],
)
def test_what_tensorstore_says(bucket, status, expected):
    """Which carries the arrays; here with one second try instead of 32."""
    import tensorstore

    retries = {"max_retries": 1, "initial_delay": "0.01s"}
    spec = {
        "driver": "gcs",
        "bucket": "bucket",
        "path": "x/",
        "context": {"gcs_request_retries": retries},
    }
    store = tensorstore.KvStore.open(spec).result()
    store.write("a", b"1").result()
    bucket.down, bucket.refused = status is None, {".": status} if status else {}
    with pytest.raises(expected, match=f"^{RUN}: [^\\[]+$"), files.translate_errors(RUN):
        store.write("a", b"2").result()


def test_other_addresses_and_empty_ones(bucket, capsys):
    for place, line in {
        "s3://bucket/run": "work directories are on disks or gs://",
        "hf://me/run": "work directories are on disks or gs://",
        "gs://": "not gs://BUCKET/...",
    }.items():
        assert command(*train_words(place)) == 2
        assert f"{place}: {line}" in capsys.readouterr().err
    assert command("evaluate", "--workdir=gs://bucket/nothing") == 2
    assert "gs://bucket/nothing: no config.json" in capsys.readouterr().err


# The lock


@pytest.fixture
def quick(monkeypatch):
    """Who looks for a sign of life sees it soon, and no holder is late."""
    monkeypatch.setattr(lock, "RENEW_SECONDS", 0.1)


@pytest.fixture
def silent(quick, monkeypatch):
    """Nobody renews a lock."""
    keep = lock.Lease.keep
    monkeypatch.setattr(lock.Lease, "keep", lambda self, ended: ended.wait() and keep(self, ended))


def test_a_second_run_is_refused(bucket, quick, monkeypatch, caplog):
    with lock.held(RUN) as check:
        with pytest.raises(
            BadInput, match=f"another training runs here .process {os.getpid()} on .* since 2"
        ):
            lock.held(RUN).__enter__()
        assert "waiting up to 180 s" in caplog.text
        check()
    assert bucket.objects == {}


def test_a_restart_of_the_same_job_takes_over_at_once_and_the_first_saves_no_more(
    bucket, monkeypatch, caplog
):
    monkeypatch.setenv("XLNET_JOB_ID", "zone/name")
    with lock.held(RUN) as first:
        writer = MetricsWriter(RUN, 0, False, first)
        writer.write("metrics", {"step": 1, "loss": 1.0})
        writer.flush()
        began = time.monotonic()
        with lock.held(RUN) as second:
            assert (
                time.monotonic() - began < 20 and "taking the lock over from process" in caplog.text
            )
            second()
            writer.write("metrics", {"step": 2, "loss": 1.0})
            for write in (writer.flush, first):
                with pytest.raises(RestartMe, match="has taken over; this run writes nothing more"):
                    write()
            writer.close()
            assert bucket.objects["bucket/run/metrics/000000000001.jsonl"].count(b"\n") == 1
    assert "bucket/run/lock.json" not in bucket.objects


def test_one_that_ends_while_another_waits(bucket, silent, caplog):
    held = lock.held(RUN)
    waiting = threading.Thread(target=held.__enter__)
    with lock.held(RUN):
        waiting.start()
        wait_until(lambda: "waiting up to 180 s" in caplog.text)
        time.sleep(0.1)
        assert waiting.is_alive()
    waiting.join(60)
    assert not waiting.is_alive() and "bucket/run/lock.json" in bucket.objects
    held.__exit__(None, None, None)
    assert "bucket/run/lock.json" not in bucket.objects


def test_a_stale_lock_is_taken_over_and_its_holder_finds_out(bucket, silent, monkeypatch, caplog):
    first = lock.held(RUN)
    check = first.__enter__()
    check()
    began = time.monotonic()
    monkeypatch.setattr(lock, "STALE_SECONDS", 1.0)
    with lock.held(RUN):
        monkeypatch.setattr(lock, "STALE_SECONDS", 180.0)
        assert time.monotonic() - began > 1 and "taking the lock over from process" in caplog.text
        with pytest.raises(RestartMe, match="has taken over; this run writes nothing more"):
            check()
        first.__exit__(None, None, None)
        assert "bucket/run/lock.json" in bucket.objects, (
            "it does not remove the lock of another run"
        )
    # A holder that was paused for long must not write its token over that of the next one.
    with lock.held(RUN) as check:
        monkeypatch.setattr(lock, "STALE_SECONDS", 0.0)
        with pytest.raises(RestartMe, match="removed or not renewed; this run writes nothing more"):
            check()
    for junk in (b"?", b"[]", b'{"token": "x"}'):
        bucket.objects["bucket/run/lock.json"] = junk
        with pytest.raises(
            BadInput, match="run/lock.json: not the JSON of a lock; if no run uses the work"
        ):
            lock.held(RUN).__enter__()


def test_lost_answers_and_an_away_bucket(bucket, quick, monkeypatch):
    write_new = files.write_new
    with monkeypatch.context() as patch:
        # The request arrives, its answer does not, and the repeated request finds its own object.
        patch.setattr(files, "write_new", lambda *args: write_new(*args) and False)
        held = lock.held(RUN)
        check = held.__enter__()
    check()
    bucket.down = True
    with pytest.raises(RestartMe, match="run/lock.json: "):
        check()
    bucket.down = False
    check()
    held.__exit__(None, None, None)
    assert bucket.objects == {}
    bucket.down = True
    with pytest.raises(RestartMe, match="run/lock.json: "):
        lock.held(RUN).__enter__()


# Lines and events


def test_lines_in_parts(bucket, monkeypatch):
    monkeypatch.setattr(metrics, "PART_BYTES", 1000)
    assert steps_of("metrics.jsonl") == []
    writer = MetricsWriter(RUN, 0, False)
    sent = len(bucket.requests)
    for step in range(1, 101):
        writer.write("metrics", {"step": step, "loss": 1 / step})
        writer.flush()
    assert len(bucket.requests) - sent == 100
    writer.write("metrics", {"step": 101, "loss": 0.0})
    parts = sorted(key for key in bucket.objects if "/metrics/" in key)
    sizes = [len(bucket.objects[key]) for key in parts]
    assert len(sizes) == 4 and min(sizes[:-1]) >= 1000 and max(sizes) < 1100
    # Not flushed before it was killed: as on disk.
    assert steps_of("metrics.jsonl") == [*range(1, 101)]
    for step in (100, 60, int(parts[2][-10:-6]), int(parts[1][-10:-6]) - 1, 1):
        resumed = MetricsWriter(RUN, step, False)
        assert steps_of("metrics.jsonl") == [*range(1, step + 1)]
        resumed.write("metrics", {"step": step + 1, "loss": 0.5})
        resumed.close()
        assert read_jsonl(RUN, "metrics.jsonl")[-1] == {"step": step + 1, "loss": 0.5}
    MetricsWriter(RUN, 0, False).close()
    assert bucket.objects == {}


def scalars(data):
    """(tag, step) of an event file: records of length, checksum, event, checksum."""
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import masked_crc32c

    found = []
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        event = Event.FromString(data[12 : 12 + size])
        sums = struct.unpack("<I", data[8:12]) + struct.unpack("<I", data[12 + size : 16 + size])
        assert sums == (masked_crc32c(data[:8]), masked_crc32c(data[12 : 12 + size]))
        found += [(value.tag, event.step) for value in event.summary.value]
        data = data[16 + size :]
    return found


def test_events_reach_the_bucket(bucket, monkeypatch, tmp_path):
    monkeypatch.setattr(metrics, "EVENT_PART_BYTES", 2000)
    writer = MetricsWriter(RUN, 0, True)
    for step in range(1, 101):
        writer.write("metrics", {"step": step, "loss": 1.0, "mfu": None})
        if step % 5 == 0:
            writer.flush()
    writer.write("evaluations", {"step": 100, "heldout_loss": 1.0})
    writer.close()
    keys = sorted(
        (key for key in bucket.objects if "/tensorboard/" in key),
        key=lambda key: int(key.split(".")[-1]),
    )
    assert len(keys) > 2 and all("tfevents" in key for key in keys)
    found = [each for key in keys for each in scalars(bucket.objects[key])]
    assert found == [*(("train/loss", step) for step in range(1, 101)), ("heldout/loss", 100)]
    assert os.listdir(tmp_path / "scratch") == []


def test_listings_are_fresh(bucket):
    """What is listed may have been written by another process, or past gcsfs by TensorStore."""
    from etils import epath

    files.resolve(RUN)
    folder = epath.Path("gs://bucket/folder")
    (folder / "a").write_text("a")
    assert [path.name for path in folder.iterdir()] == ["a"]
    bucket.objects["bucket/folder/b"] = b""
    assert sorted(path.name for path in folder.iterdir()) == ["a", "b"] and (folder / "b").exists()


def test_the_compilation_cache_may_be_in_a_bucket_or_beside(bucket, tmp_path):
    config = tiny.config(log={"compilation_cache": "gs://bucket/cache"})
    for changed, place in (
        (config, "gs://bucket/cache"),
        (tiny.config(), f"{RUN}/compilation_cache"),
    ):
        programs.use_compilation_cache(changed, RUN)
        assert jax.config.jax_compilation_cache_dir == place
    programs.use_compilation_cache(config, str(tmp_path))
    assert jax.config.jax_compilation_cache_dir == "gs://bucket/cache"
