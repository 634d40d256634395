"""The lock of a work directory, which excludes a second run.

On disk the kernel holds the lock until the process ends. In a bucket the lock is the object
`lock.json`. Its holder renews it every `RENEW_SECONDS` and checks its token before each save. A
restart of the same job (the same environment variable XLNET_JOB_ID, which launch scripts set) takes
the lock over at once; another run takes it over only if the holder has not renewed it for
`STALE_SECONDS`. If two runs take the lock over at the same time, the run whose token stays in the
object continues.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import threading
import time
import uuid
from collections.abc import Callable, Iterator

from xlnet_jax.errors import BadInput, RestartMe, XLNetError
from xlnet_jax.storage import files
from xlnet_jax.storage.files import Json

RENEW_SECONDS, STALE_SECONDS = 15.0, 180.0

log = logging.getLogger("xlnet_jax")


@contextlib.contextmanager
def held(workdir: str) -> Iterator[Callable[[], None]]:
    """Locks the work directory, which on disk must exist; yields `Lease.check`, to call before each
    save.

    Raises BadInput if another run holds the lock, or RestartMe if the bucket does not answer.
    """
    if files.at(workdir).locks:
        with files.locked(workdir, "another training runs here"):
            yield lambda: None
        return
    lease = Lease(workdir)
    ended = threading.Event()
    lease.take()
    thread = threading.Thread(target=lease.keep, args=(ended,), name="lock", daemon=True)
    thread.start()
    try:
        yield lease.check
    finally:
        ended.set()
        thread.join()


class Lease:
    """The lock of a work directory in a bucket: `take`, then `keep` in a thread, and `check` before
    each save.
    """

    def __init__(self, workdir: str) -> None:
        self._workdir = files.resolve(workdir)
        self._path = f"{self._workdir}/lock.json"
        token = uuid.uuid4().hex
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._me = {
            "token": token,
            "job": os.environ.get("XLNET_JOB_ID") or token,
            "name": f"process {os.getpid()} on {platform.node()} since {since}",
        }
        self._renewed = 0.0

    def take(self) -> None:
        """Acquires the lock. Raises BadInput if the holder is alive."""
        while (holder := self._read()).get("token") != self._me["token"]:
            if holder and self._lives(holder):
                why = f"another training runs here ({holder['name']})"
                raise BadInput(f"{self._workdir}: {why}; wait for it, or choose another --workdir")
            if holder and holder == self._read():
                log.warning("%s: taking the lock over from %s", self._workdir, holder["name"])
                files.remove(self._path)
            with files.translate_errors(self._path):
                files.write_new(self._path, json.dumps(self._me).encode())
        self._renewed = time.monotonic()

    def _lives(self, holder: Json) -> bool:
        """Whether another job holds the lock and renews it."""
        if holder["job"] == self._me["job"]:
            return False
        who = f"{self._workdir}: {holder['name']}"
        log.warning("%s has the lock; waiting up to %.0f s for a sign of life", who, STALE_SECONDS)
        until = time.monotonic() + STALE_SECONDS
        while (newer := self._read()) == holder and time.monotonic() < until:
            time.sleep(RENEW_SECONDS / 5)
        return newer not in (holder, {})

    def check(self) -> None:
        """Raises RestartMe if this run has lost the lock, or if the bucket does not answer."""
        holder = self._read()
        other = holder.get("token") != self._me["token"]
        if other or time.monotonic() - self._renewed > STALE_SECONDS:
            whom = (
                f"{holder['name']} has taken over"
                if holder and other
                else "lock.json was removed or not renewed"
            )
            advice = (
                "this run writes nothing more. Rerun the same command when no other "
                "run uses the work directory"
            )
            raise RestartMe(f"{self._workdir}: {whom}; {advice}")

    def keep(self, ended: threading.Event) -> None:
        """Renews the lock until the run has ended, then releases it if this run still holds it."""
        over = False
        while not over:
            over = ended.wait(RENEW_SECONDS)
            try:
                self.check()
                if over:
                    files.remove(self._path)
                else:
                    files.write(
                        self._path, json.dumps(self._me | {"renewed": time.time()}).encode()
                    )
                    self._renewed = time.monotonic()
            except XLNetError as error:
                # If renewal keeps failing, `check` ends the run.
                log.warning(
                    "the lock could not be %s: %s", "released" if over else "renewed", error
                )

    def _read(self) -> Json:
        """The content of `lock.json`; empty if it does not exist."""
        try:
            content = json.loads(files.read_if_there(self._path) or b"{}")
            if isinstance(content, dict) and (not content or content.keys() >= self._me.keys()):
                return content
        except ValueError:
            pass
        raise BadInput(
            f"{self._path}: not the JSON of a lock; if no run uses the work directory, remove it"
        )
