"""Loads work where io_uring does not: forbidden by seccomp, or short of locked memory."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tload
from conftest import require_root, skip_loudly
from files import Content, tile, write_file
from resident import evict

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="SKIPPED: io_uring is of Linux")


@pytest.fixture
def public() -> Iterator[Path]:
    """A checkpoint that every user may read, on a real disk."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="tload-"))
    folder.chmod(0o755)
    path = folder / "a.safetensors"
    write_file(
        path, {f"t{index}": Content("U8", (3 * MIB + index,), tile(index, 3 * MIB + index)) for index in range(12)}
    )
    yield path
    shutil.rmtree(folder)


FORBID = """
import ctypes, struct

def forbid_ring(errno):
    # io_uring_setup, _enter and _register are 425 to 427 on every machine.
    filters = [
        (0x20, 0, 0, 0),  # load the number of the system call
        (0x35, 0, 2, 425),  # >= 425, else allow
        (0x25, 1, 0, 427),  # > 427: allow
        (0x06, 0, 0, 0x00050000 | errno),
        (0x06, 0, 0, 0x7FFF0000),
    ]
    buffer = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in filters))
    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
    program = Program(len(filters), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0, ctypes.get_errno()
"""

CHECK = """
import logging, random, sys
import tload

class Kept(logging.Handler):
    def __init__(self):
        super().__init__()
        self.messages = []
    def emit(self, record):
        self.messages.append(record.getMessage())
kept = Kept()
logging.getLogger("tload").addHandler(kept)

def tile(seed, size):
    return (random.Random(seed).randbytes(4093) * (size // 4093 + 1))[:size]

def load_all(**keywords):
    stream = tload.stream(path, framework="numpy", **keywords)
    loaded = dict(stream)
    assert len(loaded) == 12
    for name, array in loaded.items():
        assert array.tobytes() == tile(int(name[1:]), array.size), name
    return stream.report

import json, tempfile, numpy  # before rights are given up
path = sys.argv[1]
tload.open(path)
"""


def run(script: str, path: Path) -> str:
    evict(path)  # bytes in the page cache are copied by threads, with or without rings
    done = subprocess.run(
        [sys.executable, "-c", FORBID + CHECK + script, str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("errno", "name"), [(1, "EPERM"), (38, "ENOSYS"), (95, "EOPNOTSUPP"), (12, "ENOMEM")])
def test_seccomp_falls_back_to_pread_with_note(errno: int, name: str, public: Path) -> None:
    script = f"""
forbid_ring({errno})
report = load_all()
assert (report.engine.name, report.engine.requested) == ("pread", "auto"), report
print(report.engine.reason)
assert len(report.notes) == 1, report.notes
assert "io_uring" in report.notes[0]
load_all()
assert kept.messages == list(report.notes), "logged once"
print(*report.notes)
assert load_all(engine="pread").notes == (), "who asks for it need not be told"
try:
    load_all(engine="uring")
except tload.UnsupportedError as error:
    assert error.hint, error
    print(error)
else:
    raise AssertionError("uring worked")
"""
    said = run(script, public)
    assert "io_uring" in said, name


def test_a_user_with_little_locked_memory(public: Path) -> None:
    require_root()
    script = """
import os, resource
resource.setrlimit(resource.RLIMIT_MEMLOCK, (64 << 10, 64 << 10))
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
report = load_all()
print(report)
report = load_all(depth=64, in_flight_bytes="256 MiB")
print(report)
"""
    said = run(script, public)
    assert "complete" in said


def test_ring_is_used_if_available(public: Path) -> None:
    stream = tload.stream(public, framework="dlpack")
    list(stream)
    report = stream.report
    if report.engine.name != "uring" and report.notes:
        skip_loudly("uring", report.engine.reason)
    asked = tload.stream(public, framework="dlpack", engine="uring")
    list(asked)
    assert asked.report.engine.name == "uring"
    assert asked.report.notes == ()


def test_files_in_memory_need_no_ring() -> None:
    if not Path("/dev/shm").is_dir():
        skip_loudly("tmpfs", "no /dev/shm")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder) / "a.safetensors"
        content = Content("U8", (MIB,), tile(0, MIB))
        write_file(path, {"a": content})
        stream = tload.stream(path, framework="dlpack")
        list(stream)
        assert stream.report.engine.name == "pread"
        assert stream.report.notes == ()
