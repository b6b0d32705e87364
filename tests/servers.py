"""Servers to load from: versitygw, which implements S3 and checks signatures, and a web server that
can stall."""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import http.client
import os
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parent.parent
REGION = "us-east-1"

PATIENCE = 60.0
"""Seconds until a missing event is a failure: far more than a busy machine needs."""


def find(program: str) -> str | None:
    """Return the path of a program in this repository, or of the system's."""
    return shutil.which(str(ROOT / ".tools" / "bin" / program)) or shutil.which(program)


def unused_port() -> int:
    """Return a port on which no server listens."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port


@dataclass(frozen=True)
class S3:
    """A running server with path-style addresses."""

    port: int
    buckets: Path
    access_key_id: str = "tests"
    secret_access_key: str = "hunter2-hunter2"

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def store(self) -> dict[str, str]:
        """Return the value for `store=`."""
        return {
            "endpoint": self.endpoint,
            "region": REGION,
            "access_key_id": self.access_key_id,
            "secret_access_key": self.secret_access_key,
        }

    def put(self, bucket: str, key: str, body: bytes) -> str:
        """Store an object and return its URL."""
        (self.buckets / bucket).mkdir(exist_ok=True)
        self._request("PUT", f"/{bucket}/{key}", {}, body)
        return f"s3://{bucket}/{key}"

    def put_folder(self, bucket: str, prefix: str, folder: Path) -> str:
        """Store the files of a folder as objects, and return the URL of their prefix."""
        for path in folder.iterdir():
            self.put(bucket, f"{prefix}/{path.name}", path.read_bytes())
        return f"s3://{bucket}/{prefix}"

    def make_public(self, bucket: str) -> None:
        """Make the objects of a bucket public."""
        policy = (
            '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": "*", '
            f'"Action": ["s3:GetObject"], "Resource": ["arn:aws:s3:::{bucket}/*"]}}]}}'
        )
        self._request("PUT", f"/{bucket}", {"policy": ""}, policy.encode())

    def _request(self, method: str, path: str, query: dict[str, str], body: bytes) -> None:
        headers = self._signed(method, path, query, body)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method, f"{path}?{urllib.parse.urlencode(query)}", body, headers)
            answer = connection.getresponse()
            text = answer.read()
            assert answer.status < 300, (answer.status, text)
        finally:
            connection.close()

    def _signed(self, method: str, path: str, query: dict[str, str], body: bytes) -> dict[str, str]:
        """Compute signature version 4, for paths that need no escapes."""
        moment = dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%SZ")
        scope = f"{moment[:8]}/{REGION}/s3/aws4_request"
        digest = hashlib.sha256(body).hexdigest()
        headers = {"host": f"127.0.0.1:{self.port}", "x-amz-content-sha256": digest, "x-amz-date": moment}
        names = ";".join(headers)
        lines = [f"{name}:{value}" for name, value in headers.items()]
        request = "\n".join([method, path, urllib.parse.urlencode(query), *lines, "", names, digest])
        key = f"AWS4{self.secret_access_key}".encode()
        for word in scope.split("/"):
            key = hmac.digest(key, word.encode(), "sha256")
        text = "\n".join(["AWS4-HMAC-SHA256", moment, scope, hashlib.sha256(request.encode()).hexdigest()])
        signature = hmac.digest(key, text.encode(), "sha256").hex()
        headers["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={self.access_key_id}/{scope}, SignedHeaders={names}, Signature={signature}"
        )
        return headers


@contextmanager
def versitygw(program: str, folder: Path) -> Iterator[S3]:
    """Start versitygw in an empty folder, and wait until it responds."""
    buckets, metadata = folder / "buckets", folder / "metadata"
    buckets.mkdir()
    metadata.mkdir()
    server = S3(unused_port(), buckets)
    keys = {"ROOT_ACCESS_KEY": server.access_key_id, "ROOT_SECRET_KEY": server.secret_access_key}
    # Metadata is kept beside the files: not every file system has extended attributes.
    settings = ["--region", REGION, "--port", f"127.0.0.1:{server.port}", "posix", "--sidecar", str(metadata)]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(
            [program, *settings, str(buckets)], env=os.environ | keys, cwd=folder, stdout=log, stderr=log
        ) as process,
    ):
        try:
            deadline = time.monotonic() + PATIENCE
            while not answers(server.port):
                told = (folder / "log").read_text()
                assert process.poll() is None, told
                assert time.monotonic() < deadline, told
                time.sleep(0.02)
            yield server
        finally:
            process.kill()


def answers(port: int) -> bool:
    """Return whether a web server responds on a port."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", "/")
        connection.getresponse().read()
    except OSError:
        return False
    finally:
        connection.close()
    return True


@dataclass(frozen=True)
class Request:
    """A request to the server."""

    method: str
    path: str
    headers: dict[str, str]


@dataclass
class Web:
    """A running web server. It serves `files` under `/NAME`, or, as an S3 server, as objects of the
    bucket."""

    port: int = 0
    files: dict[str, bytes] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    stall_from: int | None = None
    """Responses send no bytes from here on: they stall. `None`: no response does."""
    refuses: Callable[[], bool] = bool
    """Called for each request: whether it is answered with status 503. Default: none is."""
    stalled: set[str] = field(default_factory=set)
    """Paths with a stalled request."""
    changed: threading.Condition = field(default_factory=threading.Condition)
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def bytes_requested(self, folder: str = "") -> int:
        """Return the number of bytes in all ranges that do not begin at 0, as those of headers do."""
        asked = [request for request in self.requests if request.path.startswith(f"/{folder}")]
        ranges = (re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("range", "")) for request in asked)
        return sum(int(found[2]) + 1 - int(found[1]) for found in ranges if found and int(found[1]) > 0)

    def openings(self) -> list[str]:
        """Return the names of the files whose beginning was requested, once for each request.

        An opening requests more than one byte. Loads that end request the first byte of an index,
        to see whether it has changed.
        """
        ranges = ((request.path[1:], request.headers.get("range", "")) for request in self.requests)
        return sorted(name for name, range in ranges if range.startswith("bytes=0-") and range != "bytes=0-0")

    def wait_until_stalled(self, path: str) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: path in self.stalled, PATIENCE), f"no request waits for {path}"


@contextmanager
def web() -> Iterator[Web]:
    """Start a web server."""
    served = Web()

    class Responder(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(b"")

        def do_GET(self) -> None:
            self._answer(None)

        def _answer(self, body: bytes | None) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            served.requests.append(Request(self.command, self.path, headers))
            content = served.files.get(urllib.parse.unquote(self.path.partition("?")[0]).removeprefix("/"))
            if content is None or served.refuses():
                self.send_response(404 if content is None else 503)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            start, end = 0, len(content)
            asked = re.fullmatch(r"bytes=(\d+)-(\d*)", headers.get("range", ""))
            if asked:
                start, end = int(asked[1]), min(int(asked[2] or end) + 1, end)
            self.send_response(206 if asked else 200)
            if asked:
                self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(content)}")
            self.send_header("Content-Length", str(end - start))
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()[:16]}"')
            self.send_header("Last-Modified", "Fri, 20 Nov 2026 12:00:00 GMT")
            self.end_headers()
            sent = content[start:end] if body is None else body
            if served.stall_from is not None and end > served.stall_from:
                self.wfile.write(sent[: max(served.stall_from - start, 0)])
                self.wfile.flush()
                with served.changed:
                    served.stalled.add(self.path)
                    served.changed.notify_all()
                served.ended.wait()
                self.close_connection = True
                return
            self.wfile.write(sent)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, request: object, client_address: object) -> None:
            """Some tests are about clients that disconnect."""

    with Server(("127.0.0.1", 0), Responder) as server:
        served.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield served
        finally:
            served.ended.set()
            server.shutdown()
            thread.join()
