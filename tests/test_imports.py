"""Frameworks are imported while a load reads: an import that blocks until a test releases it shows
what goes on meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from conftest import require, skip_loudly
from files import Content, tile, write_file

if TYPE_CHECKING:
    import servers

MIB = 1 << 20
TENSORS = 12
PATIENCE = 240.0
"""Seconds: a script that takes longer hangs."""

# In place of torch and numpy.
FRAMEWORK = """
import gate
gate.run()
__version__ = "0.0"
uint8 = "uint8"
class Tensor: pass
def dtype(name): return name
"""

# Code that the framework runs when it is imported.
GATE = """
import threading
entered, released = threading.Event(), threading.Event()
def run():
    global thread
    thread = threading.current_thread()
    entered.set()
    released.wait()
def finish():
    released.set()
    entered.wait()
    thread.join()
"""

PRELUDE = """
import asyncio, os, re, signal, sys, threading, time
import gate, tload
path = sys.argv[1]
def until(condition):
    while not condition():
        os.sched_yield()
def is_imported():
    return "torch" in sys.modules
def is_waiting():
    # The main thread waits for an import.
    frame = sys._current_frames()[threading.main_thread().ident]
    while frame is not None and frame.f_code is not tload._tensors.imports.BackgroundImport.wait.__code__:
        frame = frame.f_back
    return frame is not None
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of 12 MiB, beside a module `torch` and a module `numpy` that wait to be released."""
    for name in ("torch", "numpy"):
        (tmp_path / name / "utils").mkdir(parents=True)
        (tmp_path / name / "__init__.py").write_text(FRAMEWORK)
        (tmp_path / name / "utils" / "__init__.py").touch()
        (tmp_path / name / "utils" / "dlpack.py").write_text("def from_dlpack(capsule): return 'imported', capsule\n")
    (tmp_path / "gate.py").write_text(GATE)
    tensors = {f"t{index:02}": Content("U8", (MIB,), tile(index, MIB)) for index in range(TENSORS)}
    write_file(tmp_path / "a.safetensors", tensors)
    return tmp_path / "a.safetensors"


def run(script: str, path: Path, **variables: str) -> str:
    """Run a script that can import the modules beside the file; return its output."""
    paths = os.pathsep.join([str(path.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + script, str(path)],
        env=os.environ | {"PYTHONPATH": paths} | variables,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def test_module_that_the_framework_imports_may_load(path: Path) -> None:
    # As torch imports its backends: a program that imports one first must not wait for torch.
    (path.parent / "backend.py").write_text("import sys, tload; loaded = tload.load(sys.argv[1])")
    with (path.parent / "torch" / "__init__.py").open("a") as module:
        module.write("import backend\n")
    run("gate.released.set(); import backend; assert len(backend.loaded) == 12", path)


def test_stream_reads_before_the_framework_is_imported(path: Path) -> None:
    script = r"""
stream = tload.stream(path)
until(lambda: stream.progress.bytes_read >= 12 << 20)
gate.entered.wait()
assert not gate.released.is_set() and gate.thread is not threading.main_thread()
first = stream.report.import_seconds
assert 0 < first < stream.report.import_seconds, "so far"
until(lambda: stream.report.ready_seconds and stream.report.import_seconds > stream.report.ready_seconds + 0.2)
gate.released.set()
assert all(tensor[0] == "imported" for _, tensor in stream)
report = stream.report
assert report.tensors == 12 and report.import_seconds == stream.report.import_seconds > 0
assert str(report).endswith(f"import   torch in {report.import_seconds:.3f} s")
assert report.to_dict()["import_seconds"] == report.import_seconds
# The disk is not charged for it.
assert 0.1 < report.import_wait_seconds <= report.import_seconds
assert report.import_wait_seconds < report.seconds
assert report.bytes_per_second > report.tensor_bytes / report.seconds
headline = (
    r"12 tensors, 12\.0 MiB in \d+\.\d+ s: "
    r"\d+\.\d+ [GM]B/s, after \d+\.\d s of import torch \(complete\)"
)
assert re.fullmatch(headline, str(report).partition("\n")[0]), str(report)
assert re.search(headline, report.summary)
# Imported before: nothing is imported, and everything is checked before the first read.
assert len(tload.load(path)) == 12
with tload.stream(path) as stream:
    next(stream)
assert stream.report.import_seconds == 0 and "import " not in str(stream.report)
"""
    run(script, path)


def test_load_receives_more_than_the_memory_limit_before_the_import(path: Path) -> None:
    script = """
def show(progress):
    if progress.tensors_received == progress.tensors_total:
        gate.released.set()
tensors = tload.load(path, memory_limit="2 MiB", progress=show)
assert list(tensors) == [f"t{index:02}" for index in range(12)]
assert all(tensor[0] == "imported" for tensor in tensors.values())
"""
    run(script, path)


TIMED_OUT = """
def assert_late(call, module="torch"):
    # On a busy machine, a short timeout may expire before the import begins.
    for timeout in (1, 10, 100):
        os.environ["TLOAD_TIMEOUT"] = str(timeout)
        try:
            call(timeout)
        except tload.LoadTimeoutError as error:
            late = error
        else:
            raise AssertionError("no error")
        assert not gate.released.is_set()
        # Reads may be late too.
        if f"importing {module} has taken " in "".join([str(late), *getattr(late, "__notes__", ())]):
            return late
    raise late
"""


@pytest.mark.parametrize(
    "call",
    [
        "tload.load(path, timeout=timeout)",
        "next(tload.stream(path, timeout=timeout))",
        "next(tload.stream(path, timeout=timeout, progress=lambda progress: None))",
        "tload.stream(path, timeout=timeout, device='cuda:0')",
        "tload.stream(path, timeout=timeout, device_map={'*': 'cuda:0'})",
        "tload.open(path).read('t03')",
        "asyncio.run(first(timeout))",
    ],
)
def test_timeouts_count_the_import(call: str, path: Path) -> None:
    script = f"""{TIMED_OUT}
async def first(timeout):
    async for _ in tload.stream(path, timeout=timeout):
        pass
assert_late(lambda timeout: {call})
gate.finish()
"""
    run(script, path)


def test_timeout_counts_the_import_of_numpy(path: Path) -> None:
    script = f"""{TIMED_OUT}
error = assert_late(lambda timeout: next(tload.stream(path, framework="numpy", timeout=timeout)), "numpy")
if not hasattr(error, "__notes__"):
    assert str(error).startswith("the load took longer than its timeout of "), error
    assert error.hint == "import numpy before the load, or raise timeout"
gate.finish()
"""
    run(script, path)


def test_late_reads_are_reported_with_the_late_import(path: Path, web: servers.Web) -> None:
    web.files["a.safetensors"] = path.read_bytes()
    web.stall_from = 8 * MIB
    script = f"""{TIMED_OUT}
error = assert_late(lambda timeout: tload.load(os.environ["URL"], timeout=timeout))
assert "importing" not in str(error), error
(note,) = error.__notes__
assert note.startswith("importing torch has taken ")
gate.finish()
"""
    run(script, path, URL=f"{web.url}/a.safetensors")


@pytest.mark.parametrize("end", ["cancel", "close"])
def test_waiting_for_the_import_can_be_cancelled(end: str, path: Path) -> None:
    script = f"""
import logging
logging.disable()  # a busy disk may still hold memory when the load ends, which is a note
stream = tload.stream(path)
threading.Thread(target=lambda: (until(is_waiting), stream.{end}())).start()
try:
    next(stream)
except tload.CancelledError:
    assert not gate.released.is_set()
    assert next(stream, None) is None
    assert stream.report.outcome == "cancelled"
else:
    raise AssertionError("not cancelled")
gate.finish()
"""
    run(script, path)


def test_closed_stream_is_an_invalid_request_during_the_import(path: Path) -> None:
    script = """
stream = tload.stream(path)
stream.close()
try:
    next(stream)
except tload.InvalidRequestError as error:
    assert str(error) == "the stream is closed", error
gate.finish()
"""
    run(script, path)


@pytest.mark.parametrize("call", ["tload.load(path)", "next(tload.stream(path))"])
def test_ctrl_c_interrupts_the_wait_for_the_import(call: str, path: Path) -> None:
    script = f"""
threading.Thread(target=lambda: (gate.entered.wait(), os.kill(os.getpid(), signal.SIGINT))).start()
try:
    {call}
except KeyboardInterrupt:
    assert not gate.released.is_set()
else:
    raise AssertionError("not interrupted")
# The import goes on, and the next load uses it.
gate.released.set()
assert len(tload.load(path)) == 12
"""
    run(script, path)


def test_event_loop_runs_during_the_import(path: Path) -> None:
    script = """
async def main():
    async with tload.stream(path) as stream:
        waiting = asyncio.ensure_future(anext(stream))
        while not gate.entered.is_set():
            await asyncio.sleep(0)
        for _ in range(1000):
            await asyncio.sleep(0)
        assert not waiting.done()
        try:
            await anext(stream)
        except tload.InvalidRequestError as error:
            assert "two tasks" in str(error)
        else:
            raise AssertionError("two tasks wait")
        # A task that gives up loses nothing.
        waiting.cancel()
        try:
            await waiting
        except asyncio.CancelledError:
            pass
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        assert gate.thread is not threading.main_thread() and not gate.released.is_set()
        gate.released.set()
        names = [(await waiting)[0]] + [name async for name, _ in stream]
        assert len(set(names)) == 12
    # The loop of an abandoned wait is closed when the import ends.
asyncio.run(main())
"""
    run(script, path)


def test_loop_may_close_before_the_import_ends(path: Path) -> None:
    script = """
async def main():
    try:
        await asyncio.wait_for(anext(tload.stream(path)), 0.05)
    except TimeoutError:
        pass
asyncio.run(main())
gate.released.set()
assert len(tload.load(path)) == 12
"""
    run(script, path)


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("raise ImportError('no libfoo.so')", "cannot be imported (no libfoo.so)"),
        ("import no_such_module", "cannot be imported (No module named 'no_such_module')"),
        ("class Tensor: pass\n__version__ = '0.1'", "torch 0.1 has no such dtype"),
    ],
)
def test_errors_of_the_import_are_raised_by_the_iterator(version: str, message: str, path: Path) -> None:
    (path.parent / "torch" / "__init__.py").write_text(version)
    script = f"""
stream = tload.stream(path)
try:
    next(stream)
except tload.UnsupportedError as error:
    assert {message!r} in str(error), error
else:
    raise AssertionError("no error")
assert next(stream, None) is None
assert stream.report.outcome != "running"
"""
    run(script, path)


def test_dtypes_that_no_version_has_are_rejected_without_an_import(path: Path, tmp_path: Path) -> None:
    write_file(tmp_path / "odd.safetensors", {"odd": Content.random("F4", (2, 3), 0)})
    write_file(tmp_path / "small.safetensors", {"small": Content.random("F6_E2M3", (4,), 0)})
    script = """
for name, framework in (("odd", "torch"), ("odd", "numpy"), ("small", "torch"), ("small", "numpy")):
    try:
        tload.stream(path.replace("a.safe", f"{name}.safe"), framework=framework)
    except tload.UnsupportedError as error:
        assert error.tensor == name
    else:
        raise AssertionError("no error")
assert not {"torch", "numpy"} & sys.modules.keys()
"""
    run(script, path)


def test_framework_that_uses_tload_in_its_import_does_not_wait_for_itself(path: Path) -> None:
    (path.parent / "torch" / "__init__.py").write_text(
        "import gate, sys, tload\nuint8 = 'uint8'\ngate.inner = tload.load(sys.argv[1])\n"
    )
    run("assert len(tload.load(path)) == 12 and len(gate.inner) == 12", path)


def test_fork_waits_for_the_import(path: Path) -> None:
    # Hooks run in reverse order: the import is released, and then waited for.
    script = """
os.register_at_fork(before=gate.released.set)
stream = tload.stream(path)
gate.entered.wait()
child = os.fork()
if child == 0:
    signal.alarm(60)
    import torch
    assert torch.uint8 == "uint8"
    assert len(tload.load(path)) == 12
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "-14: it hangs"
assert len(list(stream)) == 12
"""
    run(script, path)


def test_exit_ends_the_import(path: Path) -> None:
    (path.parent / "gate.py").write_text(
        GATE.replace(
            "released.wait()",
            """
    try:
        while True:
            pass
    except SystemExit:
        print("ended", flush=True)
        raise
""".strip(),
        )
    )
    assert run("stream = tload.stream(path)\ngate.entered.wait()", path) == "ended\n"


def test_exit_ends_an_import_in_a_callback(path: Path) -> None:
    # As importlib's, which frees the lock of a module: it cannot raise the exception of the exit.
    (path.parent / "gate.py").write_text(
        GATE.replace(
            "released.wait()",
            """
    import weakref
    class Lock:
        pass
    def spin(_):
        entered.set()
        while True:
            pass
    lock = Lock()
    reference = weakref.ref(lock, spin)
    del lock
    try:
        while True:
            pass
    except SystemExit:
        print("ended", flush=True)
        raise
""".strip(),
        ).replace("    entered.set()\n    import", "    import")
    )
    assert run("stream = tload.stream(path)\ngate.entered.wait()", path) == "ended\n"


def test_safe_open_does_not_wait_for_torch(path: Path) -> None:
    script = """
from tload.safetensors import safe_open
with safe_open(path, "pt", "cpu") as file:
    assert len(file.keys()) == 12
    assert not is_imported()
    gate.released.set()
    assert all(tensor[0] == "imported" for tensor in file.get_tensors().values())
"""
    run(script, path)


def test_torch_itself_is_imported_while_reading(tmp_path: Path) -> None:
    require("torch")
    if not Path("/proc/self/maps").exists():
        skip_loudly("proc", "no /proc to see which libraries are mapped")
    tensors = {f"t{index}": Content("U8", (MIB,), tile(index, MIB)) for index in range(4)}
    write_file(tmp_path / "a.safetensors", tensors)
    script = """
import sys, tload
from tload._tensors import torch_tensors
torch_tensors._link_libraries()
assert "/libtorch.so" in open("/proc/self/maps").read() and "torch" not in sys.modules
loaded = tload.load(sys.argv[1])
import torch
for index in range(4):
    tensor = loaded[f"t{index}"]
    assert tensor.dtype == torch.uint8 and tensor.shape == (1 << 20,)
    sys.stdout.buffer.write(bytes(tensor.numpy()))
"""
    command = [sys.executable, "-c", script, str(tmp_path / "a.safetensors")]
    done = subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == b"".join(content.raw for content in tensors.values())
