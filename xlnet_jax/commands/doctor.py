"""`xlnet-jax doctor`: checks a host before a launch; each check prints one line, with the fix.

A check returns its line, raises `CheckWarning`, or raises BadInput if a launch would fail. A check
must work on a broken machine: it has `LIMIT` seconds, and any other exception becomes a warning. It
leaves nothing behind: it removes its probe file, and uses devices in another process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable
from typing import TextIO

import xlnet_jax
from xlnet_jax.config import Config, DataConfig, DistributedConfig
from xlnet_jax.distributed import links
from xlnet_jax.distributed.links import find_process_info
from xlnet_jax.errors import BadInput, XLNetError, summary
from xlnet_jax.messages import how_to_install, printable
from xlnet_jax.storage import files
from xlnet_jax.storage.files import Json

LIMIT = 120.0  # seconds for a check: the first use of TPUs takes up to a minute
_DEVICE_SECONDS, _CLUSTER_SECONDS = 100.0, 60.0
_LITTLE_SPACE, _TOO_LITTLE_SPACE = 20 * 10**9, 10**9  # bytes
PACKAGES = ("jax", "jaxlib", "libtpu", "flax", "optax", "orbax-checkpoint")
_PROBE = """import json
from xlnet_jax.distributed.mesh import available_devices

found = available_devices()
print(json.dumps([found[0].platform, found[0].device_kind, len(found)]))"""


class CheckWarning(XLNetError):
    """A possible fault that does not stop a launch."""


@dataclasses.dataclass
class Host:
    """The inputs of the checks."""

    workdir: str | None
    corpus: str
    """`data.corpus`; "" = not given."""
    alone: bool = False
    """Whether there is a single process; set by `processes`."""


def doctor(workdir: str | None, corpus: str | None) -> Json:
    """Runs all checks. Raises BadInput, after the lines on stderr, if a launch would fail."""
    host = Host(workdir, corpus or "")
    result = {"checks": [run_check(check, host) for check in CHECKS]}
    if stops := [each["check"] for each in result["checks"] if each["status"] == "stop"]:
        show(result, sys.stderr)
        error = BadInput(f"a launch would fail here: see {', '.join(stops)}")
        error.details = result
        raise error
    return result


def show(result: Json, file: TextIO | None = None) -> None:
    """Prints one line for each check."""
    for each in result["checks"]:
        print(f"{each['status']:8} {each['check']:11} {printable(each['text'])}", file=file)


def run_check(check: Callable[[Host], str], host: Host) -> dict[str, str]:
    """Returns `check`, `status` (ok, warning or stop) and `text`. The check runs in a thread,
    because it may hang in a mount or a library.
    """
    answer = {
        "status": "stop",
        "text": f"no answer within {LIMIT:g} s; look for a mount or a server that hangs",
    }

    def run() -> None:
        try:
            status, text = "ok", check(host)
        except XLNetError as error:  # RestartMe is a warning: `train` would be rerun
            status, text = "stop" if isinstance(error, BadInput) else "warning", str(error)
        except Exception as error:
            status, text = "warning", f"cannot be checked: {type(error).__name__}: {summary(error)}"
        answer.update(status=status, text=text)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LIMIT)
    return {"check": check.__name__, **answer}


def versions(host: Host) -> str:
    """Imports all modules that `train` imports; in a checkout also compares versions with
    constraints.txt.
    """
    from packaging.requirements import Requirement  # tensorboardX brings it

    fix = how_to_install("tpu" if _chips() else "dev")
    try:
        importlib.import_module("xlnet_jax.commands.train")
    except Exception as error:
        raise BadInput(f"{type(error).__name__}: {summary(error)}; {fix}") from error
    installed = {
        each.name: each.version
        for each in importlib.metadata.distributions()
        if each.name in PACKAGES
    }
    text = ", ".join(
        [f"Python {platform.python_version()} in {sys.prefix}", *map(" ".join, installed.items())]
    )
    tested = files.read_if_there(f"{os.path.dirname(xlnet_jax.__file__)}/../constraints.txt") or b""
    pins = [
        Requirement(line)
        for line in tested.decode().splitlines()
        if line and not line.startswith("#")
    ]
    if others := [
        str(pin).partition(";")[0]
        for pin in pins
        if pin.name in installed
        and (not pin.marker or pin.marker.evaluate())
        and not pin.specifier.contains(installed[pin.name])
    ]:
        raise CheckWarning(f"{text}; tested with {', '.join(others)}: {fix}")
    return text


def processes(host: Host) -> str:
    """Finds the number of this process as `train` does, and checks that process 0 can listen at
    its ports, or that another process can reach them.
    """
    me = find_process_info(
        Config(distributed=DistributedConfig(rendezvous_seconds=_CLUSTER_SECONDS))
    )
    host.alone = me is None
    if me is None:
        return "a single process"
    name, ports = links.address(me, DistributedConfig())
    text = f"{me.process} of {me.processes}; ports {ports[0]} and {ports[1]} of {name}"
    try:
        for port in ports if me.process == 0 else ():
            links.listen_at(port).close()
        if me.process:
            links.connect(name, ports[1]).close()
    except ConnectionRefusedError:
        pass  # the host answers, but process 0 has not started
    except OSError as error:
        if me.process == 0:
            raise BadInput(
                f"{text}: {summary(error)}; stop the program that uses these ports, or set "
                "distributed.coordinator"
            ) from error
        raise CheckWarning(
            f"{text}: {summary(error)}; check that this host is up, and open both ports "
            "between the hosts"
        ) from error
    return f"{text} can be {'reached' if me.process else 'used'}"


def _chips() -> int:
    """Returns the number of TPU chips on the PCI bus of this machine, by a private function of JAX
    (checked with 0.10.2 and 0.12.0).
    """
    from jax._src.hardware_utils import num_available_tpu_chips_and_device_id

    return num_available_tpu_chips_and_device_id()[0]


def devices(host: Host) -> str:
    """Checks in another process that JAX finds the devices of the machine; the end of that process
    releases them.

    On a slice of several hosts libtpu would wait for the other hosts, so the check only looks for
    libtpu.
    """
    from jax._src.hardware_utils import has_visible_nvidia_gpu  # private, see `_chips`

    chips, chosen = _chips(), os.environ.get("JAX_PLATFORMS", "").split(",")[0]
    if chips and not host.alone and chosen in ("", "tpu"):
        if importlib.util.find_spec("libtpu") is None and not os.environ.get("TPU_LIBRARY_PATH"):
            raise BadInput(
                f"TPU chips: {chips}, but libtpu is not installed; {how_to_install('tpu')}"
            )
        return f"TPU chips: {chips}; they start when all hosts of the slice do"
    probe = [sys.executable, "-c", _PROBE]
    try:
        done = subprocess.run(probe, capture_output=True, text=True, timeout=_DEVICE_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise BadInput(
            f"JAX found no device within {_DEVICE_SECONDS:g} s; restart the machine"
        ) from error
    if done.returncode:
        line = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
        raise BadInput(f"JAX finds no device: {line.removeprefix('xlnet_jax.errors.BadInput: ')}")
    kind, name, count = json.loads(done.stdout.splitlines()[-1])
    expected = "tpu" if chips else "gpu" if has_visible_nvidia_gpu() else "cpu"
    text = f"{count} x {name} ({kind})"
    if kind == expected or (expected == "cpu" and kind == chosen):
        return text
    if chosen:
        raise CheckWarning(
            f"{text}, because JAX_PLATFORMS={chosen}; unset it to use the machine's {expected}"
        )
    raise BadInput(f"{text}, but the machine has a {expected}; {how_to_install(expected)}")


def disk(host: Host) -> str:
    """Checks the free space of the folder for temporary files and of a work directory on disk."""
    texts, free = [], []
    for name, folder in {"TMPDIR": tempfile.gettempdir(), "--workdir": host.workdir}.items():
        if folder and "://" not in folder:
            free.append(shutil.disk_usage(path := files.nearest_folder(folder)).free)
            texts.append(f"{name} {path}: {free[-1] / 1e9:.1f} GB free")
    if min(free) < _LITTLE_SPACE:
        kind = BadInput if min(free) < _TOO_LITTLE_SPACE else CheckWarning
        raise kind(
            f"{', '.join(texts)}; checkpoints may not fit: free some space, or choose another disk"
        )
    return ", ".join(texts)


def rights(host: Host) -> str:
    """Lists the work directory, or the nearest folder above it, and writes, reads and removes a
    file there.
    """
    from xlnet_jax.run.workdir import check_folder

    if not (folder := host.workdir):
        return "not checked: no --workdir"
    if not (in_bucket := "://" in folder):
        check_folder(folder)  # lists it, too
        folder = files.nearest_folder(folder)
    path, doing = f"{folder.rstrip('/')}/.doctor-{uuid.uuid4().hex}", "list"
    try:
        with files.translate_errors(path):
            if in_bucket:
                files.listing(folder)
            doing = "write"
            files.write_new(path, b"xlnet-jax doctor")
            doing = "read"
            files.read(path)
            doing = "delete"
            files.remove(path)
    except BadInput as error:
        with contextlib.suppress(XLNetError, OSError):
            files.remove(path)
        advice = (
            "; give this host's service account the role roles/storage.objectUser on the bucket"
            * in_bucket
        )
        raise BadInput(f"cannot {doing}: {error}{advice}") from error
    check_folder(host.workdir or "")
    return f"{folder}: list, write, read and delete"


def corpus(host: Host) -> str:
    """Checks that every corpus folder can be read, and that its manifest agrees with its files."""
    from xlnet_jax.data.corpus.corpus import Corpus

    names = [name for name in DataConfig(corpus=host.corpus).folders() if name]
    return (
        ", ".join(f"{name}: {Corpus(name).tokens:,} tokens" for name in names)
        or "not checked: no --corpus"
    )


CHECKS = (versions, processes, devices, disk, rights, corpus)
