"""Loads of tload's variants by turns, beside peers, within a fixed time: `compare.json` for `decide.py`.

    python benches/gpu/decide/compare.py OUT --site SITE --budget 240

Each variant has a process of its own in each round, which loads a checkpoint once for the first time and then, by
turns, that one and another of about half of its files: two lengths separate the fixed time of a load from its rate.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import tables
from contenders import (
    COPY_CEILING,
    PEERS,
    RUN_SECONDS_MAX,
    RUN_SECONDS_MIN,
    Contender,
    Setting,
    environment_of,
    missing,
    run,
    start_server,
    tload,
)
from measure import Clock, bytes_of, machine, say
from variants import VARIANTS, Variant

#: Time reserved for the cleanup, seconds.
SPARE_SECONDS = 6.0
#: First loads of fresh processes that are wanted of the two variants that are judged by them.
FIRST_LOADS = 3
SHARDS = 8


@dataclass(frozen=True)
class Case:
    name: str
    preset: str
    size: str
    is_on_disk: bool
    variants: list[str]
    peers: list[str]
    #: Weight of its share of the time left when it begins, relative to the cases after it.
    weight: float


EVERY = [variant.name for variant in VARIANTS]
INSTANT, REGISTERED, PREFETCH = "InstantTensor", "InstantTensor, registered", "safetensors prefetch"


def cases(args: argparse.Namespace) -> list[Case]:
    rivals = [INSTANT, REGISTERED, PREFETCH]
    few = ["defaults", "align", "slots", "all"]
    return [
        Case("large", "llama", args.large, is_on_disk=False, variants=EVERY, peers=rivals, weight=10),
        Case("small", "moe", args.small, is_on_disk=False, variants=EVERY, peers=rivals, weight=8),
        Case("disk", "llama", args.on_disk, is_on_disk=True, variants=few, peers=rivals, weight=5),
    ]


def contender(variant: Variant, *, rehearsal: bool) -> Contender:
    """Return the variant as a contender. In a rehearsal, torch has no GPU: tload allocates the stub's memory."""
    options = {"framework": "dlpack"} if rehearsal else {}
    made = tload(variant.name, **options, **({"call": "load"} if variant.call == "load" else {}))
    return replace(made, environment={"TLOAD_TRY": variant.flags} if variant.flags else {})


def make(case: Case, args: argparse.Namespace, setting: Setting) -> tuple[Path, subprocess.Popen[str]]:
    parent = args.disk if case.is_on_disk else args.memory
    folder = Path(tempfile.mkdtemp(prefix=f"tload-decide-{case.name}-", dir=parent))
    command = [sys.executable, "-m", "tload", "synth", str(folder / "whole")]
    command += ["--preset", case.preset, "--size", case.size, "--shards", str(SHARDS)]
    environment = environment_of(tload("synth"), setting)
    return folder, subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def halve(folder: Path) -> None:
    """Create a second folder with about half of the bytes, as further names of the same files."""
    (folder / "half").mkdir()
    for path in sorted((folder / "whole").glob("*.safetensors"))[: SHARDS // 2]:
        os.link(path, folder / "half" / path.name)


class Measurement:
    """Runs of one case, which are added to the results as they end."""

    def __init__(self, case: Case, folder: Path, setting: Setting, results: dict[str, Any]) -> None:
        self.case, self.folder, self.setting = case, folder, setting
        self.took: dict[str, float] = {}
        chosen = [variant for variant in VARIANTS if variant.name in case.variants]
        self.ours = [contender(variant, rehearsal=setting.rehearsal) for variant in chosen]
        peers = [peer for peer in PEERS if peer.name in case.peers]
        self.running = [COPY_CEILING, *self.ours, *peers]
        self.section = {
            "name": case.name,
            "state": "warm",
            "contenders": [it.name for it in self.running],
            "runs": [],
        }
        results["sections"].append(self.section)
        for it in list(self.running):
            if (reason := missing(it, setting)) is not None:
                self.note(it, 0, {"error": f"skipped: {reason}"})

    def note(self, it: Contender, turn: int, outcome: dict[str, Any]) -> None:
        self.section["runs"].append(outcome | {"contender": it.name, "round": turn})
        say(f"   {turn} {self.case.name}, {it.name}: {tables.in_short(outcome)}")
        if "error" in outcome:
            self.running = [other for other in self.running if other != it]

    def measure(self, it: Contender, turn: int, end: float, *, again: int | None = None) -> None:
        left = end - time.monotonic()
        if left < max(RUN_SECONDS_MIN, self.took.get(it.name, 0.0)):
            if turn == 1:
                self.note(it, turn, {"error": "skipped: no time was left"})
            return
        setting = self.setting if again is None else replace(self.setting, again=again)
        if setting.rehearsal and not it.is_ours:
            # The stub is for tload alone: others show here only that they are installed.
            setting = replace(setting, device="cpu", rehearsal=False)
        outcome = run(
            it,
            self.folder / "whole",
            "warm",
            setting,
            min(left, RUN_SECONDS_MAX),
            memory=False,
            patience=left / 3,
            also=None if it.is_ceiling else self.folder / "half",
            # Reading all bytes back takes as long as several loads, so it is done once.
            checksum=turn == 1,
        )
        self.took[it.name] = outcome["wall_seconds"]
        for sample in outcome.get("samples", [])[:-1]:
            sample.pop("details", None)
        self.note(it, turn, outcome)

    def rounds(self, end: float, rounds_max: int) -> None:
        """Run rounds of all, and after the first of tload's variants and the bus, until the time is over."""
        say(f"-- {self.case.name}: {end - time.monotonic():.0f} s")
        for turn in range(1, rounds_max + 1):
            these = [it for it in self.running if turn == 1 or it.is_ours or it.is_ceiling]
            for index in range(len(these)):
                self.measure(these[(index + turn - 1) % len(these)], turn, end)
            if end - time.monotonic() < RUN_SECONDS_MIN:
                break

    def first_loads(self, end: float) -> None:
        """Top up the first loads of the variants that are compared by them."""
        for it in self.ours:
            runs = [run for run in self.section["runs"] if run["contender"] == it.name and "samples" in run]
            if it.name in ("defaults", "all") and it in self.running:
                for turn in range(len(runs), FIRST_LOADS):
                    self.measure(it, turn + 1, end, again=0)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="directory for compare.json")
    parser.add_argument("--site", type=Path, help="directory with one subdirectory for each installed package")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--budget", type=float, default=240.0, help="total time, seconds (default: 240)")
    parser.add_argument("--again", type=int, default=2, help="later loads of each length in a process (default: 2)")
    parser.add_argument("--rounds", type=int, default=4, help="rounds at most (default: 4)")
    parser.add_argument("--memory", type=Path, default=Path("/dev/shm"), help="a tmpfs")  # noqa: S108
    parser.add_argument("--disk", type=Path, default=Path("/var/tmp"))  # noqa: S108
    parser.add_argument("--large", default="24GiB", help="size of the large checkpoint (default: 24GiB)")
    parser.add_argument("--small", default="12GiB", help="size of the one of small tensors (default: 12GiB)")
    parser.add_argument("--on-disk", default="12GiB", help="size of the one on disk (default: 12GiB)")
    parser.add_argument("--start", choices=["forkserver", "spawn"], default="forkserver")
    parser.add_argument("--rehearsal", action="store_true", help="tiny checkpoints, and a stub that torch cannot use")
    args = parser.parse_args()
    if args.rehearsal:
        args.again, args.rounds = 1, 1
        args.large, args.small, args.on_disk = "64MiB", "32MiB", "64MiB"
    return args


def main() -> None:
    args = arguments()
    clock = Clock(args.budget)
    copy_bytes = (64 << 20) if args.rehearsal else 2 << 30
    setting = Setting(args.device, args.site, args.again, copy_bytes, args.start, rehearsal=args.rehearsal)
    if args.rehearsal:
        say("REHEARSAL: tload loads into the memory of a stub driver, as DLPack tensors; others load into the CPU's.")
        say("REHEARSAL: torch has no GPU here, so nothing waits for one, and no figure means anything.")
    args.out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {
        "schema": 1,
        "rehearsal": args.rehearsal,
        "variants": {variant.name: variant.flags for variant in VARIANTS},
        "machine": machine(setting),
        "checkpoints": {},
        "complete": False,
        "sections": [],
    }

    def write() -> None:
        results["seconds"] = clock.passed
        (args.out / "compare.json").write_text(json.dumps(results) + "\n")

    start_server(setting)
    planned = cases(args)
    made = [(case, *make(case, args, setting)) for case in planned]
    try:
        ready = []
        for case, folder, child in made:
            text, _ = child.communicate(timeout=max(1.0, bytes_of(case.size) / 1e8))
            if child.returncode == 0:
                halve(folder)
                results["checkpoints"][case.name] = tables.sizes(folder / "whole")
                ready.append((case, folder))
            else:
                say(f"SKIPPED: cannot create the checkpoint {case.name!r}: {text.strip()}")
        say(f"checkpoints created after {clock.passed:.0f} s")
        measurements = []
        for index, (case, folder) in enumerate(ready):
            weights = sum(following.weight for following, _ in ready[index:])
            seconds = (clock.left - SPARE_SECONDS) * case.weight / weights
            measurement = Measurement(case, folder, setting, results)
            measurements.append(measurement)
            measurement.rounds(time.monotonic() + seconds, args.rounds)
            write()
        for measurement in measurements:
            measurement.first_loads(clock.end - SPARE_SECONDS)
        results["complete"] = True
    finally:
        write()
        for _, folder, child in made:
            child.kill()
            shutil.rmtree(folder, ignore_errors=True)
    print(f"compared for {clock.passed:.0f} s", flush=True)


if __name__ == "__main__":
    main()
