"""The report: its content after a load, and its formats."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import TYPE_CHECKING

import pytest

import tload
from files import Content, tile, write_file
from tload._report.decode import read_report

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20


@pytest.fixture
def loaded(tmp_path: Path) -> tuple[tload.Report, Path]:
    path = tmp_path / "a.safetensors"
    write_file(path, {f"t{index}": Content("U8", (2 * MIB,), tile(index, 2 * MIB)) for index in range(8)})
    stream = tload.stream(path, framework="dlpack")
    for _ in stream:
        pass
    return stream.report, path


def test_the_numbers_add_up(loaded: tuple[tload.Report, Path]) -> None:
    report, path = loaded
    assert report.location == str(path)
    assert report.outcome == "complete"
    assert (report.tensors, report.tensor_bytes) == (8, 16 * MIB)
    assert report.read_bytes >= report.tensor_bytes
    assert report.direct_bytes + report.buffered_bytes == report.read_bytes
    assert (report.remote_bytes, report.requests) == (0, 0)
    assert report.copied_bytes == 0, "nothing is copied in memory"
    assert report.staging is None, "everything is read in place"
    assert report.devices == ()
    assert report.engine.name in {"uring", "pread"}
    assert report.engine.requested == "auto"
    assert report.engine.reason
    assert report.tensor_bytes <= report.memory_peak <= report.memory_limit
    assert report.memory_peak < 20 * MIB, "no more is mapped than the load needs"
    assert 0 < report.seconds < 60
    assert report.first_tensor_seconds is not None
    assert report.ready_seconds is not None
    assert 0 < report.first_tensor_seconds <= report.ready_seconds <= report.seconds
    assert report.bytes_per_second == report.tensor_bytes / report.seconds
    phases = {one.phase: one for one in report.phases}
    assert list(phases)[:2] == ["list", "headers"]
    assert list(phases)[-3:] == ["first read", "first tensor", "all tensors"]
    assert all(one.start_seconds >= 0 and one.seconds >= 0 for one in report.phases)
    assert report.extents > 0
    assert report.depth > 0
    assert report.lanes > 0


def test_report_converts_to_plain_dict(loaded: tuple[tload.Report, Path]) -> None:
    report, _ = loaded
    plain = json.loads(json.dumps(report.to_dict()))
    assert plain == report.to_dict()
    fields = {field.name for field in dataclasses.fields(tload.Report)}
    assert set(plain) == fields - {"text"} | {"bytes_per_second"}
    assert set(plain["engine"]) == {field.name for field in dataclasses.fields(tload.EngineReport)}
    assert set(plain["stages"]) == {field.name for field in dataclasses.fields(tload.StageTimes)}


def test_fields_are_those_of_the_core(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_file(path, {"t": Content("U8", (5,), tile(0, 5))})
    stream = tload.stream(path, framework="dlpack")
    list(stream)
    core = json.loads(stream._raw.report()[0])
    # The core knows nothing of imports.
    own = {"import_seconds": 0.0, "import_wait_seconds": 0.0, "bytes_per_second": stream.report.bytes_per_second}
    assert stream.report.to_dict() == {**core, **own}
    for changed in ({**core, "unknown": 0}, {name: value for name, value in core.items() if name != "extents"}):
        with pytest.raises((KeyError, TypeError), match=r"unknown|extents"):
            read_report(json.dumps(changed), "")


def test_report_text_is_readable(loaded: tuple[tload.Report, Path]) -> None:
    report, path = loaded
    assert re.search(r"8 tensors, 16\.0 MiB in \d+\.\d+ s", str(report))
    assert report.summary.startswith(f"{path}: 8 tensors, 16.0 MiB in ")
    assert re.search(rf" [GM]B/s \(complete\), {report.engine.name}$", report.summary)
    assert repr(report) == f"<tload.Report of {report.summary}>"
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.tensors = 3  # type: ignore[misc]


def test_report_is_a_page_and_a_cell_of_a_notebook(loaded: tuple[tload.Report, Path]) -> None:
    report, path = loaded
    # Both show a text literally, whatever it contains.
    hostile = dataclasses.replace(report, text="<script>&\n", notes=("<img src=x>",))
    page, cell = hostile.html(), hostile._repr_html_()
    assert page.startswith("<!doctype html>")
    assert cell.startswith('<div class="tload')
    for shown in (page, cell):
        assert len(shown) <= 200_000
        assert "&#60;script&#62;&#38;" in shown
        assert "&#60;img src=x&#62;" in shown
        assert not re.search(r"<script|<img|src=\"|@import|url\(", shown)
        assert str(path) in shown
        assert "waiting for storage" in shown
        assert shown.count("<table") == shown.count("</table>") >= 2
    assert f"tload {tload.__version__}" in page
