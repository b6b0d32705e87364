"""Results as Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import contenders
from figures import (
    GIB,
    CaseResult,
    counts,
    cpu,
    fastest,
    median,
    names,
    peak,
    ratio,
    samples,
    setting_of,
    speed,
    typical,
)

TLOAD = contenders.TLOAD.name
HEADER = (
    "contender",
    "setting",
    "GB/s",
    "min–max",
    "of the ceiling",
    "tload is",
    "CPU s per GiB",
    "peak memory",
    "mapped page cache",
    "state verified",
)


def table(header: Iterable[str], rows: Iterable[Iterable[str]], left: int = 1) -> str:
    titles = list(header)
    lines = [titles, [*[":--"] * left, *["--:"] * (len(titles) - left)], *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines) + "\n"


def shown(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def in_brackets(text: str) -> str:
    return f" ({text})" if text else ""


def gib(size: float | None) -> str:
    return "" if size is None else f"{size / GIB:.2f} GiB"


def row(case: CaseResult, name: str, ceiling: str | None) -> list[str]:
    found = list(samples(case, name).values())
    speeds = [speed(sample) for sample in found]
    ran = [run for run in case["runs"] if run["contender"] == name and "seconds" in run]
    return [
        f"**{name}**" if name == TLOAD else name,
        setting_of(case, name) or "defaults",
        shown(median(speeds), "{:.2f}"),
        f"{min(speeds):.2f}–{max(speeds):.2f}",
        shown(ratio(case, name, ceiling), "{:.2f} ×") if ceiling and name != ceiling else "",
        shown(ratio(case, TLOAD, name), "{:.2f} ×") if name != TLOAD else "",
        shown(median(cpu(sample) for sample in found), "{:.3f}"),
        gib(typical(case, name, peak)),
        gib(typical(case, name, lambda sample: sample.get("file_bytes"))),
        f"{sum(counts(run) for run in ran)} of {len(ran)}",
    ]


def case_table(case: CaseResult) -> str:
    ceiling = fastest(case, names(case, "ceiling"))
    ordered = sorted(names(case), key=lambda name: -(typical(case, name, speed) or 0))
    lines = [f"\n## {case['title']}\n"]
    made = case["checkpoint"]
    files = f"{made['files']} file{'s' if made['files'] > 1 else ''}"
    lines.append(f"`{case['name']}`: {made['tensors']} tensors, {gib(made['bytes'])} in {files}.\n")
    lines.append(table(HEADER, [row(case, name, ceiling) for name in ordered], left=2))
    for one in case["left_out"]:
        kind = "**DISQUALIFIED**" if one.get("disqualified") else "Left out"
        lines.append(f"* {kind}: {one['contender']}{in_brackets(one['setting'])}: {one['why']}")
    return "\n".join(lines) + "\n"


def start_in_words(start: dict[str, Any]) -> str:
    millis = {key: value * 1e3 for key, value in start.items() if key.endswith("_seconds")}
    return (
        f"{millis['median_seconds']:.1f} ms ({millis['min_seconds']:.1f}–{millis['max_seconds']:.1f}) from a program's "
        f"first line to its first tensor, {millis['import_median_seconds']:.1f} ms of them the import; the interpreter "
        f"alone takes {millis['interpreter_median_seconds']:.1f} ms before that. "
        f"torch is {'' if start['torch'] else 'not '}imported.\n"
    )


def verdict(*, met: bool | None) -> str:
    return "" if met is None else "met" if met else "**MISSED**"


def markdown(results: dict[str, Any]) -> str:
    found = results["machine"]
    host = (found["processor"], f"{found['cores']} cores", gib(found["memory_bytes"]), f"Linux {found['kernel']}")
    took = f"{results['seconds'] / 60:.0f} min{'' if results['complete'] else ', NOT COMPLETE'}"
    parts = [
        f"{', '.join(host)}, {found['file_system']}; {took}\n",
        f"Versions: {', '.join(f'{name} {version}' for name, version in found['versions'].items())}\n",
    ]
    if results["quick"]:
        parts.append("**A quick run with small checkpoints: the figures mean nothing.**\n")
    parts += [f"* SKIPPED: {one['case']}: {one['why']}" for one in results["skipped"]]
    parts.append("\n## Goals\n")
    rows = [[one["case"], one["goal"], one["found"], verdict(met=one["met"])] for one in results["goals"]]
    parts.append(table(("case", "goal", "tload", ""), rows, left=3))
    parts += [case_table(case) for case in results["cases"]]
    start = results.get("cold_start")
    if start:
        parts += ["\n## Cold start\n", start_in_words(start)]
    return "\n".join(parts)
