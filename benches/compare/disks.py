"""tload beside other loaders and beside ceilings, on the same files, in rotating order.

    make bench-compare                                             # all cases; ARGS are passed on
    python benches/compare/disks.py --out OUT --cases disk-keep disk-warm --rounds 7

Each case first tries every setting of every contender once; rounds then run the best of each, one after another, in
rotating order, each in a process of its own. `results.json`, `results.md` and `plot.svg` are written into OUT after
every case, so that an interrupted run leaves its results. `benches/README.md` describes the method.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import goals
import processes
import tables
from cases import CASES, COLD_START, GIB, MIB, NAMES, Case
from cold import cold_start
from contenders import FAMILIES, Family, Setting, thinned
from figures import counts, speed
from machine import command_line, machine, scrubbed
from places import CONVERTED, Made, Places, UnavailableError
from processes import Tools, say

ROOT = Path(__file__).parents[2]
#: Best settings found, by case and contender.
Chosen = dict[str, dict[str, Setting]]


def in_short(sample: dict[str, Any]) -> str:
    if "seconds" not in sample:
        return sample.get("error") or f"skipped: {sample.get('skipped')}"
    note = "" if counts(sample) else f", {sample['residency']['found']}, not {sample['residency']['wanted']}"
    return f"{speed(sample):.2f} GB/s, {sample['cpu_seconds']:.2f} CPU s{note}"


class Measurement:
    """One case."""

    def __init__(self, case: Case, made: Made, cgroup: Path | None, tools: Tools, args: argparse.Namespace) -> None:
        self.case, self.made, self.cgroup, self.tools, self.args = case, made, cgroup, tools, args
        self.result: dict[str, Any] = {
            "name": case.name,
            "title": case.title,
            "where": case.where,
            "state": case.state,
            "mode": case.mode,
            "digest": made.digest,
            "checkpoint": self.sizes(),
            "contenders": [],
            "left_out": [],
            "sweep": [],
            "runs": [],
        }

    def sizes(self) -> dict[str, int]:
        files = sorted(self.made.folder.glob("*.safetensors"))
        found = {"files": len(files), "bytes": 0, "tensors": 0}
        for file in files:
            with file.open("rb") as opened:
                header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
            header.pop("__metadata__", None)
            found["tensors"] += len(header)
            found["bytes"] += sum(it["data_offsets"][1] - it["data_offsets"][0] for it in header.values())
        return found

    def run(self, family: Family, setting: Setting, *, digest: bool) -> dict[str, Any]:
        location = self.made.folder / CONVERTED if family.has_own_format else self.made.folder
        if family.has_own_format and self.made.unconverted:
            return {"error": f"cannot convert: {self.made.unconverted}"}
        return processes.measure(family, setting, self.case, location, self.tools, cgroup=self.cgroup, digest=digest)

    def leave_out(self, family: Family, setting: Setting, why: str, *, disqualified: bool = False) -> None:
        say(f"   LEFT OUT: {family.name}: {why}")
        entry = {"contender": family.name, "setting": setting.label, "why": why, "disqualified": disqualified}
        self.result["left_out"].append(entry)

    def best(self, family: Family, known: Setting | None) -> Setting | None:
        """Try each setting once and return the fastest; None, with a message, if all of them fail."""
        settings = family.settings(self.case)
        if known is not None or len(settings) == 1:
            return known or settings[0]
        found: list[tuple[float, Setting]] = []
        why = "no setting was measured"
        for setting in thinned(settings) if self.args.quick else settings:
            sample = self.run(family, setting, digest=False)
            self.result["sweep"].append({"contender": family.name, "setting": setting.label} | sample)
            say(f"   ? {family.name}, {setting.label or 'defaults'}: {in_short(sample)}")
            if "seconds" in sample and counts(sample):
                found.append((speed(sample), setting))
            else:
                why = in_short(sample)
        if not found:
            self.leave_out(family, settings[0], why)
            return None
        return max(found, key=lambda it: it[0])[1]

    def is_right(self, family: Family, setting: Setting, sample: dict[str, Any]) -> bool:
        """Return whether the contender may go on; if not, report why."""
        if "seconds" not in sample:
            self.leave_out(family, setting, in_short(sample))
            return False
        if "digest" in sample and sample["digest"] != self.made.digest:
            why = f"its tensors differ from those of safetensors ({sample['tensors']} tensors, {sample['bytes']} bytes)"
            self.leave_out(family, setting, why, disqualified=True)
            return False
        return True

    def measure(self, families: list[Family], chosen: Chosen) -> None:
        case, result = self.case, self.result
        known = chosen.get(case.settings_of or "", {})
        running: list[tuple[Family, Setting]] = []
        for family in families:
            if not family.suits(case):
                continue
            setting = self.best(family, known.get(family.name))
            if setting is not None:
                running.append((family, setting))
                about = {"name": family.name, "role": family.role, "is_mapped": family.is_mapped}
                result["contenders"].append(about | {"setting": setting.label})
        chosen[case.name] = {family.name: setting for family, setting in running}
        for turn in range(self.args.rounds):
            shift = turn % max(1, len(running))
            for position, (family, setting) in enumerate(running[shift:] + running[:shift]):
                sample = self.run(family, setting, digest=turn == 0)
                say(f"   {turn + 1} {family.name}: {in_short(sample)}")
                if self.is_right(family, setting, sample):
                    about = {"contender": family.name, "round": turn + 1, "position": position}
                    result["runs"].append(about | sample)
                else:
                    # One failure excludes the contender, and its earlier runs do not count either.
                    running = [it for it in running if it[0] != family]
                    result["runs"] = [run for run in result["runs"] if run["contender"] != family.name]


def size_of(text: str) -> int:
    for suffix, unit in (("GiB", GIB), ("MiB", MIB)):
        if text.endswith(suffix):
            return int(float(text.removesuffix(suffix)) * unit)
    raise argparse.ArgumentTypeError(f"{text!r}: expected a number and GiB or MiB")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=ROOT / "target" / "bench-compare", help="directory for the result files"
    )
    parser.add_argument(
        "--cases", nargs="+", choices=NAMES, default=NAMES, metavar="CASE", help=f"cases to run, of {', '.join(NAMES)}"
    )
    names = [family.name for family in FAMILIES]
    parser.add_argument(
        "--peers", nargs="+", metavar="NAME", help=f"only contenders whose name contains it: {', '.join(names)}"
    )
    parser.add_argument("--rounds", type=int, help="default: 5, or 1 with --quick")
    parser.add_argument("--size", type=size_of, default=4 * GIB, help="size of the large checkpoints (default: 4GiB)")
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="a directory on a disk (default: /var/tmp)")
    parser.add_argument("--memory", type=Path, default=Path("/dev/shm"), help="a tmpfs (default: /dev/shm)")
    parser.add_argument("--tload", type=shlex.split, default=[sys.executable, "-m", "tload"], help="command of tload")
    parser.add_argument("--slowfs", default="slowfs", help="command of the slow file system")
    parser.add_argument("--timeout", type=float, default=180.0, help="timeout of each run, seconds (default: 180)")
    parser.add_argument("--quick", action="store_true", help="smoke test with 256 MiB, without meaningful figures")
    args = parser.parse_args()
    args.rounds = args.rounds or (1 if args.quick else 5)
    if args.quick:
        args.size = min(args.size, 256 * MIB)
    return args


def chosen_families(args: argparse.Namespace) -> list[Family]:
    wanted = [name.lower() for name in args.peers or [""]]
    return [family for family in FAMILIES if any(name in family.name.lower() for name in wanted)]


def measure_all(args: argparse.Namespace, places: Places, results: dict[str, Any], write: Callable[[], None]) -> None:
    cases = [case for case in CASES if case.name in args.cases]
    families, chosen = chosen_families(args), Chosen()
    if COLD_START in args.cases:
        say("-- cold start")
        with places.of(CASES[0]) as (made, _):
            results["cold_start"] = cold_start(made.folder, places.tools)
    for index, case in enumerate(cases):
        places.forget(cases[index:])
        began = time.monotonic()
        say(f"-- {case.name}: {case.title}")
        try:
            with places.of(case) as (made, cgroup):
                one = Measurement(case, made, cgroup, places.tools, args)
                results["cases"].append(one.result)
                one.measure(families, chosen)
        except UnavailableError as error:
            say(f"   SKIPPED: {case.name}: {error}")
            results["skipped"].append({"case": case.name, "why": str(error)})
            continue
        one.result["wall_seconds"] = time.monotonic() - began
        write()


def main() -> None:
    args = arguments()
    tools = Tools(sys.executable, args.tload, args.timeout)
    # Exit through the cleanup below.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    args.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    results: dict[str, Any] = {
        "schema": 1,
        "command": command_line(),
        "quick": args.quick,
        "started_unix_seconds": int(time.time()),
        "machine": machine(args.dir, tools),
        "complete": False,
        "cases": [],
        "skipped": [],
        "cold_start": None,
    }

    def write() -> None:
        from plot import plot

        results["seconds"] = time.monotonic() - began
        results["goals"] = goals.judged(results)
        clean = scrubbed(results)
        (args.out / "results.json").write_text(json.dumps(clean, indent=1, ensure_ascii=False) + "\n")
        (args.out / "results.md").write_text(tables.markdown(clean))
        plot(clean, args.out)

    places = Places(args.dir, args.memory, args.slowfs, args.size, tools)
    try:
        measure_all(args, places, results, write)
        results["complete"] = True
    finally:
        places.remove()
        # A case interrupted before its first round has no figures.
        with contextlib.suppress(ImportError):
            write()
    print(tables.markdown(scrubbed(results)))


if __name__ == "__main__":
    main()
