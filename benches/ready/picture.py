"""The waterfall of starts, as SVG without scripts: a bar for each case, with its phases one after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT, BAR, STEP, TOP = 1000, 340, 230, 16, 30, 54
COLOURS = ("#b8bfc9", "#d5d9df", "#8fb4e3", "#d9480f", "#f2b880", "#9ccfb4", "#5c7c6a")
TITLE = "Seconds from the start of an engine to its first token, by phase"
STYLE = (
    "text{font:11px system-ui,sans-serif;fill:#24292f}.l{fill:#57606a}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.l{fill:#9198a1}}"
)


@dataclass(frozen=True)
class Row:
    title: str
    phases: Sequence[dict[str, Any]]
    ticks: Sequence[float]
    """When a process had imported torch."""
    told: str


def draw(rows: Sequence[Row], phases: Sequence[str]) -> str:
    end = max((row.phases[-1]["to"] for row in rows), default=1.0)
    scale = (WIDTH - LEFT - RIGHT) / end
    height = TOP + STEP * len(rows) + 24
    colours = dict(zip(phases, COLOURS, strict=True))
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{TITLE}">',
        f"<style>{STYLE}</style>",
    ]
    x = 10
    for name, colour in colours.items():
        lines.append(
            f'<rect x="{x}" y="10" width="10" height="10" fill="{colour}"/><text x="{x + 14}" y="19">{name}</text>'
        )
        x += 34 + 6 * len(name)
    for index, row in enumerate(rows):
        y = TOP + STEP * index
        lines.append(f'<text x="{LEFT - 8}" y="{y + 12}" text-anchor="end">{escape(row.title)}</text>')
        for phase in row.phases:
            start, width = LEFT + phase["from"] * scale, (phase["to"] - phase["from"]) * scale
            label = f"{phase['name']}: {phase['to'] - phase['from']:.2f} s"
            lines.append(
                f'<rect x="{start:.1f}" y="{y}" width="{max(width, 0.5):.1f}" height="{BAR}" '
                f'fill="{colours[phase["name"]]}"><title>{escape(label)}</title></rect>'
            )
        lines += [f'<path d="M{LEFT + tick * scale:.1f} {y - 2}v{BAR + 4}" stroke="#57606a"/>' for tick in row.ticks]
        last = row.phases[-1]["to"]
        lines.append(f'<text x="{LEFT + last * scale + 6:.1f}" y="{y + 8}">{last:.1f} s</text>')
        lines.append(f'<text class="l" x="{LEFT + last * scale + 6:.1f}" y="{y + 20}">{escape(row.told)}</text>')
    bottom = TOP + STEP * len(rows) + 12
    lines.append(f'<text class="l" x="{LEFT}" y="{bottom}">a line in a bar: a process has imported torch</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"
