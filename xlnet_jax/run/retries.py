"""Retries disk and bucket operations, with growing pauses, until a deadline.

    may be temporary    an I/O error, a network disk or a bucket that does not answer
    needs a repair      full, over quota, read only, no permission, too many open files

At the deadline the run ends, with exit code 42 or 2. A repair before the deadline loses nothing.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable

import jax

from xlnet_jax.errors import BadInput, RestartMe, XLNetError, causes, summary

log = logging.getLogger("xlnet_jax")

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds between attempts."""

REPAIR = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM,
    errno.ENOENT, errno.ENOTDIR, errno.EMFILE, errno.ENFILE,
)  # fmt: skip
PASSES = (
    errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EREMOTEIO, errno.ENOTCONN, errno.ECONNRESET,
    errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTDOWN, errno.EHOSTUNREACH,
    errno.EBUSY, errno.EAGAIN, errno.ENODEV, errno.ENXIO,
)  # fmt: skip
_AGAIN = "rerun the same command to resume from the newest checkpoint"
ADVICE: dict[type[XLNetError], str] = {
    BadInput: f"; fix this and {_AGAIN}",
    RestartMe: f"; {_AGAIN}",
}


def until_it_works(
    action: Callable[[], None], what: str, seconds: float, alive: Callable[[], None]
) -> None:
    """Calls `action` until it succeeds; the log calls it `what`.

    After `seconds` (0 = no retry) raises BadInput if the disk or bucket needs a repair, and
    RestartMe if the error may be temporary; raises all other errors at once. `alive` is called
    before every attempt, and may raise.
    """
    until = time.monotonic() + seconds
    pause = FIRST_PAUSE
    while True:
        alive()
        try:
            return action()
        except Exception as error:
            kind = verdict(error)
            if kind is None:
                raise
            left = until - time.monotonic()
            if left <= 0:
                # Our own errors already contain advice.
                advice = "" if isinstance(error, XLNetError) else ADVICE[kind]
                tried = (
                    f"; tried for {seconds:g} s (checkpoint.io_deadline_seconds)" if seconds else ""
                )
                raise kind(f"{what}: {summary(error)}{tried}{advice}") from error
            why = summary(error.__cause__ or error)
            log.warning(
                "%s: %s; trying again in %.0f s, until %.0f s from now", what, why, pause, left
            )
            time.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE)


def verdict(error: BaseException) -> type[XLNetError] | None:
    """How a run ends after this error; None if it is not an error of a disk or a bucket."""
    for cause in causes(error):
        if isinstance(cause, jax.errors.JaxRuntimeError):
            # An error of the devices: "Connection reset by peer" means a lost process, and the
            # session names this process.
            return None
        # Errors of C++ libraries have only the text of the errno, not the number.
        number = getattr(cause, "errno", None)
        text = str(cause)
        for numbers, kind in ((REPAIR, BadInput), (PASSES, RestartMe)):
            if number in numbers or any(os.strerror(each) in text for each in numbers):
                return kind
    # An error that `storage` has translated has a cause; our own errors, such as a lost lock, have
    # none.
    if isinstance(error, XLNetError) and error.__cause__ is not None:
        return type(error)
    return None
