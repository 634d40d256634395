"""Who makes the units: progress, processes that die, and what is said of Apache Beam where it is
missing.
"""

import os
import sys

import data_fixtures as data
import pytest

from xlnet_jax.cli import main
from xlnet_jax.data.prepare import engine
from xlnet_jax.errors import BadInput, RestartMe


def _die(*_):
    os._exit(9)


def test_killed_worker(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(engine, "die_with_parent", _die)
        with pytest.raises(
            RestartMe, match="a worker process was killed .*fewer than --workers=2"
        ) as error:
            data.make_corpus(tmp_path / "c", workers=2)
    assert error.value.exit_code == 42
    data.make_corpus(tmp_path / "c")


def test_bad_input_in_a_worker_is_one_line(tmp_path, capfd):
    for index in range(3):
        (tmp_path / f"{index}.txt").write_bytes(
            b"Bado.\n\n" * 40 + (b"\xff" if index == 1 else b"")
        )
    words = [
        "prepare",
        f"--input={tmp_path}",
        f"--output={tmp_path / 'c'}",
        f"--tokenizer={data.tokenizer_path()}",
        "--shard_bytes=100",
        "--heldout=0",
        "--workers=2",
    ]
    assert main(words) == 2
    said = capfd.readouterr().err.splitlines()
    assert said[-1].startswith(f"xlnet-jax prepare: {tmp_path}/1.txt, byte 280: not UTF-8; ")
    assert "Traceback" not in "".join(said)


def test_beam_is_named_where_it_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    monkeypatch.setitem(sys.modules, "apache_beam.options", None)
    monkeypatch.setitem(sys.modules, "apache_beam.options.pipeline_options", None)
    with pytest.raises(
        BadInput, match="--engine=beam needs Apache Beam .*; install the extra `beam`"
    ):
        data.make_corpus(tmp_path / "c", engine="beam")
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--output=c"], "no text; name it with --input=FILE_OR_FOLDER or --tfds=NAME"),
        (["--output=c", "--input=TEXT", "--heldout=nan"], "--heldout=nan must be finite"),
        (["--output=c", "--input=TEXT", "--heldout=1"], "--heldout=1.0 must be below 1"),
        (
            ["--output=c", "--input=TEXT", "--beam_options=a=b"],
            "--beam_options is for --engine=beam",
        ),
        (["--output=a,b", "--input=TEXT"], "--output=a,b: commas separate the folders"),
        (["--output=file/c", "--input=TEXT"], "file/c: Not a directory; fix this"),
        (
            ["--output=s3://bucket/c", "--input=TEXT"],
            "s3://bucket/c: not gs://BUCKET/",
        ),
    ],
)
def test_bad_options_are_one_line(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    assert main(["prepare", *(word.replace("TEXT", data.text_folder()) for word in words)]) == 2
    said = [
        line
        for line in capsys.readouterr().err.splitlines()
        if " training a tokenizer of " not in line
    ]
    assert len(said) == 1 and said[0].startswith("xlnet-jax prepare: ") and message in said[0]
