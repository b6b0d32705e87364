"""Emulators of clouds for the pages about them: fake-gcs-server and Azurite, each with a folder as
objects."""

from __future__ import annotations

import base64
import datetime as dt
import hmac
import http.client
import json
import subprocess
import time
import urllib.parse
from contextlib import contextmanager
from typing import TYPE_CHECKING

import servers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

AZURITE = servers.ROOT / ".tools" / "azurite" / "node_modules" / ".bin" / "azurite-blob"

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account that every emulator of Azure has, and its key."""


@contextmanager
def gcs(program: str, folder: Path, bucket: str, files: dict[str, bytes]) -> Iterator[dict[str, str]]:
    """Serve files as objects of a bucket, and yield the variables for access to it."""
    port = servers.unused_port()
    settings = ["-scheme", "http", "-host", "127.0.0.1", "-backend", "memory", "-public-host", "127.0.0.1"]
    settings += ["-port", str(port), "-external-url", f"http://127.0.0.1:{port}", "-log-level", "warn"]
    with _running([program, *settings], folder, port):
        _send(
            port, "POST", "/storage/v1/b", {"content-type": "application/json"}, json.dumps({"name": bucket}).encode()
        )
        for key, body in files.items():
            target = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={urllib.parse.quote(key, safe='')}"
            _send(port, "POST", target, {"content-type": "application/octet-stream"}, body)
        yield {"STORAGE_EMULATOR_HOST": f"127.0.0.1:{port}"}


@contextmanager
def azure(program: str, folder: Path, container: str, files: dict[str, bytes]) -> Iterator[dict[str, str]]:
    """Serve files as blobs of a container, and yield the variables for access to it."""
    port = servers.unused_port()
    settings = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--silent", "--skipApiVersionCheck"]
    with _running([program, *settings, "--disableTelemetry", "--location", str(folder)], folder, port):
        _put_blob(port, f"/{container}", {"restype": "container"}, {}, b"")
        for key, body in files.items():
            _put_blob(port, f"/{container}/{key}", {}, {"x-ms-blob-type": "BlockBlob"}, body)
        yield {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
            "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{port}/{ACCOUNT}",
        }


@contextmanager
def _running(command: list[str], folder: Path, port: int) -> Iterator[None]:
    """Run a server in an empty folder until the block ends. The block begins when it responds."""
    folder.mkdir()
    log = folder / "log"
    with log.open("wb") as output, subprocess.Popen(command, cwd=folder, stdout=output, stderr=output) as process:
        try:
            deadline = time.monotonic() + servers.PATIENCE
            while not servers.answers(port):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.02)
            yield
        finally:
            process.kill()


def _send(port: int, method: str, target: str, headers: dict[str, str], body: bytes) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=servers.PATIENCE)
    try:
        connection.request(method, target, body, headers)
        answer = connection.getresponse()
        text = answer.read()
        assert answer.status < 300, (answer.status, text)
    finally:
        connection.close()


def _put_blob(port: int, path: str, query: dict[str, str], headers: dict[str, str], body: bytes) -> None:
    """Send a request with a signature by the account's key, for paths that need no escapes."""
    now = dt.datetime.now(dt.UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    named = {"x-ms-date": now, "x-ms-version": "2021-08-06", **headers}
    kind = "application/octet-stream"
    lines = ["PUT", "", "", str(len(body)) if body else "", "", kind, "", "", "", "", "", ""]
    lines += [f"{name}:{value}" for name, value in sorted(named.items())]
    resource = [f"/{ACCOUNT}/{ACCOUNT}{path}", *(f"{name}:{value}" for name, value in sorted(query.items()))]
    digest = hmac.digest(base64.b64decode(KEY), "\n".join([*lines, *resource]).encode(), "sha256")
    signed = {"content-type": kind, "authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"}
    target = f"/{ACCOUNT}{path}" + (f"?{urllib.parse.urlencode(query)}" if query else "")
    _send(port, "PUT", target, {**named, **signed}, body)
