"""`prepare` killed at any moment, or left without room: what was complete stays, nothing else does,
and it goes on.
"""

import functools
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

import data_fixtures as data
import pytest
import tiny

ENVIRONMENT = os.environ | {"PYTHONPATH": str(tiny.ROOT)}


def command(inputs, output, *options):
    return [
        sys.executable,
        "-m",
        "xlnet_jax",
        "prepare",
        f"--input={inputs}",
        f"--output={output}",
        f"--vocab_size={data.VOCAB_SIZE}",
        "--heldout=0.1",
        *options,
    ]


@functools.cache
def text() -> str:
    """A megabyte in eight files."""
    path = pathlib.Path(data.session_folder(), "text_for_kills")
    path.mkdir()
    data.write(path, **{str(index): data.synthetic_text(index, 500) for index in range(8)})
    return str(path)


def start(words):
    return subprocess.Popen(
        words, env=ENVIRONMENT, start_new_session=True, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize(
    "kills", [pytest.param(3, marks=pytest.mark.slow), pytest.param(20, marks=pytest.mark.prove)]
)
def test_killed_at_random(tmp_path, kills):
    """The process group, again and again; whenever an attempt ends, it is compared with an
    undisturbed run.
    """
    options = ("--workers=2", "--shard_bytes=125000")
    began = time.monotonic()
    with start(command(text(), tmp_path / "undisturbed", *options)) as process:
        assert process.wait() == 0, process.stderr.read()
    duration = time.monotonic() - began
    expected = data.contents(tmp_path / "undisturbed")
    assert sum(name.startswith("corpus-train") for name in expected) > 4
    moments = random.Random(duration)
    killed = ended = 0
    folder = tmp_path / "killed"
    while True:
        with start(command(text(), folder, *options)) as process:
            try:
                # An attempt that goes on is shorter, so the end is met often enough.
                process.wait(None if killed == kills else moments.uniform(0, 0.7 * duration))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                killed += 1
                continue
            assert process.returncode == 0, process.stderr.read()
        assert data.contents(folder) == expected
        shutil.rmtree(folder)
        if killed == kills:
            break
        ended += 1
    assert ended < 3 * killed, "most kills came too late"


def _children(pid):
    return list(map(int, pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def _wait(condition, process):
    """However long a busy machine takes: a signal must come neither before the moment meant nor
    after the end.
    """
    until = time.monotonic() + 120
    while not condition():
        assert process.poll() is None and time.monotonic() < until, "it ended, or hangs"
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("number", "times"), [(signal.SIGINT, 1), (signal.SIGTERM, 2)], ids=["INT", "TERM"]
)
def test_a_signal_to_the_group_is_one_line_and_asks_for_the_same_command(tmp_path, number, times):
    """Ctrl-C while workers start, and SIGTERM twice, as a machine that shuts down sends it, while
    they work.
    """
    # So many units that it is far from its end when it has made three.
    words = command(text(), tmp_path / "c", "--workers=2", "--shard_bytes=20000")
    # A shell starts what runs in its background without Ctrl-C.
    with start(["env", "--default-signal=INT", *words]) as process:
        if number == signal.SIGTERM:
            _wait(lambda: len(list(tmp_path.glob("c/units/*.json"))) > 2, process)
        else:
            _wait(lambda: len(_children(process.pid)) > 2, process)
        for _ in range(times):
            os.killpg(process.pid, number)
        said = process.communicate()[1]
    assert process.returncode == 42 and "Traceback" not in said, said
    last = said.splitlines()[-1]
    assert last == f"xlnet-jax: {number.name}: there was nothing to save; rerun the same command"


def test_disk_full(tmp_path):
    """A limit on the size of files does what a full disk does: the first large shard cannot be
    written.
    """
    (tmp_path / "text").mkdir()
    inputs = data.write(
        tmp_path / "text", a=data.synthetic_text(0, 50), b=data.synthetic_text(1, 4000)
    )
    options = (f"--tokenizer={data.tokenizer_path()}", "--shard_bytes=600000", "--workers=2")
    words = command(tmp_path / "text", tmp_path / "c", "--heldout=0", *options)
    limit = (
        "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000)); "
    )
    limited = [sys.executable, "-c", limit + "os.execv(sys.argv[1], sys.argv[1:])", *words]
    run = functools.partial(subprocess.run, env=ENVIRONMENT, capture_output=True, text=True)
    failed = run(limited)
    assert failed.returncode == 2 and "Traceback" not in failed.stderr, failed.stderr
    (said,) = [line for line in failed.stderr.splitlines() if line.startswith("xlnet-jax")]
    for part in ("/c/units/0000", "File too large", "rerun the same command"):
        assert part in said
    assert not (tmp_path / "c" / "manifest.json").exists()
    assert list((tmp_path / "c" / "units").glob("*.json"))
    assert not list((tmp_path / "c").rglob("*.tmp"))
    assert run(words).returncode == 0
    data.make_corpus(tmp_path / "d", inputs, heldout=0.0, shard_bytes=600_000, page_tokens=4096)
    assert data.contents(tmp_path / "c") == data.contents(tmp_path / "d")
