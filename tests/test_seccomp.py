"""The seccomp profile of `deploy/`: what a container may do with it, and with the default one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

import servers
from conftest import require, skip_loudly
from files import Content

PROFILE = servers.ROOT / "deploy" / "seccomp" / "tload.json"
CONFINE = Path(__file__).parent / "confine.py"
COMMAND = str(Path(sysconfig.get_path("scripts")) / "tensorload")
RING_CALLS = {"io_uring_enter", "io_uring_register", "io_uring_setup"}

Floats = tuple[Path, dict[str, Content]]


def default_profile() -> dict[str, Any]:
    """Return the profile without its last rule: the default of container runtimes."""
    profile: dict[str, Any] = json.loads(PROFILE.read_text())
    assert set(profile["syscalls"].pop()["names"]) == RING_CALLS
    return profile


def confined(profile: Path, *command: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, str(CONFINE), str(profile), *command)
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=servers.PATIENCE)


@pytest.fixture
def default(tmp_path: Path) -> Path:
    """The default profile, on a machine where io_uring works without one."""
    try:
        require("pyseccomp")
    except RuntimeError as error:  # It finds no library.
        skip_loudly("libseccomp", str(error))
    done = subprocess.run([COMMAND, "doctor", "--json"], capture_output=True, text=True, check=False)
    (ring,) = (finding for finding in json.loads(done.stdout)["findings"] if finding["id"] == "io_uring")
    if ring["level"] != "ok":
        skip_loudly("uring", ring["value"])
    path = tmp_path / "default.json"
    path.write_text(json.dumps(default_profile()))
    return path


def test_default_profile_refuses_rings_and_threads_read(default: Path, floats: Floats) -> None:
    done = confined(default, COMMAND, "load", str(floats[0]), "--json", "--cache", "direct")
    assert done.returncode == 0, done.stderr
    engine = json.loads(done.stdout)["report"]["engine"]
    assert engine["name"] == "pread"
    assert "Operation not permitted" in engine["reason"]


@pytest.mark.usefixtures("default")
def test_profile_allows_rings(floats: Floats) -> None:
    done = confined(PROFILE, COMMAND, "load", str(floats[0]), "--json", "--engine", "uring")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["report"]["engine"]["name"] == "uring"


def test_profile_adds_nothing_but_rings(default: Path) -> None:
    unshare = shutil.which("unshare") or skip_loudly("unshare", "util-linux is not installed")
    for profile in (default, PROFILE):
        done = confined(profile, unshare, "--user", "true")
        assert "Operation not permitted" in done.stderr
    allowed = {name for rule in default_profile()["syscalls"] for name in rule["names"]}
    assert not allowed & {"bpf", "mount", "setns", "unshare", "perf_event_open", *RING_CALLS}
