"""Disks that refuse for a while, or for good: lines and saves are tried again until a deadline."""

import errno
import io
import os
import resource
import types

import jax
import pytest
import shared

from xlnet_jax.checkpoint.store import Checkpoints
from xlnet_jax.commands.train import train
from xlnet_jax.config import CheckpointConfig
from xlnet_jax.errors import BadInput, RestartMe
from xlnet_jax.run import metrics, retries
from xlnet_jax.run.metrics import RunFile, open_lines, read_jsonl, to_line
from xlnet_jax.run.retries import until_it_works, verdict
from xlnet_jax.storage import files
from xlnet_jax.train.loop import Run


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(retries, "FIRST_PAUSE", 0.01)


def fails(times, error):
    """An action that raises some times, and a list that tells of its attempts."""
    attempts = []

    def action():
        attempts.append(len(attempts))
        if len(attempts) <= times:
            raise error

    return action, attempts


def steps_of(*names):
    return [line["step"] for line in read_jsonl(*map(str, names))]


def os_error(number):
    return OSError(number, os.strerror(number), "metrics.jsonl")


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, BadInput), (errno.EIO, RestartMe)])
def test_what_passes_is_tried_again_and_told_and_what_lasts_ends_the_run_in_one_line(
    number, kind, caplog, monkeypatch
):
    slept = []
    monkeypatch.setattr(
        retries, "time", types.SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append)
    )
    action, attempts = fails(3, os_error(number))
    alive = []
    until_it_works(action, "the metrics", 30, lambda: alive.append(1))
    assert len(attempts) == len(alive) == 4 and len(caplog.messages) == 3
    assert all("the metrics" in line and os.strerror(number) in line for line in caplog.messages)
    tried = "; tried for 0.2 s (checkpoint.io_deadline_seconds)"
    for seconds, said in ((0.2, tried), (0, "")):
        action, attempts = fails(10**9, os_error(number))
        with pytest.raises(kind) as raised:
            until_it_works(action, "the metrics", seconds, lambda: None)
        assert str(raised.value).startswith(f"the metrics: {os.strerror(number)}{said}; ")
        assert "\n" not in str(raised.value) and (len(attempts) == 1) == (seconds == 0)


def caused(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("shape mismatch"), None),
        (RestartMe("another run has taken over"), None),
        # A lost process, seen by a collective operation of a save: the session waits for its
        # number, and ends with 42.
        (
            jax.errors.JaxRuntimeError(
                "Gloo: Read error [127.0.0.1]:49339: Connection reset by peer"
            ),
            None,
        ),
        (
            caused(
                RestartMe("saving"),
                jax.errors.JaxRuntimeError("FAILED_PRECONDITION: Connection timed out"),
            ),
            None,
        ),
        (caused(RestartMe("gs://b/run: no answer"), ValueError("UNAVAILABLE: x")), RestartMe),
        (caused(BadInput("gs://b/run: refuses"), ValueError("PERMISSION_DENIED: x")), BadInput),
        (ValueError("INTERNAL: Error writing [OS error 28: No space left on device]"), BadInput),
        (ExceptionGroup("save", [ValueError("x"), os_error(errno.EIO)]), RestartMe),
    ],
)
def test_whose_error_it_is(error, expected):
    assert verdict(error) is expected
    if expected is None:
        action, attempts = fails(1, error)
        with pytest.raises(type(error)):
            until_it_works(action, "x", 30, lambda: None)
        assert len(attempts) == 1


@pytest.mark.parametrize("error", [None, OSError(errno.ENOSPC, "full"), ValueError("a bug")])
def test_a_save_that_failed_in_flight_is_known_before_a_stop(error):
    """Else a run that is stopped says `saved` and has lost the step."""

    class InFlight:
        def wait(self):
            if error:
                raise error

    run = types.SimpleNamespace(checkpoints=InFlight(), saved=8)
    if isinstance(error, ValueError):
        with pytest.raises(ValueError):
            Run._complete(run)
    else:
        assert Run._complete(run) is (error is None)


class Full(io.FileIO):
    """A file on a disk that takes `room` bytes more, half of the last write among them."""

    room = 0

    def write(self, data):
        if Full.room <= 0:
            raise os_error(errno.ENOSPC)
        taken = super().write(data[: Full.room])
        Full.room -= taken
        return taken


@pytest.mark.parametrize("flush_bytes", [40, 1 << 13])
def test_lines_that_a_full_disk_took_half_of_are_neither_lost_nor_doubled(
    tmp_path, monkeypatch, flush_bytes
):
    monkeypatch.setattr(metrics, "FILE_BYTES", flush_bytes)
    path = str(tmp_path / "metrics.jsonl")
    lines = open_lines(path, 0)
    lines.append(to_line({"step": 1}), 1)
    lines.flush()
    monkeypatch.setattr(
        metrics, "open", lambda path, mode: io.BufferedWriter(Full(path, mode)), raising=False
    )
    monkeypatch.setattr(Full, "room", 20)
    for step in range(2, 9):
        lines.append(to_line({"step": step}), step)
    with pytest.raises(OSError, match="No space left"):
        lines.flush()
    assert steps_of(path)[:1] == [1]
    Full.room = 10**6
    lines.flush()
    assert steps_of(path) == [*range(1, 9)]


@pytest.fixture
def settings(pytestconfig):
    """A configuration with some keys of `checkpoint` changed."""
    return lambda **checkpoint: shared.settings(pytestconfig, checkpoint={"every": 4} | checkpoint)


@pytest.mark.parametrize(
    "where", ["flush", *(pytest.param(where, marks=pytest.mark.slow) for where in ("wait", "save"))]
)
def test_a_run_lives_through_a_disk_that_refuses_for_a_while(
    tmp_path, monkeypatch, caplog, settings, where
):
    owner = RunFile if where == "flush" else Checkpoints
    whole, left = getattr(owner, where), [3]

    def refuses(self, *arguments):
        if left[0] and (where != "wait" or self._pending is not None):
            left[0] -= 1
            raise os_error(errno.ENOSPC)
        return whole(self, *arguments)

    monkeypatch.setattr(owner, where, refuses)
    train(settings(), str(tmp_path), stop_at=8)
    assert left == [0] and caplog.text.count("trying again") == 3
    assert steps_of(tmp_path, "metrics.jsonl") == [*range(1, 9)]
    with Checkpoints(str(tmp_path)) as checkpoints:
        assert checkpoints.steps()[0] == 8


@pytest.mark.parametrize("translated", [True, False])
def test_a_full_disk_says_one_line_a_retry(tmp_path, caplog, capfd, monkeypatch, translated):
    """Orbax logs hundreds for every failed save, tracebacks and all. Unknown errors of a save are
    retried, too.
    """
    if not translated:
        monkeypatch.setattr(files, "_WRITE_ERRORS", ())
    trees = {"params": {"x": jax.random.normal(jax.random.key(0), (64, 64))}}
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    attempts = []

    def alive():
        attempts.append(1)
        assert len(attempts) == 1 or os.listdir(tmp_path / "checkpoints") == ["1"], (
            "what fills the disk stays"
        )
        resource.setrlimit(
            resource.RLIMIT_FSIZE, (1000 if len(attempts) <= 3 else before[0], before[1])
        )

    with Checkpoints(str(tmp_path), CheckpointConfig(keep=2)) as checkpoints:

        def write():
            checkpoints.save(2, trees, {})
            checkpoints.wait()

        checkpoints.save(1, trees, {})
        checkpoints.wait()
        capfd.readouterr()
        try:
            until_it_works(write, "the checkpoint of step 2", 30, alive)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert checkpoints.steps()[0] == 2
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == len(attempts) - 1 >= 3 and capfd.readouterr().err == ""
    for line in told:
        assert line.startswith("the checkpoint of step 2: ") and "File too large" in line
        assert "\n" not in line


class Refused:
    """A save in flight that TensorStore could not write. Until that is known, what it wrote fills
    the disk.
    """

    in_flight = False

    def result(self):
        Refused.in_flight = False
        raise ValueError(
            "RESOURCE_EXHAUSTED: Error writing /x: "
            f"{os.strerror(errno.ENOSPC)} [os_error_code='28']"
        )


@pytest.mark.slow
def test_a_disk_that_stays_full_ends_the_run_with_2_and_the_newest_checkpoint_is_good(
    tmp_path, monkeypatch, settings
):
    """The save of step 8 starts and fails; step 12 must not be left before one is complete, and
    then no error of a save in flight may take the place of the one line. The metrics of step 12
    need the room that the failed save took.
    """
    save, flush = Checkpoints.save, RunFile.flush

    def refuses(self, step, *arguments):
        self.wait()
        if step > 4:
            self._pending, Refused.in_flight = Refused(), True
        else:
            save(self, step, *arguments)

    def no_room(self):
        if Refused.in_flight:
            raise os_error(errno.ENOSPC)
        flush(self)

    monkeypatch.setattr(Checkpoints, "save", refuses)
    monkeypatch.setattr(RunFile, "flush", no_room)
    refused = (
        "^the checkpoint of step 12: .*: No space left on device; "
        "fix this and rerun the same command; tried for"
    )
    with pytest.raises(BadInput, match=refused):
        train(settings(io_deadline_seconds=1), str(tmp_path), stop_at=20)
    monkeypatch.setattr(Checkpoints, "save", save)
    assert train(settings(), str(tmp_path), stop_at=12)["step"] == 12
    assert steps_of(tmp_path, "metrics.jsonl") == [*range(1, 13)]


@pytest.mark.parametrize("raised", [None, BadInput("the metrics up to step 2: no room")])
def test_a_save_in_flight_hides_no_other_error_when_a_run_ends(tmp_path, caplog, raised):
    ours = pytest.raises(
        BadInput,
        match="the metrics" if raised else "/checkpoints: No space left on device; fix this",
    )
    with ours, Checkpoints(str(tmp_path), CheckpointConfig()) as checkpoints:
        checkpoints._pending = Refused()
        if raised:
            raise raised
    assert ("the save in flight failed as well: " in caplog.text) == (raised is not None)
