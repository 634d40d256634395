"""TensorBoard event files, written like the other files of a run.

Not by tensorboardX's own writers: they write in a thread that ends with the first full disk, and then the queue to it
blocks the run; and to a bucket they send the events of the whole run with every flush.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from typing import Any

from xlnet_jax.run.append import AppendFile, AppendParts
from xlnet_jax.storage import files

PART_BYTES = 4 << 20
"""An event file in a bucket with this many bytes is complete: some thousand steps."""


def open_events(workdir: str, step: int) -> AppendFile | AppendParts:
    """A new file in `tensorboard/` of a work directory; TensorBoard drops the steps after `step` of earlier files."""
    from tensorboardX.proto.event_pb2 import SessionLog  # type: ignore[attr-defined]

    folder = os.path.join(workdir, "tensorboard")
    files.make_folder(folder)
    path = f"{folder}/events.out.tfevents.{time.time():.0f}.{socket.gethostname()}"
    version = _record(file_version="brain.Event:2")
    if files.at(workdir).appends:
        events = AppendFile(path)
        events.append(version, step)
    else:
        events = AppendParts(lambda first: f"{path}.{first}", PART_BYTES, version)
    events.append(_record(step=step + 1, session_log=SessionLog(status=SessionLog.START)), step)
    return events


def event(prefix: str, values: dict[str, Any]) -> bytes:
    """The values of one step, which is the key `step`; None is left out, and the prefix of a name that has it."""
    from tensorboardX.proto.summary_pb2 import Summary  # type: ignore[attr-defined]
    from tensorboardX.summary import scalar

    numbers = ((name, value) for name, value in values.items() if name != "step" and value is not None)
    summary = Summary(
        value=[scalar(f"{prefix}/{name.removeprefix(prefix + '_')}", value).value[0] for name, value in numbers]
    )
    return _record(step=values["step"], summary=summary)


def _record(**fields: Any) -> bytes:
    """An event as a TFRecord: length, its masked CRC-32C, data, their masked CRC-32C."""
    from tensorboardX.proto.event_pb2 import Event  # type: ignore[attr-defined]
    from tensorboardX.record_writer import masked_crc32c

    data = Event(wall_time=time.time(), **fields).SerializeToString()
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc32c(length)) + data + struct.pack("<I", masked_crc32c(data))
