"""The hub of Hugging Face in memory, on the loopback: what huggingface_hub asks of it, and refuses.

    with fake_hub.serve() as server:
        server.repositories["datasets/me/data"] = {"a.txt": b"..."}
        subprocess.run(..., env=os.environ | server.environment())

A repository appears with its `.gitattributes`. Without a token, a private or missing repository is
401, as on the hub; with a token a missing one is 404. Only `me` may be written to.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.server
import json
import os
import re
import socket
import threading
import unittest.mock
import urllib.parse
from collections.abc import Iterator
from typing import Any

import yaml

TOKEN = "hf_" + "a" * 34
_TEMPLATE = "/{repo_id}/resolve/{revision}/{filename}"


class Server(http.server.ThreadingHTTPServer):
    """The server and what it holds.

    Attributes:
      repositories: files by path of each repository, by "me/model" or "datasets/me/data".
      down: while True, connections are closed without an answer.
      refused: HTTP status of every request whose method, space and path match a pattern.
      cut: answers with the content of a file that are still to end in the middle.
      commits: number of commits.
    """

    kind = "hf"
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.large: dict[str, bytes] = {}
        self.down = False
        self.refused: dict[str, int] = {}
        self.cut = self.commits = 0
        self.requests: list[tuple[str, str]] = []

    def environment(self, token: str | None = TOKEN) -> dict[str, str]:
        """Environment variables with which a process takes this server for the hub."""
        return {
            "HF_ENDPOINT": self.url,
            # The protocol of hf_xet is not served here; without it the hub takes Git LFS.
            "HF_HUB_DISABLE_XET": "1",
            "HF_TOKEN_PATH": os.devnull,
            "HF_TOKEN": token or "",
        }

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up in the middle of an answer is nothing to report."""


@contextlib.contextmanager
def serve(token: str | None = TOKEN) -> Iterator[Server]:
    """Runs a server, and has huggingface_hub of this process use it, with short waits."""
    from huggingface_hub import HfFileSystem, constants, hf_api
    from huggingface_hub.utils import _http

    server = Server()
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    patch = unittest.mock.patch.object
    try:
        with (
            unittest.mock.patch.dict(os.environ, server.environment(token)),
            patch(constants, "ENDPOINT", server.url),
            patch(constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + _TEMPLATE),
            patch(constants, "HF_HUB_DISABLE_XET", True),
            patch(constants, "HF_TOKEN_PATH", os.devnull),
            patch(hf_api.api, "endpoint", server.url),
            patch(_http.time, "sleep", lambda seconds: None),
        ):
            HfFileSystem.clear_instance_cache()
            yield server
    finally:
        HfFileSystem.clear_instance_cache()
        server.shutdown()
        server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _run(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        self.server.requests.append((self.command, path))
        if self.server.down:
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
            return None
        for pattern, status in self.server.refused.items():
            if re.search(pattern, f"{self.command} {path}"):
                return self._error(status, f"error {status}")
        for pattern, methods, action in _ROUTES:
            if self.command in methods and (match := re.fullmatch(pattern, path)):
                return action(self, body, **match.groupdict(""))
        return self._error(501, "unknown")

    do_GET = do_HEAD = do_POST = do_PUT = _run

    def _send(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(data))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _json(self, value: Any, status: int = 200) -> None:
        self._send(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _error(self, status: int, message: str, code: str = "") -> None:
        headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
        self._send(status, json.dumps({"error": message}).encode(), headers)

    def _allowed(self, owner: str = "me") -> bool:
        """Whether the token may write to the owner's repositories; otherwise answers."""
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._error(401, "Invalid username or password.")
        elif owner != "me":
            self._error(403, "You don't have the rights to create a model under this namespace")
        else:
            return True
        return False

    def _files(self, kind: str, repo: str) -> dict[str, bytes] | None:
        """The files of a repository; otherwise answers as for one that is missing or private."""
        name = repo if kind.startswith("model") or not kind else f"datasets/{repo}"
        found = self.server.repositories.get(name)
        if found is None:
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                self._error(401, "Invalid username or password.", "")
            else:
                self._error(404, "Repository not found", "RepoNotFound")
        return found

    def _info(self, body: bytes, kind: str, repo: str, revision: str) -> None:
        if (files := self._files(kind, repo)) is None:
            return None
        if revision not in ("", "main"):
            return self._error(404, "Invalid rev id", "RevisionNotFound")
        siblings = [{"rfilename": name} for name in files]
        return self._json({"id": repo, "_id": "0", "sha": "c" * 40, "siblings": siblings})

    def _entries(self, files: dict[str, bytes], below: str, deep: bool) -> list[dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for name, data in sorted(files.items()):
            if not name.startswith(below):
                continue
            parts = name.removeprefix(below).split("/")
            for end in range(1, len(parts) if deep else min(2, len(parts))):
                folder = below + "/".join(parts[:end])
                found[folder] = {"type": "directory", "path": folder, "size": 0, "oid": "d" * 40}
            if deep or len(parts) == 1:
                oid = hashlib.sha1(data).hexdigest()
                found[name] = {"type": "file", "path": name, "size": len(data), "oid": oid}
        return list(found.values())

    def _tree(self, body: bytes, kind: str, repo: str, path: str) -> None:
        if (files := self._files(kind, repo)) is None:
            return None
        below = path.strip("/") + "/" if path.strip("/") else ""
        found = self._entries(files, below, "recursive=true" in self.path.lower())
        if below and not found:
            return self._error(404, f"{path} does not exist on main", "EntryNotFound")
        return self._json(found)

    def _paths_info(self, body: bytes, kind: str, repo: str) -> None:
        if (files := self._files(kind, repo)) is None:
            return None
        if self.headers.get("Content-Type", "").startswith("application/json"):
            wanted = json.loads(body)["paths"]
        else:
            wanted = urllib.parse.parse_qs(body.decode())["paths"]
        entries = {entry["path"]: entry for entry in self._entries(files, "", deep=True)}
        return self._json([entries[name] for name in wanted if name in entries])

    def _content(self, body: bytes, kind: str, repo: str, path: str) -> None:
        if (files := self._files(kind, repo)) is None:
            return None
        if path not in files:
            return self._error(404, "Entry not found", "EntryNotFound")
        data, status, headers = (
            files[path],
            200,
            {"ETag": f'"{hashlib.sha1(files[path]).hexdigest()}"'},
        )
        if match := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            first, last = int(match[1]), int(match[2] or len(data) - 1)
            headers["Content-Range"] = f"bytes {first}-{min(last, len(data) - 1)}/{len(data)}"
            data, status = data[first : last + 1], 206
        headers |= {"X-Repo-Commit": "c" * 40, "Accept-Ranges": "bytes"}
        if self.server.cut and self.command == "GET":
            self.server.cut -= 1
            self.close_connection = True
            headers["Content-Length"] = str(len(data))
            data = data[: len(data) // 2]
        return self._send(status, data, headers)

    def _create(self, body: bytes) -> None:
        asked = json.loads(body)
        owner = asked.get("organization") or "me"
        if not self._allowed(owner):
            return None
        repo = f"{owner}/{asked['name']}"
        if repo in self.server.repositories:
            message = f"You already created this model repo: {repo}"
            url = f"{self.server.url}/{repo}"
            return self._json({"error": message, "url": url}, 409)
        self.server.repositories[repo] = {".gitattributes": b"*.safetensors filter=lfs\n"}
        return self._json({"url": f"{self.server.url}/{repo}", "name": repo, "id": repo})

    def _validate(self, body: bytes) -> None:
        """Refuses a card whose head is not YAML."""
        parts = json.loads(body)["content"].split("---\n")
        try:
            yaml.safe_load(parts[1] if len(parts) > 2 else "")
        except yaml.YAMLError as error:
            return self._json({"errors": [{"message": str(error)}], "warnings": []}, 400)
        return self._json({"errors": [], "warnings": []})

    def _preupload(self, body: bytes, repo: str) -> None:
        if not self._allowed(repo.split("/")[0]):
            return None
        files = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                "shouldIgnore": False,
                "oid": None,
            }
            for file in json.loads(body)["files"]
        ]
        return self._json({"files": files})

    def _batch(self, body: bytes, repo: str) -> None:
        if not self._allowed(repo.split("/")[0]):
            return None
        objects = json.loads(body)["objects"]
        for each in objects:
            if each["oid"] not in self.server.large:
                each["actions"] = {"upload": {"href": f"{self.server.url}/lfs/{each['oid']}"}}
        return self._json({"transfer": "basic", "objects": objects})

    def _store(self, body: bytes, oid: str) -> None:
        if hashlib.sha256(body).hexdigest() != oid:
            return self._error(400, "the content has another sha256")
        self.server.large[oid] = body
        return self._send(200, b"")

    def _commit(self, body: bytes, repo: str) -> None:
        if not self._allowed(repo.split("/")[0]) or (files := self._files("", repo)) is None:
            return None
        new: dict[str, bytes] = {}
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                new[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                if value["oid"] not in self.server.large:
                    return self._error(400, "LFS pointer pointed to a file that does not exist")
                new[value["path"]] = self.server.large[value["oid"]]
        files |= new
        self.server.repositories[repo] = files
        self.server.commits += 1
        url = f"{self.server.url}/{repo}/commit/{'c' * 40}"
        return self._json({"success": True, "commitOid": "c" * 40, "commitUrl": url})


_API = r"/api/(?P<kind>models|datasets)/(?P<repo>[^/]+/[^/]+)"
_ROUTES = (
    (_API + r"(?:/revision/(?P<revision>.+))?", ("GET",), _Handler._info),
    (_API + r"/tree/main(?P<path>/.*)?", ("GET",), _Handler._tree),
    (_API + r"/paths-info/main", ("POST",), _Handler._paths_info),
    (
        r"/(?P<kind>datasets/)?(?P<repo>[^/]+/[^/]+)/resolve/main/(?P<path>.+)",
        ("GET", "HEAD"),
        _Handler._content,
    ),
    (r"/api/repos/create", ("POST",), _Handler._create),
    (r"/api/validate-yaml", ("POST",), _Handler._validate),
    (r"/api/models/(?P<repo>[^/]+/[^/]+)/preupload/main", ("POST",), _Handler._preupload),
    (r"/(?P<repo>[^/]+/[^/]+)\.git/info/lfs/objects/batch", ("POST",), _Handler._batch),
    (r"/lfs/(?P<oid>\w+)", ("PUT",), _Handler._store),
    (r"/api/models/(?P<repo>[^/]+/[^/]+)/commit/main", ("POST",), _Handler._commit),
)
