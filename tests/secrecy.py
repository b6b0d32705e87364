"""Searches all output of the suite for the secrets that its tests plant.

Tests plant secrets wherever one can occur; each contains a text of `secrets.txt`. The search covers
output of tests and of programs that they start, log records, warnings, every error of tload as text
and `repr`, every report, and the `repr` of open objects. A secret that is shown fails the session,
whatever the results of the tests.
"""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tload
from tload._options.stores import CommonOptions
from tload._report import log

if TYPE_CHECKING:
    import warnings
    from collections.abc import Callable

SECRETS = tuple(Path(__file__).with_name("secrets.txt").read_text().split())

CONTEXT = 80
"""Maximum characters shown before a secret."""


def leaks(text: str) -> list[str]:
    """Return the text before each secret in `text`; never the secret."""
    found = ((text.find(secret), secret) for secret in SECRETS)
    return [text[max(0, at - CONTEXT) : at] for at, _ in found if at >= 0]


class Search:
    """The search of one session."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.searched = 0
        self._test = "before the first test"
        self._undo: list[Callable[[], None]] = []

    def look(self, what: str, text: object) -> None:
        """Search one text."""
        if isinstance(text, bytes):
            text = text.decode(errors="replace")
        if not isinstance(text, str) or not text:
            return
        self.searched += 1
        self.found += [f"{self._test}: {what}, after {before!r}" for before in leaks(text)]

    def begin(self) -> None:
        """Start to search errors, open objects, reports, and output of programs."""
        self._after(tload.Error, "__init__", lambda error, _: self._look_at_error(error))
        for kind in (tload.Checkpoint, tload.TensorStream, tload.Options, tload.Report, CommonOptions):
            self._after(kind, "__repr__", lambda it, shown: self.look(f"the repr of a {type(it).__name__}", shown))
        self._after(tload.Checkpoint, "__init__", lambda opened, _: self.look("the repr of a Checkpoint", repr(opened)))
        self._after(log, "log_end", self._look_at_report)
        self._after(subprocess.Popen, "communicate", self._look_at_output)
        self._after(
            pytest.CaptureFixture, "readouterr", lambda _, read: self._look_at_output(None, (read.out, read.err))
        )

    def end(self) -> None:
        """Restore all replaced functions."""
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def _after(self, owner: Any, name: str, look: Callable[[Any, Any], None]) -> None:
        """Pass the first argument and the result of every call of a function to `look`."""
        inner = getattr(owner, name)

        @functools.wraps(inner)
        def outer(*arguments: Any, **options: Any) -> Any:
            result = inner(*arguments, **options)
            look(arguments[0], result)
            return result

        setattr(owner, name, outer)
        self._undo.append(lambda: setattr(owner, name, inner))

    def _look_at_error(self, error: tload.Error) -> None:
        self.look("an error", "\n".join([str(error), repr(error), repr(vars(error))]))

    def _look_at_report(self, report: tload.Report, _: object) -> None:
        self.look("a report", "\n".join([str(report), repr(report), report.summary, repr(report.to_dict())]))

    def _look_at_output(self, _: object, printed: tuple[Any, Any]) -> None:
        for text in printed:
            self.look("the output of a program", text)

    @pytest.hookimpl
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._test = nodeid.partition("[")[0]

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # A process of pytest-xdist has searched its reports itself.
        if hasattr(report, "node"):
            return
        # The traceback of a failure is excluded: it shows lines of the test, which plant the
        # secrets.
        for title, text in report.sections:
            self.look(title, text)

    @pytest.hookimpl
    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage) -> None:
        self.look("a warning", str(warning_message.message))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Collect from a process of pytest-xdist what its `pytest_sessionfinish` left."""
        output = getattr(node, "workeroutput", {})
        assert error or "secrecy" in output, "a process of the suite did not search its output"
        found, searched = output.get("secrecy", ([], 0))
        self.found += found
        self.searched += searched

    @pytest.hookimpl
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["secrecy"] = (self.found, self.searched)
        if self.found and session.exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl
    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.found:
            terminalreporter.section("secrets shown", red=True, bold=True)
            for line in dict.fromkeys(self.found):
                terminalreporter.write_line(line)
        else:
            terminalreporter.write_line(f"no secret in {self.searched} texts")


def search(config: pytest.Config) -> Search:
    """Return the search of this session, started."""
    found = Search()
    config.pluginmanager.register(found, "secrecy")
    found.begin()
    config.add_cleanup(found.end)
    return found


def of_session(config: pytest.Config) -> Search:
    """Return the search of this session."""
    found = config.pluginmanager.get_plugin("secrecy")
    assert isinstance(found, Search)
    return found
