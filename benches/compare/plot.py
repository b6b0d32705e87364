"""Charts of the results: speed and CPU time of each case. The same results give the same file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import contenders
import matplotlib as mpl
from figures import CaseResult, cpu, fastest, names, speed, typical

mpl.use("agg")
mpl.rcParams |= {
    "svg.hashsalt": "tload",
    "svg.fonttype": "none",
    "font.family": ["DejaVu Sans", "sans-serif"],
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}

#: Cases in the short chart; `plot-all.svg` has all of them.
HEADLINE = ("disk-stream", "disk-keep", "disk-warm", "small-warm", "slow")
OURS, THEIRS, CEILING = "#d9480f", "#8aa0b4", "#495057"
WIDTH, BAR, MARGIN = 9.0, 0.24, 0.75


def listed_in(case: CaseResult) -> list[str]:
    """Return the names of the loaders. The manual sweep is shown in the table only."""
    return [*(name for name in names(case, "ours") if name != contenders.SWEPT.name), *names(case, "peer")]


def panels(case: CaseResult, left: Any, right: Any) -> None:
    best = fastest(case, names(case, "ceiling"))
    listed = listed_in(case)
    listed.sort(key=lambda name: typical(case, name, speed) or 0)
    ours, mapped = names(case, "ours"), names(case, mapped=True)
    labels = [f"{name} (mapped)" if name in mapped else name for name in listed]
    colours = [OURS if name in ours else THEIRS for name in listed]
    speeds = [typical(case, name, speed) or 0 for name in listed]
    costs = [typical(case, name, cpu) or 0 for name in listed]
    for axes, values, form in ((left, speeds, "{:.2f}"), (right, costs, "{:.2f}")):
        bars = axes.barh(labels, values, color=colours, height=0.72)
        # Keeps the figures readable across the ceiling's line.
        room = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
        axes.bar_label(bars, [form.format(value) for value in values], padding=3, fontsize=8, bbox=room)
        axes.margins(x=0.15, y=0.02)
        axes.tick_params(axis="y", length=0)
    right.set_yticklabels([])
    top = typical(case, best, speed) if best else None
    if best and top:
        left.axvline(top, color=CEILING, linewidth=1.2, linestyle=(0, (4, 3)))
        left.set_xlim(right=max(left.get_xlim()[1], top * 1.08))
        left.annotate(
            f"{best.removeprefix('ceiling: ')} {top:.2f}",
            (top, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 2),
            textcoords="offset points",
            ha="right",
            va="bottom",
            fontsize=8,
            color=CEILING,
        )
    left.set_title(case["title"], loc="left", fontsize=10, fontweight="bold", pad=14)


def draw(cases: list[CaseResult], files: list[Path]) -> None:
    import matplotlib.pyplot as plt

    rows = [max(1, len(listed_in(case))) for case in cases]
    heights = [BAR * count + MARGIN for count in rows]
    figure, axes = plt.subplots(
        len(cases),
        2,
        figsize=(WIDTH, sum(heights) + 0.4),
        squeeze=False,
        width_ratios=[3, 2],
        height_ratios=heights,
        layout="constrained",
        facecolor="white",
    )
    for case, (left, right) in zip(cases, axes, strict=True):
        panels(case, left, right)
    axes[-1][0].set_xlabel("GB/s (median; dashed: the ceiling; mapped: not copied)")
    axes[-1][1].set_xlabel("CPU seconds per GiB")
    for file in files:
        # A date would change the file every time.
        told = {"Date": None} if file.suffix == ".svg" else {"Software": None}
        figure.savefig(file, metadata=told, dpi=110)
    plt.close(figure)


def plot(results: dict[str, Any], folder: Path) -> None:
    measured = [case for case in results["cases"] if names(case)]
    headline = [case for case in measured if case["name"] in HEADLINE] or measured
    if headline:
        draw(headline, [folder / "plot.svg", folder / "plot.png"])
        draw(measured, [folder / "plot-all.svg"])
