"""The growing files of a run: a JSON line per step and per evaluation, and TensorBoard events.

On disk `metrics.jsonl` grows line by line. A bucket cannot append: there the folder `metrics/` has
parts named after their first step. Every flush writes only the last part again, until the part
has `PART_BYTES`. So a long run does not send all its data at every flush, and does not leave an
object per flush.

Values are written as the device computed them (float32 printed exactly), so that two runs can be
compared bit for bit. A resume first cuts off lines of steps after the checkpoint: no step appears
twice.

tensorboardX's own writers are not used. They write in a thread that ends with the first full disk,
after which its queue blocks the run, and they send the events of the whole run to a bucket with
every flush.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

import jax

from xlnet_jax.errors import BadInput, summary
from xlnet_jax.messages import how_to_install
from xlnet_jax.storage import files
from xlnet_jax.storage.files import Json

log = logging.getLogger("xlnet_jax")

FILE_BYTES = 1 << 13
"""Bytes after which a file on disk is written without waiting for a save: users may follow it."""

PART_BYTES, EVENT_PART_BYTES = 1 << 20, 4 << 20
"""Bytes of a complete part: about 3000 steps of metrics, some thousand of events."""

STARTS, SAMPLES = "runs.jsonl", "samples.jsonl"
"""Files of a work directory whose lines hold text; all others hold numbers."""

PREFIXES = {"metrics": "train", "evaluations": "heldout"}
"""Prefixes of names in TensorBoard, by file."""


class RunFile:
    """A growing file. On disk each write opens the file, because a network disk that was
    disconnected needs a new handle.

    Args:
      path: place on disk.
      part: returns, for a bucket, the address of the part that begins with a step.
      header: first bytes of the file and of every part.
    """

    def __init__(
        self, path: str, part: Callable[[int], str], part_bytes: int, header: bytes = b""
    ) -> None:
        self._on_disk = files.at(path).appends
        # In a bucket, the address of the current part; "" = the next data begin a new part.
        self._path = path if self._on_disk else ""
        self._part, self._part_bytes, self._header = part, part_bytes, header
        self._data = bytearray(header)
        self._changed = False

    def append(self, data: bytes, step: int) -> None:
        """Adds the data of a step."""
        self._path = self._path or self._part(step)
        self._data += data
        self._changed = True
        if self._on_disk and len(self._data) >= FILE_BYTES:
            try:
                self.flush()
            except OSError as error:
                # The next save flushes again, and raises.
                log.warning("%s: %s", self._path, error)

    def flush(self) -> None:
        """Writes the data to the disk, with fsync, or the part to the bucket. Can be called again
        after an error: on a full disk the bytes of the failed write are cut off.
        """
        if self._on_disk:
            end = os.path.getsize(self._path) if os.path.exists(self._path) else 0
            try:
                with open(self._path, "ab") as file:
                    file.write(self._data)
                    file.flush()
                    os.fsync(file.fileno())
            except OSError:
                with contextlib.suppress(OSError):
                    os.truncate(self._path, end)
                raise
            self._data = bytearray()
            return
        if self._changed:
            files.write(self._path, bytes(self._data))
            self._changed = False
        if len(self._data) >= self._part_bytes:
            self._path = ""
            self._data = bytearray(self._header)


def open_lines(path: str, step: int) -> RunFile:
    """Opens `path`, the name that the file has on disk, to append lines (`to_line`); first removes
    lines after `step`.
    """
    lines = RunFile(
        path, lambda first: f"{path.removesuffix('.jsonl')}/{first:012d}.jsonl", PART_BYTES
    )
    if files.at(path).appends:
        if os.path.exists(path):
            files.write(
                path, b"".join(to_line(line) for line in read_jsonl(path) if line["step"] <= step)
            )
        return lines
    for part in reversed(_parts(path)):
        first = int(os.path.basename(part).removesuffix(".jsonl"))
        if first > step:
            files.remove(part)
            continue
        for line in files.read(part).splitlines(keepends=True):
            if json.loads(line)["step"] <= step:
                lines.append(line, first)
        lines.flush()
        break  # the parts before it have earlier steps
    return lines


def to_line(values: Json) -> bytes:
    """The values of one step as a line of JSON."""
    return json.dumps(values).encode() + b"\n"


def read_jsonl(*names: str) -> list[Json]:
    """The complete lines of a file or of its parts, without a line that a crash cut off; none if
    the file does not exist.

    Args:
      names: parts of the path, such as a work directory and `metrics.jsonl`.
    """
    path = os.path.join(*names)
    if files.at(path).appends or path.endswith(STARTS):  # which each start writes as a whole
        content = files.read_if_there(path) or b""
    else:
        content = b"".join(files.read(part) for part in _parts(path))
    lines = content.decode(errors="replace").split("\n")[:-1]
    return [
        values
        for number, line in enumerate(lines, 1)
        if (values := _values(path, number, line)) is not None
    ]


def _parts(path: str) -> list[str]:
    """The addresses of the parts in a bucket, the first steps first."""
    folder = path.removesuffix(".jsonl")
    return [
        f"{folder}/{name}"
        for name in sorted(files.listing(folder))
        if re.fullmatch(r"\d+\.jsonl", name)
    ]


def _values(path: str, number: int, line: str) -> Json | None:
    """The values of a line; None, with a warning, if a crash of the machine damaged it."""
    with contextlib.suppress(ValueError, RecursionError):
        values = json.loads(line)
        known = isinstance(values, dict) and isinstance(values.get("step"), int)
        if known and (path.endswith((STARTS, SAMPLES)) or _numbers(values)):
            return values
    log.warning("%s: line %d is damaged and is ignored", path, number)
    return None


def _numbers(values: Json) -> bool:
    """Whether all values are numbers, booleans or null, or objects of these."""
    return all(
        _numbers(x) if isinstance(x, dict) else x is None or isinstance(x, int | float)
        for x in values.values()
    )


def open_events(workdir: str, step: int) -> RunFile:
    """Opens a new file in `tensorboard/` of a work directory. Its first event makes TensorBoard
    drop the steps after `step` of earlier files.
    """
    from tensorboardX.proto.event_pb2 import SessionLog  # type: ignore[attr-defined]

    folder = os.path.join(workdir, "tensorboard")
    files.make_folder(folder)
    path = f"{folder}/events.out.tfevents.{time.time():.0f}.{socket.gethostname()}"
    version = _record(file_version="brain.Event:2")
    events = RunFile(path, lambda first: f"{path}.{first}", EVENT_PART_BYTES, version)
    events.append(_record(step=step + 1, session_log=SessionLog(status=SessionLog.START)), step)
    return events


def event(prefix: str, values: Json) -> bytes:
    """The event of one step with its values except None; `values` has the key `step`."""
    from tensorboardX.proto.summary_pb2 import Summary  # type: ignore[attr-defined]
    from tensorboardX.summary import scalar

    written = [scalar(name, value).value[0] for name, value in scalars(prefix, values).items()]
    return _record(step=values["step"], summary=Summary(value=written))


def scalars(prefix: str, values: Json) -> Json:
    """The numbers of a line by their names in TensorBoard and Weights & Biases, with one prefix."""
    return {
        f"{prefix}/{name.removeprefix(prefix + '_')}": value
        for name, value in values.items()
        if name != "step" and value is not None
    }


def open_wandb(project: str, workdir: str, config: Json) -> Any:
    """Opens the run of Weights & Biases that all starts of this run share; None without a project
    and in processes other than 0.

    Weights & Biases takes the step from the key `step`, because a resume sends some steps again.
    Raises BadInput if wandb is not installed, or refuses.
    """
    if not project or jax.process_index() != 0:
        return None
    try:
        import wandb
    except ImportError as error:
        raise BadInput(
            f"log.wandb={project}: {how_to_install('wandb')}, or leave the key empty"
        ) from error
    began = (read_jsonl(workdir, STARTS) or [{}])[0].get("time", "")
    of_run = hashlib.sha256(f"{files.resolve(workdir)} {began}".encode()).hexdigest()[:16]
    # Only metrics and configuration are sent: no output, no code, no list of packages.
    settings = wandb.Settings(
        console="off", silent=True, disable_git=True, disable_code=True, x_save_requirements=False
    )
    where = workdir if files.at(workdir).appends else None
    try:
        run = wandb.init(
            project=project, id=of_run, resume="allow", dir=where, config=config, settings=settings
        )
        run.define_metric("*", step_metric="step")
    except wandb.Error as error:
        raise BadInput(
            f"log.wandb={project}: {summary(error)}; WANDB_MODE=offline writes to a folder"
        ) from error
    return run


def _record(**fields: Any) -> bytes:
    """An event as a TFRecord: length, CRC-32C of the length, data, CRC-32C of the data, both
    masked.
    """
    from tensorboardX.proto.event_pb2 import Event  # type: ignore[attr-defined]
    from tensorboardX.record_writer import masked_crc32c

    data = Event(wall_time=time.time(), **fields).SerializeToString()
    length = struct.pack("<Q", len(data))
    return (
        length
        + struct.pack("<I", masked_crc32c(length))
        + data
        + struct.pack("<I", masked_crc32c(data))
    )


def _marked(sample: Json, key: str) -> str:
    """A text with its gaps in bold."""
    pairs = zip(sample["parts"], [*sample[key], ""], strict=True)
    return f"{key}: " + "".join(
        part + (f" **{gap.strip()}**" if gap else "") for part, gap in pairs
    )


class MetricsWriter:
    """Writes `metrics.jsonl`, `evaluations.jsonl`, `time.jsonl`, `samples.jsonl` and
    `tensorboard/`; host 0 only.

    Args:
      step: the step from which the run resumes; later lines are dropped.
      check: called before each flush; raises if another run has taken the work directory.
      wandb: result of `open_wandb`, which gets the metrics too.
    """

    def __init__(
        self,
        workdir: str,
        step: int,
        tensorboard: bool,
        check: Callable[[], None] | None = None,
        wandb: Any = None,
    ) -> None:
        self._active = jax.process_index() == 0
        self._workdir, self._check, self._failed, self._wandb = workdir, check, False, wandb
        self._step = step
        self._files = dict[str, RunFile]()
        if self._active:
            with files.translate_errors(workdir):
                for name in ("metrics", "evaluations", "time"):
                    self._files[name] = open_lines(os.path.join(workdir, f"{name}.jsonl"), step)
                if tensorboard:
                    self._files["events"] = open_events(workdir, step)

    def write(self, name: str, values: Json) -> None:
        """Adds a line to `metrics`, `evaluations` or `time`; `values` has the key `step`, from
        1.
        """
        if self._active:
            self._files[name].append(to_line(values), values["step"])
            if prefix := PREFIXES.get(name):
                if "events" in self._files:
                    self._files["events"].append(event(prefix, values), values["step"])
                if self._wandb:
                    self._wandb.log(scalars(prefix, values) | {"step": values["step"]})

    def write_samples(self, step: int, samples: list[Json]) -> None:
        """Adds a line to `samples.jsonl`, which only runs with samples have: for each text its
        `parts` and, between them, `truth` and `filled`.
        """
        if not self._active:
            return
        if SAMPLES not in self._files:
            self._files[SAMPLES] = open_lines(os.path.join(self._workdir, SAMPLES), self._step)
        self._files[SAMPLES].append(to_line({"step": step, "samples": samples}), step)
        if "events" in self._files:
            from tensorboardX.summary import text

            shown = "\n\n".join(
                _marked(one, "truth") + "\n\n" + _marked(one, "filled") for one in samples
            )
            self._files["events"].append(
                _record(step=step, summary=text("heldout/samples", shown)), step
            )

    def flush(self) -> None:
        """Writes all files to the disk or the bucket, before every checkpoint, so that no earlier
        line is missing. A second call after an error loses no line and repeats no line.

        Raises RestartMe (the bucket does not answer, or another run has taken the work directory)
        or BadInput (a full disk, a lost permission).
        """
        self._failed = True
        if self._active and self._check:
            self._check()
        with files.translate_errors(self._workdir):
            for file in self._files.values():
                file.flush()
        self._failed = False

    def close(self) -> None:
        """Flushes, but not after an error: a flush would wait for the same disk or bucket again."""
        if self._active and not self._failed:
            self.flush()
        if self._wandb:
            self._wandb.finish()
