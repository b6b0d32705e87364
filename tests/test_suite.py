"""The test suite itself: signals under `nohup`, and the excuses for tests of other projects."""

from __future__ import annotations

import os
import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SUITES = Path(__file__).parent / "with_suites"

PROGRAM = """
import os, signal, subprocess, sys

HANG_UP = "import os, signal; os.kill(os.getpid(), signal.SIGHUP)"

def test_hangup():
    exec(HANG_UP)
    assert subprocess.run([sys.executable, "-c", HANG_UP]).returncode == -signal.SIGHUP
"""


@pytest.mark.parametrize("processes", [0, 1])
def test_suite_under_nohup_goes_on_and_its_children_end(processes: int, tmp_path: Path) -> None:
    (tmp_path / "test_program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "conftest", "-p", "no:cacheprovider", str(tmp_path)]
    command += ["--numprocesses", str(processes)]
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh", *command],
        env=os.environ | {"PYTHONPATH": paths},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, (signal.Signals(-done.returncode) if done.returncode < 0 else "", done.stdout)
    assert "1 passed" in done.stdout


def test_excuses_name_exactly_the_recorded_differences() -> None:
    excuses = runpy.run_path(str(SUITES / "meant.py"))["MEANT"]
    excused = {
        (suite, f"{where}::{name}", difference.reason)
        for suite, differences in excuses.items()
        for difference in differences
        for where, names in difference.tests.items()
        for name in names
    }
    results = (SUITES / "RESULTS.md").read_text("utf-8")
    recorded = re.findall(r"^- (\w+), `(.+)`: \w+ with the package, \w+ with tload: (.+)$", results, re.MULTILINE)
    assert excused == set(recorded)
    (difference, *_) = excuses["runai"]
    where, (name, *_) = next(iter(difference.tests.items()))
    assert difference.includes(f"{where}::{name}", "X object has no attribute y")
    assert not difference.includes(f"{where}::{name}", "wrong bytes")
    assert not difference.includes(f"{where}::another", "X object has no attribute y")
