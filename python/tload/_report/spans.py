"""Spans of loads, openings and copies, for OpenTelemetry."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING

from tload import _tload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from tload.report import Report

LOAD_BEGINS = "plan"
"""Phase that begins with the load; those before it are of opening the checkpoint."""


@contextlib.contextmanager
def around(name: str) -> Iterator[Callable[[str, str | int], None]]:
    """Make the block a span, which fails with it, and yield a function that sets an attribute.

    Does nothing where `emit` does nothing.
    """
    trace = _imported()
    if trace is None:
        yield lambda _key, _value: None
        return
    tracer = trace.get_tracer("tload", _tload.__version__)
    with tracer.start_as_current_span(name) as span:
        yield lambda key, value: span.set_attribute(f"tload.{key}", value)


def emit(report: Report) -> None:
    """Emit a span for a load that has just ended, with one for each of its phases below it.

    Does nothing unless the program has imported `opentelemetry.trace`; without a tracer provider,
    that package drops them.
    """
    trace = _imported()
    if trace is None:
        return
    tracer = trace.get_tracer("tload", _tload.__version__)
    end = time.time_ns()
    start = end - _nanoseconds(report.seconds)
    attributes = {
        "tload.location": report.location,
        "tload.outcome": report.outcome,
        "tload.engine": report.engine.name,
        "tload.tensors": report.tensors,
        "tload.tensor_bytes": report.tensor_bytes,
        "tload.read_bytes": report.read_bytes,
        "tload.remote_bytes": report.remote_bytes,
        "tload.cached_bytes": report.cached_bytes,
        "tload.requests": report.requests,
        "tload.retries": report.retries,
        "tload.open_seconds": report.open_seconds,
    }
    load = tracer.start_span("tload.load", start_time=start, attributes=attributes)
    if report.outcome != "complete":
        load.set_status(trace.StatusCode.ERROR, report.outcome)
    context = trace.set_span_in_context(load)
    offsets = [phase.start_seconds for phase in report.phases if phase.phase == LOAD_BEGINS]
    for offset in offsets:
        for phase in report.phases:
            if phase.start_seconds >= offset:
                begun = start + _nanoseconds(phase.start_seconds - offset)
                name = "tload." + phase.phase.replace(" ", "_")
                span = tracer.start_span(name, context=context, start_time=begun)
                span.end(min(begun + _nanoseconds(phase.seconds), end))
    load.end(end)


def _imported() -> ModuleType | None:
    """Return `opentelemetry.trace` if the program has imported it."""
    trace = sys.modules.get("opentelemetry.trace")
    # While another thread imports the module, it is there without its functions.
    return None if getattr(getattr(trace, "__spec__", None), "_initializing", False) else trace


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
