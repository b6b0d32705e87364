"""Tables of the results: medians, shares of the ceilings, and goals met or missed."""

from __future__ import annotations

import json
import statistics
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

GIB = 1 << 30
COPIES, READS = "ceiling: pinned copies", "ceiling: raw reads"
HEADER = (
    "contender",
    "rounds",
    "GB/s",
    "min–max",
    "first load",
    "of copies",
    "of raw reads",
    "CPU s per GiB",
    "peak RSS",
    "pinned (tload's)",
    "GPU beside tensors",
    "copy busy",
)

Run = dict[str, Any]
Section = dict[str, Any]


def sizes(folder: Path) -> dict[str, int]:
    """Return the number of tensors and of their bytes, from the headers."""
    tensors = nbytes = 0
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        tensors += len(header)
        nbytes += sum(entry["data_offsets"][1] - entry["data_offsets"][0] for entry in header.values())
    return {"tensors": tensors, "bytes": nbytes}


def speeds(run: Run, kind: str) -> list[float]:
    """Return the GB/s of the samples taken in the wanted state of the page cache."""
    return [
        sample["bytes"] / sample["seconds"] / 1e9
        for sample in run.get("samples", [])
        if sample["kind"] == kind and is_as_asked(sample)
    ]


def is_as_asked(sample: Run) -> bool:
    residency = sample.get("residency")
    return residency is None or residency["found"] == residency["wanted"]


def in_short(run: Run) -> str:
    if "error" in run:
        return f"FAILED: {run['error']}"
    found = [f"{speed:.2f}" for kind in ("first", "again") for speed in speeds(run, kind)]
    wrong = sum(not is_as_asked(sample) for sample in run["samples"])
    note = f", {wrong} not in the wanted state" if wrong else ""
    return f"{' '.join(found)} GB/s in {run['wall_seconds']:.0f} s{note}"


def names(section: Section) -> list[str]:
    known = {run["contender"] for run in section["runs"]}
    return [name for name in section["contenders"] if name in known]


def runs_of(section: Section, name: str) -> list[Run]:
    return [run for run in section["runs"] if run["contender"] == name and "samples" in run]


def share(section: Section, name: str, ceiling: str) -> float | None:
    """Return the share of a ceiling, within the rounds that have both."""
    ceilings = {run["round"]: speeds(run, "again") for run in runs_of(section, ceiling)}
    ratios = [
        statistics.median(ours) / statistics.median(theirs)
        for run in runs_of(section, name)
        if (ours := speeds(run, "again")) and (theirs := ceilings.get(run["round"]))
    ]
    return statistics.median(ratios) if ratios else None


def median(values: Iterable[float]) -> float | None:
    known = list(values)
    return statistics.median(known) if known else None


def reports(runs: list[Run]) -> list[dict[str, Any]]:
    samples = [sample for run in runs for sample in run["samples"]]
    found = (sample.get("details", {}).get("report") for sample in samples)
    return [report for report in found if report]


def busy(runs: list[Run]) -> float | None:
    """Return the seconds of copies over those of the load: above 1 when several lanes copy at a time."""
    return median(
        sum(device["copy_seconds"] for device in report["devices"]) / report["seconds"]
        for report in reports(runs)
        if report.get("devices") and report["seconds"]
    )


def beside_tensors(runs: list[Run]) -> float | None:
    """Return the peak GPU memory beyond the tensors, in bytes."""
    return max((run["gpu_peak_bytes"] - run["bytes"] for run in runs if "gpu_peak_bytes" in run), default=None)


def row(section: Section, name: str) -> list[str]:
    runs = runs_of(section, name)
    if not runs:
        error = next(run["error"] for run in section["runs"] if run["contender"] == name)
        return [name, "0", error, *[""] * (len(HEADER) - 3)]
    again = [speed for run in runs for speed in speeds(run, "again")]
    first = median(speed for run in runs for speed in speeds(run, "first"))
    cpu = median(
        sample["cpu_seconds"] / (sample["bytes"] / GIB) for run in runs for sample in run["samples"] if sample["bytes"]
    )
    rss = max(
        (run["peak_rss_bytes"] - run["rss_before_bytes"] for run in runs if "peak_rss_bytes" in run), default=None
    )
    pinned = max((report["staging"]["pinned_bytes"] for report in reports(runs) if report.get("staging")), default=None)
    to_copies = None if name == COPIES else share(section, name, COPIES)
    to_reads = None if name in (COPIES, READS) else share(section, name, READS)
    # Where the peak could not be reset, that of the imports may hide the load's.
    unsure = "" if all(run.get("rss_was_reset", True) for run in runs) else "≥ "
    return [
        name,
        str(len(runs)),
        f"{statistics.median(again):.2f}" if again else f"not {section['state']}",
        f"{min(again):.2f}–{max(again):.2f}" if again else "",
        shown(first, "{:.2f}"),
        shown(to_copies, "{:.2f} ×"),
        shown(to_reads, "{:.2f} ×"),
        shown(cpu, "{:.3f}"),
        unsure + gib(rss),
        gib(pinned),
        gib(beside_tensors(runs)),
        shown(busy(runs), "{:.0%}"),
    ]


def shown(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def gib(value: float | None) -> str:
    return "" if value is None else f"{value / GIB:.2f} GiB"


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    titles = list(header)
    lines = [titles, [":--", *["--:"] * (len(titles) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines) + "\n"


def best(section: Section | None, ceiling: str) -> tuple[str, float] | None:
    """Return the setting of tload nearest to a ceiling, and its share."""
    if section is None:
        return None
    shares = {name: share(section, name, ceiling) for name in names(section) if name.startswith("tload")}
    known = {name: value for name, value in shares.items() if value is not None}
    return max(known.items(), key=lambda item: item[1]) if known else None


def goals(results: dict[str, Any]) -> list[list[str]]:
    sections = {section["name"]: section for section in results["sections"]}
    rows = []

    def judge(goal: str, found: str | None, *, met: bool, but: str = "") -> None:
        rows.append([goal, found or "not measured", "" if found is None else f"met{but}" if met else "MISSED"])

    def near(goal: str, name: str, ceiling: str, least: float) -> None:
        found = best(sections.get(name), ceiling)
        told = f"{found[1]:.3f} × ({found[0]})" if found else None
        judge(goal, told, met=found is not None and found[1] >= least)

    near("warm ≥ 0.90 × pinned copies", "warm-large", COPIES, 0.90)
    near("disk-cold ≥ 0.97 × raw reads", "disk-cold", READS, 0.97)
    large, small = best(sections.get("warm-large"), COPIES), best(sections.get("warm-small"), COPIES)
    ratio = small[1] / large[1] if large and small else None
    judge("many small within 10 % of large", shown(ratio, "{:.3f} ×") or None, met=ratio is not None and ratio >= 0.9)
    excess = over_budget(results)
    told = None if excess is None else f"{excess / (1 << 20):+.0f} MiB beyond tensors and budget"
    judge("GPU memory ≤ tensors + budget", told, met=excess is not None and excess <= 0)
    for name in ("warm-large", "warm-small", "disk-cold", "disk-cold-small"):
        told, met, absent = beside_peers(sections.get(name))
        if told and absent:
            told += f"; not measured: {', '.join(absent)}"
        judge(f"{name}: faster than every peer", told, met=met, but=", of those measured" if absent else "")
    return rows


def beside_peers(section: Section | None) -> tuple[str | None, bool, list[str]]:
    """Return ratios to the fastest peer, of tload's best and default settings; whether the best wins; absent peers."""
    if section is None:
        return None, False, []
    known = {
        name: median(speed for run in runs_of(section, name) for speed in speeds(run, "again"))
        for name in names(section)
    }
    ours = {name: speed for name, speed in known.items() if speed is not None and name.startswith("tload")}
    peers = {name: speed for name, speed in known.items() if not name.startswith(("tload", "ceiling"))}
    measured = {name: speed for name, speed in peers.items() if speed is not None}
    absent = sorted(set(peers) - set(measured))
    if not ours or not measured:
        return None, False, absent
    first, rival = max(ours, key=lambda name: ours[name]), max(measured, key=lambda name: measured[name])
    ratios = {
        name: share(section, name, rival) or ours[name] / measured[rival]
        for name in (first, "tload, defaults")
        if name in ours
    }
    told = ", ".join(f"{ratio:.2f} × {rival} ({name})" for name, ratio in ratios.items())
    return told, ratios[first] > 1, absent


def over_budget(results: dict[str, Any]) -> int | None:
    """Return the peak GPU memory of tload beyond its tensors and its budget, in bytes."""
    found = []
    for section in results["sections"]:
        for run in section["runs"]:
            budgets = [
                device["memory_limit"]
                for report in reports([run] if "samples" in run else [])
                for device in report.get("devices", [])
            ]
            if budgets and "gpu_peak_bytes" in run:
                found.append(run["gpu_peak_bytes"] - run["bytes"] - max(budgets))
    return max(found, default=None)


def disagreements(results: dict[str, Any]) -> list[str]:
    """Return messages for loaders whose bytes differ from the rest."""
    lines = []
    for section in results["sections"]:
        expected = results.get("checkpoints", {}).get(section["checkpoint"], {})
        sums = {run["contender"]: run["checksum"] for run in section["runs"] if run.get("checksum") is not None}
        usual = statistics.mode(sums.values()) if sums else None
        lines += [
            f"{section['name']}: {name}: bytes differ from the rest" for name, found in sums.items() if found != usual
        ]
        lines += [
            f"{section['name']}: {run['contender']}: {run['bytes']} bytes of {run['tensors']} tensors, not {expected}"
            for run in section["runs"]
            if "tensors" in run
            and expected
            and (run["bytes"], run["tensors"]) != (expected["bytes"], expected["tensors"])
        ]
    return lines


def markdown(results: dict[str, Any]) -> str:
    found = results["machine"]
    parts = [
        f"{found.get('gpu') or found['device']}, torch {found.get('torch')}, Linux {found['kernel']}, {found['cores']} cores; "
        f"{results.get('seconds', 0):.0f} s{'' if results['complete'] else ', NOT COMPLETE'}\n"
    ]
    if results["dry_run"]:
        parts.append("**A dry run on the CPU: the figures mean nothing.**\n")
    own = found.get("own_packages", {})
    listed = [f"{name} {version}" for name, version in own.items() if version]
    listed += [
        f"{folder}: {', '.join(f'{name} {version}' for name, version in packages.items())}"
        for folder, packages in found.get("versions", {}).items()
    ]
    if listed:
        parts.append(f"Versions: {'; '.join(listed)}\n")
    for name, sized in results.get("checkpoints", {}).items():
        parts.append(f"* {name}: {sized['tensors']} tensors, {gib(sized['bytes'])}")
    parts.append("")
    parts.append(table(("goal", "found", ""), goals(results)))
    parts += [f"* **WRONG: {line}**" for line in disagreements(results)]
    for section in results["sections"]:
        parts.append(f"\n## {section['title']}\n")
        parts.append(table(HEADER, (row(section, name) for name in names(section))))
    return "\n".join(parts) + "\n"
