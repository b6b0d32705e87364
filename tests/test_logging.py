"""Logging: the effect and destination of `TLOAD_LOG`, and absence of secrets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import tload
import tload._load.load
from conftest import require
from files import Content, write_file
from tload._report import log

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from servers import Web

Floats = tuple["Path", dict[str, Content]]

LOAD = "import sys, tload; tload.load(sys.argv[1], framework='dlpack')"


def logged_by(script: str, *arguments: str, **variables: str) -> str:
    """Output of a separate program on standard error."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    # Debug builds are tested too.
    return "".join(line for line in done.stderr.splitlines(keepends=True) if "RuntimeWarning" not in line)


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """The logger, which is restored afterwards."""
    logger = logging.getLogger("tload")
    level, handlers = logger.level, list(logger.handlers)
    yield logger
    logger.setLevel(level)
    logger.handlers[:] = handlers


def test_info_is_one_line_for_each_load(floats: Floats) -> None:
    path = str(floats[0])
    lines = logged_by(f"{LOAD}; tload.load(sys.argv[1], framework='dlpack')", path, TLOAD_LOG="info").splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith(f"INFO tload: {path}: 12 tensors, ")
        assert "B/s (complete), " in line


def test_debug_has_the_whole_report(floats: Floats) -> None:
    said = logged_by(f"{LOAD}", str(floats[0]), TLOAD_LOG="debug")
    assert said.startswith("INFO tload: ")
    assert "\nDEBUG tload: 12 tensors, " in said
    assert "\nengine " in said
    assert "\nmemory " in said


@pytest.mark.parametrize("level", ["", " ", "warning", "ERROR", "off"])
def test_successful_load_logs_nothing_by_default(level: str, floats: Floats) -> None:
    assert logged_by(LOAD, str(floats[0]), TLOAD_LOG=level) == ""


def test_off_silences_notes_too() -> None:
    note = "import tload, logging; logging.getLogger('tload').error('a note')"
    assert logged_by(note, TLOAD_LOG="off") == ""
    assert logged_by(note, TLOAD_LOG="error") == "ERROR tload: a note\n"
    # Python's own handler of last resort.
    assert logged_by(note) == "a note\n"


def test_unknown_log_level_warns() -> None:
    said = logged_by("import tload", TLOAD_LOG="loud")
    assert said == "WARNING tload: TLOAD_LOG='loud' is ignored; it can be debug, info, warning, error, off\n"


@pytest.mark.parametrize("order", ["{setup}; {load}", "import tload; {setup}; {load}"])
def test_configured_logging_emits_each_line_once(order: str, floats: Floats) -> None:
    setup = "import logging; logging.basicConfig(format='mine: %(message)s')"
    said = logged_by(order.format(setup=setup, load=LOAD), str(floats[0]), TLOAD_LOG="info")
    assert said.count("\n") == 1
    assert said.startswith("mine: ")


def test_own_handler_receives_records(floats: Floats) -> None:
    listen = (
        "import logging, tload; handler = logging.StreamHandler();"
        "handler.setFormatter(logging.Formatter('own %(levelname)s')); logging.getLogger('tload').addHandler(handler)"
    )
    assert logged_by(f"{listen}; {LOAD}", str(floats[0]), TLOAD_LOG="info") == "own INFO\n"


def test_load_works_without_standard_error(floats: Floats) -> None:
    assert logged_by(f"import sys; sys.stderr = None; {LOAD}", str(floats[0]), TLOAD_LOG="debug") == ""


def test_configuring_twice_logs_once(logger: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("info")
    log.configure("info")
    assert len([handler for handler in logger.handlers if isinstance(handler, log._StandardError)]) == 1
    root = logging.getLogger()
    # Handlers of pytest, which would count as listeners.
    handlers, root.handlers[:] = list(root.handlers), []
    try:
        logger.info("once")
    finally:
        root.handlers[:] = handlers
    assert capsys.readouterr().err == "INFO tload: once\n"


def test_without_the_variable_the_logger_is_the_programs(logger: logging.Logger) -> None:
    before = logger.level, list(logger.handlers)
    log.configure(None)
    log.configure("")
    assert (logger.level, logger.handlers) == before


def test_levels_of_logging_work_without_the_variable(floats: Floats, caplog: pytest.LogCaptureFixture) -> None:
    numpy = require("numpy")
    targets = {name: numpy.zeros(content.shape, dtype="float32") for name, content in floats[1].items()}
    with caplog.at_level(logging.INFO, "tload"):
        report = tload.load_into(targets, floats[0])
    assert [record.getMessage() for record in caplog.records] == [report.summary]


def test_failed_load_is_logged_with_outcome(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.safetensors"
    write_file(path, {f"t{index}": Content.random("U8", (5000,), index) for index in range(4)})
    with caplog.at_level(logging.INFO, "tload"):
        stream = tload.stream(path, framework="dlpack")
        stream.cancel()
        with pytest.raises(tload.CancelledError):
            list(stream)
    assert len(caplog.records) == 1
    assert "(cancelled)" in caplog.records[0].getMessage()


@pytest.mark.parametrize("fails", [True, False])
def test_loads_in_event_loops_are_logged_too(
    fails: bool,  # noqa: FBT001
    floats: Floats,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def load() -> None:
        stream = tload.stream(floats[0], framework="dlpack")
        if fails:
            stream.cancel()
        with contextlib.suppress(tload.CancelledError):
            async for _ in stream:
                pass

    with caplog.at_level(logging.INFO, "tload"):
        asyncio.run(load())
    assert len(caplog.records) == 1
    assert ("(cancelled)" if fails else "(complete)") in caplog.records[0].getMessage()


def test_log_lines_follow_progress_bar(
    floats: Floats, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    class Watcher:
        def update(self, progress: tload.Progress) -> None:
            events.append(f"{progress.fraction:.0%}")

        def close(self) -> None:
            events.append(f"closed, {len(caplog.records)} logged")

    monkeypatch.setattr(tload._load.load, "watcher_for", lambda _progress, _bytes: Watcher())
    with caplog.at_level(logging.INFO, "tload"):
        tload.load(floats[0], framework="dlpack", progress=True)
    assert events[-2:] == ["100%", "closed, 0 logged"]
    assert len(caplog.records) == 1


def test_no_secret_is_logged(floats: Floats, web: Web, caplog: pytest.LogCaptureFixture) -> None:
    web.files["a.safetensors"] = floats[0].read_bytes()
    url = f"http://planted-user:planted-password@127.0.0.1:{web.port}/a.safetensors?signature=planted-signature"
    store = {"headers": {"Authorization": "Bearer planted-token"}}
    with caplog.at_level(logging.DEBUG, "tload"):
        stream = tload.stream(url, framework="dlpack", store=store)
        received = dict(stream)
    assert len(received) == 12
    assert any("planted-token" in request.headers.get("authorization", "") for request in web.requests)
    report = stream.report
    said = [record.getMessage() for record in caplog.records]
    said += [repr(report), report._repr_html_(), report.html()]
    assert len(said) == 5
    assert "127.0.0.1" in said[0]
    for text in said:
        assert "planted" not in text
