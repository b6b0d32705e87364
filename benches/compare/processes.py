"""Runs of contenders: each is a process of its own, with a timeout."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cases import Case
from contenders import Family, Setting

LOADERS = Path(__file__).parent / "loaders"
#: Directory of `page_cache`.
SHARED = Path(__file__).parents[1] / "gpu" / "loaders"
#: Variables of users that would change what is measured.
TUNED_BY = ("TLOAD_", "RUNAI_", "FASTSAFETENSORS_")


@dataclass(frozen=True)
class Tools:
    python: str
    #: The command, as a list.
    tload: list[str]
    #: Timeout of each run, seconds.
    seconds_max: float


def environment(tools: Tools, extra: dict[str, str]) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(TUNED_BY)}
    path = os.pathsep.join(filter(None, [str(SHARED), os.environ.get("PYTHONPATH", "")]))
    return plain | {"PYTHONPATH": path, "TLOAD_COMMAND": json.dumps(tools.tload), **extra}


def within(cgroup: Path | None, command: list[str]) -> list[str]:
    """Return a command that moves into the control group before it starts."""
    return command if cgroup is None else ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(cgroup / "tasks"), *command]


def last_words(text: str, status: int) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else f"status {status}"


def end(child: subprocess.Popen[str]) -> None:
    """Kill the process and everything that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.communicate()


def run(command: list[str], variables: dict[str, str], seconds: float, *, reports: bool = True) -> dict[str, Any]:
    """Return the JSON in the program's last line, if it `reports`; or a short `error`.

    `wall_seconds` is the total time, imports included. The process is killed after `seconds`.
    """
    began = time.monotonic()
    # A session of its own, so that its children are killed with it.
    child = subprocess.Popen(
        command,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        out, errors = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        end(child)
        return {"error": f"did not end within {seconds:.0f} s", "wall_seconds": time.monotonic() - began}
    except BaseException:
        end(child)
        raise
    wall = {"wall_seconds": time.monotonic() - began}
    if child.returncode != 0:
        return {"error": last_words(errors, child.returncode), **wall}
    if not reports:
        return wall
    try:
        return json.loads(out.strip().splitlines()[-1]) | wall
    except (IndexError, ValueError):
        return {"error": f"printed no result: {out[-200:]!r}", **wall}


def measure(
    family: Family,
    setting: Setting,
    case: Case,
    location: Path,
    tools: Tools,
    *,
    cgroup: Path | None = None,
    digest: bool = False,
) -> dict[str, Any]:
    command = [tools.python, "-W", "ignore", str(LOADERS / family.script), str(location)]
    command += ["--mode", case.mode, "--state", case.state, "--options", json.dumps(setting.options)]
    if digest and family.role != "ceiling":
        command.append("--digest")
    return run(within(cgroup, command), environment(tools, setting.environment), tools.seconds_max)


def digest_of(folder: Path, tools: Tools) -> str:
    """Return the expected digest, from a load by safetensors."""
    command = [tools.python, "-W", "ignore", str(LOADERS / "load_safetensors.py"), str(folder), "--digest"]
    found = run(command, environment(tools, {}), tools.seconds_max)
    if "digest" not in found:
        raise SystemExit(f"safetensors cannot load {folder.name}: {found.get('error', found)}")
    return str(found["digest"])


def convert(folder: Path, file: Path, tools: Tools) -> str | None:
    """Write Tensorizer's format, outside every clock, and return the reason of a failure."""
    command = [tools.python, "-W", "ignore", str(LOADERS / "make_tensorizer.py"), str(folder), str(file)]
    done = subprocess.run(command, env=environment(tools, {}), capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else last_words(done.stderr, done.returncode)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
