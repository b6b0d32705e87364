"""Loads to a GPU beside their ceilings and beside other loaders, within a fixed time.

    python benches/gpu/measure.py OUT --site SITE

Creates a large and a many-small checkpoint in memory and both on disk, and measures in sections,
each with a share of the remaining time. A section runs its contenders one after another, in
rotating order, each in a process of its own. Writes `results.json` and `results.md` into OUT after
every run, so that an interruption costs one run. `benches/README.md` describes the comparison.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tables
from contenders import (
    BUFFERED,
    COPY_CEILING,
    OURS,
    PEERS,
    READ_CEILING,
    RUN_SECONDS_MAX,
    RUN_SECONDS_MIN,
    TUNING,
    Contender,
    Setting,
    environment_of,
    missing,
    run,
    start_server,
)

#: Time reserved for the tables and the cleanup, seconds.
SPARE_SECONDS = 10.0
#: Rounds of ceilings, tload and the fastest peer alone, after the first round: the judged figures
#: need more rounds than slow peers do.
NARROW_ROUNDS = 3
#: Factor from a checkpoint's size to the room that it needs, with headers and other files.
ROOM = 1.05


@dataclass(frozen=True)
class Section:
    name: str
    title: str
    checkpoint: str
    state: str
    contenders: list[Contender]
    #: Weight of its share of the time left when it begins, relative to the sections after it.
    weight: float
    rounds_max: int = 8
    #: Number of loads after the first in each process, if it differs from the command line.
    again: int | None = None


SECTIONS = [
    Section("warm-large", "Large tensors, in memory", "large", "warm", [COPY_CEILING, OURS, *PEERS], weight=10),
    Section("warm-small", "Many small tensors, in memory", "small", "warm", [COPY_CEILING, OURS, *PEERS], weight=6),
    Section(
        "disk-cold",
        "Large tensors, on disk, not in memory",
        "disk",
        "cold",
        [READ_CEILING, OURS, *PEERS],
        weight=10,
        again=1,
    ),
    Section(
        "disk-cold-small",
        "Many small tensors, on disk, not in memory",
        "disk-small",
        "cold",
        [READ_CEILING, OURS, *PEERS],
        weight=6,
        again=1,
    ),
    Section(
        "disk-warm",
        "Many small tensors, on disk, in the page cache",
        "disk-small",
        "warm",
        [COPY_CEILING, OURS, BUFFERED, *PEERS],
        weight=4,
        again=1,
    ),
    Section(
        "disk-warm-large",
        "Large tensors, on disk, in the page cache",
        "disk",
        "warm",
        [COPY_CEILING, OURS, BUFFERED, *PEERS],
        weight=6,
    ),
    Section(
        "tuning",
        "Options of tload, in memory",
        "large",
        "warm",
        [COPY_CEILING, OURS, *TUNING],
        weight=4,
    ),
]


class Clock:
    def __init__(self, seconds: float) -> None:
        self.began = time.monotonic()
        self.end = self.began + seconds

    @property
    def passed(self) -> float:
        return time.monotonic() - self.began

    @property
    def left(self) -> float:
        return self.end - time.monotonic()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def bytes_of(size: str) -> int:
    for suffix, shift in (("GiB", 30), ("MiB", 20)):
        if size.endswith(suffix):
            return int(float(size.removesuffix(suffix)) * (1 << shift))
    raise SystemExit(f"{size!r}: expected a number and GiB or MiB")


def in_memory(args: argparse.Namespace) -> list[Path]:
    """Return the requested tmpfs and then every other writable tmpfs."""
    found = [args.memory]
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        mounts = []
    for mount in mounts:
        _, where, kind, *_ = mount.split()
        folder = Path(where.encode().decode("unicode_escape"))
        if kind in ("tmpfs", "ramfs") and os.access(folder, os.W_OK) and folder not in found:
            found.append(folder)
    return found


@dataclass
class Made:
    """A checkpoint."""

    folder: Path
    #: Fallback for a tmpfs without room: the files are in the page cache, and tload is told to read
    #: through it.
    is_in_page_cache: bool


def make(args: argparse.Namespace, setting: Setting, clock: Clock) -> dict[str, Made]:
    """Create all checkpoints in parallel. Those that cannot be created are left out, with a message."""
    recipes = {
        "large": ("memory", "llama", args.large),
        "small": ("memory", "moe", args.small),
        "disk": ("disk", "llama", args.on_disk),
        "disk-small": ("disk", "moe", args.small_on_disk),
    }
    needed = {section.checkpoint for section in SECTIONS if not args.sections or section.name in args.sections}
    environment = environment_of(OURS, setting)
    children: dict[str, Any] = {}
    # Room already reserved on each file system.
    promised: dict[int, int] = {}
    for name, (where, preset, size) in recipes.items():
        if name not in needed:
            continue
        room = int(bytes_of(size) * ROOM)
        wanted = [*(in_memory(args) if where == "memory" else []), args.disk]
        parent = None
        for candidate in wanted:
            try:
                device, free = candidate.stat().st_dev, shutil.disk_usage(candidate).free
            except OSError as error:
                say(f"{candidate}: {error}")
                continue
            if free - promised.get(device, 0) >= room:
                parent = candidate
                promised[device] = promised.get(device, 0) + room
                break
            say(f"{candidate} has no room for {size} more ({free / (1 << 30):.1f} GiB free, without reservations)")
        if parent is None:
            say(f"SKIPPED: the checkpoint {name!r}: no file system has room for {size}")
            continue
        is_in_page_cache = where == "memory" and parent == args.disk
        if where == "memory" and parent != args.memory:
            kind = "the page cache: tload is told to read through it" if is_in_page_cache else "another tmpfs"
            say(f"NOTE: the checkpoint {name!r} is in {parent}, {kind}")
        folder = Path(tempfile.mkdtemp(prefix=f"tload-gpu-{name}-", dir=parent))
        command = [sys.executable, "-m", "tload", "synth", str(folder), "--preset", preset, "--size", size]
        child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        children[name] = (Made(folder, is_in_page_cache), child)
    made = {}
    for name, (this, child) in children.items():
        try:
            text, _ = child.communicate(timeout=max(1.0, clock.left / 2))
        except subprocess.TimeoutExpired:
            child.kill()
            text, _ = child.communicate()
            text = f"timed out\n{text}"
        if child.returncode == 0:
            made[name] = this
            say(text.strip())
        else:
            say(f"SKIPPED: cannot create the checkpoint {name!r}: {text.strip()}")
            shutil.rmtree(this.folder, ignore_errors=True)
    return made


def through_the_page_cache(contender: Contender) -> Contender:
    if not contender.is_ours:
        return contender
    return dataclasses.replace(contender, options={"cache": "buffered"} | contender.options)


def fastest_peer(running: list[Contender], runs: list[dict[str, Any]]) -> str | None:
    """Return the fastest of the peers measured so far."""
    peers = {contender.name for contender in running if not contender.is_ours and not contender.is_ceiling}
    best = {
        run["contender"]: max(tables.speeds(run, "again"), default=0.0) for run in runs if run["contender"] in peers
    }
    return max(best, key=lambda name: best[name], default=None)


def measure(section: Section, made: Made, setting: Setting, end: float, results: dict[str, Any], write: Any) -> None:
    """Run rounds of the section's contenders until its time is over."""
    say(f"-- {section.title}: {end - time.monotonic():.0f} s")
    runs: list[dict[str, Any]] = []
    contenders, where = section.contenders, "page cache" if made.is_in_page_cache else str(made.folder.parent)
    if made.is_in_page_cache:
        contenders = [through_the_page_cache(contender) for contender in contenders]
    results["sections"].append(
        {
            "name": section.name,
            "title": f"{section.title} ({where})",
            "checkpoint": section.checkpoint,
            "state": section.state,
            "contenders": [contender.name for contender in contenders],
            "runs": runs,
        }
    )
    if section.again is not None:
        setting = dataclasses.replace(setting, again=min(setting.again, section.again))
    running = []
    for contender in contenders:
        reason = missing(contender, setting)
        if reason is None:
            running.append(contender)
        else:
            say(f"SKIPPED: {contender.name}: {reason}")
            runs.append({"contender": contender.name, "round": 0, "error": f"skipped: {reason}"})
    took: dict[str, float] = {}
    # All contenders should have had a round when half of the time is over.
    patience = (end - time.monotonic()) / 2 / max(1, len(running))
    for turn in range(section.rounds_max):
        these = running
        if 1 <= turn <= NARROW_ROUNDS:
            rival = fastest_peer(running, runs)
            these = [it for it in running if it.is_ours or it.is_ceiling or it.name == rival]
        for index in range(len(these)):
            contender = these[(index + turn) % len(these)]
            left = end - time.monotonic()
            if left < max(RUN_SECONDS_MIN, took.get(contender.name, 0.0)):
                if turn == 0:
                    say(f"SKIPPED: {contender.name}: no time left")
                    runs.append({"contender": contender.name, "round": 0, "error": "skipped: no time was left"})
                continue
            # Watching memory takes another load, so it is done once. tload is judged by its memory,
            # so it gets more patience; the memory of a slow peer is not watched.
            outcome = run(
                contender,
                made.folder,
                section.state,
                setting,
                min(left, RUN_SECONDS_MAX),
                memory=turn == 0,
                patience=2 * patience if contender.is_ours else patience,
            )
            outcome |= {"contender": contender.name, "round": turn + 1}
            took[contender.name] = outcome["wall_seconds"]
            runs.append(outcome)
            say(f"   {turn + 1} {contender.name}: {tables.in_short(outcome)}")
            if "error" in outcome:
                # A contender that failed or hung once is not run again, since it would take the
                # others' time.
                running = [other for other in running if other != contender]
            write()
        if not running or end - time.monotonic() < RUN_SECONDS_MIN:
            break


def versions(setting: Setting) -> dict[str, dict[str, str]]:
    """Return the versions of the packages of each contender, by its directory under `--site`."""
    found: dict[str, dict[str, str]] = {}
    for folder in sorted(setting.site.iterdir()) if setting.site else []:
        packages = importlib.metadata.distributions(path=[str(folder)])
        found[folder.name] = {package.metadata["Name"]: package.version for package in packages}
    return found


def machine(setting: Setting) -> dict[str, Any]:
    """Return a description of the machine, from another process: this one must not hold a context."""
    program = (
        "import json, torch, importlib.metadata as metadata\n"
        "def version(name):\n"
        "    try: return metadata.version(name)\n"
        "    except metadata.PackageNotFoundError: return None\n"
        "gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None\n"
        "own = {name: version(name) for name in ('safetensors', 'numpy', 'cupy-cuda12x', 'cupy-cuda13x', 'jax', 'tload')}\n"
        "print(json.dumps({'torch': torch.__version__, 'cuda': torch.version.cuda, 'gpu': gpu, 'own_packages': own}))"
    )
    asked = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    found = json.loads(asked.stdout) if asked.returncode == 0 else {"error": asked.stderr[-500:]}
    doctor = subprocess.run(
        [sys.executable, "-m", "tload", "doctor", "--json"],
        env=environment_of(OURS, setting),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return found | {
        "kernel": platform.release(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "device": setting.device,
        "versions": versions(setting),
        "doctor": json.loads(doctor.stdout) if doctor.returncode == 0 else doctor.stderr[-500:],
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="directory for results.json and results.md")
    parser.add_argument(
        "--site", type=Path, help="directory of wheels installed by run.sh (default: the interpreter's own tload)"
    )
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--budget", type=float, default=440.0, help="total time in seconds (default: 440)")
    parser.add_argument("--again", type=int, default=2, help="loads after the first in each process (default: 2)")
    parser.add_argument(
        "--memory",
        type=Path,
        default=Path("/dev/shm"),
        help="a tmpfs; without room there, another tmpfs or the page cache of --disk (default: /dev/shm)",
    )
    parser.add_argument("--disk", type=Path, default=Path("/var/tmp"), help="a directory on a disk (default: /var/tmp)")
    parser.add_argument("--large", default="16GiB", help="size of the large checkpoint (default: 16GiB)")
    parser.add_argument(
        "--small", default="8GiB", help="size of the checkpoint of small tensors (default: 8GiB, some 18,000 tensors)"
    )
    parser.add_argument("--on-disk", default="16GiB", help="size of the large checkpoint on disk (default: 16GiB)")
    parser.add_argument(
        "--small-on-disk", default="8GiB", help="size of the checkpoint of small tensors on disk (default: 8GiB)"
    )
    parser.add_argument("--sections", nargs="*", choices=[section.name for section in SECTIONS], help="only these")
    parser.add_argument(
        "--start",
        choices=["forkserver", "spawn"],
        default="forkserver",
        help="start method of processes (default: forkserver)",
    )
    parser.add_argument("--keep", action="store_true", help="keep the checkpoints")
    parser.add_argument(
        "--dry-run", action="store_true", help="smoke test with tiny checkpoints on the CPU, without real figures"
    )
    args = parser.parse_args()
    if args.dry_run:
        args.device, args.again = "cpu", 1
        args.large, args.small, args.on_disk, args.small_on_disk = "64MiB", "32MiB", "64MiB", "32MiB"
    return args


def main() -> None:
    args = arguments()
    clock = Clock(args.budget)
    copy_bytes = (64 << 20) if args.dry_run else 2 << 30
    setting = Setting(args.device, args.site, args.again, copy_bytes, args.start)
    args.out.mkdir(parents=True, exist_ok=True)
    # Results are published, so these two paths are left out.
    options = {name: str(value) for name, value in vars(args).items() if name not in ("out", "site")}
    results: dict[str, Any] = {
        "schema": 1,
        "options": options,
        "dry_run": args.dry_run,
        "started_unix_seconds": int(time.time()),
        "machine": machine(setting),
        "complete": False,
        "sections": [],
    }

    def write() -> None:
        results["seconds"] = clock.passed
        (args.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
        (args.out / "results.md").write_text(tables.markdown(results))

    write()
    start_server(setting)
    checkpoints = make(args, setting, clock)
    say(f"checkpoints created after {clock.passed:.0f} s")
    results["checkpoints"] = {name: tables.sizes(made.folder) for name, made in checkpoints.items()}
    try:
        wanted = [section for section in SECTIONS if not args.sections or section.name in args.sections]
        wanted = [section for section in wanted if section.checkpoint in checkpoints]
        for index, section in enumerate(wanted):
            weights = sum(following.weight for following in wanted[index:])
            seconds = (clock.left - SPARE_SECONDS) * section.weight / weights
            if args.dry_run:
                section = dataclasses.replace(section, rounds_max=1)
            measure(section, checkpoints[section.checkpoint], setting, time.monotonic() + seconds, results, write)
        results["complete"] = True
    finally:
        write()
        if not args.keep:
            for made in checkpoints.values():
                shutil.rmtree(made.folder, ignore_errors=True)
    print(tables.markdown(results))
    print(f"measured for {clock.passed:.0f} s", flush=True)


if __name__ == "__main__":
    main()
