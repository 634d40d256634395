"""Checks a host before a launch: one line for each check, with what is wrong and what to do.

A check returns a line, or raises BadInput for what would stop a launch, or `Doubt` for a warning. It must work on a
sick machine: each one has `LIMIT` seconds, and if it fails in an unforeseen way, that is a warning and not the end.
Nothing stays behind: a probe file is removed, the lock of a run is only read, and devices are used in another process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import email.utils
import glob
import importlib.metadata
import importlib.util
import json
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, TextIO

import xlnet_jax
from xlnet_jax.config import Config, DataConfig, DistributedConfig
from xlnet_jax.distributed import links
from xlnet_jax.distributed.place import find_process_info
from xlnet_jax.errors import BadInput, XLNetError, summary
from xlnet_jax.messages import how_to_install, printable
from xlnet_jax.storage import files, local

LIMIT = 120.0  # seconds for a check: the first use of TPUs takes up to a minute
_DEVICE_SECONDS, _CLUSTER_SECONDS, _HELD_SECONDS, _REQUEST_SECONDS, _CLOCK_SECONDS = 100.0, 60.0, 15.0, 5.0, 60.0
_LITTLE_SPACE, _TOO_LITTLE_SPACE = 20 * 10**9, 10**9  # bytes
_FILES = 1024  # for shards, threads and libraries; and two for each process
PACKAGES = ("jax", "jaxlib", "libtpu", "flax", "optax", "orbax-checkpoint")
TPU_LOCK = "/tmp/libtpu_lockfile"
_PROBE = """import json; from xlnet_jax.distributed.mesh import available_devices; found = available_devices()
print(json.dumps([found[0].platform, found[0].device_kind, len(found)]))"""


class Doubt(XLNetError):
    """What may be wrong; a launch can go on."""


@dataclasses.dataclass
class Host:
    """What the checks are about.

    Attributes:
      workdir: of the run, or None.
      bucket: to check for rights in place of a work directory, or None.
      corpus: as `data.corpus`; may be empty.
      process: None for a single process, which is known if `alone`; `processes` finds both.
    """

    workdir: str | None
    bucket: str | None
    corpus: str
    process: links.ProcessInfo | None = None
    alone: bool = False


def doctor(workdir: str | None, bucket: str | None, corpus: str | None) -> dict[str, Any]:
    """Runs all checks. Raises BadInput, after the lines on stderr, if something would stop a launch."""
    if workdir and bucket:
        raise BadInput("--bucket is for a check without a --workdir; give one of both")
    if bucket and not bucket.startswith("gs://"):
        raise BadInput(f"--bucket={bucket} is not of the form gs://BUCKET/FOLDER")
    host = Host(workdir, bucket and bucket.rstrip("/"), corpus or "")
    result = {"checks": [examined(check, host) for check in CHECKS]}
    if stops := [each["check"] for each in result["checks"] if each["status"] == "stop"]:
        show(result, sys.stderr)
        error = BadInput(f"a launch would fail here: see {', '.join(stops)}")
        error.details = result
        raise error
    return result


def show(result: dict[str, Any], file: TextIO | None = None) -> None:
    """One line for each check."""
    for each in result["checks"]:
        print(f"{each['status']:8} {each['check']:11} {printable(each['text'])}", file=file)


def examined(check: Callable[[Host], str], host: Host) -> dict[str, str]:
    """`check`, `status` (ok, warning or stop) and `text`. It runs in a thread: it may hang in a mount or a library."""
    answer = {"status": "stop", "text": f"no answer within {LIMIT:g} s; look for a mount or a server that hangs"}

    def run() -> None:
        try:
            status, text = "ok", check(host)
        except XLNetError as error:  # a warning also where `train` would end with 42, and be rerun
            status, text = "stop" if isinstance(error, BadInput) else "warning", str(error)
        except Exception as error:
            status, text = "warning", f"cannot be checked: {type(error).__name__}: {summary(error)}"
        answer.update(status=status, text=text)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LIMIT)
    return {"check": check.__name__, **answer}


def python(host: Host) -> str:
    """The interpreter, against `requires-python` of the package."""
    from packaging.specifiers import SpecifierSet  # tensorboardX brings it

    version, needed = platform.python_version(), importlib.metadata.metadata("xlnet_jax")["Requires-Python"]
    if version not in SpecifierSet(needed):
        raise BadInput(f"Python {version}, but xlnet_jax needs {needed}; make another environment")
    return f"{version} in {sys.prefix}"


def versions(host: Host) -> str:
    """What the packages require of each other, by their own metadata; then the versions of constraints.txt, if any."""
    extra = "tpu" if _chips() else ""
    fix = how_to_install(extra or "dev")
    if wrong := "; ".join(text for name in ("xlnet_jax", *PACKAGES) for text in _misfits(name, extra)):
        raise BadInput(f"{wrong}; {fix}")
    installed = {name: version for name in PACKAGES if (version := _version(name))}
    text = ", ".join(map(" ".join, installed.items()))
    if others := [f"{name} {known}" for name, known in _tested().items() if installed.get(name, known) != known]:
        raise Doubt(f"{text}; tested with {', '.join(others)}: {fix}")
    return text


def _version(package: str) -> str | None:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)


def _misfits(package: str, extra: str) -> Iterator[str]:
    """The requirements of a package that are not met, with those of an extra of xlnet_jax."""
    from packaging.requirements import Requirement

    extras, version = {"", extra} if package == "xlnet_jax" else {""}, _version(package)
    for need in map(Requirement, (importlib.metadata.requires(package) or ()) if version else ()):
        counts = not need.marker or any(need.marker.evaluate({"extra": each}) for each in extras)
        has = _version(need.name)
        if counts and not (has and need.specifier.contains(has, prereleases=True)):
            misfit = f"found {has}" if has else "it is missing"
            yield f"{package} {version} needs {need.name}{need.specifier}, {misfit}"


def _tested() -> dict[str, str]:
    """The versions of constraints.txt for this Python; empty outside of a checkout."""
    from packaging.requirements import Requirement

    text = files.read_if_there(f"{os.path.dirname(xlnet_jax.__file__)}/../constraints.txt") or b""
    pins = [Requirement(line) for line in text.decode().splitlines() if line and not line.startswith("#")]
    return {pin.name: str(pin.specifier)[2:] for pin in pins if not pin.marker or pin.marker.evaluate()}


def _chips() -> int:
    """TPU chips of this machine, as its PCI bus lists them. Private (checked with JAX 0.10.2 and 0.12.0)."""
    from jax._src.hardware_utils import num_available_tpu_chips_and_device_id

    return num_available_tpu_chips_and_device_id()[0]


def libtpu(host: Host) -> str:
    """Where there are TPUs: the library is installed, and no other process holds the chips."""
    if not (chips := _chips()):
        return "not needed: no TPU on this machine"
    if importlib.util.find_spec("libtpu") is None and not os.environ.get("TPU_LIBRARY_PATH"):
        raise BadInput(f"{chips} TPU chips, but libtpu is not installed; {how_to_install('tpu')}")
    if os.path.exists(TPU_LOCK) and not os.access(TPU_LOCK, os.R_OK | os.W_OK):
        raise BadInput(f"{TPU_LOCK} belongs to another user; when no process uses the TPU: sudo rm {TPU_LOCK}")
    # A trainer that was just stopped needs some seconds to end.
    until = time.monotonic() + _HELD_SECONDS
    while holders := _holders(glob.glob("/dev/accel*") + glob.glob("/dev/vfio/[0-9]*")):
        if time.monotonic() > until:
            raise BadInput(
                "the TPU is held by process {0}; wait for its end, or stop it: kill {0}".format(min(holders))
            )
        time.sleep(1)
    return f"{_version('libtpu') or os.environ.get('TPU_LIBRARY_PATH')}, {chips} chips, free"


def _holders(paths: list[str]) -> list[int]:
    """Processes that have one of these files open; of other users only if they locked libtpu's file."""
    found = {local.lock_holder(TPU_LOCK)} if os.path.exists(TPU_LOCK) else set()
    for entry in glob.glob("/proc/[0-9]*/fd/*"):
        with contextlib.suppress(OSError):  # it has ended, or is not ours
            if os.readlink(entry) in paths:
                found.add(int(entry.split("/")[2]))
    return sorted({process for process in found if process} - {os.getpid()})


def processes(host: Host) -> str:
    """The number of this process, found as `train` finds it; other checks need it."""
    me = host.process = find_process_info(Config(distributed=DistributedConfig(rendezvous_seconds=_CLUSTER_SECONDS)))
    host.alone = me is None
    return f"{me.process} of {me.processes}, coordinator {me.coordinator}" if me else "a single process"


def devices(host: Host) -> str:
    """JAX finds the devices that the machine has, in another process, which ends and releases them."""
    from jax._src.hardware_utils import has_visible_nvidia_gpu  # private, see `_chips`

    chips, chosen = _chips(), os.environ.get("JAX_PLATFORMS", "").split(",")[0]
    expected = "tpu" if chips else "gpu" if has_visible_nvidia_gpu() else "cpu"
    # libtpu would wait for all hosts of the slice.
    if chips and not host.alone and chosen in ("", "tpu"):
        return f"{chips} TPU chips; they start when all hosts of the slice do"
    probe = [sys.executable, "-c", _PROBE]
    try:
        done = subprocess.run(probe, capture_output=True, text=True, timeout=_DEVICE_SECONDS, check=True)
    except subprocess.TimeoutExpired as error:
        raise BadInput(f"JAX found no device within {_DEVICE_SECONDS:g} s; restart the machine") from error
    except subprocess.CalledProcessError as error:
        line = (error.stderr.strip().splitlines() or [f"it ended with {error.returncode}"])[-1]
        raise BadInput(f"JAX finds no device: {line.removeprefix('xlnet_jax.errors.BadInput: ')}") from error
    kind, name, count = json.loads(done.stdout.splitlines()[-1])
    text = f"{count} x {name} ({kind})"
    if kind == expected or (expected == "cpu" and kind == chosen):
        return text
    if chosen:
        raise Doubt(f"{text}, because JAX_PLATFORMS={chosen}; unset it to use the machine's {expected}")
    raise BadInput(f"{text}, but the machine has a {expected}; {how_to_install(expected)}")


def ports(host: Host) -> str:
    """Process 0 can listen at both ports; the others reach its host."""
    if host.process is None:
        return "not needed: a single process" if host.alone else "not checked: see processes"
    name, both = links.address(host.process, DistributedConfig())
    where = f"ports {both[0]} and {both[1]} of {name}"
    try:
        if host.process.process == 0:
            for port in both:
                links.listening(port).close()
            return f"{where} are free"
        socket.create_connection((name, both[1]), _REQUEST_SECONDS).close()
    except ConnectionRefusedError:
        pass  # its host answers; process 0 has not started
    except OSError as error:
        if host.process.process == 0:
            raise BadInput(f"{where}: {summary(error)}; stop what uses them, or set distributed.coordinator") from error
        raise Doubt(f"{where}: {summary(error)}; open both between the hosts, if its host is up") from error
    return f"{where} can be reached"


def disk(host: Host) -> str:
    """Space in the folder for temporary files and in a work directory on disk."""
    texts, free = [], []
    for name, folder in {"TMPDIR": tempfile.gettempdir(), "--workdir": host.workdir}.items():
        if folder and "://" not in folder:
            status = os.statvfs(path := files.nearest_folder(folder))
            free.append(0 if status.f_files and not status.f_favail else shutil.disk_usage(path).free)
            texts.append(f"{name} {path}: {free[-1] / 1e9:.1f} GB free")
    if min(free) < _LITTLE_SPACE:
        kind = BadInput if min(free) < _TOO_LITTLE_SPACE else Doubt
        raise kind(f"{', '.join(texts)}; checkpoints may not fit: free some space, or choose another disk")
    return ", ".join(texts)


def rights(host: Host) -> str:
    """Lists the folder, and writes, reads and removes a file in it: on disk or in a bucket."""
    from xlnet_jax.run.workdir import check_folder

    if not (folder := host.workdir or host.bucket):
        return "not checked: no --workdir and no --bucket"
    if host.workdir:
        check_folder(host.workdir)
    in_bucket = "://" in folder
    is_new = not in_bucket and not os.path.exists(folder)  # the other files of the folder above do not matter
    folder = folder if in_bucket else files.nearest_folder(folder)
    path, data, doing = f"{folder}/.doctor-{uuid.uuid4().hex}", b"xlnet-jax doctor", "list"
    try:
        with files.translate_errors(path):
            if not is_new:
                files.listing(folder)
            doing = "write"
            files.write_new(path, data)
            doing = "read"
            same = files.read(path) == data and (is_new or os.path.basename(path) in files.listing(folder))
            doing = "delete"
            files.remove(path)
    except BadInput as error:
        with contextlib.suppress(XLNetError, OSError):
            files.remove(path)
        advice = "; give this host's service account the role roles/storage.objectUser on the bucket" * in_bucket
        raise BadInput(f"cannot {doing}: {error}{advice}") from error
    if not same:
        raise BadInput(f"{folder}: a file that was just written is not there; use another file system")
    return f"{folder}: list, write, read and delete"


def lock(host: Host) -> str:
    """The lock of the work directory, which is only read."""
    from xlnet_jax.run import lock as locks

    if not host.workdir or not (holder := locks.holder(host.workdir)):
        return "free" if host.workdir else "not checked: no --workdir"
    name, seconds = holder
    if files.at(host.workdir).locks:
        advice = "wait for its end, or choose another --workdir"
        raise BadInput(f"{host.workdir}: another training runs here ({name}); {advice}")
    seen = f"{host.workdir}: lock of {name}, renewed {seconds:.0f} s ago"
    if seconds > locks.STALE_SECONDS:
        raise Doubt(f"{seen}: stale; `train` waits {locks.STALE_SECONDS:.0f} s and takes it over")
    raise Doubt(f"{seen}: `train` refuses if that run lives; wait for it, or choose another --workdir")


def corpus(host: Host) -> str:
    """Every folder can be read, and its manifest agrees with its files."""
    from xlnet_jax.data.corpus.corpus import Corpus

    names = [name for name in DataConfig(corpus=host.corpus).folders() if name]
    return ", ".join(f"{name}: {Corpus(name).tokens:,} tokens" for name in names) or "not checked: no --corpus"


def clock(host: Host) -> str:
    """This machine's clock against the `Date` of the bucket's server, or of the metadata server of Google Cloud."""
    import requests  # tensorflow-datasets brings it

    in_bucket = "://" in (host.workdir or host.bucket or "")
    bucket = os.environ.get("STORAGE_EMULATOR_HOST") or "https://storage.googleapis.com"
    server = bucket if in_bucket else f"http://{os.environ.get('GCE_METADATA_IP', 'metadata.google.internal')}"
    try:
        date = requests.head(server, timeout=_REQUEST_SECONDS).headers["Date"]  # a refusal has it as well
    except requests.RequestException as error:
        if in_bucket:
            raise Doubt(f"{server} does not answer: {summary(error)}; see rights") from error
        return "not compared: no bucket, and no metadata server"
    seconds = time.time() - email.utils.parsedate_to_datetime(date).timestamp()
    if abs(seconds) > _CLOCK_SECONDS:
        off = f"{abs(seconds):.0f} s {'fast' if seconds > 0 else 'slow'} ({server})"
        raise Doubt(f"{off}; credentials may be refused: start chrony or ntp")
    return f"within {max(abs(seconds), 1):.0f} s of {server}"


def open_files(host: Host) -> str:
    """The hard limit: the run raises its soft limit to it."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    needed = _FILES + 2 * (host.process.processes if host.process else 1)
    if limit != resource.RLIM_INFINITY and limit < needed:
        raise BadInput(f"at most {limit} open files, {needed} are needed; raise `ulimit -Hn`")
    return "no limit" if limit == resource.RLIM_INFINITY else f"at most {limit:,} ({needed:,} needed)"


CHECKS = (python, versions, libtpu, processes, devices, ports, disk, rights, lock, corpus, clock, open_files)
