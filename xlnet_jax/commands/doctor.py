"""Checks a host before a launch: one line for each check, with what is wrong and what to do.

A check is a function that returns a `Finding`: "ok", "warning", or "stop" for what would stop a launch. It must work on
a sick machine: each one has `LIMIT` seconds, and if it fails in an unforeseen way, that is a warning and not the end.
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
import pathlib
import platform
import queue
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, TextIO

import xlnet_jax
from xlnet_jax.config import Config, DataConfig, DistributedConfig
from xlnet_jax.errors import BadInput, XLNetError, summary
from xlnet_jax.messages import how_to_install, printable
from xlnet_jax.storage import files, local

LIMIT = 120.0
"""Seconds for a check. The first use of TPUs takes up to a minute."""
_DEVICE_SECONDS, _CLUSTER_SECONDS, _HELD_SECONDS, _REQUEST_SECONDS = 100.0, 60.0, 15.0, 5.0
_LITTLE_SPACE, _TOO_LITTLE_SPACE = 20 * 10**9, 10**9  # bytes
_CLOCK_SECONDS = 60.0
_FILES = 1024  # for shards, threads and libraries; and two for each other process
PACKAGES = ("jax", "jaxlib", "libtpu", "flax", "optax", "orbax-checkpoint")
TPU_LOCK = "/tmp/libtpu_lockfile"
_PROBE = """
import json
from xlnet_jax.distributed.mesh import available_devices
found = available_devices()
print(json.dumps([found[0].platform, found[0].device_kind, len(found)]))
"""


class Finding(NamedTuple):
    """The result of a check."""

    status: Literal["ok", "warning", "stop"]
    text: str


@dataclasses.dataclass
class Host:
    """What the checks are about.

    Attributes:
      workdir: of the run, or None.
      bucket: to check for rights in place of a work directory, or None.
      corpus: as `data.corpus`; may be empty.
      process: a `ProcessInfo`, None for a single process; `processes` finds it.
      alone: whether it is known that there is one process only.
    """

    workdir: str | None
    bucket: str | None
    corpus: str
    process: Any = None
    alone: bool = False

    @property
    def folder(self) -> str | None:
        """The work directory, or the bucket in place of it."""
        return self.workdir or self.bucket


def doctor(workdir: str | None, bucket: str | None, corpus: str | None) -> dict[str, Any]:
    """Runs all checks. Raises BadInput, after the lines on stderr, if something would stop a launch."""
    if workdir and bucket:
        raise BadInput("--bucket is for a check without a --workdir; give one of both")
    if bucket and not bucket.startswith("gs://"):
        raise BadInput(f"--bucket={bucket} is not of the form gs://BUCKET/FOLDER")
    host = Host(workdir, bucket and bucket.rstrip("/"), corpus or "")
    found = [{"check": check.__name__, **_examine(check, host)._asdict()} for check in CHECKS]
    if stops := [each["check"] for each in found if each["status"] == "stop"]:
        show({"checks": found}, sys.stderr)
        error = BadInput(f"a launch would fail here: see {', '.join(stops)}")
        error.details = {"checks": found}
        raise error
    return {"checks": found}


def show(result: dict[str, Any], file: TextIO | None = None) -> None:
    """One line for each check."""
    for each in result["checks"]:
        print(f"{each['status']:8} {each['check']:11} {printable(each['text'])}", file=file)


def _examine(check: Callable[[Host], Finding], host: Host) -> Finding:
    """Runs a check in a thread, which may hang in a mount or a library."""
    answers: queue.SimpleQueue[Finding] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put(check(host))
        except BadInput as error:
            answers.put(Finding("stop", str(error)))
        except XLNetError as error:  # `train` ends with 42 for the same, and is rerun
            answers.put(Finding("warning", str(error)))
        except Exception as error:
            answers.put(Finding("warning", f"cannot be checked: {type(error).__name__}: {summary(error)}"))

    threading.Thread(target=run, daemon=True).start()
    try:
        return answers.get(timeout=LIMIT)
    except queue.Empty:
        return Finding("stop", f"no answer within {LIMIT:g} s; look for a mount or a server that hangs")


def python(host: Host) -> Finding:
    """The interpreter, against `requires-python` of the package."""
    from packaging.specifiers import SpecifierSet  # tensorboardX brings it

    version, wanted = platform.python_version(), importlib.metadata.metadata("xlnet_jax")["Requires-Python"]
    if version not in SpecifierSet(wanted):
        return Finding("stop", f"Python {version}, but xlnet_jax needs {wanted}; make another environment")
    return Finding("ok", f"{version} in {sys.prefix}")


def versions(host: Host) -> Finding:
    """What the packages require of each other, by their own metadata; then the versions of constraints.txt, if any."""
    tpu = bool(_chips())
    wrong = [text for name in ("xlnet_jax", *PACKAGES) for text in _misfits(name, "tpu" if tpu else "")]
    if wrong:
        return Finding("stop", f"{'; '.join(wrong)}; {how_to_install('tpu' if tpu else 'dev')}")
    installed = {name: version for name in PACKAGES if (version := _version(name))}
    text = ", ".join(f"{name} {version}" for name, version in installed.items())
    tested = _tested()
    others = [f"{name} {tested[name]}" for name, version in installed.items() if tested.get(name, version) != version]
    if others:
        return Finding("warning", f"{text}; tested with {', '.join(others)}: {how_to_install('tpu' if tpu else 'dev')}")
    return Finding("ok", text)


def _version(package: str) -> str | None:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)


def _misfits(package: str, extra: str) -> Iterator[str]:
    """The requirements of a package that are not met, with those of an extra of xlnet_jax."""
    from packaging.requirements import Requirement

    if (version := _version(package)) is None:
        return
    for need in map(Requirement, importlib.metadata.requires(package) or ()):
        extras = {"", extra} if package == "xlnet_jax" else {""}
        if need.marker and not any(need.marker.evaluate({"extra": each}) for each in extras):
            continue
        found = _version(need.name)
        if found is None or not need.specifier.contains(found, prereleases=True):
            has = f"found {found}" if found else "it is missing"
            yield f"{package} {version} needs {need.name}{need.specifier}, {has}"


def _tested() -> dict[str, str]:
    """The versions of constraints.txt for this Python; empty outside of a checkout."""
    from packaging.requirements import Requirement

    path = pathlib.Path(xlnet_jax.__file__).parents[1] / "constraints.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {pin.name: str(pin.specifier)[2:] for pin in pins if not pin.marker or pin.marker.evaluate()}


def _chips() -> int:
    """TPU chips of this machine, as its PCI bus lists them. Private (checked with JAX 0.10.2 and 0.12.0)."""
    from jax._src.hardware_utils import num_available_tpu_chips_and_device_id

    return num_available_tpu_chips_and_device_id()[0]


def libtpu(host: Host) -> Finding:
    """Where there are TPUs: the library is installed, and no other process holds the chips."""
    if not (chips := _chips()):
        return Finding("ok", "not needed: no TPU on this machine")
    if importlib.util.find_spec("libtpu") is None and not os.environ.get("TPU_LIBRARY_PATH"):
        return Finding("stop", f"{chips} TPU chips, but libtpu is not installed; {how_to_install('tpu')}")
    if os.path.exists(TPU_LOCK) and not os.access(TPU_LOCK, os.R_OK | os.W_OK):
        return Finding("stop", f"{TPU_LOCK} belongs to another user; when no process uses the TPU: sudo rm {TPU_LOCK}")
    # A trainer that was just stopped needs some seconds to end.
    until = time.monotonic() + _HELD_SECONDS
    while holders := _holders(glob.glob("/dev/accel*") + glob.glob("/dev/vfio/[0-9]*")):
        if time.monotonic() > until:
            one = min(holders)
            return Finding("stop", f"the TPU is held by process {one}; wait for its end, or stop it: kill {one}")
        time.sleep(1)
    return Finding("ok", f"{_version('libtpu') or os.environ.get('TPU_LIBRARY_PATH')}, {chips} chips, free")


def _holders(paths: list[str]) -> set[int]:
    """Processes that have one of these files open; of other users only if they locked libtpu's file."""
    found = {local.lock_holder(TPU_LOCK)} if os.path.exists(TPU_LOCK) else set()
    for entry in glob.glob("/proc/[0-9]*/fd/*"):
        with contextlib.suppress(OSError):  # it has ended, or is not ours
            if os.readlink(entry) in paths:
                found.add(int(entry.split("/")[2]))
    return {process for process in found if process} - {os.getpid()}


def processes(host: Host) -> Finding:
    """The number of this process, found as `train` finds it; other checks need it."""
    from xlnet_jax.distributed.place import find_process_info

    host.process = find_process_info(Config(distributed=DistributedConfig(rendezvous_seconds=_CLUSTER_SECONDS)))
    host.alone = host.process is None
    if host.alone:
        return Finding("ok", "a single process")
    return Finding("ok", f"{host.process.process} of {host.process.processes}, coordinator {host.process.coordinator}")


def devices(host: Host) -> Finding:
    """JAX finds the devices that the machine has, in another process, which ends and releases them."""
    from jax._src.hardware_utils import has_visible_nvidia_gpu  # private, see `_chips`

    chips, chosen = _chips(), os.environ.get("JAX_PLATFORMS", "").split(",")[0]
    expected = "tpu" if chips else "gpu" if has_visible_nvidia_gpu() else "cpu"
    # libtpu would wait for all hosts of the slice.
    if chips and not host.alone and chosen in ("", "tpu"):
        return Finding("ok", f"{chips} TPU chips; they start when all hosts of the slice do")
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=_DEVICE_SECONDS, check=True
        )
        kind, name, count = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return Finding("stop", f"JAX found no device within {_DEVICE_SECONDS:g} s; restart the machine")
    except subprocess.CalledProcessError as error:
        line = (error.stderr.strip().splitlines() or [f"it ended with {error.returncode}"])[-1]
        return Finding("stop", f"JAX finds no device: {line.removeprefix('xlnet_jax.errors.BadInput: ')}")
    text = f"{count} x {name} ({kind})"
    if kind == expected or (expected == "cpu" and kind == chosen):
        return Finding("ok", text)
    if chosen:
        return Finding("warning", f"{text}, because JAX_PLATFORMS={chosen}; unset it to use the machine's {expected}")
    return Finding("stop", f"{text}, but the machine has a {expected}; {how_to_install(expected)}")


def ports(host: Host) -> Finding:
    """Process 0 can listen at both ports; the others reach its host."""
    from xlnet_jax.distributed import links

    if host.process is None:
        return Finding("ok", "not needed: a single process" if host.alone else "not checked: see processes")
    name, both = links.address(host.process, DistributedConfig())
    where = f"ports {both[0]} and {both[1]} of {name}"
    try:
        if host.process.process == 0:
            for port in both:
                links.listening(port).close()
            return Finding("ok", f"{where} are free")
        socket.create_connection((name, both[1]), _REQUEST_SECONDS).close()
    except ConnectionRefusedError:
        pass  # its host answers; process 0 has not started
    except OSError as error:
        if host.process.process == 0:
            return Finding("stop", f"{where}: {summary(error)}; stop what uses them, or set distributed.coordinator")
        return Finding("warning", f"{where}: {summary(error)}; open both between the hosts, if its host is up")
    return Finding("ok", f"{where} can be reached")


def disk(host: Host) -> Finding:
    """Space in the folder for temporary files and in a work directory on disk."""
    folders = {"TMPDIR": tempfile.gettempdir()}
    if host.workdir and "://" not in host.workdir:
        folders["--workdir"] = os.path.abspath(host.workdir)
    texts, least = [], float("inf")
    for name, path in folders.items():
        while not os.path.exists(path):
            path = os.path.dirname(path)
        free = 0 if not os.statvfs(path).f_favail and os.statvfs(path).f_files else shutil.disk_usage(path).free
        least = min(least, free)
        texts.append(f"{name} {path}: {free / 1e9:.1f} GB free")
    text = ", ".join(texts)
    if least < _LITTLE_SPACE:
        status = "stop" if least < _TOO_LITTLE_SPACE else "warning"
        return Finding(status, f"{text}; checkpoints may not fit: free some space, or choose another disk")
    return Finding("ok", text)


def rights(host: Host) -> Finding:
    """Lists the folder, and writes, reads and removes a file in it: on disk or in a bucket."""
    if not (folder := host.folder):
        return Finding("ok", "not checked: no --workdir and no --bucket")
    if host.workdir:
        from xlnet_jax.run.workdir import check_folder

        check_folder(host.workdir)
    is_new = False
    if "://" not in folder:
        folder = os.path.abspath(folder)
        # A new folder is made in the one above, whose other files do not matter.
        while not os.path.exists(folder):
            folder, is_new = os.path.dirname(folder), True
    path, data = f"{folder}/.doctor-{uuid.uuid4().hex}", b"xlnet-jax doctor"
    advice = "give this host's service account the role roles/storage.objectUser on the bucket"
    doing = "list"
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
        if doing == "read":
            with contextlib.suppress(XLNetError):
                files.remove(path)
        return Finding("stop", f"cannot {doing}: {error}" + (f"; {advice}" if "://" in folder else ""))
    if not same:
        return Finding("stop", f"{folder}: a file that was just written is not there; use another file system")
    return Finding("ok", f"{folder}: list, write, read and delete")


def lock(host: Host) -> Finding:
    """The lock of the work directory, which is only read."""
    from xlnet_jax.run import lock as locks

    if not host.workdir or not (holder := locks.holder(host.workdir)):
        return Finding("ok", "free" if host.workdir else "not checked: no --workdir")
    if files.at(host.workdir).locks:
        advice = "wait for its end, or choose another --workdir"
        return Finding("stop", f"{host.workdir}: another training runs here ({holder.name}); {advice}")
    seen = f"{host.workdir}: lock of {holder.name}, renewed {holder.seconds:.0f} s ago"
    if holder.seconds > locks.STALE_SECONDS:
        return Finding("warning", f"{seen}: stale; `train` waits {locks.STALE_SECONDS:.0f} s and takes it over")
    return Finding("warning", f"{seen}: `train` refuses if that run lives; wait for it, or choose another --workdir")


def corpus(host: Host) -> Finding:
    """Every folder can be read, and its manifest agrees with its files."""
    from xlnet_jax.data.corpus.corpus import Corpus

    names = [name for name in DataConfig(corpus=host.corpus).folders() if name]
    if not names:
        return Finding("ok", "not checked: no --corpus")
    return Finding("ok", ", ".join(f"{name}: {Corpus(name).tokens:,} tokens" for name in names))


def clock(host: Host) -> Finding:
    """This machine's clock against the `Date` of the bucket's server, or of the metadata server of Google Cloud."""
    in_bucket = "://" in (host.folder or "")
    bucket = os.environ.get("STORAGE_EMULATOR_HOST") or "https://storage.googleapis.com"
    server = bucket if in_bucket else f"http://{os.environ.get('GCE_METADATA_IP', 'metadata.google.internal')}"
    try:
        with urllib.request.urlopen(urllib.request.Request(server, method="HEAD"), timeout=_REQUEST_SECONDS) as answer:
            headers = answer.headers
    except urllib.error.HTTPError as error:
        headers = error.headers  # a refusal has a date as well
    except OSError as error:
        if in_bucket:
            return Finding("warning", f"{server} does not answer: {summary(error)}; see rights")
        return Finding("ok", "not compared: no bucket, and no metadata server")
    seconds = time.time() - email.utils.parsedate_to_datetime(headers["Date"]).timestamp()
    if abs(seconds) > _CLOCK_SECONDS:
        text = f"{abs(seconds):.0f} s {'fast' if seconds > 0 else 'slow'}"
        return Finding("warning", f"{text} ({server}); credentials may be refused: start chrony or ntp")
    return Finding("ok", f"within {max(abs(seconds), 1):.0f} s of {server}")


def open_files(host: Host) -> Finding:
    """The hard limit: the run raises its soft limit to it."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    needed = _FILES + 2 * (host.process.processes if host.process else 1)
    if limit != resource.RLIM_INFINITY and limit < needed:
        return Finding("stop", f"at most {limit} open files, {needed} are needed; raise `ulimit -Hn`")
    return Finding("ok", "no limit" if limit == resource.RLIM_INFINITY else f"at most {limit:,} ({needed:,} needed)")


CHECKS = (
    python, versions, libtpu, processes, devices, ports, disk, rights, lock, corpus, clock, open_files,
)  # fmt: skip
