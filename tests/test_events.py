"""Events of the core in Python's `logging`: their level and logger, and no thread that waits for the
interpreter."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

import tload
from files import Content, tile, write_file
from servers import unused_port
from tload._report.log import log_events

if TYPE_CHECKING:
    from pathlib import Path

    from servers import Request, Web

PATIENCE = 240.0
"""Seconds: a script that takes longer hangs."""

SIZE = 300_000

# Keeps what is logged, as (level, logger, text).
KEEP = """
import logging, os, sys
import tload

kept = []

class Keep(logging.Handler):
    def emit(self, record):
        kept.append((record.levelname, record.name, record.getMessage()))

logging.getLogger("tload").addHandler(Keep())
"""


@pytest.fixture
def url(web: Web, tmp_path: Path) -> str:
    """A model of one file on the web server."""
    path = tmp_path / "model.safetensors"
    write_file(path, {f"t{index}": Content("U8", (SIZE,), tile(index, SIZE)) for index in range(4)})
    web.files["origin/model.safetensors"] = path.read_bytes()
    return f"{web.url}/origin"


def run(script: str, *arguments: object, pass_fds: tuple[int, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-c", script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, pass_fds=pass_fds)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_failed_mirror_is_a_warning(url: str, web: Web, caplog: pytest.LogCaptureFixture) -> None:
    mirror = f"http://127.0.0.1:{unused_port()}/model"
    checkpoint = tload.open(url, mirrors=[mirror], store={"retries": 0})
    # A load does not wait for its mirrors.
    failed = threading.Event()
    web.refuses = lambda: not failed.wait(PATIENCE)
    with caplog.at_level(logging.WARNING, "tload"), tload.stream(checkpoint, framework="dlpack") as tensors:
        deadline = time.monotonic() + PATIENCE
        while not caplog.records:
            assert time.monotonic() < deadline, "the mirror has not failed"
            time.sleep(0.01)
            tload._tload.forward_events()
        failed.set()
        assert len(list(tensors)) == 4
    record = caplog.records[0]
    assert (record.levelname, record.name) == ("WARNING", "tload.storage.object.mirrors")
    assert record.getMessage().startswith(f"a mirror failed; its ranges are read elsewhere mirror={mirror} error=")
    assert record.pathname.endswith("mirrors/mod.rs")


HELD = (
    KEEP
    + """
import ctypes, threading

url, descriptor = sys.argv[1], int(sys.argv[2])
logging.getLogger("tload").setLevel("DEBUG")
thread = threading.Thread(target=tload.open, args=(url,))
thread.start()
assert os.read(descriptor, 1) == b"1"
# Calls of `PyDLL` keep the lock of the interpreter, and no other thread takes it between the two.
sys.setswitchinterval(1000)
python, answer = ctypes.PyDLL(None), ctypes.create_string_buffer(1)
assert python.write(descriptor, b"x", 1) == 1 and python.read(descriptor, answer, 1) == 1
sys.setswitchinterval(0.005)
thread.join()
assert answer.raw == b"2"
assert [(level, name) for level, name, text in kept if text.startswith("retried ")] == [
    ("DEBUG", "tload.storage.object.retrying")
], kept
"""
)


def test_event_does_not_wait_for_the_interpreter(url: str, web: Web) -> None:
    """The first request fails while Python is busy; the second one arrives nevertheless."""
    ours, theirs = socket.socketpair()
    ours.settimeout(PATIENCE)
    arrived: list[bytes] = []

    def refuses() -> bool:
        arrived.append(b"%d" % (len(arrived) + 1))
        if len(arrived) <= 2:
            ours.sendall(arrived[-1])
        if len(arrived) == 1:
            ours.recv(1)
        return len(arrived) == 1

    web.refuses = refuses
    with ours, theirs:
        run(HELD, f"{url}/model.safetensors", theirs.fileno(), pass_fds=(theirs.fileno(),))


def test_events_that_wait_at_exit_are_logged(url: str, web: Web) -> None:
    """Here they are those of the command, which forwards none."""
    begin = "import atexit; kept = None; atexit.register(lambda: print(kept))"
    script = """
logging.getLogger("tload").setLevel("DEBUG")
tload.open(sys.argv[1])
assert tload._tload.cli_main(["tload", "ls", sys.argv[2]]) == 0
assert not any(text.startswith("retried ") for _, _, text in kept), kept
"""
    web.files["again.safetensors"] = web.files["origin/model.safetensors"]
    refused: list[Request] = []

    def refuses() -> bool:
        request = web.requests[-1]
        if request.path != "/again.safetensors" or refused:
            return False
        refused.append(request)
        return True

    web.refuses = refuses
    said = run(begin + KEEP + script, url, f"{web.url}/again.safetensors").stdout
    assert refused
    assert said.count("('DEBUG', 'tload.storage.object.retrying', 'retried error=") == 1, said


def test_events_after_a_load_are_logged_before_exit(url: str, web: Web) -> None:
    """Here they are those of the command, which forwards none."""
    script = """
import time

logging.getLogger("tload").setLevel("DEBUG")
tload.open(sys.argv[1])
assert tload._tload.cli_main(["tload", "ls", sys.argv[2]]) == 0
tload._report.log.follow()
deadline = time.monotonic() + float(sys.argv[3])
while not any(text.startswith("retried ") for _, _, text in kept):
    assert time.monotonic() < deadline
    time.sleep(0.01)
"""
    web.files["again.safetensors"] = web.files["origin/model.safetensors"]
    web.refuses = lambda: [request.path for request in web.requests].count("/again.safetensors") == 1
    run(KEEP + script, url, f"{web.url}/again.safetensors", PATIENCE / 2)


@pytest.mark.parametrize("has_cache", [False, True])
def test_events_are_followed_after_loads_with_a_cache(
    url: str, tmp_path: Path, *, has_cache: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed: list[None] = []
    monkeypatch.setattr(tload._report.log, "follow", lambda: followed.append(None))
    tload.load(url, framework="dlpack", store={"cache_dir": str(tmp_path / "cache")} if has_cache else None)
    assert len(followed) == has_cache


FULL = (
    KEEP
    + """
import resource

resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

def load(cache):
    tload.load(sys.argv[1], framework="dlpack", cache_dir=cache)
"""
)


def test_events_of_a_fork_are_its_own(url: str, tmp_path: Path) -> None:
    script = """
def stops(cache):
    load(cache)
    tload._tload.finish_caching(60)
    return sum("nothing more is written" in text for _, _, text in kept)

assert stops(sys.argv[2]) == 1, kept
child = os.fork()
if child == 0:
    os._exit(stops(sys.argv[3]))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
assert stops(sys.argv[4]) == 2, kept
"""
    run(FULL + script, url, *(tmp_path / name for name in ("first", "second", "third")))


def test_no_event_is_logged_when_logging_is_off(url: str, tmp_path: Path) -> None:
    script = FULL + "logging.getLogger('tload').setLevel(logging.CRITICAL + 1); load(sys.argv[2]); print(kept)"
    assert run(script, url, tmp_path / "cache").stdout == "[]\n"


def test_handler_does_not_end_a_load_as_if_it_were_complete() -> None:
    class Ends(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise StopIteration(record)

    logger, ends = logging.getLogger("tload.handled"), Ends()
    logger.addHandler(ends)
    try:
        with pytest.raises(RuntimeError, match="raised StopIteration"):
            log_events([(logging.ERROR, logger.name, "a mirror failed", "mod.rs", 1, time.time())])
    finally:
        logger.removeHandler(ends)
