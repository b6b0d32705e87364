"""Object stores whose server stalls: waits end by deadlines and Ctrl-C, and nothing is left behind."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tload
from conftest import skip_loudly
from files import Content, tile, write_file
from servers import PATIENCE
from test_interrupt import assert_prompt, running

if TYPE_CHECKING:
    from servers import Web

MIB = 1 << 20


@pytest.fixture
def stalling(web: Web, tmp_path: Path) -> Web:
    """A server whose `a.safetensors` stalls after its first tensors."""
    path = tmp_path / "a.safetensors"
    write_file(path, {f"t{index}": Content("U8", (4 * MIB,), tile(index, 4 * MIB)) for index in range(16)})
    web.files["a.safetensors"] = path.read_bytes()
    web.stall_from = 32 * MIB
    return web


def test_deadline_expires_while_server_stalls(stalling: Web) -> None:
    with tload.open(f"{stalling.url}/a.safetensors") as checkpoint:
        # Longer deadlines are for a machine on which nothing arrived within the first.
        for timeout in (1, 5, 25):
            stream = tload.stream(checkpoint, framework="dlpack", timeout=timeout)
            with pytest.raises(TimeoutError) as caught:
                list(stream)
            assert isinstance(caught.value, tload.LoadTimeoutError)
            assert stream.report.outcome == "timed_out"
            if stream.report.tensors:
                return
    pytest.fail("no tensor arrived before the server stalled")


def test_stalled_server_raises_timeout_error(stalling: Web) -> None:
    stalling.stall_from = 0
    with pytest.raises(TimeoutError) as caught:
        # No request is answered: a busy machine only takes longer.
        tload.open(f"{stalling.url}/a.safetensors", store={"read_timeout": 0.2, "retries": 1})
    assert isinstance(caught.value, tload.LoadTimeoutError)
    assert caught.value.attempts == 2
    stalling.stall_from = 32 * MIB
    # Opening makes nine tries of this duration, which is enough for a server on a busy machine.
    stream = tload.stream(f"{stalling.url}/a.safetensors", framework="dlpack", store={"read_timeout": 2}, retries=0)
    with pytest.raises(TimeoutError) as caught:
        list(stream)
    assert isinstance(caught.value, tload.LoadTimeoutError)
    assert caught.value.attempts == 1


# The child prints the time at which it was interrupted, by the system's clock.
WAITS = """
import sys, time
import tload
url, endpoint, way = sys.argv[1:]
store = {"endpoint": endpoint, "anonymous": True}
try:
    print("ready", flush=True)
    if way == "open":
        tload.open(url, store=store)
    elif way == "load":
        tload.load(url, framework="dlpack", store=store)
    elif way == "progress":
        tload.load(url, framework="dlpack", store=store, progress=lambda progress: None)
    else:
        for _ in tload.stream(url, framework="dlpack", store=store):
            pass
except KeyboardInterrupt:
    print(time.monotonic(), flush=True)
    raise
"""


@pytest.mark.parametrize("scheme", ["s3", "http"])
@pytest.mark.parametrize("way", ["open", "load", "stream", "progress"])
def test_ctrl_c_ends_wait_for_stalled_server(way: str, scheme: str, stalling: Web) -> None:
    if way == "open":
        stalling.stall_from = 0
    numbers = itertools.count()

    def interrupt() -> float:
        # A name of its own: requests of the previous child may still be in flight.
        path = f"/b/{next(numbers)}.safetensors"
        stalling.files[path[1:]] = stalling.files["a.safetensors"]
        url = f"s3:/{path}" if scheme == "s3" else stalling.url + path
        with running(WAITS, url, stalling.url, way) as child:
            stalling.wait_until_stalled(path)
            sent = time.monotonic()
            child.send_signal(signal.SIGINT)
            stdout, stderr = child.communicate(timeout=300)
            assert "KeyboardInterrupt" in stderr
            assert child.returncode == -signal.SIGINT, stderr
            return float(stdout) - sent

    assert_prompt(interrupt, 3)


# Memory and threads of a load whose server stalls: before it, while it waits, and after it was
# abandoned.
GIVES_UP = """
import gc, os, sys, threading, time
import tload
url, way, patience = sys.argv[1], sys.argv[2], float(sys.argv[3])
page = os.sysconf("SC_PAGE_SIZE")

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * page

def threads():
    names = []
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/comm") as file:
                names.append(file.read().strip())
        except OSError:
            pass  # the thread has just ended
    # Those for requests are kept for later openings.
    return [name for name in names if name.startswith("tload") and name != "tload-net"]

def wait_for(what):
    deadline = time.monotonic() + patience
    while not what():
        if time.monotonic() > deadline:
            raise AssertionError(f"{resident() >> 20} MiB, before {before >> 20} MiB; {threads()}")
        time.sleep(0.01)

# Memory that a first load allocates permanently.
tload.load(url, framework="dlpack", names="t0")
wait_for(lambda: not threads())
before = resident()

stream = tload.stream(url, framework="dlpack")
wait_for(lambda: stream.progress.bytes_read > 16 << 20)
assert threads()
print("ready", flush=True)
assert sys.stdin.readline() == "stalls\\n"
assert resident() > before + (8 << 20), "something is there to be freed"
if way == "cancel":
    def receive():
        try:
            list(stream)
        except tload.CancelledError:
            cancelled.set()
    cancelled = threading.Event()
    receiver = threading.Thread(target=receive)
    receiver.start()
    stream.cancel()
    receiver.join(patience)
    assert cancelled.is_set()
elif way == "close":
    stream.close()
    assert stream.report.outcome == "cancelled"
elif way == "with":
    with stream:
        next(stream)
else:
    del stream
    gc.collect()
wait_for(lambda: not threads() and resident() < before + (8 << 20))
"""


@pytest.mark.parametrize("way", ["cancel", "close", "with", "del"])
def test_abandoned_load_frees_memory_and_threads(way: str, stalling: Web) -> None:
    if not Path("/proc/self/task").exists():
        skip_loudly("proc", "no /proc to see memory and threads")
    command = [sys.executable, "-c", GIVES_UP, f"{stalling.url}/a.safetensors", way, str(PATIENCE / 2)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as child:
        try:
            assert child.stdout is not None
            if child.stdout.readline() == "ready\n":
                stalling.wait_until_stalled("/a.safetensors")
            _, stderr = child.communicate("stalls\n", timeout=PATIENCE)
            assert child.returncode == 0, stderr
        finally:
            child.kill()


def test_python_exits_cleanly_while_server_stalls(stalling: Web) -> None:
    for ending in ("", "sys.exit(0)", "del stream"):
        script = (
            "import sys, tload\n"
            f"stream = tload.stream({stalling.url + '/a.safetensors'!r}, framework='dlpack')\n"
            "item = next(stream)\n"
            f"{ending}\n"
        )
        command = [sys.executable, "-W", "ignore:this is a debug build", "-c", script]
        done = subprocess.run(command, timeout=300, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_other_threads_run_while_a_server_stalls(stalling: Web) -> None:
    stream = tload.stream(f"{stalling.url}/a.safetensors", framework="dlpack")
    failures: list[BaseException] = []

    def receive() -> None:
        try:
            list(stream)
        except tload.Error as error:
            failures.append(error)

    receiver = threading.Thread(target=receive)
    receiver.start()
    stalling.wait_until_stalled("/a.safetensors")
    stream.cancel()
    receiver.join(PATIENCE)
    assert [type(failure) for failure in failures] == [tload.CancelledError]


def test_reads_of_a_stalled_object_are_cancelled_at_once(stalling: Web) -> None:
    url = f"{stalling.url}/a.safetensors"
    with tload.open(url) as checkpoint, checkpoint.reader() as reader:
        buffer = bytearray(4 * MIB)
        reading = reader.submit({"t15": buffer})
        stalling.wait_until_stalled("/a.safetensors")
        started = time.monotonic()
        reading.cancel()
        # The store would wait for 30 s.
        assert time.monotonic() - started < 10
        buffer.clear()
        first = bytearray(4 * MIB)
        reader.read_into({"t0": first})
        assert first == tile(0, 4 * MIB)
