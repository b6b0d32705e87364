"""Counters of this process's loads and caches, for Prometheus.

>>> print(tload.metrics.text())
# HELP tload_loads_total Loads that have ended.
# TYPE tload_loads_total counter
tload_loads_total{outcome="complete"} 1
...
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from tload import _tload
from tload._report.readers import readers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

__all__ = ["register", "text"]

_registered: weakref.WeakSet[CollectorRegistry] = weakref.WeakSet()


def text() -> str:
    """Return the counters in the text format of Prometheus.

    They are of this process: loads that have ended, and the bytes and waits of its caches of objects.
    Times are in seconds, sizes in bytes. `tload_phase_seconds_total` divides the time of each load
    into `open` (its checkpoint), `start` (from the call until the first tensor) and `stream` (from
    there until the end). What `tload.safetensors` hands out, also inside `tload.patch`, has counters
    of its own: `tload_safetensors_files_total`, `tload_safetensors_tensors_total` and
    `tload_safetensors_bytes_total`, with `how="view"` for views of mapped files.
    """
    return _tload.metrics_text() + readers.metrics()


def register(registry: CollectorRegistry | None = None) -> None:
    """Add the counters to a registry of the package `prometheus_client`, which must be installed.

    Without `registry`, to its default one. Does nothing if they are there already.
    """
    if registry is None:
        from prometheus_client import REGISTRY

        registry = REGISTRY
    if registry not in _registered:
        registry.register(_Collector())
        _registered.add(registry)


class _Collector:
    """Collector whose metrics are those of `text`."""

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.parser import text_string_to_metric_families

        yield from text_string_to_metric_families(text())

    def describe(self) -> Iterator[Metric]:
        return self.collect()
