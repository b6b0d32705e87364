"""Encrypted files of Tensorizer, as the package wrote them, loaded with their keys: the tensors are those it reads."""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import tload
from ranks import start_ranks

if TYPE_CHECKING:
    from typing import Any

    import torch

    from tload.typing import Key

WRITTEN = Path(__file__).parent.parent / "crates/tensorizer/tests/files"
RAW = bytes(range(32))


def expected(name: str) -> dict[str, str]:
    """Return the SHA-256 of each tensor of a file that has bytes in it, according to the package."""
    rows = (line.split("\t") for line in (WRITTEN / "tensors.txt").read_text().splitlines())
    return {row[1]: row[4] for row in rows if row[0] == name and row[1] != "meta"}


def written(folder: Path, name: str) -> Path:
    """Write a file of the package, which is recorded as its length and the bytes that are not zero."""
    lines = [line.split(" ") for line in (WRITTEN / f"{name}.txt").read_text().splitlines()]
    raw = bytearray(int(lines[0][1]))
    for place, row in lines[1:]:
        raw[int(place) : int(place) + len(row) // 2] = bytes.fromhex(row)
    path = folder / f"{name}.tensors"
    path.write_bytes(raw)
    return path


def digest(tensor: torch.Tensor) -> str:
    """Return the SHA-256 of the bytes of a tensor."""
    import torch

    flat = tensor.contiguous().reshape(-1)
    return hashlib.sha256(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"").hexdigest()


def load(source: Any, **keywords: Any) -> dict[str, str]:
    """Load everything, and return the digests."""
    return {name: digest(tensor) for name, tensor in tload.load(source, **keywords).items()}


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    line = [sys.executable, "-m", "tload", *(os.fspath(argument) for argument in arguments)]
    return subprocess.run(line, capture_output=True, text=True, check=False)


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """A file with the bytes of the key."""
    path = tmp_path / "raw.key"
    path.write_bytes(RAW)
    return path


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("v3", RAW),
        ("v3", RAW.hex()),
        ("v3", lambda: RAW),
        ("v4_encrypted", RAW.hex().upper() + "\n"),
        ("v3_passphrase", "correct horse"),
        ("v3_passphrase", b"correct horse"),
    ],
    ids=["bytes", "digits", "function", "capitals", "passphrase", "passphrase in bytes"],
)
def test_every_form_of_a_key_loads_what_the_package_reads(name: str, key: Key, tmp_path: Path) -> None:
    path = written(tmp_path, name)
    assert load(path, key=key) == expected(name)
    for verify in ("auto", "require", "sha256"):
        assert load(path, key=key, verify=verify) == expected(name)
    with tload.open(path, key=key) as checkpoint:
        assert checkpoint.is_sealed
        assert {own: digest(checkpoint.read(own)) for own in checkpoint} == expected(name)


def test_keys_that_are_not_text_are_hexadecimal_digits(tmp_path: Path) -> None:
    # Some bytes of most keys are no UTF-8.
    path = written(tmp_path, "v3")
    with pytest.raises(tload.PermissionDeniedError, match="wrong key: it opens none"):
        tload.open(path, key=b"\xff" * 32)
    with pytest.raises(tload.PermissionDeniedError, match="found 62 bytes, wanted 32"):
        tload.open(path, key=b"\xff" * 31)


def test_keys_of_files_and_variables(raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, "v3")
    assert load(path, key=raw) == expected("v3")
    ran = command("load", path, "--key-file", raw, "--verify=sha256")
    assert ran.returncode == 0, ran.stderr
    ran = command("verify", path, "--key-command", f"cat '{raw}'")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for name, value in (("TLOAD_KEY", RAW.hex()), ("TLOAD_KEY_FILE", os.fspath(raw))):
        with monkeypatch.context() as patched:
            patched.setenv(name, value)
            assert load(path) == expected("v3")
            assert command("ls", path).returncode == 0


def test_missing_wrong_and_useless_keys(raw: Path, tmp_path: Path) -> None:
    path, derived, plain = (written(tmp_path, name) for name in ("v3", "v3_passphrase", "v1"))
    for call in (tload.open, tload.load, tload.verify):
        with pytest.raises(tload.PermissionDeniedError, match="missing key"):
            call(path)
    for source, key in ((path, bytes(32)), (path, "horse"), (derived, "another horse"), (derived, RAW)):
        with pytest.raises(tload.PermissionDeniedError, match="wrong key") as caught:
            tload.open(source, key=key)
        assert "horse" not in str(caught.value)
    with pytest.raises(tload.InvalidRequestError, match="is not encrypted"):
        tload.open(plain, key=raw)
    ran = command("load", path)
    assert ran.returncode == 5
    assert "missing key" in ran.stderr


def test_damage_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, "v3")
    good = path.read_bytes()
    damaged = bytearray(good)
    damaged[-9] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(tload.CorruptError, match="box 0 of 1 does not match") as caught:
        tload.load(path, key=RAW)
    assert caught.value.tensor is not None
    path.write_bytes(good[:-40])
    with pytest.raises(tload.FormatError):
        tload.load(path, key=RAW)


def test_destinations_of_the_caller(tmp_path: Path) -> None:
    path = written(tmp_path, "v4_encrypted")
    with tload.open(path, key=RAW) as checkpoint:
        dtypes = {"F32": np.float32, "F64": np.float64}
        targets = {name: np.zeros(info.shape, dtypes[info.dtype]) for name, info in checkpoint.items()}
    tload.load_into(targets, path, key=RAW)
    found = {name: hashlib.sha256(target.tobytes()).hexdigest() for name, target in targets.items()}
    assert found == expected("v4_encrypted")


def load_as_rank(rank: int, path: Path, share: Any, target: Path) -> None:
    """Load as one of several ranks, and write digests."""
    digests = load(path, key=RAW, group=tload.Group.torch(), share=share)
    (target / f"{rank}.json").write_text(json.dumps(digests))


@pytest.mark.parametrize("share", ["node", "cluster", "none"])
def test_ranks_load_together(share: str, tmp_path: Path) -> None:
    start_ranks(2, load_as_rank, written(tmp_path, "v3"), share, tmp_path)
    answers = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert answers == [expected("v3")] * 2


def test_served_files_stay_encrypted_on_the_way_and_in_the_cache(tmp_path: Path) -> None:
    served = tmp_path / "served"
    served.mkdir()
    path = written(served, "v3")
    line = [sys.executable, "-m", "tload", "serve", os.fspath(served), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            assert server.stdout is not None
            lines = (re.findall(r"http://127\S+?(?=[/,;\s]|$)", text) for text in server.stdout)
            url = next(found[0] for found in lines if found) + f"/{path.name}"
            store = {"cache_dir": os.fspath(tmp_path / "cache"), "cache_wait": "true"}
            for _ in range(2):
                assert load(url, key=RAW, store=store, verify="sha256") == expected("v3")
            with pytest.raises(tload.PermissionDeniedError, match="missing key"):
                tload.open(url)
        finally:
            server.terminate()


def entry(name: str, header: int, start: int, length: int) -> bytes:
    """Return the entry of a tensor of eight floats, whose bytes are in no box."""
    raw = name.encode()
    numbers = struct.pack("<BIQQQ", 1, 8, header, start, length)
    return struct.pack("<H", len(raw)) + raw + b"\0" + b"\x03<f4" + numbers


def forged(length: int) -> bytes:
    """Return an encrypted file of version 4 whose last entry is beyond the bytes that are read first.

    With a length, that tensor is plain.
    """
    names = [*(str(index) * 60_000 for index in range(5)), "w"]
    size = sum(len(entry(name, 0, 0, 0)) for name in names)
    end = 73 + size
    entries = [entry(name, end + 64 * index, end + 64 * index + 40, 0) for index, name in enumerate(names[:-1])]
    last = end + 64 * (len(names) - 1)
    entries.append(entry("w", last, last + 40, length))
    start = b"|TZR|" + struct.pack("<I", 4) + bytes([1]) + bytes(47) + struct.pack("<QQ", len(names), size)
    whole = start + b"".join(entries)
    return whole + bytes(last + 40 - len(whole)) + np.full(8, 666, np.float32).tobytes()


def test_index_is_read_once() -> None:
    """A server may answer two reads of an index differently: the key is tried with what is loaded."""
    answers = [forged(0), forged(32)]
    tails: list[int] = []

    class Responder(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"])
            assert asked
            first, last = int(asked[1]), min(int(asked[2]) + 1, len(answers[0]))
            if first:
                tails.append(first)
            body = answers[len(tails) > 1][first:last]
            self.send_response(206)
            self.send_header("ETag", '"one"')
            self.send_header("Content-Range", f"bytes {first}-{last - 1}/{len(answers[0])}")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Responder) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/model.tensors"
        assert "w" not in tload.load(url, key="correct horse battery", framework="numpy")
        server.shutdown()
    assert len(tails) == 1
