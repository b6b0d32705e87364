"""Reports of Python, made from the JSON of the core."""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from tload.report import Report

if TYPE_CHECKING:
    from tload._tensors.imports import BackgroundImport


def read_report(document: str, text: str, importing: BackgroundImport | None = None) -> Report:
    """Make a report from the core's JSON, whose fields are those of the classes here.

    The core knows nothing of imports.
    """
    report: Report = decode(Report, json.loads(document))
    if importing is None:
        return dataclasses.replace(report, text=text)
    seconds = importing.seconds
    text += f"\nimport   {importing.framework} in {seconds:.3f} s"
    return dataclasses.replace(report, text=text, import_seconds=seconds)


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
