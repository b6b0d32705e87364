"""Reports of Python, made from the JSON of the core."""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from tload import _tload
from tload.report import Report

if TYPE_CHECKING:
    from tload._report.progress import Progress
    from tload._tensors.imports import BackgroundImport


IMPORT_WAIT_MIN = 0.05
"""Seconds of waiting for an import from which on the headline of a report leaves them out."""


def read_report(
    document: str, text: str, importing: BackgroundImport | None = None, import_wait: float = 0.0
) -> Report:
    """Make a report from the core's JSON, whose fields are those of the classes here.

    The core knows nothing of imports. The load has waited for `importing` for `import_wait` seconds.
    """
    report: Report = decode(Report, json.loads(document))
    if importing is None:
        return dataclasses.replace(report, text=text)
    seconds = importing.seconds
    report = dataclasses.replace(
        report, import_seconds=seconds, import_wait_seconds=max(0.0, min(import_wait, seconds, report.seconds))
    )
    if report.import_wait_seconds >= IMPORT_WAIT_MIN:
        headline, rest = text.split("\n", 1)
        text = f"{_headline(headline, report, importing.framework)}\n{rest}"
    text += f"\nimport   {importing.framework} in {seconds:.3f} s"
    return dataclasses.replace(report, text=text)


def _headline(core: str, report: Report, framework: str) -> str:
    """Return the first line of the text, without the time in which nothing could be handed over."""
    volume = core.partition(" in ")[0]
    seconds, wait = report.seconds - report.import_wait_seconds, report.import_wait_seconds
    rate = _tload.format_rate(report.bytes_per_second)
    return f"{volume} in {seconds:.3f} s: {rate}, after {wait:.1f} s of import {framework} ({report.outcome})"


def import_wait(document: str, progress: Progress) -> float:
    """Return the seconds for which a load has waited for an import that has just ended.

    `document` is the core's report of the load then. If everything has been read, the load has
    waited since the last tensor was ready; else, while its memory was full.
    """
    report = json.loads(document)
    if progress.bytes_read >= progress.bytes_total:
        waited: float = report["seconds"] - (report["ready_seconds"] or 0.0)
    else:
        waited = report["stages"]["memory_wait"] / max(report["lanes"], 1)
    return waited


_annotations = functools.cache(get_type_hints)


def decode(kind: Any, value: Any) -> Any:
    """Convert a JSON value to the type of an annotation: a class, `tuple[X, ...]` or `X | None`."""
    if isinstance(value, dict):
        if get_args(kind):
            kind = get_args(kind)[0]
        types = _annotations(kind)
        return kind(**{name: decode(types[name], each) for name, each in value.items()})
    if isinstance(value, list):
        return tuple(decode(get_args(kind)[0], each) for each in value)
    return value
