"""One exception class per exit code, for schedulers and scripts.

    0    done
    1    our bug (traceback)
    2    bad input or configuration
    3    the run diverged
    42   restart me: the same command continues where it stopped
    130  second Ctrl-C: ended at once, the newest checkpoint is good

Every message is one line: the error, its place (file, key, host, step) and the fix.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

SUMMARY_LENGTH = 400
LARGEST_INT = 2**31 - 1
"""Bound of whole numbers without another bound: steps, rows and positions are int32 on the device.
"""
_LIMITS = {
    "Too many open files": (
        "raise the limit of open files (`ulimit -n`, or the limit of the container or service)"
    ),
    "can't start new thread": (
        "raise the limits of processes (`ulimit -u`) and of memory (`ulimit -v`)"
    ),
    "Resource temporarily unavailable": (
        "raise the limits of processes (`ulimit -u`) and of memory (`ulimit -v`)"
    ),
}
"""Advice about limits of the system, by texts of errors."""


class XLNetError(Exception):
    """Base of errors that end the program with one line instead of a traceback."""

    exit_code = 1
    details: Mapping[str, Any] = {}
    """Further keys of the error's object with `--json`."""
    results: Sequence[Mapping[str, Any]] = ()
    """Results computed before the error, printed first, one JSON object per line."""


class BadInput(XLNetError):
    """A file, a corpus, a tokenizer or a configuration key that cannot be used."""

    exit_code = 2


class Diverged(XLNetError):
    """Too many consecutive non-finite steps or spikes; the newest checkpoint is older."""

    exit_code = 3


class RestartMe(XLNetError):
    """The run was interrupted and saved; the same command resumes it."""

    exit_code = 42


class Interrupted(XLNetError):
    """A second interrupt: ended at once."""

    exit_code = 130


def error_of(code: int, line: str) -> XLNetError:
    """Returns the error with this exit code, for example of another process."""
    kinds = (BadInput, Diverged, RestartMe, Interrupted)
    return next((kind for kind in kinds if kind.exit_code == code), XLNetError)(line)


class Stopped(Exception):
    """A signal came while the state can be saved; the text names signal and process. See
    `run.signals`.
    """


def check_link(name: str, path: str) -> None:
    """Raises BadInput, which names the option, if a path on disk or a folder above it is a broken
    link.
    """
    above = path.rstrip("/")
    while above and not os.path.exists(above):
        if os.path.islink(above):
            raise BadInput(
                f"{name}={path}: {above} is a link to {os.readlink(above)}, which does not exist"
            )
        above = os.path.dirname(above)


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yields an error, its members if it is a group, and its causes: the outermost first."""
    yield error
    for inner in getattr(error, "exceptions", ()):
        yield from causes(inner)
    if error.__cause__ is not None:
        yield from causes(error.__cause__)


def summary(error: BaseException) -> str:
    """Returns one line of at most `SUMMARY_LENGTH` characters: the deepest cause with a text.

    An error that quotes its cause wins, because it says more. The search ends at an XLNetError,
    whose text is written for people. An error without text gives its type. The caller adds the file
    of an OSError.
    """
    best = ""
    for cause in causes(error):
        text = _text(cause)
        if text and (not best or text not in best):
            best = text
        if isinstance(cause, XLNetError):
            break
    best = best or type(error).__name__
    half = (SUMMARY_LENGTH - 5) // 2
    return best if len(best) <= SUMMARY_LENGTH else f"{best[:half]} ... {best[-half:]}"


def shortage(error: BaseException) -> str | None:
    """Returns the line for an error about a shortage of memory, files or threads; else None."""
    if type(error).__name__ == "JaxRuntimeError" and "RESOURCE_EXHAUSTED" in str(error):
        return (
            f"out of memory: {summary(error)}; use a smaller model or train.batch_size, "
            "model.remat=full, or more devices with mesh.fsdp"
        )
    for cause in causes(error):
        if isinstance(cause, MemoryError):
            what = f" ({cause})" if str(cause) else ""
            return f"out of memory{what}; use a machine with more, fewer workers, or smaller inputs"
        for text, fix in _LIMITS.items():
            if text in str(cause):
                return f"{text}; {fix}"
    return None


def _text(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return " ".join(error.strerror.split())
    if isinstance(error, KeyError) and error.args:
        # str(error) has quotes around the text, which is usually only the key.
        text = " ".join(str(error.args[0]).split())
        return text if " " in text else f"KeyError: {text}"
    # A group has only a name and a count; TensorStore appends the whole request in brackets.
    return (
        ""
        if isinstance(error, BaseExceptionGroup)
        else " ".join(str(error).split()).partition(" [tensorstore_")[0]
    )
