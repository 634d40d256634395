"""One exception class per exit code: what a scheduler or a script may rely on.

    0   done                         42   restart me: the same command goes on where it stopped
    1   a bug of ours (traceback)    130  second Ctrl-C: ended at once, the newest checkpoint is good
    2   bad input or configuration
    3   the run diverged

Every message is one line that says what is wrong, where (file, key, host, step) and what to do about it.
"""

import contextlib
import os
from collections.abc import Iterator


class XLNetError(Exception):
    """Base of the errors that end the program with one clear line instead of a traceback."""

    exit_code = 1


class BadInput(XLNetError):
    """A file, a corpus, a tokenizer or a configuration key that cannot be used."""

    exit_code = 2


class Diverged(XLNetError):
    """Too many non-finite steps in a row; the newest checkpoint is from before them."""

    exit_code = 3


class RestartMe(XLNetError):
    """The run was interrupted and saved; the same command resumes it."""

    exit_code = 42


class Interrupted(XLNetError):
    """A second interrupt: ended at once."""

    exit_code = 130


class Stopped(BaseException):
    """A signal came where it could be acted on at once; see `run.signals`, which makes it `RestartMe` in the end.

    No Exception, as KeyboardInterrupt is none: a library shall not take it for a failure of its own and go on.
    """


def check_link(name: str, path: str) -> None:
    """Raises BadInput if a path on disk, or a folder above it, is a symbolic link to nothing.

    Args:
      name: for the message, such as `--workdir`.
    """
    place = path.rstrip("/")
    while place and not os.path.exists(place):
        if os.path.islink(place):
            raise BadInput(f"{name}={path}: {place} is a link to {os.readlink(place)}, which does not exist")
        place = os.path.dirname(place)


@contextlib.contextmanager
def reraise_stop() -> Iterator[None]:
    """Raises Stopped where a library has turned one into an error of its own."""
    try:
        yield
    except Exception as error:
        inner: BaseException | None = error
        while inner is not None:
            if isinstance(inner, Stopped):
                raise inner from None
            inner = inner.__cause__ or inner.__context__
        raise
