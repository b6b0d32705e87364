"""`tload.save` where system calls fail, as on file systems that cannot do what it needs."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import servers
import tload
from conftest import require, skip_loudly

CONFINE = Path(__file__).parent / "confine.py"

SAVE = """
import sys, numpy as np, tload
def produced():
    print("began")
    yield "a", np.ones(3, np.float32)
try:
    tload.save(produced(), sys.argv[1], replace=True)
except tload.Error as error:
    print(type(error).__name__, str(error).replace("\\n", " "))
"""


@pytest.fixture(autouse=True)
def filters() -> None:
    try:
        require("pyseccomp")
    except RuntimeError as error:  # It finds no library.
        skip_loudly("libseccomp", str(error))


def confined(tmp_path: Path, errors: dict[str, int], *command: str) -> str:
    """Run a command of Python in which system calls fail, and return its output."""
    rules = [{"names": [name], "action": "SCMP_ACT_ERRNO", "errnoRet": number} for name, number in errors.items()]
    profile = {"defaultAction": "SCMP_ACT_ALLOW", "defaultErrnoRet": 1, "architectures": [], "syscalls": rules}
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(profile))
    command = (sys.executable, str(CONFINE), str(path), sys.executable, "-W", "ignore", *command)
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=servers.PATIENCE)
    return done.stdout


NO_RENAME = {"renameat2": errno.EINVAL}
LACKS: dict[str, tuple[dict[str, int], str, str]] = {
    "exchange": (NO_RENAME, "old", "UnsupportedError .*cannot exchange two directories .*new directory"),
    "renames": (NO_RENAME, "new.safetensors", ""),
    "locks": ({"flock": errno.ENOLCK}, "old", ""),
    "new": (NO_RENAME, "new", ""),
}


@pytest.mark.parametrize("case", LACKS)
def test_lacks_of_file_systems_are_found_before_bytes_are_written(tmp_path: Path, case: str) -> None:
    errors, name, wanted = LACKS[case]
    folder = tmp_path / "folder"
    tload.save({"a": np.zeros(3, np.float32)}, folder / "old")
    output = confined(tmp_path, errors, "-c", SAVE, str(folder / name))
    if wanted:
        assert re.match(wanted, output)
        assert [path.name for path in folder.iterdir()] == ["old"]
    else:
        assert output == "began\n"
        assert tload.load(folder / name, framework="numpy")["a"].tolist() == [1, 1, 1]


def test_created_directories_are_stored_from_the_first(tmp_path: Path) -> None:
    output = confined(tmp_path, {"fsync": errno.EIO}, "-c", SAVE, str(tmp_path / "a/b/model"))
    assert output.startswith("IoError")
    assert f"{tmp_path}: " in output


def test_leftovers_without_locks_go_after_a_day(tmp_path: Path) -> None:
    program = """
import os, signal, sys, numpy as np, tload
def produced():
    yield "a", np.ones(3, np.float32)
    os.kill(os.getpid(), signal.SIGKILL)
tload.save(produced(), sys.argv[1])
"""
    path = tmp_path / "folder/model"
    killed = subprocess.run([sys.executable, "-W", "ignore", "-c", program, str(path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    (stage,) = path.parent.iterdir()
    remove = ("-m", "tload", "rm", "--incomplete", str(path))
    for hours, is_removed in ((0, False), (23, False), (25, True)):
        then = time.time() - hours * 3600
        for entry in (*stage.iterdir(), stage):
            os.utime(entry, (then, then))
        output = confined(tmp_path, {"flock": errno.ENOLCK}, *remove)
        assert str(stage) in output
        assert stage.exists() is not is_removed
