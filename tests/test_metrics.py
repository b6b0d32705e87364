"""Metrics for Prometheus and spans for OpenTelemetry, read by their own packages."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import tload
import tload.metrics
from files import Content, write_checkpoint

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path, [{f"t{shard}": Content.random("F32", (64, 64), shard)} for shard in range(2)])
    return tmp_path


def values() -> dict[str, float]:
    """Return the samples by name and labels."""
    families = text_string_to_metric_families(tload.metrics.text())
    samples = [sample for family in families for sample in family.samples]
    return {" ".join([sample.name, *sample.labels.values()]): sample.value for sample in samples}


def test_counters_are_those_of_the_reports(model: Path) -> None:
    before = values()
    with tload.stream(model, framework="numpy") as stream:
        tensors = dict(stream)
    after = values()

    def added(name: str) -> float:
        return after[name] - before.get(name, 0)

    report = stream.report
    assert added("tload_loads_total complete") == 1
    assert added("tload_tensors_total") == len(tensors) == 2
    assert added("tload_tensor_bytes_total") == report.tensor_bytes == 2 * 64 * 64 * 4
    sources = ["direct", "page_cache", "mapped", "store", "cache", "rank"]
    assert sum(added(f"tload_read_bytes_total {source}") for source in sources) == report.read_bytes
    phases = [added(f"tload_phase_seconds_total {phase}") for phase in ("open", "start", "stream")]
    assert sum(phases) == pytest.approx(report.open_seconds + report.seconds, abs=1e-6)
    assert all(phase > 0 for phase in phases[:2])


def test_failed_and_abandoned_loads_have_their_outcome(model: Path) -> None:
    before = values()
    with tload.stream(model, framework="numpy") as stream:
        next(stream)
    after = values()
    assert after["tload_loads_total cancelled"] == before.get("tload_loads_total cancelled", 0) + 1


def test_registry_has_the_same_metrics(model: Path) -> None:
    tload.load(model, framework="numpy")
    registry = CollectorRegistry()
    for _ in range(2):
        tload.metrics.register(registry)
    found = list(text_string_to_metric_families(generate_latest(registry).decode()))
    wanted = list(text_string_to_metric_families(tload.metrics.text()))
    assert [family.name for family in found] == [family.name for family in wanted]
    assert registry.get_sample_value("tload_loads_total", {"outcome": "complete"})
    tload.metrics.register()


@pytest.fixture(scope="module")
def provider() -> TracerProvider:
    """Return the provider of this process: there can only be one."""
    provider = TracerProvider()
    trace.set_tracer_provider(provider)
    return provider


@pytest.fixture
def exporter(provider: TracerProvider) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter


def test_spans_divide_the_time_of_a_load(model: Path, exporter: InMemorySpanExporter) -> None:
    with trace.get_tracer("caller").start_as_current_span("start of the server") as outer:
        tload.load(model, framework="numpy")
    # Most fields may be None in spans of other kinds.
    spans: dict[str, Any] = {span.name: span for span in exporter.get_finished_spans()}
    load = spans["tload.load"]
    assert load.parent.span_id == outer.get_span_context().span_id
    assert load.attributes["tload.outcome"] == "complete"
    assert load.attributes["tload.tensors"] == 2
    parts = [span for span in spans.values() if span.parent and span.parent.span_id == load.context.span_id]
    assert {"tload.plan", "tload.first_tensor"} <= {span.name for span in parts}
    assert all(load.start_time <= span.start_time <= span.end_time <= load.end_time for span in parts)
    with pytest.raises(tload.CancelledError):
        _abandoned(model)
    failed = [span for span in exporter.get_finished_spans() if span.name == "tload.load"][-1]
    assert failed.status.status_code is trace.StatusCode.ERROR


def test_load_succeeds_while_another_thread_imports_opentelemetry(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unfinished = ModuleType("opentelemetry.trace")
    unfinished.__spec__ = ModuleSpec("opentelemetry.trace", None)
    unfinished.__spec__._initializing = True  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", unfinished)
    assert len(tload.load(model, framework="numpy")) == 2


def test_openings_and_copies_are_spans(
    model: Path, tmp_path_factory: pytest.TempPathFactory, exporter: InMemorySpanExporter
) -> None:
    with trace.get_tracer("caller").start_as_current_span("start of the server") as outer:
        tload.load(model, framework="numpy")
        report = tload.copy(model, tmp_path_factory.mktemp("copy"))
        with pytest.raises(tload.NotFoundError):
            tload.open(model / "missing")
    spans: list[Any] = [span for span in exporter.get_finished_spans() if span.name.startswith("tload.")]
    opened, copied, missing = (span for span in spans if span.name in {"tload.open", "tload.copy"})
    load = next(span for span in spans if span.name == "tload.load")
    for span in (opened, copied, missing):
        assert span.parent.span_id == outer.get_span_context().span_id
    assert opened.start_time < load.start_time
    assert opened.attributes["tload.location"] == load.attributes["tload.location"] == str(model)
    assert copied.name == "tload.copy"
    assert copied.attributes["tload.copied_bytes"] == report.copied_bytes > 0
    assert missing.status.status_code is trace.StatusCode.ERROR


def _abandoned(model: Path) -> None:
    with tload.stream(model, framework="numpy") as stream:
        stream.cancel()
        list(stream)


def test_neither_package_is_imported_by_a_load(model: Path) -> None:
    program = "import sys, tload; tload.load(sys.argv[1], framework='numpy'); tload.metrics.text()\n"
    program += "print(*[name for name in sys.modules if name.startswith(('prometheus', 'opentelemetry'))])"
    done = subprocess.run([sys.executable, "-c", program, str(model)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
