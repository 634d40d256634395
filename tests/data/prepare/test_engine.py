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
    monkeypatch.setattr(engine, "die_with_parent", _die)
    with pytest.raises(
        RestartMe, match="a worker process was killed .*fewer than --workers=2"
    ) as error:
        data.make_corpus(tmp_path / "c", workers=2)
    assert error.value.exit_code == 42


def test_bad_input_in_a_worker_is_one_line(tmp_path, capfd):
    good = "Bado.\n\n" * 40
    data.write(tmp_path, a=good, b=good.encode() + b"\xff", c=good)
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
    said = capfd.readouterr().err
    assert said.splitlines()[-1].startswith(
        f"xlnet-jax prepare: {tmp_path}/b.txt, byte 280: not UTF-8; "
    )
    assert "Traceback" not in said


def test_beam_is_named_where_it_is_missing(tmp_path, monkeypatch):
    for name in ("apache_beam", "apache_beam.options", "apache_beam.options.pipeline_options"):
        monkeypatch.setitem(sys.modules, name, None)
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
        (["--output=c", "--input=TEXT", "--beam_options=a=b"], "is for --engine=beam"),
        (["--output=file/c", "--input=TEXT"], "file/c: Not a directory; fix this"),
    ],
)
def test_bad_options_are_one_line(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    words = [word.replace("TEXT", data.text_folder()) for word in words]
    assert main(["prepare", f"--tokenizer={data.tokenizer_path()}", *words]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("xlnet-jax prepare: ") and message in said
