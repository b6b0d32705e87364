"""pytest plugin of `suites.py`: replaces a package by a stand-in, and records the outcome of each
test."""

from __future__ import annotations

import contextlib
import importlib
import json
import pkgutil
import sys
from pathlib import Path
from typing import Any

import pytest

import tload
import tload._patch

RUNAI = "runai_model_streamer"

STAND_INS = ("safetensors", "patch", "runai")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--stand-in", choices=STAND_INS, help="what of tload takes a package's place; default: nothing")
    parser.addoption("--outcomes", required=True, help="the JSON file to write")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Recorder(config.getoption("--outcomes")))
    stand_in = config.getoption("--stand-in")
    if stand_in == "safetensors":
        replace_safetensors()
    elif stand_in == "runai":
        replace_runai()
    elif stand_in == "patch":
        config.pluginmanager.register(Patched())


def replace_safetensors() -> None:
    """Put the readers of `tload.safetensors` into the package itself, for tests that import them
    from there."""
    for suffix, names in tload._patch.READERS.items():
        with contextlib.suppress(ImportError):  # jax, for one
            theirs = importlib.import_module(f"safetensors{suffix}")
            ours = importlib.import_module(f"tload.safetensors{suffix}")
            for name in names:
                if hasattr(theirs, name):
                    setattr(theirs, name, getattr(ours, name))


def replace_runai() -> None:
    """Install `tload.compat.runai` with the package's own internals, which its tests import and
    replace.

    Without them hardly any test file could be imported. Names that both the package and tload have
    are tload's.
    """
    theirs = {
        module.name: importlib.import_module(module.name)
        for module in pkgutil.walk_packages(importlib.import_module(RUNAI).__path__, f"{RUNAI}.")
        if ".tests" not in module.name and not module.name.endswith(".streamer_mock")
    }
    for name in [name for name in sys.modules if name.partition(".")[0] == RUNAI]:
        del sys.modules[name]
    importlib.import_module("tload.compat.runai").install()
    for name, module in theirs.items():
        ours = sys.modules.get(name)
        if ours is None:
            sys.modules[name] = module
            setattr(sys.modules[name.rpartition(".")[0]], name.rpartition(".")[2], module)
            continue
        for key, value in vars(module).items():
            if not hasattr(ours, key):
                setattr(ours, key, value)
        if hasattr(module, "__path__"):
            # The mock is imported from here, over tload's classes.
            ours.__path__ = module.__path__


class Patched:
    """Runs each test inside `tload.patch()`: tests import modules while they run, so once would be
    too early."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Any:
        with tload.patch():
            return (yield)


class Recorder:
    """Records the outcome of each test, and the number of files that tload opened."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.outcomes: dict[str, tuple[str, str]] = {}
        self.opened = 0
        native = tload._tload.Checkpoint

        class Spy:
            def open(_, *arguments: Any, **keywords: Any) -> Any:  # noqa: N805
                self.opened += 1
                return native.open(*arguments, **keywords)

            def open_all(_, locations: Any, **keywords: Any) -> Any:  # noqa: N805
                self.opened += len(locations)
                return native.open_all(locations, **keywords)

        tload._tload.Checkpoint = Spy()  # type: ignore[assignment,misc]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.outcome != "passed":
            self.outcomes[report.nodeid] = (f"not collected: {report.outcome}", last_line(report.longreprtext))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome = report.outcome
        if hasattr(report, "wasxfail"):
            outcome = "xpassed" if report.passed else "xfailed"  # type: ignore[assignment]
        known = self.outcomes.get(report.nodeid)
        # Set-up and tear-down only count if they fail.
        if known is None or known[0] == "passed" or report.failed:
            self.outcomes[report.nodeid] = (outcome, last_line(report.longreprtext))

    def pytest_sessionfinish(self) -> None:
        Path(self.path).write_text(json.dumps({"opened": self.opened, "tests": self.outcomes}), "utf-8")


def last_line(text: str) -> str:
    """Return the line of a traceback that names the error."""
    lines = [line for line in text.splitlines() if line.startswith("E ")] or text.splitlines() or [""]
    return lines[0].removeprefix("E").strip()
