"""Description of the machine, without names of its directories or users."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from processes import Tools

PACKAGES = ("tload", "torch", "safetensors", "runai-model-streamer", "fastsafetensors", "tensorizer")
#: Two directories at least: `s3://x` and `GB/s` do not match.
ABSOLUTE = re.compile(r"(?<![\w:/.])/(?:[\w.+@-]+/)+([\w.+@-]*)")


def first_line(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return "not found"


def file_system(folder: Path) -> str:
    """Return the type of the file system that holds the directory, by the longest mount point above it."""
    best = ("", "unknown")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, kind, *_ = line.split()
        inside = where == "/" or f"{folder.resolve()}/".startswith(f"{where}/")
        if inside and len(where) >= len(best[0]):
            best = (where, kind)
    return best[1]


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def machine(folder: Path, tools: Tools) -> dict[str, Any]:
    versions = {"Python": platform.python_version(), "tload's command": first_line([*tools.tload, "--version"])}
    versions["fio"] = first_line(["fio", "--version"])
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "kernel": platform.release(),
        "file_system": file_system(folder),
        "huge_pages": Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text().strip(),
        "versions": versions,
    }


def scrubbed(value: Any) -> Any:
    """Return the value without absolute paths, of which only the last names stay."""
    return json.loads(ABSOLUTE.sub(r"…/\1", json.dumps(value, ensure_ascii=False)))


def command_line() -> list[str]:
    return ["python", "benches/compare/disks.py", *sys.argv[1:]]
