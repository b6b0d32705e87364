"""The dashboard for Grafana: its metrics and labels exist, all metrics are in it, and Grafana's own
classes of dashboards take it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import tload.metrics
from conftest import require

if TYPE_CHECKING:
    from collections.abc import Iterator

PATH = Path(__file__).parent.parent / "docs" / "assets" / "grafana-tload.json"


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(PATH.read_text())
    return found


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Labels of every metric of a process that loads, and of a server."""
    folder = tmp_path_factory.mktemp("served")
    arguments = [sys.executable, "-m", "tload", "serve", str(folder), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().split()[-1].rstrip("/")
            for _ in range(2):  # The first response is in the second one's counters.
                with urllib.request.urlopen(f"{url}/metrics", timeout=60) as response:
                    served = response.read().decode()
        finally:
            server.terminate()
    found: dict[str, set[str]] = {}
    for text in (tload.metrics.text(), served):
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
    return found


def queries(dashboard: dict[str, Any]) -> Iterator[str]:
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel.get("targets", []))


def test_every_metric_exists_and_is_shown(dashboard: dict[str, Any], metrics: dict[str, set[str]]) -> None:
    assert len(metrics) > 20
    shown = {name for query in queries(dashboard) for name in re.findall(r"\btload_\w+", query)}
    assert shown == metrics.keys()
    variables = dashboard["templating"]["list"]
    named = {name for each in variables for name in re.findall(r"\btload_\w+", json.dumps(each["query"]))}
    assert named <= metrics.keys()


def test_labels_exist(dashboard: dict[str, Any], metrics: dict[str, set[str]]) -> None:
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            query, legend = target["expr"], target["legendFormat"]
            names = re.findall(r"\btload_\w+", query)
            by = set(re.findall(r"by \((\w+)\)", query))
            assert by == set(re.findall(r"\{\{(\w+)\}\}", legend)), panel["title"]
            assert by <= set.union(*(metrics[name] for name in names)), panel["title"]


def test_layout_is_that_of_the_grid(dashboard: dict[str, Any]) -> None:
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    for query in queries(dashboard):
        assert query.count("(") == query.count(")")
        # A program that restarts begins its counters again: only rates are sums over programs.
        assert all(part in query for part in ('job=~"$job"', 'instance=~"$instance"'))
        assert "_total" not in query or "$__rate_interval" in query


def test_grafanas_classes_take_it(dashboard: dict[str, Any]) -> None:
    models = require("grafana_foundation_sdk.models.dashboard")
    encoder = require("grafana_foundation_sdk.cog.encoder").JSONEncoder
    parsed = models.Dashboard.from_json(dashboard)
    again = json.loads(json.dumps(parsed, cls=encoder))
    assert again["title"] == "tload"
    assert [panel["title"] for panel in again["panels"]] == [panel["title"] for panel in dashboard["panels"]]
    # It knows every key: one that is misspelt would be lost.
    assert again.keys() >= dashboard.keys()
    for panel, before in zip(again["panels"], dashboard["panels"], strict=True):
        assert panel.keys() >= before.keys(), before["title"]
