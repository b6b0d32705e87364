"""Contenders, and their runs: each is a process of its own, with a timeout.

Importing torch takes longer than most loads, so runs are forked from a server that has imported it
and not touched CUDA.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LOADERS = Path(__file__).parent / "loaders"
#: Timeout of each run, seconds.
RUN_SECONDS_MAX = 60.0
#: Minimum of the remaining time for which a run is started: a CUDA context alone may take a second
#: or two.
RUN_SECONDS_MIN = 4.0


@dataclass(frozen=True)
class Contender:
    name: str
    script: str
    options: dict[str, Any] = field(default_factory=dict)
    #: Directory under `--site` with its installed package; None for the interpreter's own packages.
    site: str | None = None
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def is_ours(self) -> bool:
        return self.site == "tload"

    @property
    def is_ceiling(self) -> bool:
        return self.script.startswith("ceiling")


def tload(name: str, **options: Any) -> Contender:
    return Contender(name, "load_tload.py", options, "tload")


COPY_CEILING = Contender("ceiling: pinned copies", "ceiling_copy.py")
READ_CEILING = Contender("ceiling: raw reads", "ceiling_read.py")
OURS = tload("tload, defaults")
PEERS = [
    Contender("safetensors prefetch", "load_prefetch.py", site="prefetch"),
    Contender("InstantTensor", "load_instanttensor.py", site="instanttensor"),
    # Off by default: it registers its mapping of the files with the driver and copies from it.
    Contender(
        "InstantTensor, registered",
        "load_instanttensor.py",
        site="instanttensor",
        environment={"INSTANTTENSOR_USE_INTERNAL_MEMORY_REGISTER": "1"},
    ),
    Contender("fastsafetensors, nogds", "load_fastsafetensors.py", site="fastsafetensors"),
    Contender("Run:ai + .to()", "load_runai.py", site="runai", environment={"RUNAI_STREAMER_CONCURRENCY": "16"}),
    Contender("safetensors load_file", "load_safetensors.py"),
]
#: Reads through the page cache, whatever the default would choose.
BUFFERED = tload("tload, buffered", cache="buffered")
TUNING = [
    tload("tload, uring", engine="uring"),
    tload("tload, 2 lanes", lanes=2),
    tload("tload, extents of 2 MiB", extent_bytes="2 MiB"),
    tload("tload, extents of 8 MiB", extent_bytes="8 MiB"),
    tload("tload, 8 extents", depth=8),
    tload("tload, 24 extents", depth=24),
    tload("tload, dlpack", framework="dlpack"),
]


@dataclass(frozen=True)
class Setting:
    """Settings of all runs."""

    device: str
    #: Directory with a subdirectory for each installed package; None for the interpreter's own.
    site: Path | None
    #: Number of loads after the first in each process.
    again: int
    #: Bytes of each copy of the ceiling.
    copy_bytes: int
    #: Start method of processes: `"forkserver"`, or `"spawn"`, which imports torch anew for each.
    start: str = "forkserver"
    #: The driver is a stub that torch does not know.
    rehearsal: bool = False

    @property
    def processes(self) -> Any:
        return multiprocessing.get_context(self.start)


def start_server(setting: Setting) -> None:
    """Import torch in the fork server. Otherwise the first run would wait for it."""
    if setting.start != "forkserver":
        return
    setting.processes.set_forkserver_preload(["torch"])
    process = setting.processes.Process(target=_nothing)
    process.start()
    process.join()


def _nothing() -> None:
    pass


def paths_of(contender: Contender, setting: Setting) -> list[str]:
    """Return the directories of this contender's packages, beside the interpreter's own."""
    return [str(setting.site / contender.site)] if contender.site and setting.site else []


def environment_of(contender: Contender, setting: Setting) -> dict[str, str]:
    """Return the environment of a program that is started rather than forked."""
    paths = [*paths_of(contender, setting), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def missing(contender: Contender, setting: Setting) -> str | None:
    """Return the reason why this contender cannot run, if there is one."""
    if contender.site is None or (setting.site is None and contender.is_ours):
        return None
    if setting.site is None or not (setting.site / contender.site).is_dir():
        return "its wheel is missing, or cannot be imported"
    return None


def _become(
    script: Path, arguments: list[str], paths: list[str], environment: dict[str, str], out: Path, errors: Path
) -> None:
    """Run the loader's program in the forked process."""
    for path, number in ((out, 1), (errors, 2)):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(fd, number)
        os.close(fd)
    os.environ.update(environment)
    sys.path[:0] = [str(script.parent), *paths]
    sys.argv = [str(script), *arguments]
    warnings.simplefilter("ignore")
    runpy.run_path(str(script), run_name="__main__")
    sys.stdout.flush()
    # Skips the interpreter's shutdown: some peers hang or crash there, and the result is printed.
    os._exit(0)


def run(
    contender: Contender,
    folder: Path,
    state: str,
    setting: Setting,
    seconds: float,
    *,
    memory: bool,
    patience: float,
    also: Path | None = None,
    checksum: bool = True,
) -> dict[str, Any]:
    """Return the loader's output or a short `error`. Ends after `seconds`; starts no third load after `patience`."""
    options = contender.options | ({"bytes": setting.copy_bytes} if contender == COPY_CEILING else {})
    arguments = [str(folder), "--device", setting.device, "--state", state, "--again", str(setting.again)]
    arguments += ["--options", json.dumps(options), *(["--memory"] if memory else [])]
    arguments += ["--patience", str(patience), *([] if checksum else ["--no-checksum"])]
    arguments += [*(["--also", str(also)] if also else []), *(["--rehearsal"] if setting.rehearsal else [])]
    with tempfile.TemporaryDirectory(prefix="tload-gpu-run-") as scratch:
        out, errors = Path(scratch) / "out", Path(scratch) / "errors"
        script, paths = LOADERS / contender.script, paths_of(contender, setting)
        began = time.monotonic()
        become = (script, arguments, paths, contender.environment, out, errors)
        process = setting.processes.Process(target=_become, args=become)
        process.start()
        process.join(seconds)
        ended = process.exitcode is not None
        if not ended:
            process.kill()
            process.join()
        wall = {"wall_seconds": time.monotonic() - began}
        told, complaints = (path.read_text(errors="replace") if path.exists() else "" for path in (out, errors))
    if not ended:
        return {"error": f"did not end within {seconds:.0f} s", "stderr": complaints[-4000:], **wall}
    if process.exitcode != 0:
        said = complaints.strip().splitlines() or [f"status {process.exitcode}"]
        return {"error": said[-1][:300], "stderr": complaints[-4000:], **wall}
    try:
        return json.loads(told.strip().splitlines()[-1]) | wall
    except (IndexError, ValueError):
        return {"error": f"printed no result: {told[-200:]!r}", "stderr": complaints[-4000:], **wall}
