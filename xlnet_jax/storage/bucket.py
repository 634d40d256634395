"""Access to a bucket with fsspec, and its errors in one line.

Single files use gcsfs, Orbax uses gcsfs and TensorStore, the lock of a run uses Google's own client; each has its own
errors.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import Any

from xlnet_jax.errors import BadInput, RestartMe, XLNetError, causes, summary

# The first word of TensorStore's errors of a bucket, and the HTTP status with the same meaning.
_TENSORSTORE_CODES = {
    "PERMISSION_DENIED": 403, "UNAUTHENTICATED": 401, "NOT_FOUND": 404, "UNAVAILABLE": 503, "ABORTED": 0,
    "DEADLINE_EXCEEDED": 0, "RESOURCE_EXHAUSTED": 429, "CANCELLED": 0, "INTERNAL": 500, "UNKNOWN": 0,
}  # fmt: skip
_TENSORSTORE_ERROR = re.compile(f"({'|'.join(_TENSORSTORE_CODES)}): ")


def in_bucket(path: str) -> bool:
    """Whether a path is an address."""
    return "://" in path


def use(path: str) -> Any:
    """Makes all libraries of this process access buckets in the same way; returns fsspec."""
    if not path.startswith("gs://") or not path.removeprefix("gs://").strip("/"):
        raise BadInput(f"{path}: of the addresses only gs://BUCKET/... works; otherwise name a folder")
    try:
        import fsspec
        import fsspec.config
        import gcsfs  # noqa: F401
    except ImportError as error:
        raise BadInput(f"{path}: gs:// needs the package gcsfs; install it, or the extra `tpu`") from error
    # Otherwise TFDS, Orbax and JAX use TensorFlow for buckets if it is installed.
    os.environ.setdefault("EPATH_USE_TF", "false")
    # No cached listings: other processes, and TensorStore in this one, write to the bucket.
    fsspec.config.conf.setdefault("gcs", {}).setdefault("use_listings_cache", False)
    return fsspec


@contextlib.contextmanager
def connected(path: str) -> Iterator[Any]:
    """The filesystem of fsspec for a bucket. Its errors, see `translate_errors`, are about `path`."""
    fsspec = use(path)
    with translate_errors(path):
        try:
            yield fsspec.filesystem("gcs", use_listings_cache=False)
        except ValueError as error:
            # gcsfs raises it for the HTTP status "bad request".
            raise BadInput(f"{path}: {summary(error)}; fix this and rerun the same command") from error


@contextlib.contextmanager
def translate_errors(path: str) -> Iterator[None]:
    """Turns errors of gcsfs, Orbax and TensorStore into one line.

    Raises:
      BadInput: no credentials, or the bucket refuses.
      RestartMe: the bucket does not answer, which may be temporary.
    """
    import google.auth.exceptions as auth

    try:
        yield
    except XLNetError:
        raise
    except Exception as error:
        for cause in causes(error):
            # TensorStore adds the complete request and answer in brackets.
            text = summary(cause).partition(" [")[0]
            code = 401 if isinstance(cause, auth.GoogleAuthError) else _answer(cause)
            if code is None:
                continue
            if 400 <= code < 500 and code not in (408, 429):
                advice = "fix this and rerun the same command"
                raise BadInput(f"{path}: the bucket refuses ({text}); {advice}") from error
            raise RestartMe(f"{path}: {text}; rerun the same command to resume") from error
        raise


def is_missing(error: BaseException) -> bool:
    """Whether an error means that an object does not exist."""
    return any(_answer(cause) == 404 for cause in causes(error))


def _answer(error: BaseException) -> int | None:
    """The HTTP status of a bucket's error, 0 if there was no answer; None for other errors."""
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
