"""Figures of several runs: medians, and ratios within rounds, of the samples that count."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from typing import Any

GIB = 1 << 30

CaseResult = dict[str, Any]
Sample = dict[str, Any]


def counts(sample: Sample) -> bool:
    """Return whether the page cache was in the wanted state."""
    residency = sample.get("residency")
    return "seconds" in sample and (residency is None or residency["found"] == residency["wanted"])


def speed(sample: Sample) -> float:
    """Return the speed in GB/s."""
    return sample["bytes"] / sample["seconds"] / 1e9


def cpu(sample: Sample) -> float:
    """Return the CPU seconds per GiB."""
    return sample["cpu_seconds"] / (sample["bytes"] / GIB)


def peak(sample: Sample) -> float | None:
    """Return the peak memory beyond that at the start of the clock, in bytes; None if not measured."""
    return sample["peak_rss_bytes"] - sample.get("rss_before_bytes", 0) if "peak_rss_bytes" in sample else None


def samples(case: CaseResult, name: str) -> dict[int, Sample]:
    """Return the samples that count, by round."""
    return {run["round"]: run for run in case["runs"] if run["contender"] == name and counts(run)}


def median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def typical(case: CaseResult, name: str, of: Callable[[Sample], float | None]) -> float | None:
    return median(of(sample) for sample in samples(case, name).values())


def ratio(case: CaseResult, name: str, other: str) -> float | None:
    """Return the speed relative to another contender: the median of the rounds that have both."""
    ours, theirs = samples(case, name), samples(case, other)
    return median(speed(ours[turn]) / speed(theirs[turn]) for turn in ours.keys() & theirs.keys())


def names(case: CaseResult, role: str | None = None, *, mapped: bool | None = None) -> list[str]:
    """Return the names of the measured contenders, in the order of the list."""
    return [
        one["name"]
        for one in case["contenders"]
        if (role is None or one["role"] == role)
        and (mapped is None or one["is_mapped"] is mapped)
        and samples(case, one["name"])
    ]


def fastest(case: CaseResult, among: Iterable[str]) -> str | None:
    found = {name: typical(case, name, speed) for name in among}
    known = {name: value for name, value in found.items() if value is not None}
    return max(known, key=lambda name: known[name], default=None)


def setting_of(case: CaseResult, name: str) -> str:
    return next(one["setting"] for one in case["contenders"] if one["name"] == name)
