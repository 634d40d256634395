"""Google Cloud Storage in memory, on the loopback: what gcsfs, TensorStore and ArrayRecord ask of
it.

    with fake_gcs.serve() as server:
        server.objects["bucket/a"] = b"..."     # or epath.Path("gs://bucket/a").write_bytes(b"...")
        subprocess.run(..., env=os.environ | server.environment())

Any bucket exists. PyPI has gcp-storage-emulator: it answers one request at a time and cannot be
made to fail.
"""

from __future__ import annotations

import asyncio
import base64
import collections
import contextlib
import hashlib
import http.server
import itertools
import json
import os
import re
import socket
import sys
import threading
import types
import unittest.mock
import urllib.parse
from collections.abc import Iterator
from typing import Any


class Server(http.server.ThreadingHTTPServer):
    """The server and what it holds.

    Attributes:
      objects: bytes by "bucket/name"; a test may look, put and delete.
      down: while True, connections are closed without an answer.
      refused: HTTP status of every request whose method, space and path match a pattern, such as
        "POST .*lock".
      refusals: how many each pattern has refused.
      requests: (method, path, range) of every request so far.
    """

    kind = "gs"
    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.objects: dict[str, bytes] = {}
        self.generations: dict[str, int] = {}
        self.uploads: dict[str, tuple[str, dict[str, str], bytearray]] = {}
        self.numbers = itertools.count(1)
        self.lock = threading.RLock()
        self.down = False
        self.requests: list[tuple[str, str, str]] = []
        self.failures: list[int] = []
        self.refused: dict[str, int] = {}
        self.refusals: collections.Counter[str] = collections.Counter()

    def environment(self) -> dict[str, str]:
        """Environment variables with which a process takes this server for Google's."""
        return {
            "STORAGE_EMULATOR_HOST": self.url,  # gcsfs
            "CLOUD_STORAGE_EMULATOR_ENDPOINT": self.url,  # ArrayRecord
            "TENSORSTORE_GCS_HTTP_URL": self.url,  # Orbax
            "FSSPEC_GCS": json.dumps(_FSSPEC),
            # It would ask over gRPC what kind of bucket this is.
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        }

    def fail_next(self, count: int, status: int) -> None:
        """Answers the next `count` requests with an error."""
        self.failures += [status] * count

    def put(self, key: str, data: bytes, query: dict[str, str]) -> bool:
        """Stores an object, if its generation is what the request wants (0: there must be none)."""
        with self.lock:
            wanted = query.get("ifGenerationMatch")
            if wanted is not None and int(wanted) != self.generation(key):
                return False
            self.objects[key] = data
            self.generations[key] = next(self.numbers)
            return True

    def generation(self, key: str) -> int:
        """Changes with every write; 0 where there is no object."""
        return self.generations.setdefault(key, next(self.numbers)) if key in self.objects else 0

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up in the middle of an answer is nothing to report."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


# No look for credentials on this machine.
_FSSPEC = {"token": "anon"}


@contextlib.contextmanager
def serve() -> Iterator[Server]:
    """Runs a server, and has epath and ArrayRecord of this process use it. gcsfs retries, without
    waiting.
    """
    from etils.epath import backend

    server = Server()
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    with unittest.mock.patch.dict(os.environ, server.environment()):
        import fsspec
        from gcsfs import core, retry

        # It may have been imported before.
        fsspec.register_implementation("gcs", core.GCSFileSystem, clobber=True)
        hurried = types.SimpleNamespace(sleep=lambda seconds: asyncio.sleep(0))
        try:
            with (
                unittest.mock.patch.dict(fsspec.config.conf, {"gcs": dict(_FSSPEC)}),
                unittest.mock.patch.object(retry, "asyncio", hurried),
            ):
                _forget(core, backend)
                yield server
        finally:
            _forget(core, backend)
            server.shutdown()
            server.server_close()


def _forget(core: Any, backend: Any) -> None:
    core.GCSFileSystem.clear_instance_cache()
    backend.fsspec_backend._get_filesystem.cache_clear()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Or an answer may wait 40 ms for the acknowledgement of its headers.
    disable_nagle_algorithm = True
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _run(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        self.query = dict(urllib.parse.parse_qsl(url.query))
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests.append((self.command, self.path, self.headers.get("Range", "")))
        if self.server.down:
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
            return
        if self.server.failures:
            return self._error(self.server.failures.pop(0))
        for pattern, status in self.server.refused.items():
            if re.search(pattern, f"{self.command} {self.path}"):
                self.server.refusals[pattern] += 1
                return self._error(status)
        for pattern, methods, action in _ROUTES:
            if self.command in methods and (match := re.fullmatch(pattern, url.path)):
                return action(self, body, *map(urllib.parse.unquote, match.groups()))
        return self._error(501)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = _run

    def _send(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in ({"Content-Type": "application/json"} | (headers or {})).items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _json(self, value: Any, headers: dict[str, str] | None = None) -> None:
        self._send(200, json.dumps(value).encode(), headers)

    def _error(self, status: int) -> None:
        self._send(
            status, json.dumps({"error": {"code": status, "message": f"error {status}"}}).encode()
        )

    def _resource(self, key: str) -> dict[str, Any]:
        bucket, name = key.split("/", 1)
        data, when = self.server.objects[key], "2020-01-01T00:00:00.000Z"
        return {
            "kind": "storage#object",
            "bucket": bucket,
            "name": name,
            "id": key,
            "size": str(len(data)),
            "generation": str(self.server.generation(key)),
            "metageneration": "1",
            "timeCreated": when,
            "updated": when,
            "storageClass": "STANDARD",
            "contentType": "application/octet-stream",
            "md5Hash": base64.b64encode(hashlib.md5(data).digest()).decode(),
        }

    def _bucket(self, body: bytes, bucket: str) -> None:
        self._json(
            {
                "kind": "storage#bucket",
                "id": bucket,
                "name": bucket,
                "location": "US",
                "locationType": "region",
            }
        )

    def _list(self, body: bytes, bucket: str) -> None:
        prefix, delimiter = self.query.get("prefix", ""), self.query.get("delimiter", "")
        after, size = self.query.get("pageToken", ""), int(self.query.get("maxResults", 1000))
        items: dict[str, Any] = {}
        with self.server.lock:
            for key in sorted(
                key for key in self.server.objects if key.startswith(f"{bucket}/{prefix}")
            ):
                name = key.removeprefix(f"{bucket}/")
                end = name.find(delimiter, len(prefix)) if delimiter else -1
                shown = name if end < 0 else name[: end + len(delimiter)]
                if shown > after and name >= self.query.get("startOffset", ""):
                    items[shown] = self._resource(key) if end < 0 else None  # a prefix
        page = dict(list(items.items())[:size])
        answer = {
            "kind": "storage#objects",
            "items": [resource for resource in page.values() if resource],
            "prefixes": [name for name, resource in page.items() if not resource],
        }
        self._json(answer | ({"nextPageToken": max(page)} if len(page) < len(items) else {}))

    def _get(self, body: bytes, bucket: str, name: str) -> None:
        key = f"{bucket}/{name}"
        with self.server.lock:
            data = self.server.objects.get(key)
            resource = {} if data is None else self._resource(key)
        if (
            data is None
            or self.query.get("generation", resource["generation"]) != resource["generation"]
        ):
            return self._error(404)
        media = self.query.get("alt") == "media" or not self.path.startswith("/storage/v1/")
        if not media:
            return self._json(resource)
        headers = {
            "Content-Type": "application/octet-stream",
            "x-goog-generation": resource["generation"],
            "x-goog-hash": f"md5={resource['md5Hash']}",
        }
        # Forms: bytes=5-9, bytes=5-, bytes=-5 (the last five).
        if not (match := re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))):
            return self._send(200, data, headers)
        first = int(match[1]) if match[1] else max(0, len(data) - int(match[2]))
        last = min(len(data) - 1, int(match[2])) if match[1] and match[2] else len(data) - 1
        if first >= len(data):
            return self._send(416, b"", {"Content-Range": f"bytes */{len(data)}"})
        headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        return self._send(206, data[first : last + 1], headers)

    def _delete(self, body: bytes, bucket: str, name: str) -> None:
        with self.server.lock:
            wanted = self.query.get("ifGenerationMatch")
            if wanted is not None and int(wanted) != self.server.generation(f"{bucket}/{name}"):
                return self._error(412 if f"{bucket}/{name}" in self.server.objects else 404)
            self.server.generations.pop(f"{bucket}/{name}", None)
            if self.server.objects.pop(f"{bucket}/{name}", None) is None:
                return self._error(404)
        return self._send(204, b"")

    def _stored(self, key: str, data: bytes, query: dict[str, str]) -> None:
        if not self.server.put(key, data, query):
            return self._error(412)
        return self._json(self._resource(key))

    def _upload(self, body: bytes, bucket: str) -> None:
        kind = self.query.get("uploadType", "media")
        if kind == "media":
            return self._stored(f"{bucket}/{self.query['name']}", body, self.query)
        if kind == "multipart":
            # Not by the email parser as a whole: it would change the line ends of the data.
            boundary = (
                b"--"
                + re.split(r"boundary=", self.headers["Content-Type"])[1].strip("\"' ").encode()
            )
            _, first, second = body.split(boundary, 2)
            head, meta = re.split(rb"\r?\n\r?\n", first.lstrip(b"\r\n"), maxsplit=1)
            head, data = re.split(rb"\r?\n\r?\n", second.lstrip(b"\r\n"), maxsplit=1)
            data = data[: data.rindex(boundary)]
            # The line end of the boundaries, not that of the data, whose last byte may be \r.
            data = data[: -2 if first.startswith(b"\r\n") else -1]
            return self._stored(f"{bucket}/{json.loads(meta)['name']}", data, self.query)
        if "upload_id" in self.query:
            return self._chunk(body)
        name = self.query.get("name") or json.loads(body)["name"]
        upload = str(next(self.server.numbers))
        self.server.uploads[upload] = (f"{bucket}/{name}", self.query, bytearray())
        place = (
            f"{self.server.url}/upload/storage/v1/b/"
            f"{bucket}/o?uploadType=resumable&upload_id={upload}"
        )
        return self._json({}, {"Location": place})

    def _chunk(self, body: bytes) -> None:
        key, query, data = self.server.uploads[self.query["upload_id"]]
        # Forms: bytes 0-99/*, bytes 100-150/151 (the last), bytes */151 (ends it, or asks how far
        # it is).
        match = re.fullmatch(
            r"bytes (?:\*|(\d+)-\d+)/(\*|\d+)", self.headers.get("Content-Range", "bytes */*")
        )
        assert match
        if match[1]:
            del data[int(match[1]) :]
        data += body
        if match[2].isdigit() and len(data) == int(match[2]):
            del self.server.uploads[self.query["upload_id"]]
            return self._stored(key, bytes(data), query)
        return self._send(308, b"", {"Range": f"bytes=0-{len(data) - 1}"} if data else {})

    def _move(self, body: bytes, bucket: str, name: str, to_name: str) -> None:
        with self.server.lock:
            if (data := self.server.objects.pop(f"{bucket}/{name}", None)) is None:
                return self._error(404)
            self.server.put(f"{bucket}/{to_name}", data, {})
            resource = self._resource(f"{bucket}/{to_name}")
        return self._json(resource)


_ROUTES = (
    (r"/storage/v1/b/([^/]+)/o/([^/]+)/moveTo/o/([^/]+)", ("POST",), _Handler._move),
    (r"/upload/storage/v1/b/([^/]+)/o", ("POST", "PUT"), _Handler._upload),
    (r"/storage/v1/b/([^/]+)/o", ("GET",), _Handler._list),
    (r"/storage/v1/b/([^/]+)", ("GET",), _Handler._bucket),
    (r"(?:/download)?/storage/v1/b/([^/]+)/o/([^/]+)", ("GET", "HEAD"), _Handler._get),
    (r"(?:/download)?/storage/v1/b/([^/]+)/o/([^/]+)", ("DELETE",), _Handler._delete),
    (r"/([^/]+)/(.+)", ("GET", "HEAD"), _Handler._get),  # the XML interface
)
