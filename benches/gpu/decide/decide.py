"""Decides which variants become defaults, from the output of both commands alone.

    python benches/gpu/decide/decide.py OUT > OUT/decision.md

Reads `experiments.txt`, `compare.json` and `check.txt` in OUT, of which each may be missing. Thresholds are below.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import tables
from experiments import BATCHES, Experiments, Ring, parse
from variants import VARIANTS, Variant

#: Share of the bus from which a way to copy is as good as the bus.
FULL = 0.98
#: Ratio of times from which a variant is faster, and below whose inverse it is slower. Loads of one process differ
#: by more, so ratios are taken within rounds.
FASTER = 1.02
#: Aims of loads from memory: share of the bus of the rate, and fixed seconds, later and in the first load.
RATES = {"large": 0.97, "small": 0.95, "disk": 0.97}
FIXED_SECONDS, FIRST_SECONDS = 0.005, 0.015
#: Registered mappings pay from this rate, at most at this CPU time.
REGISTERED_GBS, REGISTERED_CPU = 50.0, 0.05
#: Milliseconds per GiB beyond the best that an allocation may take.
ALLOCATION_MS = 1.0
#: Threads of the rows that are compared.
THREADS = 12
#: Staging memory as it was before the trial.
BEFORE = Ring(4, 4096, 30, 1)
COPIES = "ceiling: pinned copies"

Case = dict[str, Any]


@dataclass(frozen=True)
class Fit:
    """Time of a load as fixed seconds and a rate, from two lengths."""

    fixed: float
    gbs: float


@dataclass(frozen=True)
class Verdict:
    flags: str
    #: None where nothing can be said.
    is_default: bool | None
    reason: str


def times(case: Case, name: str, kind: str, turn: int | None = None) -> list[tuple[int, float]]:
    """Return bytes and seconds of the samples of a kind, of one round or of all."""
    return [
        (sample["bytes"], sample["seconds"])
        for run in tables.runs_of(case, name)
        if turn is None or run["round"] == turn
        for sample in run["samples"]
        if sample["kind"] == kind and tables.is_as_asked(sample)
    ]


def seconds(case: Case, name: str, kind: str, turn: int | None = None) -> float | None:
    return tables.median(seconds for _, seconds in times(case, name, kind, turn))


def bus(case: Case) -> float | None:
    """Return the GB/s of pinned copies beside the loads."""
    return tables.median(nbytes / seconds / 1e9 for nbytes, seconds in times(case, COPIES, "again"))


def fit(case: Case, name: str) -> Fit | None:
    whole, half = times(case, name, "again"), times(case, name, "also")
    if not whole or not half or whole[0][0] <= half[0][0]:
        return None
    long, short = (statistics.median(seconds for _, seconds in samples) for samples in (whole, half))
    if long <= short:
        return None
    rate = (whole[0][0] - half[0][0]) / (long - short)
    return Fit(long - whole[0][0] / rate, rate / 1e9)


def ratios(case: Case, variant: Variant) -> list[float]:
    """Return how many times as fast the variant was as its base, by round."""
    kind = "first" if variant.by_first else "again"
    found = []
    for turn in sorted({run["round"] for run in case["runs"]}):
        ours, base = seconds(case, variant.name, kind, turn), seconds(case, variant.base or "", kind, turn)
        if ours and base:
            found.append(base / ours)
    return found


def wrong_bytes(compared: dict[str, Any], check: str | None) -> str | None:
    """Return why the bytes are not known to be right, if so."""
    if check is None or not any(line.startswith("ok") for line in check.splitlines()):
        return "no check of the bytes with all flags has run"
    if failed := [line for line in check.splitlines() if line.startswith("FAILED")]:
        return f"the check of the bytes failed: {failed[0]}"
    known = {"checkpoints": compared["checkpoints"]}
    sections = [case | {"checkpoint": case["name"]} for case in compared["sections"]]
    return next(iter(tables.disagreements(known | {"sections": sections})), None)


def judge(variant: Variant, cases: list[Case]) -> Verdict:
    found = {case["name"]: ratios(case, variant) for case in cases}
    median = {name: statistics.median(values) for name, values in found.items() if values}
    if not median:
        return Verdict(variant.decides, None, "not measured")
    kind = "first loads" if variant.by_first else "loads"
    told = ", ".join(
        f"{name} {median[name]:.3f} × ({min(found[name]):.2f}–{max(found[name]):.2f})" for name in median
    )
    told = f"{kind} as fast as with {variant.base!r}: {told}"
    if any(ratio < 1 / FASTER for ratio in median.values()):
        return Verdict(variant.decides, is_default=False, reason=f"slower; {told}")
    if any(ratio >= FASTER for ratio in median.values()):
        return Verdict(variant.decides, is_default=True, reason=f"faster; {told}")
    if variant.is_proved:
        return Verdict(variant.decides, is_default=True, reason=f"fewer calls, and not slower; {told}")
    return Verdict(variant.decides, is_default=False, reason=f"no difference; {told}")


def of_experiments(found: Experiments) -> list[Verdict]:
    """Return what the experiments decide alone."""
    top = found.bus
    if top is None:
        return [Verdict("experiments", None, "no rates of copies were found")]
    middle = [found.copies[kib] for kib in (1024, 2048) if kib in found.copies]
    batched = max((row[size] or 0.0 for row in middle for size in BATCHES), default=0.0)
    streams = [row[count] or 0.0 for kib, row in found.copies.items() if kib == 4096 for count in (1, 2)]  # noqa: PLR2004
    verdicts = [
        Verdict(
            "batches",
            batched >= FULL * top,
            f"batches of copies of 1 to 2 MiB reach {batched:.1f} of {top:.1f} GB/s ({batched / top:.3f})"
            + (f"; a copy of 176 bytes takes {found.small[1]} µs, {found.small[0]} alone" if found.small else ""),
        )
    ]
    if streams:
        one, two = streams
        gains = two >= FULL * top and two >= one * FASTER and batched < FULL * top
        reason = f"copies of 4 MiB: two streams {two:.1f} GB/s, one {one:.1f}"
        verdicts.append(Verdict("a second stream", gains, reason))
    verdicts += of_rings(found)
    verdicts.append(of_registered(found))
    if found.allocations:
        best = min(found.allocations.values())
        size = min(mib for mib, cost in found.allocations.items() if cost <= best + ALLOCATION_MS)
        told = ", ".join(f"{mib} MiB {cost:.1f}" for mib, cost in sorted(found.allocations.items()))
        reason = f"the smallest within {ALLOCATION_MS:.0f} ms per GiB of the best is {size} MiB: {told}"
        verdicts.append(Verdict("allocations", None, reason))
    return verdicts


def of_rings(found: Experiments) -> list[Verdict]:
    """Return which staging memory moves most from the worst kind of file."""
    files = [file for file in found.files if BEFORE in file.rings]
    if not files:
        return []

    def worst(ring: Ring) -> float:
        return min(file.rings[ring][THREADS].gbs if THREADS in file.rings[ring] else 0.0 for file in files)

    common = [ring for ring in files[0].rings if ring.streams == 1 and all(ring in file.rings for file in files)]
    best = max(common, key=worst)
    told = "; ".join(
        f"{Path(file.path).parent} {file.rings[best][THREADS].gbs:.1f} @ {file.rings[best][THREADS].cpu_per_gib:.3f}"
        f" in place of {file.rings[BEFORE][THREADS].gbs:.1f} @ {file.rings[BEFORE][THREADS].cpu_per_gib:.3f}"
        for file in files
        if THREADS in file.rings[best]
    )
    reason = f"{best}, {THREADS} threads, GB/s @ CPU s per GiB: {told}"
    return [Verdict("several threads a slot", worst(best) >= FASTER * worst(BEFORE), reason)]


def of_registered(found: Experiments) -> Verdict:
    rates = [
        (rate, file.path, kind) for file in found.files for kind, them in file.registered.items() for rate in them or []
    ]
    name = "an engine that registers mappings"
    if not rates:
        return Verdict(name, is_default=False, reason="the driver refused every mapping, or none was tried")
    rate, path, kind = max(rates, key=lambda it: it[0].gbs)
    pays = any(rate.gbs >= REGISTERED_GBS and rate.cpu_per_gib <= REGISTERED_CPU for rate, _, _ in rates)
    reason = f"at best {rate.gbs:.1f} GB/s @ {rate.cpu_per_gib:.3f} CPU s per GiB ({kind}, {Path(path).parent})"
    return Verdict(name, pays, f"{reason}; it pays from {REGISTERED_GBS:.0f} @ {REGISTERED_CPU}")


def first_excess(case: Case, name: str) -> float | None:
    """Return the seconds of a first load beyond the time of its bytes at the fitted rate."""
    found, first = fit(case, name), times(case, name, "first")
    if found is None or not first:
        return None
    return statistics.median(seconds for _, seconds in first) - first[0][0] / found.gbs / 1e9


def rows(case: Case) -> list[list[str]]:
    top = bus(case)
    found = []
    for name in tables.names(case):
        later, first = seconds(case, name, "again"), seconds(case, name, "first")
        if later is None:
            errors = [run["error"] for run in case["runs"] if run["contender"] == name and "error" in run]
            found.append([name, errors[0] if errors else "", *[""] * 5])
            continue
        nbytes, fitted = times(case, name, "again")[0][0], fit(case, name)
        count = len(tables.runs_of(case, name))
        excess = first_excess(case, name)
        speed = nbytes / later / 1e9
        found.append(
            [
                name,
                f"{speed:.1f} ({count} rounds)",
                f"{speed / top:.2f}" if top else "",
                f"{nbytes / first / 1e9:.1f}" if first else "",
                f"{fitted.gbs / top:.3f}" if fitted and top else "",
                f"{fitted.fixed * 1e3:.1f}" if fitted else "",
                "" if excess is None else f"{excess * 1e3:.1f}",
            ]
        )
    return found


HEADER = ("loader", "GB/s", "of the bus", "first load", "rate, of the bus", "fixed ms", "fixed ms, first")


def aims(case: Case, name: str) -> str | None:
    top, fitted, excess = bus(case), fit(case, name), first_excess(case, name)
    if top is None or fitted is None:
        return None
    share, wanted = fitted.gbs / top, RATES[case["name"]]
    marks = [
        f"rate {share:.3f} of {wanted}: {'met' if share >= wanted else 'MISSED'}",
        f"fixed {fitted.fixed * 1e3:.1f} of {FIXED_SECONDS * 1e3:.0f} ms: "
        f"{'met' if fitted.fixed <= FIXED_SECONDS else 'MISSED'}",
    ]
    if excess is not None:
        met = "met" if excess <= FIRST_SECONDS else "MISSED"
        marks.append(f"first load {excess * 1e3:.1f} of {FIRST_SECONDS * 1e3:.0f} ms: {met}")
    return "; ".join(marks)


def registered_peer(cases: list[Case]) -> str | None:
    """Return the figures of InstantTensor with its registration and without."""
    told = []
    for case in cases:
        plain, ours = (seconds(case, name, "again") for name in ("InstantTensor", "InstantTensor, registered"))
        if plain and ours:
            told.append(f"{case['name']} {plain / ours:.2f} ×")
    return f"InstantTensor with its registration of mappings, which is off by default: {', '.join(told)}" if told else None


def answers(header: tuple[str, str, str], verdicts: list[Verdict], *, are_withheld: bool = False) -> str:
    """Return a table of verdicts; those that would change a default may be withheld."""

    def answer(verdict: Verdict) -> str:
        if verdict.is_default is None:
            return ""
        if not verdict.is_default:
            return "no"
        return "withheld" if are_withheld else "yes"

    return tables.table(header, ((it.flags, answer(it), it.reason) for it in verdicts))


def decide(experiments: str | None, compared: dict[str, Any] | None, check: str | None) -> str:
    """Return the decisions as Markdown."""
    parts = ["# Decisions\n"]
    verdicts: list[Verdict] = []
    wrong: str | None = "no loads were compared"
    if compared is not None:
        verdicts = [judge(variant, compared["sections"]) for variant in VARIANTS if variant.decides]
        wrong = wrong_bytes(compared, check)
        if compared["rehearsal"]:
            wrong = "this was a rehearsal without a GPU, whose figures mean nothing"
    if wrong:
        parts.append(f"**No default changes: {wrong}.**\n")
    if verdicts:
        parts.append(answers(("flags", "default", "reason"), verdicts, are_withheld=wrong is not None))
    if experiments is not None:
        parts.append(answers(("experiment", "pays", "figures"), of_experiments(parse(experiments))))
    for case in (compared or {"sections": []})["sections"]:
        parts.append(f"\n## {case['name']}\n")
        parts.append(tables.table(HEADER, rows(case)))
        for name in ("defaults", "all"):
            if told := aims(case, name):
                parts.append(f"* {name}: {told}")
    if compared is not None and (told := registered_peer(compared["sections"])):
        parts.append(f"\n{told}.")
    return "\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="directory of the results")
    out = parser.parse_args().out

    def read(name: str) -> str | None:
        path = out / name
        if path.is_file():
            return path.read_text()
        print(f"MISSING: {path}", file=sys.stderr)
        return None

    compared = read("compare.json")
    print(decide(read("experiments.txt"), json.loads(compared) if compared else None, read("check.txt")), end="")


if __name__ == "__main__":
    main()
