"""S3 in memory, on the loopback: moto, which can also be made to fail.

    with fake_s3.serve() as server:
        server.objects                          # {"bucket/a": b"..."}
        subprocess.run(..., env=os.environ | server.environment())

The bucket `bucket` exists, and starts empty.
"""

from __future__ import annotations

import contextlib
import http.client
import logging
import os
import socket
import threading
import unittest.mock
from collections.abc import Iterable, Iterator
from typing import Any


class Server:
    """The server.

    Attributes:
      down: while True, connections are closed without an answer.
      cut: answers to read an object that are still to end in the middle.
      requests: method and path of every request so far.
    """

    kind = "s3"

    def __init__(self) -> None:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        self._app = DomainDispatcherApplication(create_backend_app)
        self.down = False
        self.cut = 0
        self.requests: list[tuple[str, str]] = []
        self.failures: list[int] = []
        self.http = make_server("127.0.0.1", 0, self, threaded=True)
        self.url = f"http://127.0.0.1:{self.http.port}"

    def environment(self) -> dict[str, str]:
        """Environment variables with which a process takes this server for Amazon's."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "id",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            # No look for credentials on this machine or its network.
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_MAX_ATTEMPTS": "1",  # s3fs retries, too
        }

    def fail_next(self, count: int, status: int) -> None:
        """Answers the next `count` requests with an error."""
        self.failures += [status] * count

    @property
    def objects(self) -> dict[str, bytes]:
        """The bytes of all objects by "bucket/name"."""
        keys = self._bucket.keys
        return {f"bucket/{name}": bytes(keys[name].value) for name in list(keys)}

    @property
    def _bucket(self) -> Any:
        from moto.s3.models import s3_backends

        return s3_backends["123456789012"]["aws"].buckets["bucket"]

    def __call__(self, request: dict[str, Any], start: Any) -> Iterable[bytes]:
        self.requests.append((request["REQUEST_METHOD"], request["PATH_INFO"]))
        connection = request["werkzeug.socket"]
        if self.down:
            start("200 OK", [])
            connection.shutdown(socket.SHUT_RDWR)
            return []
        if self.failures:
            status = self.failures.pop(0)
            slow = status in (429, 503)  # the name in Amazon's answers
            name = "SlowDown" if slow else http.client.responses[status].replace(" ", "")
            body = f"<Error><Code>{name}</Code><Message>error {status}</Message></Error>".encode()
            start(f"{status} {name}", [("Content-Length", str(len(body)))])
            return [] if request["REQUEST_METHOD"] == "HEAD" else [body]
        answer = self._app(request, start)
        if self.cut and request["REQUEST_METHOD"] == "GET" and request["PATH_INFO"].count("/") > 1:
            self.cut -= 1
            return _half(answer, connection)
        return answer


def _half(answer: Iterable[bytes], connection: socket.socket) -> Iterator[bytes]:
    whole = b"".join(answer)
    yield whole[: len(whole) // 2]
    connection.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def serve() -> Iterator[Server]:
    """Runs a server, and has s3fs of this process use it."""
    import s3fs
    from moto.s3.models import s3_backends

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = Server()
    threading.Thread(target=server.http.serve_forever, args=(0.02,), daemon=True).start()
    s3_backends["123456789012"]["aws"].reset()
    with (
        unittest.mock.patch.dict(os.environ, server.environment()),
        unittest.mock.patch.object(s3fs.S3FileSystem, "retries", 3),
    ):
        s3fs.S3FileSystem.clear_instance_cache()
        s3fs.S3FileSystem().mkdir("bucket")
        server.requests.clear()
        try:
            yield server
        finally:
            s3fs.S3FileSystem.clear_instance_cache()
            server.http.shutdown()
            server.http.server_close()
