"""Keeps a second run out of a work directory.

On disk the lock is the kernel's, which ends with the process. A bucket has no locks: there it is the object
`lock.json`. A writer only replaces the version that it knows, and the holder renews the object every `RENEW_SECONDS`.
Another run takes over a lock that is not renewed for `STALE_SECONDS`, or whose holder is known to be dead. A holder
that was disconnected for that long notices the loss before it writes anything more.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import os
import platform
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from xlnet_jax.errors import BadInput, RestartMe, XLNetError
from xlnet_jax.storage import files

RENEW_SECONDS = 15.0
STALE_SECONDS = 180.0
RETRY_SECONDS = 60.0
"""Time for which one request is retried while the bucket does not answer."""
REQUEST_SECONDS = 30

log = logging.getLogger("xlnet_jax")

_given_up: set[str] = set()
"""Locks that this process could not release: they have no owner."""


@contextlib.contextmanager
def held(workdir: str) -> Iterator[Callable[[], None]]:
    """Locks the work directory, which on disk must exist; yields a check to call before each write.

    Raises:
      BadInput: another run holds the lock.
      RestartMe: the bucket does not answer. The check also raises it after another run has taken over.
    """
    if files.at(workdir).locks:
        with files.locked(workdir, "another training runs here"):
            yield lambda: None
        return
    lease = Lease(workdir)
    lease.take()
    try:
        yield lease.check
    finally:
        lease.release()


class Found(NamedTuple):
    """The content of the object: its version, its writer, and the time of writing by the bucket's clock."""

    generation: int
    holder: dict[str, Any]
    updated: datetime.datetime


class Lease:
    """The lock of a work directory in a bucket: `take`, then `check` before writing, then `release`."""

    def __init__(self, workdir: str) -> None:
        self._workdir = workdir
        self._object = _Object(f"{workdir.rstrip('/')}/lock.json")
        self._me = {
            "token": uuid.uuid4().hex, "host": platform.node(), "pid": os.getpid(), "machine": _machine(),
            "started": _started(os.getpid()), "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }  # fmt: skip
        self._generation = 0
        self._renewed = 0.0
        self._lost: str | None = None
        self._one_at_a_time = threading.Lock()
        self._ended = threading.Event()

    def take(self) -> None:
        """Acquires the lock and renews it from then on. If it has a holder, waits for a sign of life first.

        Raises:
          BadInput: the holder is alive.
        """
        known = 0
        while not self._write(known):
            found = self._object.read()
            known = 0
            if found is None:
                continue
            if found.holder.get("token") == self._me["token"]:
                # The write succeeded, but the response was lost.
                self._generation, self._renewed = found.generation, time.monotonic()
                break
            if self._is_gone(found):
                known = found.generation
                log.warning("%s: taking the lock over from %s, which is gone", self._workdir, _named(found.holder))
        threading.Thread(target=self._beat, name="lock", daemon=True).start()

    def _is_gone(self, found: Found) -> bool:
        """Whether the holder ended without releasing the lock. Raises BadInput if it is alive."""
        alive = _lives(found.holder)
        if alive is not None:
            return not alive or self._refuse(found)
        # The age uses two clocks and may be wrong; so the wait is never shorter than two signs of life can take.
        age = (datetime.datetime.now(datetime.UTC) - found.updated).total_seconds()
        patience = min(STALE_SECONDS, max(STALE_SECONDS - age, 2.5 * RENEW_SECONDS))
        log.warning(
            "%s: %s has the lock; waiting up to %.0f s for a sign of life",
            self._workdir, _named(found.holder), patience,
        )  # fmt: skip
        until = time.monotonic() + patience
        while time.monotonic() < until:
            time.sleep(RENEW_SECONDS / 5)
            now = self._object.read()
            if now is None:
                return False  # released
            if now.generation != found.generation:
                self._refuse(now)
        return True

    def _refuse(self, found: Found) -> bool:
        raise BadInput(
            f"{self._workdir}: another training runs here ({_named(found.holder)}, last sign of life "
            f"{found.updated:%Y-%m-%dT%H:%M:%SZ}); wait for it, or choose another --workdir"
        )

    def check(self) -> None:
        """Returns only if this run still holds the lock.

        Raises:
          RestartMe: another run has taken over, or may have because the bucket does not answer.
        """
        if time.monotonic() - self._renewed > 2 * RENEW_SECONDS:
            self._renew()
        if self._lost:
            raise RestartMe(self._lost)

    def release(self) -> None:
        """Releases the lock, unless another run has it."""
        self._ended.set()
        with self._one_at_a_time:
            if self._lost:
                return
            try:
                self._object.delete(self._generation)
            except (XLNetError, OSError) as error:
                _given_up.add(self._me["token"])
                log.warning("the lock could not be released; the next run takes it over: %s", error)

    def _beat(self) -> None:
        while not self._ended.wait(RENEW_SECONDS):
            try:
                self._renew()
            except (XLNetError, OSError) as error:
                # If this continues, the loop notices it in `check`.
                log.warning("the lock could not be renewed: %s", error)

    def _renew(self) -> None:
        with self._one_at_a_time:
            if self._lost or self._ended.is_set() or self._write(self._generation):
                return
            began = time.monotonic()
            found = self._object.read()
            if found and found.holder.get("token") == self._me["token"]:
                self._generation, self._renewed = found.generation, began  # the response was lost
                return
            whom = f"{_named(found.holder)} has taken over" if found else "lock.json was removed"
            self._lost = (
                f"{self._workdir}: {whom}; this run writes nothing more. Rerun the same command when no other run uses "
                "the work directory"
            )
            log.error("%s", self._lost)

    def _write(self, generation: int) -> bool:
        began = time.monotonic()
        written = self._object.write(json.dumps(self._me).encode(), generation)
        if written:
            self._generation, self._renewed = written, began
        return bool(written)


class _Object:
    """An object that is only replaced or deleted in a known version; version 0 means that it does not exist."""

    def __init__(self, path: str) -> None:
        files.resolve(path)
        from google.cloud import storage

        self._path = path
        bucket, _, self._name = path.removeprefix("gs://").partition("/")
        with files.translate_errors(path):
            self._bucket = storage.Client().bucket(bucket)

    def _retry(self) -> Any:
        from google.cloud.storage.retry import DEFAULT_RETRY

        return DEFAULT_RETRY.with_timeout(RETRY_SECONDS)

    def write(self, data: bytes, generation: int) -> int | None:
        """Writes the object. Returns the new version; None if the present one is not `generation`."""
        from google.api_core.exceptions import PreconditionFailed

        blob = self._bucket.blob(self._name)
        with files.translate_errors(self._path):
            try:
                blob.upload_from_string(
                    data, content_type="application/json", if_generation_match=generation, retry=self._retry(),
                    timeout=REQUEST_SECONDS,
                )  # fmt: skip
            except PreconditionFailed:
                return None
        return int(blob.generation or 0)

    def read(self) -> Found | None:
        """The present object; None if there is none."""
        from google.api_core.exceptions import NotFound, PreconditionFailed

        while True:
            with files.translate_errors(self._path):
                try:
                    blob = self._bucket.get_blob(self._name, retry=self._retry())
                    if blob is None:
                        return None
                    text = blob.download_as_bytes(if_generation_match=blob.generation, retry=self._retry())
                except (NotFound, PreconditionFailed):
                    continue  # replaced in between
            try:
                holder = json.loads(text)
            except ValueError:
                holder = None
            assert blob.generation and blob.updated
            return Found(int(blob.generation), holder if isinstance(holder, dict) else {}, blob.updated)

    def delete(self, generation: int) -> None:
        """Deletes this version; any other version stays."""
        from google.api_core.exceptions import NotFound, PreconditionFailed

        with files.translate_errors(self._path), contextlib.suppress(NotFound, PreconditionFailed):
            self._bucket.blob(self._name).delete(if_generation_match=generation, retry=self._retry())


def _named(holder: dict[str, Any]) -> str:
    if not holder.keys() >= {"host", "pid", "since"}:
        return "an unknown holder"
    return f"process {holder['pid']} on {holder['host']} since {holder['since']}"


def _machine() -> str | None:
    """Identifies the boot of the machine and the container: within one, a process number is unique."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return None


def _started(pid: int) -> str | None:
    """Start time of a process of this machine, in ticks since boot; None if it does not run."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def _lives(holder: dict[str, Any]) -> bool | None:
    """Whether a holder on this machine is alive; None if it is on another machine."""
    if holder.get("token") in _given_up:
        return False
    if holder.get("machine") is None or holder["machine"] != _machine():
        return None
    return _started(holder["pid"]) == holder["started"]
