"""Time from the start of a process to all tensors, beside `import torch` alone and reading alone.

    python benches/compare/startup.py model_dir --rounds 7 --out startup.json

The checkpoint is cold at each start, which the kernel confirms; Python and torch are warm. With a URL, which takes its
settings from the environment (`AWS_ENDPOINT_URL`, …), the server's files are as they are. Rounds run all ways one
after another, in rotating order. The goal is a ratio of at most 1.1 to the longer of the two alone. The phases of
tload's starts follow as a waterfall; importing torch overlaps with reading.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import processes
from processes import LOADERS, SHARED, Tools, say

sys.path.append(str(SHARED))
import page_cache

WAYS = {
    "tload": "tload.load, which imports torch while it reads",
    "torch": "import torch, alone",
    "read": "reading alone, without torch",
    "in turn": "import torch, then tload.load",
}
GOAL = 1.1
REMOTE = "remote"


def prepare(location: str) -> dict[str, Any]:
    """Make the files cold, and return their state. Of a server nothing is known."""
    if "://" in location:
        return {"found": REMOTE}
    path = Path(location)
    return page_cache.prepare([path] if path.is_file() else sorted(path.glob("*.safetensors")), "cold")


def start(way: str, location: str, tools: Tools) -> dict[str, Any]:
    state = prepare(location)
    command = [tools.python, str(LOADERS / "startup.py"), way, location]
    began = time.monotonic()
    found = processes.run(command, processes.environment(tools, {}), tools.seconds_max)
    if "error" in found:
        raise SystemExit(f"{way}: {found['error']}")
    found["phases"] = [
        ("interpreter", 0.0, found["began"] - began),
        *((phase, start - began, seconds) for phase, start, seconds in found["phases"]),
    ]
    return found | {"way": way, "seconds": found["done"] - began, "residency": state}


def measure(location: str, rounds: int, tools: Tools) -> list[dict[str, Any]]:
    """Return the rounds in which every start was cold. The first one, which reads torch's own files, is left out."""
    counted = []
    ways = list(WAYS)
    for number in range(rounds + 1):
        turn = number % len(ways)
        starts = {way: start(way, location, tools) for way in ways[turn:] + ways[:turn]}
        seconds = {way: starts[way]["seconds"] for way in WAYS}
        ratio = seconds["tload"] / max(seconds["torch"], seconds["read"])
        is_cold = all(one["residency"]["found"] in {"cold", REMOTE} for one in starts.values())
        shown = ", ".join(f"{way} {seconds[way]:.2f} s" for way in WAYS)
        note = "not counted: the first" if number == 0 else "" if is_cold else "not counted: not cold"
        say(f"round {number}: {shown}; ratio {ratio:.3f} {note}")
        if not note:
            counted.append({"starts": starts, "ratio": ratio})
    if not counted:
        raise SystemExit("no round was cold")
    return counted


def waterfall(starts: list[dict[str, Any]]) -> list[tuple[str, float, float]]:
    """Return the median beginning and duration of each phase, by its beginning. Of equal names, the first counts."""
    times: dict[str, list[tuple[float, float]]] = {}
    for start in starts:
        first: dict[str, tuple[float, float]] = {}
        for phase, begin, seconds in start["phases"]:
            first.setdefault(phase, (begin, seconds))
        for phase, both in first.items():
            times.setdefault(phase, []).append(both)
    medians = [(phase, *map(statistics.median, zip(*both, strict=True))) for phase, both in times.items()]
    return sorted(medians, key=lambda row: row[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("location", help="a checkpoint, as `tload synth` makes it, on a disk or in an object store")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--timeout", type=float, default=300, help="seconds for each start")
    parser.add_argument("--out", type=Path, help="file for all samples, JSON")
    args = parser.parse_args()
    counted = measure(args.location, args.rounds, Tools(sys.executable, [], args.timeout))
    medians = {way: statistics.median(one["starts"][way]["seconds"] for one in counted) for way in WAYS}
    ratio = statistics.median(one["ratio"] for one in counted)
    size = counted[0]["starts"]["tload"]["tensor_bytes"]
    for way, text in WAYS.items():
        print(f"{medians[way]:8.2f} s  {text}")
    print(f"{ratio:8.3f}    tload / max(import torch, reading); goal: at most {GOAL}")
    for phase, begin, seconds in waterfall([one["starts"]["tload"] for one in counted]):
        print(f"{begin * 1e3:8.1f} ms + {seconds * 1e3:8.1f} ms  {phase}")
    print(f"{size / 1e9:8.2f} GB, {len(counted)} of {args.rounds} rounds counted")
    if args.out:
        args.out.write_text(
            json.dumps({"medians": medians, "ratio": ratio, "bytes": size, "rounds": counted}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
