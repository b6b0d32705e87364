"""Process-level behaviour: no driver, an unusable driver, Ctrl-C, fork, exit."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import require, require_stub
from files import Content, tile, write_file
from test_interrupt import MIB, assert_prompt, running

TESTS = str(Path(__file__).parent)


@pytest.fixture
def megabytes(tmp_path: Path) -> Path:
    path = tmp_path / "a.safetensors"
    write_file(path, {f"t{index:02}": Content("U8", (2 * MIB,), tile(index, 2 * MIB)) for index in range(16)})
    return path


def run(script: str, *arguments: object, environment: dict[str, str] | None = None) -> None:
    # Any output of the child on standard error is a failure, except this.
    python = (sys.executable, "-W", "ignore:this is a debug build of tload:RuntimeWarning")
    done = subprocess.run(
        [*python, "-c", script, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": TESTS} | (environment or {}),
        timeout=300,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr


REFUSED = """
import sys, tload
path, *words = sys.argv[1:]
for framework in ("dlpack", "torch"):
    if framework == "torch":
        from tload._tensors import cuda
        cuda.check = cuda.current_device = lambda: 0
    for keywords in ({"device": "cuda"}, {"device": "cuda:1"}, {"device_map": {"t00": "cuda:1"}}):
        try:
            tload.stream(path, framework=framework, **keywords)
        except tload.UnsupportedError as error:
            for word in words:
                assert word in str(error), error
            assert error.hint
        else:
            raise AssertionError("no error")
assert len(tload.load(path, framework="dlpack")) == 16, "the CPU needs no driver"
"""


def test_without_a_driver(megabytes: Path, tmp_path: Path) -> None:
    require("torch")
    # Found before any driver of the system.
    for name in ("libcuda.so", "libcuda.so.1"):
        (tmp_path / name).write_text("no library")
    run(REFUSED, megabytes, "no CUDA driver was found", environment={"LD_LIBRARY_PATH": str(tmp_path)})


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"TLOAD_CUDA_STUB_STUB_LIBRARY": "1"}, "the toolkit's stub"),
        ({"TLOAD_CUDA_STUB_DEVICES": "0"}, "finds no GPU"),
        ({"TLOAD_CUDA_STUB_VERSION": "11000"}, "the CUDA driver supports CUDA 11.0"),
    ],
)
def test_unusable_driver_raises_unsupported_error(environment: dict[str, str], message: str, megabytes: Path) -> None:
    require("torch")
    load = f"import ctypes; ctypes.CDLL({str(require_stub())!r})"
    run(load + REFUSED, megabytes, message, environment=environment)


EXIT = """
import atexit, sys
import gpu  # imports tload, whose end comes before ours

path, library, way = sys.argv[1:]
stub = gpu.Stub.load(library)
import tload

def look():
    if way == "done":
        assert stub.left() == {}, stub.left()
    assert stub.count("violations") == 0, stub.violation()
    print("looked", flush=True)

atexit.unregister(tload.release_staging)
atexit.register(look)
atexit.register(tload.release_staging)
keywords = {"device": "cuda:0", "device_memory_limit": "6 MiB"}
if way == "done":
    loaded = tload.load(path, framework="dlpack", device="cuda:1")
    assert stub.live("registrations") > 0
    del loaded
elif way == "running":
    stream = tload.stream(path, framework="dlpack", **keywords)
    name, tensor = next(stream)
    capsules = [tensor.__dlpack__(), tensor.__dlpack__(max_version=(1, 0))]
else:
    from tload._tensors import cuda
    memory = gpu.TorchCuda(stub)
    for name in ("check", "current_stream", "empty", "free_bytes"):
        setattr(cuda, name, getattr(memory, name))
    stream = tload.stream(path, **keywords)
    item = next(stream)
"""


@pytest.mark.parametrize("way", ["done", "running", "torch"])
def test_interpreter_exits_cleanly_with_gpu_memory(way: str, megabytes: Path) -> None:
    require("torch")
    for ending in ("", "sys.exit(0)"):
        run(EXIT + ending, megabytes, require_stub(), way)


def test_staging_memory_is_released_at_exit(megabytes: Path) -> None:
    script = """
import atexit, ctypes, sys
path, library = sys.argv[1:]
stub = ctypes.CDLL(library)
stub.tload_cuda_stub_live.restype = ctypes.c_int64

def look():
    print(stub.tload_cuda_stub_live(b"registrations"), flush=True)

atexit.register(look)  # before tload's: it runs after
import tload
tload.load(path, framework="dlpack", device="cuda:0")
look()
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(megabytes), str(require_stub())],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    before, after = map(int, done.stdout.split())
    assert before > 0
    assert after == 0


INTERRUPTED = """
import ctypes, sys, time
import tload
path, library, way = sys.argv[1:]
stub = ctypes.CDLL(library)
if way == "copies":
    stub.tload_cuda_stub_set(b"copy_delay_us", b"5000000")
tload.release_staging()
try:
    if way == "copies":
        stream = tload.stream(path, framework="dlpack", device="cuda:0", device_memory_limit="6 MiB")
        print("ready", flush=True)
        next(stream)
    else:
        print("ready", flush=True)
        while True:
            tload.load(path, framework="dlpack", device="cuda:0")
except KeyboardInterrupt:
    print(time.monotonic(), flush=True)
    stub.tload_cuda_stub_set(b"copy_delay_us", b"0")
    raise
"""


@pytest.mark.parametrize("way", ["loop", "copies"])
def test_ctrl_c_stops_a_load_to_a_gpu(way: str, megabytes: Path) -> None:
    def interrupt() -> float:
        with running(INTERRUPTED, megabytes, require_stub(), way) as child:
            sent = time.monotonic()
            child.send_signal(signal.SIGINT)
            stdout, stderr = child.communicate(timeout=300)
            assert "KeyboardInterrupt" in stderr
            assert child.returncode == -signal.SIGINT, stderr
            return float(stdout) - sent

    assert_prompt(interrupt, 3)


STARTING = """
import sys, time
import gpu, tload
from tload._tensors import cuda

path, library, manifest = sys.argv[1:]
memory = gpu.TorchCuda(gpu.Stub.load(library))
for name in ("check", "current_device", "current_stream", "empty", "free_bytes"):
    setattr(cuda, name, getattr(memory, name))
checkpoint = tload.open(path)
print("ready", flush=True)
try:
    tload.stream(checkpoint, device="cuda:0", verify=manifest)
except KeyboardInterrupt:
    print(time.monotonic(), flush=True)
    raise
"""


def test_ctrl_c_stops_the_start_of_a_load_to_a_gpu(megabytes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require("torch")
    monkeypatch.setenv("PYTHONPATH", TESTS)

    def interrupt() -> float:
        # The server never responds; its connection shows that the load is starting.
        with socket.create_server(("127.0.0.1", 0)) as server:
            manifest = f"http://127.0.0.1:{server.getsockname()[1]}/manifest.json"
            with running(STARTING, megabytes, require_stub(), manifest) as child:
                asks, _, _ = select.select([server], [], [], 300)
                assert asks, "it sent no request"
                sent = time.monotonic()
                child.send_signal(signal.SIGINT)
                stdout, stderr = child.communicate(timeout=300)
                assert "KeyboardInterrupt" in stderr
                return float(stdout) - sent

    assert_prompt(interrupt, 3)


FORK = """
import gc, os, sys, warnings
import gpu
import tload
from capsules import look
warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of threads and fork, and is right

path, library, way = sys.argv[1:]
stub = gpu.Stub.load(library)
if way == "torch":
    from tload._tensors import cuda
    memory = gpu.TorchCuda(stub)
    for name in ("check", "current_stream", "empty", "free_bytes"):
        setattr(cuda, name, getattr(memory, name))
list(tload.stream(path, framework="dlpack", device="cuda:1"))  # leaves staging memory
stream = tload.stream(path, framework=way, device="cuda:0", device_memory_limit="6 MiB")
name, kept = next(stream)

child = os.fork()
if child == 0:
    try:
        for use in (lambda: next(stream), lambda: stream.report, stream.cancel):
            try:
                use()
            except tload.InvalidRequestError as error:
                assert "a fork of it" in str(error), error
            else:
                raise AssertionError("no error")
        stream.close()
        if way == "dlpack":
            del use, stream, kept
        gc.collect()
        assert len(tload.load(path, framework="dlpack")) == 16, "a load of its own works"
        try:
            tload.load(path, framework="dlpack", device="cuda:0")
        except tload.Error as error:
            print(repr(error), error.hint, flush=True)
            assert "fork" in str(error), error
        else:
            raise AssertionError("CUDA does not survive fork")
        assert tload.release_staging() == 0, "it is the parent's"
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
        os._exit(1)
    if way == "torch":
        os._exit(0)  # the parent's memory is not the stub's to free
    sys.exit(0)  # with atexit, unlike a forked child of multiprocessing
_, status = os.waitpid(child, 0)
assert status == 0, status
assert 1 + len(list(stream)) == 16
assert stream.report.outcome == "complete"
del stream, kept
gc.collect()
stub.settle()
assert stub.count("violations") == 0, stub.violation()
"""


@pytest.mark.parametrize("way", ["dlpack", "torch"])
def test_fork_does_not_affect_parents_load(way: str, megabytes: Path) -> None:
    require("torch")
    run(FORK, megabytes, require_stub(), way)
