"""A model hub on this machine: it resolves revisions to commits, lists files, and redirects to
large files.

It implements the paths and headers that `huggingface_hub` uses, so that both that package and tload
can use it.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import urllib.parse
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LARGE = ".safetensors"
"""Names of files behind a redirect, as in Git LFS."""


@dataclass(frozen=True)
class Asked:
    """A request to the hub."""

    method: str
    host: str
    """`"hub"` or `"files"`."""
    path: str
    token: str | None


@dataclass
class Hub:
    """A running hub. All attributes may be changed while it runs."""

    url: str = ""
    files_url: str = ""
    """URL of the server with the large files, on another port."""
    commits: dict[str, dict[str, dict[str, bytes]]] = field(default_factory=dict)
    """Files by repository and commit."""
    revisions: dict[tuple[str, str], str] = field(default_factory=dict)
    """Commit by repository and branch or tag."""
    gated: dict[str, str] = field(default_factory=dict)
    """Token that may read a repository, by repository."""
    asked: list[Asked] = field(default_factory=list)

    def commit(self, repository: str, files: Mapping[str, bytes], revision: str = "main") -> str:
        """Add a commit, move a revision to it, and return its name."""
        digest = hashlib.sha1(usedforsecurity=False)
        for name, content in sorted(files.items()):
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
        commit = digest.hexdigest()
        self.commits.setdefault(repository, {})[commit] = dict(files)
        self.revisions[repository, revision] = commit
        return commit

    def find(self, repository: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        commit = self.revisions.get((repository, revision), revision)
        files = self.commits.get(repository, {}).get(commit)
        return None if files is None else (commit, files)


def _blob_id(content: bytes) -> str:
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content, usedforsecurity=False).hexdigest()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class _Responder(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub
    host: str

    def do_HEAD(self) -> None:
        self._handle()

    def do_GET(self) -> None:
        self._handle()

    def _handle(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        path = urllib.parse.unquote(url.path).removeprefix("/")
        token = self.headers.get("Authorization")
        self.hub.asked.append(Asked(self.command, self.host, path, token))
        if self.host == "files":
            repository, commit, name = self._cut(path)
            found = self.hub.find(repository, commit)
            assert found is not None
            self._send(found[1][name], {"ETag": '"of the cache"'})
        elif path.startswith("api/models/"):
            self._tell(path.removeprefix("api/models/"), urllib.parse.parse_qs(url.query))
        else:
            self._resolve(path)

    @staticmethod
    def _cut(path: str) -> tuple[str, str, str]:
        """Split `org/name/REVISION/file` into three parts."""
        org, name, revision, file = path.split("/", 3)
        return f"{org}/{name}", revision, file

    def _known(self, repository: str, *, reads: bool) -> bool:
        """Return whether the repository may be seen; refuse the request if not."""
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if repository not in self.hub.commits:
            self._refuse(404 if token else 401, "RepoNotFound", "Repository not found")
            return False
        if reads and self.hub.gated.get(repository, token) != token:
            self._refuse(403 if token else 401, "GatedRepo", f"Access to model {repository} is restricted")
            return False
        return True

    def _tell(self, path: str, query: dict[str, list[str]]) -> None:
        repository, what, revision = re.fullmatch(r"([^/]+/[^/]+)/(revision|tree)/(.+)", path).groups()  # type: ignore[union-attr]
        if not self._known(repository, reads=False):
            return
        found = self.hub.find(repository, revision)
        if found is None:
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return
        commit, files = found
        if what == "tree":
            self._send_json([self._tree_entry(name, content) for name, content in files.items()])
            return
        siblings: list[dict[str, object]] = [{"rfilename": name} for name in files]
        if "blobs" in query:
            for sibling, (name, content) in zip(siblings, files.items(), strict=True):
                sibling |= {"size": len(content), "blobId": _blob_id(content)}
                if name.endswith(LARGE):
                    sibling["lfs"] = {"sha256": _sha256(content), "size": len(content), "pointerSize": 134}
        modified = "2026-01-01T00:00:00.000Z"
        self._send_json(
            {"id": repository, "modelId": repository, "sha": commit, "lastModified": modified, "siblings": siblings}
        )

    @staticmethod
    def _tree_entry(name: str, content: bytes) -> dict[str, object]:
        entry: dict[str, object] = {"type": "file", "path": name, "size": len(content), "oid": _blob_id(content)}
        if name.endswith(LARGE):
            entry["lfs"] = {"oid": _sha256(content), "size": len(content), "pointerSize": 134}
        return entry

    def _resolve(self, path: str) -> None:
        repository, _, rest = path.partition("/resolve/")
        if not self._known(repository, reads=True):
            return
        revision, _, name = rest.partition("/")
        found = self.hub.find(repository, revision)
        if found is None or name not in found[1]:
            code = "RevisionNotFound" if found is None else "EntryNotFound"
            self._refuse(404, code, code)
            return
        commit, files = found
        content = files[name]
        if name.endswith(LARGE):
            place = f"{self.hub.files_url}/{repository}/{commit}/{urllib.parse.quote(name)}?Signature=hunter2"
            headers = {"Location": place, "X-Linked-Size": str(len(content)), "X-Linked-ETag": f'"{_sha256(content)}"'}
            self._send(b"", headers | {"X-Repo-Commit": commit}, status=302)
        else:
            self._send(content, {"X-Repo-Commit": commit, "ETag": f'"{_blob_id(content)}"'})

    def _refuse(self, status: int, code: str, message: str) -> None:
        body = json.dumps({"error": message}).encode()
        self._send(body, {"X-Error-Code": code, "X-Error-Message": message}, status=status)

    def _send_json(self, told: object) -> None:
        self._send(json.dumps(told).encode(), {"Content-Type": "application/json"})

    def _send(self, content: bytes, headers: dict[str, str], status: int = 200) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")) if status == 200 else None
        start, end = 0, len(content)
        if asked:
            start, end = int(asked[1]), min(int(asked[2] or end) + 1, end)
            if start >= end:
                status, start, end = 416, 0, 0
            else:
                status = 206
                headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(content)}"
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(end - start)}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[start:end])

    def log_message(self, format: str, *arguments: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that disconnect during a response."""


@contextmanager
def hub() -> Iterator[Hub]:
    """Start a hub without repositories, and the server of its large files."""
    started = Hub()
    with ExitStack() as stack:

        def start(host: str) -> str:
            responder = type("Responder", (_Responder,), {"hub": started, "host": host})
            server = stack.enter_context(_Server(("127.0.0.1", 0), responder))
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            return f"http://127.0.0.1:{server.server_address[1]}"

        started.files_url = start("files")
        started.url = start("hub")
        yield started
