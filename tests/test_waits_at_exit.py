"""The end of a process waits for the cache once, in whatever way the process was made."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from conftest import require

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE = 240.0
"""Seconds: a script that takes longer hangs."""

TARGET = """
def run(marks):
    from tload._options import store_options

    def finish(seconds):
        with open(marks, "a") as file:
            file.write("1")

    store_options._tload.finish_caching = finish
"""


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


CHILD = """
import multiprocessing, sys

if __name__ == "__main__":
    method, when, marks = sys.argv[1:]
    if when == "imported before":
        import tload
    import target
    child = multiprocessing.get_context(method).Process(target=target.run, args=(marks,))
    child.start()
    child.join()
    sys.exit(child.exitcode)
"""


@pytest.mark.parametrize("when", ["imported before", "imported in the child", "imported with the target"])
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_child_of_multiprocessing_waits_once(tmp_path: Path, method: str, when: str) -> None:
    program, marks = tmp_path / "program.py", tmp_path / "marks"
    program.write_text(CHILD)
    (tmp_path / "target.py").write_text(("import tload\n" if when == "imported with the target" else "") + TARGET)
    subprocess.run([sys.executable, program, method, when, marks], check=True, timeout=PATIENCE)
    assert marks.read_text() == "1"


FORKS = """
import multiprocessing
import tload
from tload import _exit
from tload._options import store_options

def run(more):
    from multiprocessing import util
    assert sum(call is _exit._finalize_all for call in util._afterfork_registry.values()) == 1
    waits = [call._args for call in util._finalizer_registry.values() if call._callback is _exit._make]
    assert sorted(map(repr, waits)) == sorted(repr((wait,)) for wait in _exit._calls)
    assert waits.count((store_options._finish_caching,)) == 1
    if more:
        fork(more - 1)

def fork(more):
    child = multiprocessing.get_context("fork").Process(target=run, args=(more,))
    child.start()
    child.join()
    assert child.exitcode == 0

fork(2)
"""


def test_forks_of_forks_register_one_wait_each() -> None:
    done = run(FORKS)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("first", ["os", "multiprocessing.util", "torch"])
def test_process_waits_once(tmp_path: Path, first: str) -> None:
    if first == "torch":
        require("torch")
    marks = tmp_path / "marks"
    done = run(f"import {first}, sys\n{TARGET}\nrun(sys.argv[1])", marks)
    assert (done.returncode, marks.read_text()) == (0, "1"), done.stderr


def test_command_does_not_wait_twice(tmp_path: Path) -> None:
    # It waits itself. At the exit of Python, the signals that it handled have no effect any more.
    marks = tmp_path / "marks"
    script = f"""
import sys
from tload.__main__ import main
{TARGET}
run(sys.argv.pop())
sys.exit(main())
"""
    done = run(script, "--version", marks)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("tload ")
    assert not marks.exists()
