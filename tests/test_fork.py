"""A process that forks while its threads load: the child does not wait for a lock of theirs."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from conftest import require
from files import Content, tile, write_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

TENSORS = 12
SIZE = 100_000
PATIENCE = 240.0
"""Seconds: a script that takes longer hangs."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fork")
    write_checkpoint(folder, [{f"t{index}": Content("U8", (SIZE,), tile(index, SIZE)) for index in range(TENSORS)}])
    return folder


# Threads take every lock of the process, while the main thread forks repeatedly. A child that waits
# forever is ended by its alarm.
FORKS = """
import gc, os, signal, sys, threading, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of threads and fork
warnings.filterwarnings("ignore", "this is a debug build")
import numpy as np
import tload

path, forks = sys.argv[1], int(sys.argv[2])
over = threading.Event()
opened = tload.open(path)

def into():
    state = {name: np.zeros(100_000, np.uint8) for name in opened}
    return tload.load_into(state, path)

def abandon():
    stream = tload.stream(path, framework="numpy", memory_limit="2 MiB")
    next(stream)
    stream.close()

def again_and_again(work):
    while not over.is_set():
        work()

works = [into, into, abandon, tload.release_staging, tload.release_staging, tload.parked_bytes]
threads = [threading.Thread(target=again_and_again, args=(work,), daemon=True) for work in works]
kept = dict(tload.stream(path, framework="numpy"))
for thread in threads:
    thread.start()

def child():
    expected = {name: tensor.tobytes() for name, tensor in kept.items()}
    kept.clear()
    gc.collect()
    tload.release_staging()
    tload.parked_bytes()
    abandon()
    into()
    # Both with objects that the parent had opened, and from scratch.
    for source in (opened, path):
        loaded = tload.load(source, framework="numpy")
        assert {name: tensor.tobytes() for name, tensor in loaded.items()} == expected
    tload.release_staging()

for number in range(forks):
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        try:
            child()
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        if number % 2:
            os._exit(0)
        sys.exit(0)  # with atexit, unlike a forked child of multiprocessing
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == 0, f"child {number}: {status} (-14: it hangs)"
over.set()
for thread in threads:
    thread.join()
"""


@pytest.mark.timeout(300)
def test_forked_child_never_waits_for_parent_locks(checkpoint: Path) -> None:
    require("numpy")
    if not hasattr(os, "fork"):
        pytest.skip("no fork on this system")
    command = [sys.executable, "-c", FORKS, str(checkpoint), "40"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
