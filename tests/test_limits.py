"""Small limits in a program: the right bytes, or an exception that names the limit.

Tests of the command's limits are in `crates/cli/tests/it/limits`.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from conftest import require, require_root
from files import Content, write_file

if TYPE_CHECKING:
    from collections.abc import Callable

LOAD = """
import hashlib, sys, tload
try:
    tensors = tload.load(sys.argv[1], framework="numpy")
except tload.Error as error:
    print(type(error).__name__, error, sep="\\n")
else:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode() + tensor.tobytes())
    print(len(tensors), digest.hexdigest())
"""


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of 100 files that all users may read."""
    folder = tmp_path_factory.mktemp("shards")
    for index in range(100):
        write_file(folder / f"{index:03}.safetensors", {f"t{index}": Content.random("U8", (5000,), index)})
    for path in [folder, *folder.parents]:
        if path.stat().st_uid == os.getuid() and path != Path(path.anchor):
            path.chmod(path.stat().st_mode | 0o055)
    return folder


@pytest.fixture(scope="module")
def loaded() -> str:
    """Output of a load of all shards."""
    digest = hashlib.sha256()
    for name, content in sorted((f"t{index}", Content.random("U8", (5000,), index)) for index in range(100)):
        digest.update(name.encode() + content.raw)
    return f"100 {digest.hexdigest()}\n"


def run(location: Path, prepare: Callable[[], None], script: str = LOAD) -> subprocess.CompletedProcess[str]:
    require("numpy")
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, str(location)],
        preexec_fn=prepare,
        # NumPy's own threads are not tested here.
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def limit(kind: int, *limits: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(kind, (limits[0], limits[-1]))


def test_hundred_shards_with_64_descriptors_name_limit(shards: Path, loaded: str) -> None:
    done = run(shards, limit(resource.RLIMIT_NOFILE, 64))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("IoError\n")
    assert "Too many open files" in done.stdout
    assert "the limit of open files is 64; a checkpoint of 100 files needs 264: ulimit -n 264" in done.stdout
    # A library does not change the limits of its process; following the hint succeeds.
    assert run(shards, limit(resource.RLIMIT_NOFILE, 64, 4096)).stdout.startswith("IoError\n")
    assert run(shards, limit(resource.RLIMIT_NOFILE, 264)).stdout == loaded


def test_64_kib_of_locked_memory_are_enough(shards: Path, loaded: str) -> None:
    done = run(shards, limit(resource.RLIMIT_MEMLOCK, 64 << 10))
    assert done.stdout == loaded, done


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS])
def test_missing_io_uring_falls_back_to_threads(number: int, shards: Path, loaded: str) -> None:
    class Instruction(ctypes.Structure):
        _fields_ = (("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint))

    class Program(ctypes.Structure):
        _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.POINTER(Instruction)))

    # Load the number of the system call; if it is io_uring_setup, return the error; else allow.
    code = [(0x20, 0, 0, 0), (0x15, 0, 1, 425), (0x06, 0, 0, 0x00050000 | number), (0x06, 0, 0, 0x7FFF0000)]
    instructions = (Instruction * len(code))(*(Instruction(*line) for line in code))
    program = Program(len(code), instructions)
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def refuse() -> None:
        assert prctl(38, 1, 0, 0, 0) == 0
        assert prctl(22, 2, ctypes.byref(program)) == 0

    done = run(shards, refuse)
    assert done.stdout == loaded, done


@pytest.mark.parametrize("threads", [1, 2, 3, 5, 8])
def test_thread_limit_loads_or_raises_out_of_memory(threads: int, shards: Path, loaded: str) -> None:
    require_root()
    # Another user may not enter the folders of this Python: all modules are imported first.
    user = 64000 + os.getpid() % 1000
    script = f"""
import hashlib, os, resource, sys, tload
tload.load(sys.argv[1], framework="numpy")
resource.setrlimit(resource.RLIMIT_NPROC, ({threads}, {threads}))
os.setuid({user})
{LOAD}"""
    done = run(shards, lambda: None, script)
    assert done.returncode == 0, done.stderr
    if done.stdout != loaded:
        assert done.stdout.startswith("OutOfMemoryError\n")
        assert "raise the limit of processes (ulimit -u)" in done.stdout
    assert threads < 5 or done.stdout == loaded, done.stdout


def test_exhausted_address_space_raises_memory_error(tmp_path: Path) -> None:
    path = tmp_path / "large.safetensors"
    write_file(path, {"t": Content.random("U8", (1,), 1)})
    bytes_max = 4 << 30
    header = f'{{"t":{{"dtype":"U8","shape":[{bytes_max}],"data_offsets":[0,{bytes_max}]}}}}'.encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with path.open("r+b") as file:
        file.truncate(8 + len(header) + bytes_max)
    done = run(path, limit(resource.RLIMIT_AS, 3 << 30))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("OutOfMemoryError\n"), done.stdout
    assert "ulimit -v" in done.stdout
