"""Every kind of error of the core is an exception that a Python programmer expects."""

from __future__ import annotations

import copy
import errno
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tload
from conftest import require_root
from files import Content, write_file
from tload import _errors, _tload

Floats = tuple[Path, dict[str, Content]]

EXPECTED: dict[str, tuple[type[tload.Error], type[Exception]]] = {
    "not_found": (tload.NotFoundError, FileNotFoundError),
    "permission_denied": (tload.PermissionDeniedError, PermissionError),
    "invalid_format": (tload.FormatError, ValueError),
    "corrupt": (tload.CorruptError, ValueError),
    "no_such_tensor": (tload.NoSuchTensorError, KeyError),
    "invalid_request": (tload.InvalidRequestError, ValueError),
    "unsupported": (tload.UnsupportedError, tload.Error),
    "out_of_memory": (tload.OutOfMemoryError, MemoryError),
    "io": (tload.IoError, OSError),
    "remote": (tload.RemoteError, ConnectionError),
    "device": (tload.DeviceError, RuntimeError),
    "changed": (tload.ChangedError, OSError),
    "timed_out": (tload.LoadTimeoutError, TimeoutError),
    "cancelled": (tload.CancelledError, tload.Error),
    "peer": (tload.PeerError, RuntimeError),
}


@pytest.mark.parametrize("kind", _tload.ERROR_KINDS)
def test_every_error_kind_has_an_exception(kind: str) -> None:
    """A kind that is added to the core must be added to `_errors.py`, to this table, and to the
    docs."""
    assert kind in EXPECTED, f"the error kind {kind} has no exception in tload"
    own, builtin = EXPECTED[kind]
    error = _errors.make_error(kind, "found 3, wanted 4\n  hint: count", "a", "t", (1, 2), "count", errno.EIO)
    assert type(error) is own
    assert isinstance(error, tload.Error)
    assert isinstance(error, builtin)
    assert error.kind == kind
    assert str(error) == "found 3, wanted 4\n  hint: count", "neither a repr nor an [Errno 5] in front"
    assert (error.location, error.tensor, error.range, error.hint, error.errno) == ("a", "t", (1, 2), "count", 5)


REQUEST = ("GET", 503, "SlowDown", "4442587FB7D0A2F9", 9, "AWS_ACCESS_KEY_ID")
REQUEST_NAMES = ("operation", "status", "code", "request_id", "attempts", "credentials")


@pytest.mark.parametrize("kind", _tload.ERROR_KINDS)
def test_every_error_kind_carries_request(kind: str) -> None:
    error = _errors.make_error(kind, "message", None, None, None, None, None, REQUEST)
    assert tuple(getattr(error, name) for name in REQUEST_NAMES) == REQUEST
    error = _errors.make_error(kind, "message", None, None, None, None, None)
    assert all(getattr(error, name) is None for name in REQUEST_NAMES)
    assert error.ranks == ()


def test_every_exception_has_a_kind_and_is_public() -> None:
    assert set(EXPECTED) == set(_tload.ERROR_KINDS) == set(_errors.BY_KIND)
    assert len(set(_errors.BY_KIND.values())) == len(_errors.BY_KIND)
    for own, _ in EXPECTED.values():
        assert getattr(tload, own.__name__) is own
        assert own.__doc__
        assert own.__name__ in tload.__all__


def test_errors_survive_pickle_and_copy() -> None:
    for kind in _tload.ERROR_KINDS:
        error = _errors.make_error(kind, "message", "a", "t", (1, 2), "hint", errno.ENOENT, REQUEST, None, (1, 3))
        for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
            assert type(again) is type(error)
            assert str(again) == "message"
            for name in ("kind", "location", "tensor", "range", "hint", "errno", "ranks", *REQUEST_NAMES):
                assert getattr(again, name) == getattr(error, name)


def test_os_errors_have_errno_and_filename() -> None:
    error = _errors.make_error("not_found", "message", "a", None, None, None, errno.ENOENT)
    assert isinstance(error, OSError)
    assert (error.errno, error.strerror, error.filename) == (2, os.strerror(2), "a")


def test_a_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "nothing.safetensors"
    with pytest.raises(FileNotFoundError) as caught:
        tload.open(path)
    error = caught.value
    assert isinstance(error, tload.NotFoundError)
    assert error.errno == errno.ENOENT
    assert error.location == error.filename == str(path)
    assert str(path) in str(error)


def test_missing_shard_is_named_before_first_read(tmp_path: Path) -> None:
    index = '{"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}'
    (tmp_path / "model.safetensors.index.json").write_text(index)
    write_file(tmp_path / "one.safetensors", {"a": Content.random("F32", (2,), 0)})
    with pytest.raises(tload.NotFoundError, match=r"two\.safetensors"):
        tload.open(tmp_path)


def test_unreadable_file_raises_permission_error(tmp_path: Path) -> None:
    require_root()
    path = tmp_path / "secret.safetensors"
    write_file(path, {"a": Content.random("F32", (2,), 0)})
    path.chmod(0)
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        folder.chmod(0o755)
    script = (
        "import os, sys, tload\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try: tload.open(sys.argv[1])\n"
        "except PermissionError as error:\n"
        "    assert type(error) is tload.PermissionDeniedError\n"
        "    assert error.errno == 13, error.errno\n"
        "    sys.exit(0)\n"
        "sys.exit(1)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=True)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "safetensors"),
        (b"\xff" * 8, "safetensors"),
        ((2).to_bytes(8, "little") + b"[]", "safetensors"),
        ((3).to_bytes(8, "little") + b"{]}", "safetensors"),
        ((2).to_bytes(8, "little") + b"{}trailing", "safetensors"),
    ],
)
def test_invalid_file_raises_format_error(raw: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(raw)
    with pytest.raises(tload.FormatError, match=message) as caught:
        tload.load(path, framework="dlpack")
    assert isinstance(caught.value, ValueError)
    assert caught.value.location == str(path)
    assert str(caught.value).startswith(str(path))


def test_truncated_file_error_names_lengths(tmp_path: Path) -> None:
    path = tmp_path / "short.safetensors"
    write_file(path, {"a": Content.random("F32", (100,), 0)})
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(tload.FormatError) as caught:
        tload.open(path)
    assert str(path.stat().st_size) in str(caught.value)


def test_too_small_memory_limit_names_sufficient_one(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_file(path, {"small": Content.random("U8", (10,), 0), "large": Content.random("U8", (3 << 20,), 0)})
    with pytest.raises(MemoryError) as caught:
        tload.stream(path, framework="dlpack", memory_limit="1 MiB")
    assert isinstance(caught.value, tload.OutOfMemoryError)
    assert caught.value.tensor == "large"
    assert caught.value.hint is not None
    assert "memory_limit" in caught.value.hint


def test_expired_deadline_raises_timeout_error(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_file(path, {f"t{index}": Content("U8", (1 << 20,), bytes(1 << 20)) for index in range(64)})
    # The budget holds less than the rest, and no tensor is received: the load cannot end before its
    # deadline.
    with tload.open(path) as checkpoint:
        stream = tload.stream(checkpoint, framework="dlpack", memory_limit="2 MiB", timeout=4)
    while stream.report.seconds <= 4:
        time.sleep(0.01)
    with pytest.raises(TimeoutError) as caught:
        list(stream)
    assert isinstance(caught.value, tload.LoadTimeoutError)
    assert stream.report.outcome == "timed_out"
