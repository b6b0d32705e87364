"""Goals that the results are judged by. Ratios are taken within rounds."""

from __future__ import annotations

from typing import Any

import contenders
from cases import CASES, THROTTLE
from figures import CaseResult, cpu, fastest, names, peak, ratio, samples, speed, typical

TLOAD, MAP, LOAD_FILE = contenders.TLOAD.name, contenders.MAP.name, contenders.LOAD_FILE.name
SWEPT, RUNAI, CLONE = contenders.SWEPT.name, contenders.RUNAI.name, contenders.CLONE.name
FIO, RAW, COPY = contenders.FIO.name, contenders.RAW.name, contenders.COPY.name

#: Tolerance of "no more memory": pages of code, and the allocator's own, are counted too.
PEAK_TOLERANCE = 1.01
COLD_START_SECONDS = 0.060

Row = dict[str, Any]


class Judge:
    def __init__(self, results: dict[str, Any]) -> None:
        self.results = results
        self.cases: dict[str, CaseResult] = {case["name"]: case for case in results["cases"]}
        self.rows: list[Row] = []

    def say(self, case: str, goal: str, found: str | None, *, met: bool | None) -> None:
        self.rows.append({"case": case, "goal": goal, "found": found or "not measured", "met": met if found else None})

    def at_least(self, name: str, goal: str, ours: str, other: str | None, least: float, *, more: bool = False) -> None:
        case = self.cases.get(name)
        found = ratio(case, ours, other) if case and other else None
        met = found is not None and (found > least if more else found >= least)
        self.say(name, goal, None if found is None else f"{found:.3f} × {other}", met=met)

    def every_peer(self, name: str, goal: str, *, mapped: bool | None = None) -> None:
        case = self.cases.get(name)
        found = {peer: ratio(case, TLOAD, peer) for peer in names(case, "peer", mapped=mapped)} if case else {}
        known = {peer: value for peer, value in found.items() if value is not None}
        rival = min(known, key=lambda peer: known[peer], default=None)
        self.say(name, goal, f"{known[rival]:.3f} × {rival}" if rival else None, met=bool(rival and known[rival] >= 1))

    def cost(self, name: str, goal: str, of: Any, most: float, *, less: bool = False) -> None:
        """Judge a cost of tload relative to that of the cheapest peer."""
        case = self.cases.get(name)
        ours = typical(case, TLOAD, of) if case else None
        found = {peer: typical(case, peer, of) for peer in names(case, "peer")} if case else {}
        known = {peer: value for peer, value in found.items() if value}
        rival = min(known, key=lambda peer: known[peer], default=None)
        if ours is None or rival is None:
            self.say(name, goal, None, met=None)
            return
        share = ours / known[rival]
        self.say(name, goal, f"{share:.3f} × {rival}", met=share < most if less else share <= most)

    def best_ceiling(self, name: str, *among: str) -> str | None:
        case = self.cases.get(name)
        return fastest(case, [one for one in among if one in names(case)]) if case else None


def judged(results: dict[str, Any]) -> list[Row]:
    judge = Judge(results)
    for case in CASES:
        if case.name not in judge.cases:
            continue
        name = case.name
        if case.where == "disk" and case.state == "cold" and case.mode == "stream":
            ceiling = judge.best_ceiling(name, FIO, RAW)
            judge.at_least(name, "≥ 0.97 × the best raw ceiling", TLOAD, ceiling, 0.97)
            judge.every_peer(name, "≥ every peer's best")
            judge.cost(name, "CPU time ≤ 1/3 of the next", cpu, 1 / 3)
        elif case.where == "disk" and case.state == "cold":
            judge.at_least(name, "≥ 0.97 × raw reads into fresh huge pages", TLOAD, RAW, 0.97)
            judge.every_peer(name, "≥ every peer")
            judge.cost(name, "less CPU time than any peer", cpu, 1, less=True)
            judge.cost(name, "no more memory than any peer (within 1 %)", peak, PEAK_TOLERANCE)
        elif case.state == "warm":
            ceiling = judge.best_ceiling(name, COPY, CLONE)
            judge.at_least(name, "own memory: ≥ 0.95 × the best of pread copies and mmap + clone", TLOAD, ceiling, 0.95)
            judge.every_peer(name, "own memory: ≥ every peer that copies", mapped=False)
            judge.at_least(name, "cache=map ≥ safetensors load_file, touched", MAP, LOAD_FILE, 1)
        elif case.where == "slow":
            judge.at_least(name, "≥ 0.90 × fio", TLOAD, FIO, 0.90)
            judge.at_least(name, "≥ 3 × safetensors", TLOAD, LOAD_FILE, 3)
            judge.at_least(name, "> Run:ai's best", TLOAD, RUNAI, 1, more=True)
        elif case.where == "throttled":
            found = typical(judge.cases[name], TLOAD, speed)
            share = None if found is None else found * 1e9 / THROTTLE
            told = None if share is None else f"{share:.3f} × the throttle"
            judge.say(name, "≥ 0.98 × the throttle", told, met=bool(share and share >= 0.98))
        if samples(judge.cases[name], SWEPT):
            judge.at_least(name, "defaults ≥ 0.95 × the best of a manual sweep", TLOAD, SWEPT, 0.95)
    start = results.get("cold_start") or {}
    if "median_seconds" in start:
        found = start["median_seconds"]
        told = f"{found * 1e3:.1f} ms{', WITH torch' if start['torch'] else ''}"
        met = found <= COLD_START_SECONDS and not start["torch"]
        judge.say("cold-start", "import, open, first tensor ≤ 60 ms, without torch", told, met=met)
    return judge.rows
