"""How the libraries that know buckets get there, and what they say when a bucket refuses or does not answer.

gcsfs carries single files, Orbax writes with it and with TensorStore, the lock of a run uses Google's own client; each
has errors of its own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from typing import Any

from xlnet_jax.errors import BadInput, RestartMe, XLNetError

# How TensorStore begins what it says of a bucket, and the HTTP status of the same meaning.
_TENSORSTORE_CODES = {
    "PERMISSION_DENIED": 403, "UNAUTHENTICATED": 401, "NOT_FOUND": 404, "UNAVAILABLE": 503, "ABORTED": 0,
    "DEADLINE_EXCEEDED": 0, "RESOURCE_EXHAUSTED": 429, "CANCELLED": 0, "INTERNAL": 500, "UNKNOWN": 0,
}  # fmt: skip
_TENSORSTORE_ERROR = re.compile(f"({'|'.join(_TENSORSTORE_CODES)}): ")


def use(path: str) -> Any:
    """Has all libraries of this process go to buckets in one way; returns fsspec.

    Raises BadInput for other addresses than `gs://`, and if gcsfs is not installed.
    """
    if not path.startswith("gs://") or not path.removeprefix("gs://").strip("/"):
        raise BadInput(f"{path}: of the addresses only gs://BUCKET/... works; otherwise name a folder")
    try:
        import fsspec
        import fsspec.config
        import gcsfs  # noqa: F401
    except ImportError as error:
        raise BadInput(f"{path}: gs:// needs the package gcsfs; install it, or the extra `tpu`") from error
    # Or TFDS, Orbax and JAX would go there with TensorFlow where that is installed.
    os.environ.setdefault("EPATH_USE_TF", "false")
    # Listings are not kept: another process may write there, and so does TensorStore in this one.
    fsspec.config.conf.setdefault("gcs", {}).setdefault("use_listings_cache", False)
    return fsspec


@contextlib.contextmanager
def answers(path: str) -> Iterator[None]:
    """Tells in one line what a library says of a bucket that refuses or does not answer: gcsfs, Orbax, TensorStore.

    Raises:
      BadInput: it refuses.
      RestartMe: it does not answer, which may pass.
      PermissionError: no credentials.
    """
    import google.auth.exceptions as auth

    try:
        yield
    except XLNetError:
        raise
    except Exception as error:
        for cause in _causes(error):
            if isinstance(cause, auth.GoogleAuthError):
                raise PermissionError(errno.EACCES, line(cause), path) from error
            if (code := _answer(cause)) is None:
                continue
            if 400 <= code < 500 and code not in (408, 429):
                raise BadInput(f"{path}: the bucket refuses ({_short(cause)}); put that right") from error
            raise RestartMe(f"{path}: {_short(cause)}; give the same command again, it goes on") from error
        raise


def is_missing(error: BaseException) -> bool:
    """Whether what `answers` raised means that an object is not there."""
    return any(_answer(cause) == 404 for cause in _causes(error))


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error, those in it if it is a group, and those that it came from."""
    yield error
    for inner in getattr(error, "exceptions", ()):
        yield from _causes(inner)
    if error.__cause__ is not None:
        yield from _causes(error.__cause__)


def _answer(error: BaseException) -> int | None:
    """The HTTP status that an error of a bucket stands for, 0 where there was no answer; None if it is none."""
    import aiohttp
    import gcsfs.retry
    import requests
    from google.api_core import exceptions as google

    if isinstance(error, aiohttp.ClientError | gcsfs.retry.HttpError | google.GoogleAPICallError):
        return int(getattr(error, "code", None) or 0)
    if isinstance(error, requests.RequestException | google.RetryError | gcsfs.retry.ChecksumError | TimeoutError):
        return 0
    if isinstance(error, OSError) and str(error).startswith("Forbidden: "):
        return 403  # gcsfs
    if isinstance(error, ValueError) and (match := _TENSORSTORE_ERROR.match(str(error))):
        return _TENSORSTORE_CODES[match[1]]
    return None


def _short(error: BaseException) -> str:
    # TensorStore goes on with the whole request and the whole answer in brackets.
    return line(error).partition(" [")[0]


def line(error: BaseException) -> str:
    """What an error says, in one line."""
    return " ".join(str(error).split()) or repr(error)
