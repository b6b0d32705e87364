"""Loads that are ended in any way, at any moment, end promptly, without a deadlock, and without a
leak.

Moments are random and follow from a seed. Children report when they are ready; the delay after that
is counted in turns of a loop, not in time.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tload
from conftest import require, skip_loudly
from files import Content, tile, write_checkpoint
from in_use import assert_nothing_new, in_use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

TENSORS = 24
SIZE = 150_000
LOADS = os.environ.get("TLOAD_LOADS", "320")
PATIENCE = 300.0
"""Seconds: a child that takes longer hangs."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exit")
    contents = {f"t{index}": Content("U8", (SIZE,), tile(index, SIZE)) for index in range(TENSORS)}
    half = TENSORS // 2
    names = list(contents)
    shards: list[Mapping[str, Content]] = [
        {name: contents[name] for name in names[:half]},
        {name: contents[name] for name in names[half:]},
    ]
    write_checkpoint(folder, shards)
    return folder


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


# Loads in a loop until it is interrupted, in each way of loading; then nothing may be left.
INTERRUPTED = """
import asyncio, gc, os, random, sys, threading, time
import tload

path, way, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
rng = random.Random(seed)
budget, engine = rng.choice(["2 MiB", "3 MiB", "64 MiB"]), rng.choice(["auto", "pread"])
limits = {"framework": "dlpack", "memory_limit": budget, "engine": engine}

def left():
    return [name for name in map(comm, os.listdir("/proc/self/task")) if name.startswith("tload-")]

def comm(task):
    try:
        with open(f"/proc/self/task/{task}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""

def consume():
    for _ in tload.stream(path, **limits):
        pass

async def consume_later():
    async for _ in tload.stream(path, **limits):
        await asyncio.sleep(0)

def generator():
    with tload.stream(path, **limits) as stream:
        yield from stream

def once():
    if way == "iterate":
        consume()
    elif way == "load":
        tload.load(path, **limits)
    elif way == "async":
        runner.run(consume_later())
    elif way == "generator":
        for index, _ in enumerate(generator()):
            if index == rng.randrange(24):
                break
    elif way == "open":
        tload.open(path).close()
    elif way == "thread":
        thread = threading.Thread(target=consume)
        thread.start()
        thread.join()

if way == "async":
    # A loop that is interrupted while it is made complains of itself.
    runner = asyncio.Runner()
    runner.get_loop()
print("ready", flush=True)
try:
    while True:
        once()
except KeyboardInterrupt:
    pass
deadline = time.monotonic() + 120
while threading.active_count() > 1 and time.monotonic() < deadline:
    time.sleep(0.002)
gc.collect()
while left() and time.monotonic() < deadline:
    time.sleep(0.002)
assert not left(), left()
print("over", flush=True)
"""


@pytest.mark.parametrize("way", ["iterate", "load", "async", "generator", "open", "thread"])
def test_ctrl_c_at_any_moment(way: str, checkpoint: Path) -> None:
    if not Path("/proc/self/task").exists():
        skip_loudly("proc", "no /proc to count threads in")
    rng = random.Random(way)
    for seed in range(6):
        command = [sys.executable, "-c", INTERRUPTED, str(checkpoint), way, str(seed)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
            try:
                assert child.stdout is not None
                assert child.stdout.readline() == "ready\n"
                for _ in range(rng.randrange(100_000)):
                    pass
                child.send_signal(signal.SIGINT)
                stdout, stderr = child.communicate(timeout=PATIENCE)
            finally:
                child.kill()
        # The interrupt may have come between two statements of the script.
        assert (child.returncode, stdout) == (0, "over\n") or "KeyboardInterrupt" in stderr, stderr
        assert "Error" not in stderr, stderr


# Python exits while loads run: on the main thread, on daemons, in an event loop, with tensors kept
# or none.
ENDS = """
import asyncio, atexit, os, random, sys, threading, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of threads and fork
warnings.filterwarnings("ignore", "this is a debug build")
import tload

path, how, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
rng = random.Random(seed)
limits = {"framework": rng.choice(["dlpack", "numpy"]), "memory_limit": rng.choice(["2 MiB", "3 MiB", "64 MiB"])}
few = rng.randrange(25)

def begin():
    stream = tload.stream(path, **limits)
    kept = []
    for index, item in enumerate(stream):
        if index >= few:
            break
        kept.append(item)
    return stream, kept

def go_on():
    for _ in range(50):
        for item in tload.stream(path, **limits):
            pass

if how == "falls off the end":
    alive = begin()
elif how == "sys.exit":
    alive = begin()
    sys.exit(0)
elif how == "os._exit":
    alive = begin()
    os._exit(0)
elif how == "cycle":
    class Knot: pass
    knot = Knot()
    knot.knot, knot.alive = knot, begin()
    del knot
elif how == "atexit":
    alive = begin()
    atexit.register(lambda: [None for _ in tload.stream(path, **limits)])
elif how == "daemons":
    for _ in range(4):
        threading.Thread(target=go_on, daemon=True).start()
    alive = begin()
elif how == "daemon in sys.exit":
    alive = begin()
    threading.Thread(target=lambda: [None for _ in alive[0]], daemon=True).start()
    sys.exit(0)
elif how == "threads":
    threads = [threading.Thread(target=begin) for _ in range(4)]
    for thread in threads:
        thread.start()
elif how == "event loop":
    async def abandoned():
        stream = tload.stream(path, **limits)
        async for _ in stream:
            await asyncio.sleep(0)
    async def main():
        tasks = [asyncio.create_task(abandoned()) for _ in range(4)]
        for _ in range(few):
            await asyncio.sleep(0)
    asyncio.run(main())
elif how == "global":
    sys.alive = begin()
    import builtins
    builtins.alive = begin()
elif how == "exception":
    stream, kept = begin()
    try:
        for item in stream:
            raise ValueError("the caller's")
    except ValueError:
        pass
elif how == "fork":
    alive = begin()
    child = os.fork()
    if child == 0:
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    # A second one, after a load of its own in the child.
    child = os.fork()
    if child == 0:
        del alive
        tload.load(path, **limits)
        alive = begin()
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    rest = list(alive[0])
else:
    raise AssertionError(how)
"""

ENDINGS = [
    "falls off the end",
    "sys.exit",
    "os._exit",
    "cycle",
    "atexit",
    "daemons",
    "daemon in sys.exit",
    "threads",
    "event loop",
    "global",
    "exception",
    "fork",
]


@pytest.mark.parametrize("how", ENDINGS)
def test_interpreter_exits_cleanly_during_loads(how: str, checkpoint: Path) -> None:
    require("numpy")
    for seed in range(5):
        done = run(ENDS, checkpoint, how, seed)
        assert (done.returncode, done.stderr) == (0, ""), f"seed {seed}"


class CallerError(Exception):
    """Exception that a consumer raises."""


Stream = tload.TensorStream[Any]


def some(stream: Stream, after: int) -> None:
    for _ in zip(stream, range(after), strict=False):
        pass


def raises(stream: Stream, after: int) -> None:
    some(stream, min(after, TENSORS - 1))
    with stream:
        for _ in stream:
            raise CallerError


def closes_a_generator(stream: Stream, after: int) -> None:
    def tensors() -> Iterator[Any]:
        with stream:
            yield from stream

    generator = tensors()
    for _ in zip(generator, range(after), strict=False):
        pass
    generator.close()  # type: ignore[attr-defined]


def elsewhere(stop: Callable[[], None], stream: Stream, after: int) -> None:
    some(stream, after)
    thread = threading.Thread(target=stop)
    thread.start()
    try:
        for _ in stream:
            pass
    finally:
        thread.join()


def cancels_elsewhere(stream: Stream, after: int) -> None:
    elsewhere(stream.cancel, stream, after)


def closes_elsewhere(stream: Stream, after: int) -> None:
    elsewhere(stream.close, stream, after)


def cancels_and_closes(stream: Stream, after: int) -> None:
    some(stream, after)
    stream.cancel()
    stream.close()
    stream.cancel()


WAYS = [raises, closes_a_generator, cancels_elsewhere, closes_elsewhere, cancels_and_closes, some]


def test_consumer_exit_releases_everything(checkpoint: Path) -> None:
    """By an exception, by closing a generator, by cancelling on another thread, by dropping the
    stream."""
    rng = random.Random(3)
    tload.load(checkpoint, framework="dlpack")  # what stays for later loads
    before = in_use()
    for index in range(240):
        stream: Stream = tload.stream(
            checkpoint,
            framework="dlpack",
            memory_limit=rng.choice(["2 MiB", "3 MiB", "64 MiB"]),
            order=rng.choice(["ready", "file"]),
            engine=rng.choice(["auto", "pread"]),
        )
        ended = (CallerError, tload.CancelledError, tload.InvalidRequestError)
        with contextlib.suppress(*ended):
            WAYS[index % len(WAYS)](stream, rng.randrange(TENSORS + 1))
        del stream
    assert_nothing_new(before)


# Resident memory and descriptors must not grow with the number of loads, for any target and any
# end.
LEAKS = """
import asyncio, gc, os, random, sys, time
import tload

path, loads = sys.argv[1], int(sys.argv[2])
rng = random.Random(7)
page = os.sysconf("SC_PAGE_SIZE")
frameworks = ["dlpack"]
for name in ("numpy", "torch"):
    try:
        __import__(name)
        frameworks.append(name)
    except ImportError:
        pass

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * page

def options():
    cache = rng.choice(["auto", "buffered", "map"])
    return {
        "framework": rng.choice(frameworks),
        "memory_limit": rng.choice(["2 MiB", "64 MiB"]),
        "engine": "auto" if cache == "map" else rng.choice(["auto", "pread"]),
        "cache": cache,
    }

async def later(few):
    stream = tload.stream(path, **options())
    async for name, tensor in stream:
        few -= 1
        if few < 0:
            break

def once(index):
    way, few = index % 8, rng.randrange(25)
    if way == 0:
        kept = tload.load(path, **options())
    elif way == 1:
        for _ in zip(tload.stream(path, **options()), range(few)):
            pass
    elif way == 2:
        stream = tload.stream(path, **options())
        next(stream)
        stream.cancel()
        try:
            next(stream)
        except (StopIteration, tload.CancelledError):
            pass
    elif way == 3:
        asyncio.run(later(few))
    elif way == 4:
        try:
            tload.load(path, names="not there", framework="dlpack")
        except tload.NoSuchTensorError:
            pass
    elif way == 5:
        try:
            tload.open(path + "/nothing")
        except tload.NotFoundError:
            pass
    elif way == 6:
        with tload.open(path) as checkpoint:
            list(checkpoint)
            kept = tload.load(checkpoint, names=["t1", "t20"], framework="dlpack")
    else:
        try:
            tload.load(path, framework="dlpack", progress=lambda progress: 1 / 0)
        except ZeroDivisionError:
            pass

def held():
    gc.collect()
    tload.release_staging()
    return resident(), len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

def settled(wanted):
    deadline = time.monotonic() + 120
    while True:
        now = held()
        if all(one <= most for one, most in zip(now, wanted)) or time.monotonic() > deadline:
            return now
        time.sleep(0.002)

for index in range(160):
    once(index)
before = held()
allowed = (before[0] + (24 << 20), *before[1:])
for index in range(loads):
    once(index)
after = settled(allowed)
print(f"{loads} loads: {before} before, {after} after")
for what, one, most in zip(("resident memory", "descriptors", "threads"), after, allowed):
    assert one <= most, what
"""


@pytest.mark.timeout(900)
def test_loads_leak_neither_memory_nor_descriptors(checkpoint: Path) -> None:
    if not Path("/proc/self/statm").exists():
        skip_loudly("proc", "no /proc to see the memory in use")
    command = [sys.executable, "-c", LEAKS, str(checkpoint), LOADS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


SCRIPT = [sys.executable, "-m", "tload"]


def end(command: list[str], number: signal.Signals, folder: Path | None, turns: int) -> tuple[int, str, str]:
    """Send the signal some time after the first file is in `folder`, if given; return status and
    both outputs."""
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with child:
        try:
            while folder is not None and not any(folder.iterdir()) and child.poll() is None:
                os.sched_yield()
            for _ in range(turns):
                pass
            child.send_signal(number)
            stdout, stderr = child.communicate(timeout=PATIENCE)
        finally:
            child.kill()
    return child.returncode, stdout, stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("command", ["load", "cp", "bench"])
def test_command_exits_with_signal_status(
    command: str, number: signal.Signals, checkpoint: Path, tmp_path: Path
) -> None:
    rng = random.Random(f"{command} {number}")
    for index in range(6):
        target = tmp_path / f"target{index}"
        target.mkdir()
        arguments = {
            "load": ["load", str(checkpoint), "--digest"],
            "cp": ["cp", str(checkpoint), str(target / "copy"), "--extent", "64KiB"],
            "bench": ["bench", "--size", "16MiB", "--rounds", "200", "--no-fio", "--dir", str(target)],
        }[command]
        # A benchmark takes minutes; the others may end before the signal.
        turns = rng.randrange(10_000_000)
        waits = target if command == "bench" else None
        status, _, stderr = end([*SCRIPT, *arguments], number, waits, turns)
        # Before the command installs its handlers, a signal does what it does to Python.
        listened = status == 128 + number
        assert listened or (command != "bench" and status in (0, 1, -number)), (status, stderr)
        if listened:
            assert "Traceback" not in stderr
        if command == "bench":
            assert list(target.iterdir()) == [], "its checkpoint is still there"
        for file in (target / "copy").glob("*") if command == "cp" else ():
            if ".tload-partial" not in file.name:
                assert file.read_bytes() == (checkpoint / file.name).read_bytes(), file.name


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("command", ["ls", "load", "cp", "verify"])
def test_waiting_command_exits_with_signal_status(command: str, number: signal.Signals, tmp_path: Path) -> None:
    # The server never responds, so the load cannot end earlier; its request shows that the command
    # is running.
    with socket.create_server(("127.0.0.1", 0)) as server:
        location = f"http://127.0.0.1:{server.getsockname()[1]}/model.safetensors"
        target = [str(tmp_path / "copy")] if command == "cp" else []
        arguments = [command, location, *target, "--store", "environment=false"]
        with subprocess.Popen(
            [*SCRIPT, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as child:
            try:
                asks, _, _ = select.select([server], [], [], PATIENCE)
                assert asks, "it sent no request"
                child.send_signal(number)
                stdout, stderr = child.communicate(timeout=PATIENCE)
            finally:
                child.kill()
    assert child.returncode == 128 + number, stderr
    assert stdout == ""
    assert "interrupted" in stderr or "cancelled" in stderr
    assert "Traceback" not in stderr
