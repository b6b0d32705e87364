#!/usr/bin/env python3
"""Draws the README's picture and the performance page from the newest measurements.

Reads the files below `benches/results`: of every kind of measurement, the newest that has it. Writes
pictures, the page, and the README's figures; `--check` writes nothing and fails if any of them
differ from the results.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benches/results"
ASSETS = ROOT / "docs/assets"
GIB = 1 << 30
TO = "\N{EN DASH}"

OURS, SAFETENSORS, RUNAI = "tload", "safetensors", "Run:ai Model Streamer"
HEADLINE = (OURS, SAFETENSORS, RUNAI)
"""Loaders of the README's picture, which also shows every loader that was faster than tload."""

NAMES = {
    "tload": OURS,
    "tload, defaults": OURS,
    "tload, buffered": 'tload, cache="buffered"',
    "Run:ai": RUNAI,
    "safetensors load_file": SAFETENSORS,
    "safetensors prefetch": "safetensors 0.9rc, prefetch",
    "fastsafetensors, nogds": "fastsafetensors, no GDS",
    "Tensorizer": "Tensorizer, own format",
}
"""Names to show, by contender in the results without its setting."""


@dataclass
class Bar:
    name: str
    seconds: list[float]
    cpu_per_gib: float
    is_limit: bool = False
    later: list[float] = field(default_factory=list)
    """Seconds of the loads after the first of a process, if they were measured."""

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


@dataclass
class Panel:
    """One kind of measurement: the same checkpoint, loaded by several programs in turn."""

    title: str
    short: str
    machine: str
    folder: str
    bars: list[Bar] = field(default_factory=list)
    note: str = ""

    @property
    def date(self) -> str:
        return dated(self.folder)

    def find(self, name: str) -> Bar | None:
        return next((bar for bar in self.bars if bar.name == name), None)

    def bar(self, name: str) -> Bar:
        """Return a bar that sentences are about."""
        return self.find(name) or sys.exit(f"{self.folder}: {self.title} has no {name}")

    @property
    def ours(self) -> Bar:
        return self.bar(OURS)

    @property
    def limit(self) -> Bar:
        return next(bar for bar in self.bars if bar.is_limit)

    @property
    def headline(self) -> list[Bar]:
        listed = [bar for name in HEADLINE if (bar := self.find(name))]
        return [*listed, *(bar for bar in beating(self) if bar not in listed), self.limit]


def dated(folder: str) -> str:
    return re.search(r"\d{4}-\d\d-\d\d$", folder)[0]


def newest(pattern: str) -> list[Path]:
    return sorted(RESULTS.glob(pattern), key=lambda path: (dated(path.parent.name), path.parent.name), reverse=True)


def gib(nbytes: int) -> str:
    return f"{nbytes / GIB:.0f} GiB"


def contender(name: str) -> str:
    return NAMES.get(name, name)


def processor(name: str) -> str:
    return re.sub(r"\(R\)|Processor|\d+GB HBM3", "", name).strip().replace("  ", " ")


def from_disks(case_name: str, title: str, short: str) -> Panel:
    """Return a case of `benches/compare/disks.py`, one process per run."""
    for path in newest("*/results.json"):
        results = json.loads(path.read_text())
        case = next((case for case in results.get("cases", []) if case["name"] == case_name), None)
        roles = {one["role"] for one in case["contenders"]} if case else set()
        if not {"ours", "peer"} <= roles:
            continue
        size = gib(case["checkpoint"]["bytes"])
        machine = f"{results['machine']['cores']} cores, {processor(results['machine']['processor'])}, virtio disk"
        panel = Panel(title.format(size=size, **case["checkpoint"]), short.format(size=size), machine, path.parent.name)
        panel.note = "One process for each run."
        for one in case["contenders"]:
            runs = [run for run in case["runs"] if run["contender"] == one["name"] and is_valid(run)]
            if not runs or one["is_mapped"] or "," in one["name"]:
                continue
            cost = statistics.median(run["cpu_seconds"] / run["bytes"] for run in runs) * GIB
            limit = one["role"] == "ceiling"
            name = one["name"].removeprefix("ceiling: ") + ": the limit" if limit else contender(one["name"])
            panel.bars.append(Bar(name, [run["seconds"] for run in runs], cost, limit))
        return panel
    sys.exit(f"no results have the case {case_name}")


def is_valid(run: dict[str, Any]) -> bool:
    """Return whether the page cache was in the wanted state."""
    residency = run.get("residency")
    return "seconds" in run and (residency is None or residency["found"] == residency["wanted"])


def from_store() -> Panel:
    """Return the table of `benches/compare/objects.py`."""
    for path in newest("*/peers.md"):
        beside = json.loads((path.parent / "s3.json").read_text())
        size = gib(beside["checkpoint"]["tensor_bytes"])
        machine = f"{beside['host']['cores']} cores, {processor(beside['host']['cpu'])}, S3 server on the same cores"
        panel = Panel(f"{size} from S3", f"From S3, {size}", machine, path.parent.name)
        panel.note = "Into memory that was touched before; every other loader at the best of its settings."
        curls = []
        for line in path.read_text().splitlines()[2:]:
            name, median, ends, cost, *_ = (cell.strip() for cell in line.strip("|").split("|"))
            low, high = (float(end) for end in ends.split(TO))
            # The median of these three is the median of the run.
            bar = Bar(contender(name.partition(",")[0]), [low, float(median), high], float(cost))
            if name.startswith("curl"):
                curls.append(bar)
            else:
                panel.bars.append(bar)
        if curls:
            best = min(curls, key=lambda bar: bar.median)
            panel.bars.append(Bar("curl: the limit", best.seconds, best.cpu_per_gib, is_limit=True))
        return panel
    sys.exit("no results compare loaders from a store")


def from_gpu(section_name: str, title: str, short: str) -> Panel:
    """Return a section of `benches/gpu/measure.py`: first loads of a process."""
    for path in newest("*/results.json"):
        results = json.loads(path.read_text())
        section = next((one for one in results.get("sections", []) if one["name"] == section_name), None)
        if section is None or results["dry_run"]:
            continue
        checkpoint = results["checkpoints"][section["checkpoint"]]
        size = gib(checkpoint["bytes"])
        gpu = processor(results["machine"]["gpu"])
        panel = Panel(
            title.format(size=size, gpu=gpu, tensors=checkpoint["tensors"]),
            short.format(size=size, gpu=gpu),
            f"{gpu}, {results['machine']['cores']} cores",
            path.parent.name,
        )
        panel.note = "The bars are the first loads of a process."
        for name in section["contenders"]:
            limit = name.startswith("ceiling")
            samples = [
                sample
                for run in section["runs"]
                if run["contender"] == name
                for sample in run.get("samples", [])
                if is_valid(sample)
            ]
            # Copies over the bus have no first load; some of them copy less than the checkpoint.
            first = [sample for sample in samples if limit or sample["kind"] == "first"]
            later = [sample["seconds"] for sample in samples if sample["kind"] == "again" and not limit]
            if first and ", registered" not in name:
                cost = statistics.median(sample["cpu_seconds"] / sample["bytes"] for sample in first) * GIB
                shown = "the bus: the limit" if limit else contender(name)
                seconds = [checkpoint["bytes"] / sample["bytes"] * sample["seconds"] for sample in first]
                panel.bars.append(Bar(shown, seconds, cost, limit, later))
        return panel
    sys.exit(f"no results have the section {section_name}")


STYLE = """
  svg { color-scheme: light dark; font: 14px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
  text { fill: #1f2328; } .quiet { fill: #59636e; font-size: 12px; } .head { font-weight: 600; }
  .bar { fill: #7d8894; } .ours { fill: #c2410c; } .limit { fill: none; stroke: #59636e; stroke-dasharray: 4 3; }
  text.ours { font-weight: 600; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .quiet { fill: #a3abb3; } .bar { fill: #7d8894; } .ours { fill: #ff8a4c; }
    .limit { fill: none; stroke: #a3abb3; }
  }
"""

WIDTH, LABELS, ROW, ROOM = 520, 186, 24, 60


def draw(title: str, panels: list[tuple[Panel, list[Bar]]], description: str) -> str:
    """Return a picture: a group of bars for each panel, all from zero, each group with its scale.

    Only a picture of several panels shows its title.
    """
    lines, y = [], -4
    if len(panels) > 1:
        lines, y = [f'<text class="head" x="0" y="18" font-size="16">{escape(title)}</text>'], 30
    for panel, bars in panels:
        scale = (WIDTH - LABELS - ROOM) / max(bar.median for bar in bars)
        y += 22
        lines.append(f'<text class="head" x="0" y="{y}">{escape(panel.short)}</text>')
        about = f"{panel.machine}, {panel.date}"
        lines.append(f'<text class="quiet" x="0" y="{y + 17}">{escape(about)}</text>')
        y += 24
        for bar in bars:
            kind = "limit" if bar.is_limit else "ours" if bar.name == OURS else "bar"
            text = {"limit": "quiet", "ours": "ours"}.get(kind, "plain")
            length = max(bar.median * scale, 1)
            lines += [
                f'<text class="{text}" x="{LABELS - 8}" y="{y + 16}" text-anchor="end">{escape(bar.name)}</text>',
                f'<rect class="{kind}" x="{LABELS}" y="{y + 4}" width="{length:.1f}" height="{ROW - 8}" rx="2"/>',
                f'<text class="{text}" x="{LABELS + length + 6:.1f}" y="{y + 16}">{bar.median:.2f} s</text>',
            ]
            y += ROW
        y += 8
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}">',
            f"<title>{escape(title)}</title>",
            f"<desc>{escape(description)}</desc>",
            f"<style>{STYLE}</style>",
            *lines,
            "</svg>\n",
        ]
    )


def in_words(panel: Panel, bars: list[Bar]) -> str:
    return f"{panel.short}: " + ", ".join(f"{bar.name} {bar.median:.2f} s" for bar in bars)


def times(over: Bar, under: Bar) -> str:
    found = over.median / under.median
    return f"{found:.1f}" if found > 2 else f"{found:.2f}"


TITLE = "Seconds to load a model (shorter is better)"


def readme_figures(disk: Panel, store: Panel, gpu: Panel) -> str:
    """Return the README's picture and the sentences that state its figures."""
    panels = (disk, store, gpu)
    alt = f"{TITLE}. " + ". ".join(in_words(panel, panel.headline) for panel in panels)
    cost = disk.ours.cpu_per_gib / disk.bar(RUNAI).cpu_per_gib
    faster = [
        f"tload takes {times(gpu.ours, bar)} times as long as {bar.name}" for bar in gpu.headline if bar in beating(gpu)
    ]
    bus = f"{times(gpu.ours, gpu.limit)} times as long as the bus"
    sentences = (
        f"* **Disk:** tload takes {times(disk.ours, disk.limit)} times as long as raw reads; Run:ai Model Streamer "
        f"{times(disk.bar(RUNAI), disk.limit)} times. tload takes {cost:.2f} of its CPU time.\n"
        f"* **S3:** Run:ai Model Streamer takes {times(store.bar(RUNAI), store.ours)} times as long as tload.\n"
        f"* **GPU:** safetensors (`load_file`) takes {times(gpu.bar(SAFETENSORS), gpu.ours)} times as long as tload; "
        f"{', '.join([*faster, bus])}."
    )
    return f"![{alt}](docs/assets/seconds.svg)\n\n" + "\n".join(wrapped(line) for line in sentences.splitlines())


def beating(panel: Panel) -> list[Bar]:
    """Return the other loaders that were faster than tload."""
    return [
        bar
        for bar in panel.bars
        if not bar.is_limit and not bar.name.startswith(OURS) and bar.median < panel.ours.median
    ]


def wrapped(text: str) -> str:
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        if line and len(line) + 1 + len(word) > 100:
            lines.append(line)
            line = "  " + word if text.startswith("* ") else word
        else:
            line = f"{line} {word}" if line else word
    return "\n".join([*lines, line])


def table(panel: Panel) -> str:
    has_later = any(bar.later for bar in panel.bars)
    head, align = ["loader", "seconds", f"fastest{TO}slowest", "CPU s per GiB"], [":--", "--:", "--:", "--:"]
    rows = [[*head, "later loads"] if has_later else head, [*align, "--:"] if has_later else align]
    for bar in panel.bars:
        name = f"**{bar.name}**" if bar.name == OURS else bar.name
        ends = f"{min(bar.seconds):.2f}{TO}{max(bar.seconds):.2f}"
        later = [f"{statistics.median(bar.later):.2f}" if bar.later else ""] if has_later else []
        rows.append([name, f"{bar.median:.2f}", ends, f"{bar.cpu_per_gib:.2f}", *later])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


PAGE = """# Performance

Seconds to load the same checkpoint with several loaders, in turn, on the same machine. Each bar is
a median. tload runs with its defaults, every other loader at the best of its settings. A program
(`tools/picture.py`) draws this page from the newest files below
[`benches/results`]({tree}), which have every sample.

Three things to know before you believe a number:

* **It holds for one machine and one day.** Compare bars within a picture, not across pictures.
* **The dashed bar is the limit**: the same bytes moved by the same hardware, without any tensors. A
  loader that reaches it leaves nothing to gain.
* **Storage that is the bottleneck makes all loaders equally fast.** Then compare the CPU time.

Measure your own machine with `tload bench LOCATION`: with `--against safetensors,runai` beside
other loaders, and with `--sweep` beside fixed settings.
[How the measurements are made]({blob}/benches/README.md) says more.

{sections}
## What is slower, and not measured yet

{missing}
"""

TREE = "https://github.com/tload/tload/tree/main/benches/results"
BLOB = "https://github.com/tload/tload/blob/main"


def page(groups: dict[str, list[Panel]], missing: str) -> tuple[str, dict[str, str]]:
    sections, pictures = [], {}
    for group, panels in groups.items():
        sections.append(f"## {group}\n")
        for panel in panels:
            name = re.sub(r"[^a-z0-9]+", "-", panel.title.lower()).strip("-") + ".svg"
            # The loaders in the order of their seconds; the limit comes last.
            panel.bars.sort(key=lambda bar: (bar.is_limit, bar.median))
            words = in_words(panel, panel.bars)
            pictures[name] = draw(panel.title, [(panel, panel.bars)], words)
            sections.append(f"### {panel.title}\n\n![{words}](assets/performance/{name})\n")
            sections.append(f"{wrapped(f'{panel.machine}, {panel.date}. {panel.note}')}")
            sections.append(f"[All figures]({TREE}/{panel.folder})\n\n{table(panel)}\n")
    return PAGE.format(tree=TREE, blob=BLOB, sections="\n".join(sections), missing=missing), pictures


def missing_from(groups: dict[str, list[Panel]]) -> str:
    """Return a list of the loaders that were faster than tload, and of those without a run."""
    slower, absent = [], {}
    for panel in (panel for panels in groups.values() for panel in panels):
        ours = panel.ours
        for bar in panel.bars:
            if bar.is_limit or bar.name.startswith(OURS):
                continue
            for word, theirs, own in (("", bar.seconds, ours.seconds), (" in later loads", bar.later, ours.later)):
                if theirs and statistics.median(theirs) < statistics.median(own):
                    part = statistics.median(theirs) / statistics.median(own)
                    slower.append(f"* {panel.title}: {bar.name} takes {part:.2f} of tload's time{word}.")
        for name in HEADLINE:
            if panel.find(name) is None:
                absent.setdefault(name, []).append(panel.title)
    lines = [f"* {name} has no run in: {'; '.join(titles)}." for name, titles in absent.items()]
    return "\n".join(wrapped(line) for line in slower + lines)


def outputs() -> dict[Path, str]:
    disk = from_disks("disk-keep", "{size} from a cold disk", "From disk, {size}")
    store = from_store()
    gpu = from_gpu("warm-large", "{size} to a GPU, from memory", "To a GPU, {size} from memory")
    groups = {
        "Disk": [
            disk,
            from_disks("small-keep", "{size} in {tensors:,} tensors from a cold disk", "From disk, {size}"),
            from_disks("disk-warm", "{size} from the page cache", "From the page cache, {size}"),
            from_disks(
                "small-warm", "{size} in {tensors:,} tensors from the page cache", "From the page cache, {size}"
            ),
        ],
        "Object store": [store],
        "GPU": [
            gpu,
            from_gpu(
                "warm-small", "{size} in {tensors:,} tensors to a GPU, from memory", "To a GPU, {size} from memory"
            ),
            from_gpu("disk-warm-large", "{size} to a GPU, from the page cache", "To a GPU, {size} from the page cache"),
        ],
    }
    readme = ROOT / "README.md"
    begin, end = "<!-- figures: begin; tools/picture.py writes them -->", "<!-- figures: end -->"
    before, _, rest = readme.read_text().partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        sys.exit(f"README.md has no {begin} … {end}")
    figures = readme_figures(disk, store, gpu)
    headline = [(panel, panel.headline) for panel in (disk, store, gpu)]
    words = ". ".join(in_words(panel, bars) for panel, bars in headline)
    picture = draw(TITLE, headline, words)
    text, pictures = page(groups, missing_from(groups))
    return {
        readme: f"{before}{begin}\n\n{figures}\n\n{end}{after}",
        ASSETS / "seconds.svg": picture,
        ROOT / "docs/performance.md": text,
        **{ASSETS / "performance" / name: svg for name, svg in pictures.items()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, fail if a file would change")
    check = parser.parse_args().check
    wanted = outputs()
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    unknown = set((ASSETS / "performance").glob("*")) - set(wanted)
    if check:
        for path in [*stale, *sorted(unknown)]:
            print(f"tools/picture.py: {path.relative_to(ROOT)} differs from benches/results; run tools/picture.py")
        return bool(stale or unknown)
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[path])
    for path in unknown:
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
