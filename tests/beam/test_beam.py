"""The engine `beam` writes what the engine `local` writes, and says the same of what it cannot
read.
"""

import functools
import os
import pathlib
import signal
import subprocess
import sys
import time

import apache_beam
import data_fixtures as data
import fake_gcs
import pytest
from apache_beam.runners.dataflow import dataflow_runner

from xlnet_jax.cli import main
from xlnet_jax.data.prepare import engine
from xlnet_jax.data.prepare.sources import Part
from xlnet_jax.errors import BadInput, RestartMe

ROOT = pathlib.Path(__file__).parents[2]
PROCESSES = [
    "runner=DirectRunner",
    "direct_num_workers=2",
    "direct_running_mode=multi_processing",
]
THREADS = [*PROCESSES[:2], "direct_running_mode=multi_threading"]
DATAFLOW = [
    "runner=DataflowRunner",
    "project=a-project",
    "region=us-central1",
    "temp_location=gs://bucket/temp",
    "sdk_container_image=gcr.io/p/i",
]


def _prepare(output, inputs=None, **changes):
    return data.make_corpus(output, inputs, **{"engine": "beam", "workers": None, **changes})


@pytest.mark.parametrize("runner", [["runner=DirectRunner"], THREADS], ids=["one", "threads"])
def test_the_same_bytes(tmp_path, runner):
    _prepare(tmp_path / "beam", beam_options=runner)
    assert data.contents(tmp_path / "beam") == data.contents(pathlib.Path(data.corpus_path()))


def test_to_a_bucket():
    """As on Dataflow: the workers share nothing but the bucket."""
    with fake_gcs.serve() as bucket:
        _prepare("gs://bucket/c", beam_options=PROCESSES)
        objects = {key.removeprefix("bucket/c/"): value for key, value in bucket.objects.items()}
    assert objects == data.contents(pathlib.Path(data.corpus_path()))


@pytest.mark.parametrize(
    "changes", [{"vocab_size": data.VOCAB_SIZE}, {"vocabulary": "words"}], ids=str
)
def test_a_trained_tokenizer_or_a_counted_vocabulary(tmp_path, changes):
    _prepare(tmp_path / "beam", tokenizer=None, **changes)
    _prepare(tmp_path / "local", tokenizer=None, engine="local", workers=1, **changes)
    assert data.contents(tmp_path / "beam") == data.contents(tmp_path / "local")


def test_bad_input_is_the_same_one_line(tmp_path, capfd):
    good = b"Bado.\n\n" * 40
    (tmp_path / "text").mkdir()
    data.write(tmp_path / "text", a=good, b=good + b"\xff", c=good + b"\xff", d=good)
    words = [
        "prepare",
        f"--input={tmp_path / 'text'}",
        f"--tokenizer={data.tokenizer_path()}",
        "--shard_bytes=100",
        "--heldout=0",
        "--workers=1",
    ]
    said = []
    for name in ("beam", "local"):
        assert main([*words, f"--output={tmp_path / name}", f"--engine={name}"]) == 2
        lines = capfd.readouterr().err.splitlines()
        said.append([line for line in lines if line.startswith("xlnet-jax")])
    assert said[0] == said[1] and "b.txt, byte 280: not UTF-8" in said[0][0]
    # What was complete stays, the report of the error does not, and the other engine goes on.
    for name, other in (("beam", "local"), ("local", "beam")):
        _prepare(
            tmp_path / name,
            [str(tmp_path / "text")],
            engine=other,
            workers=1,
            shard_bytes=100,
            heldout=0.0,
            page_tokens=4096,
            errors="replace",
        )
    assert data.contents(tmp_path / "beam") == data.contents(tmp_path / "local")


@pytest.mark.parametrize(
    ("raised", "expected", "message"),
    [
        (
            dataflow_runner.DataflowRuntimeException("Job failed.\nWorkflow", None),
            RestartMe,
            "as Job failed. Work",
        ),
        (
            ImportError("No module named 'apitools'"),
            BadInput,
            "No module named 'apitools'; Dataflow needs",
        ),
    ],
)
def test_a_service_that_fails(tmp_path, monkeypatch, raised, expected, message):
    def run(self):
        raise raised

    with monkeypatch.context() as patch:
        patch.setattr(apache_beam.Pipeline, "run", run)
        with pytest.raises(expected, match=message):
            _prepare(tmp_path / "c")
    monkeypatch.setattr(engine, "_report_errors", lambda *unit: None)
    with pytest.raises(
        BadInput,
        match="c: the pipeline wrote no 00000.json; workers on other machines need --output=gs://",
    ):
        _prepare(tmp_path / "c")


# aiohttp's advice to gcsfs.
@pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")
def test_a_job_does_not_grow_with_its_units():
    """Dataflow takes jobs of 20 MB: the units, with all their files, must not be elements of the
    pipeline.
    """
    jobs, files, make = [], [], functools.partial(print, data.tokenizer())
    with fake_gcs.serve() as server:
        for count in (1, 156_250):
            pipeline = engine.make_pipeline(DATAFLOW, "gs://bucket/corpus")
            server.objects.clear()
            part = Part("gs://bucket/text.jsonl", 10**12, 10**12 + 64_000_000)
            units = [(unit, (part,)) for unit in range(count)]
            engine.add_units(pipeline, "gs://bucket/corpus", units, make)
            (file,) = server.objects.values()
            files.append(len(file))
            jobs.append(len(pipeline.to_runner_api().SerializeToString()))
    # Names in the pipeline are random, and compressed.
    assert abs(jobs[0] - jobs[1]) < 500 and max(jobs) < 100_000
    assert files[0] < 100 and files[1] > 10_000_000


def test_workers_of_dataflow_need_a_bucket_and_the_package(tmp_path):
    with pytest.raises(BadInput, match="Dataflow's workers cannot reach; use gs://"):
        _prepare(tmp_path / "c", beam_options=DATAFLOW)
    with pytest.raises(
        BadInput, match="workers of Dataflow need this package; add sdk_container_image="
    ):
        _prepare("gs://bucket/c", beam_options=DATAFLOW[:-1])


def test_killed(tmp_path):
    """The whole process group, with some units done; the same command goes on."""
    (tmp_path / "text").mkdir()
    for index in range(6):
        (tmp_path / "text" / f"{index}.txt").write_text(data.synthetic_text(index, 800))
    words = [
        sys.executable,
        "-m",
        "xlnet_jax",
        "prepare",
        f"--input={tmp_path / 'text'}",
        f"--output={tmp_path / 'c'}",
        f"--tokenizer={data.tokenizer_path()}",
        "--heldout=0.2",
        "--shard_bytes=100000",
        "--engine=beam",
        "--beam_options=runner=DirectRunner",
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(words, env=environment, start_new_session=True) as process:
        until = time.monotonic() + 30
        while len(list(tmp_path.glob("c/units/*.json"))) < 2 and time.monotonic() < until:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "c" / "manifest.json").exists()
    subprocess.run(words, env=environment, check=True)
    data.make_corpus(
        tmp_path / "d", [str(tmp_path / "text")], shard_bytes=100_000, page_tokens=4096
    )
    assert data.contents(tmp_path / "c") == data.contents(tmp_path / "d")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("runner=Nope", "--beam_options: Unexpected pipeline runner: Nope"),
        (
            "direct_num_workers=x",
            "--beam_options: argument --direct_num_workers: invalid int value: 'x'",
        ),
        ("direct_num_wokers=2", "--beam_options: Apache Beam has no option direct_num_wokers"),
        ("runner=DataflowRunner", "--beam_options: "),
    ],
)
def test_bad_options(tmp_path, option, message):
    with pytest.raises(BadInput) as error:
        _prepare(tmp_path / "c", beam_options=[option])
    assert message in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "c").exists()
