"""Logging with Python's `logging`: the logger `"tload"`, those below it, and the variable `TLOAD_LOG`."""

from __future__ import annotations

import logging
import os
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from tload import _tload
from tload._exit import at_exit

if TYPE_CHECKING:
    from tload.report import Report

VARIABLE = "TLOAD_LOG"
LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL + 1,
}

FOLLOW_SECONDS = 0.1
"""Longest time until an event of a load that has ended is logged, and for which Python's exit waits."""

_logger = logging.getLogger("tload")
_follower: threading.Thread | None = None
_is_exiting = threading.Event()


class _StandardError(logging.Handler):
    """Writes to standard error unless another handler is configured.

    The handlers are looked up for each record: most programs configure logging after their imports.
    """

    def emit(self, record: logging.LogRecord) -> None:
        listeners = [*_logger.handlers, *(logging.getLogger().handlers if _logger.propagate else ())]
        if listeners != [self]:
            return
        try:
            sys.stderr.write(self.format(record) + "\n")
        except Exception:  # noqa: BLE001  # as the handlers of `logging` do
            self.handleError(record)


def configure(text: str | None) -> None:
    """Configure the logger from `text`, the value of `TLOAD_LOG`.

    Do nothing if it is unset or empty.
    """
    if text is None or not text.strip():
        return
    if not any(isinstance(handler, _StandardError) for handler in _logger.handlers):
        handler = _StandardError()
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        _logger.addHandler(handler)
    level = LEVELS.get(text.strip().lower())
    if level is None:
        # An import should not fail because of a log level.
        _logger.warning("%s=%r is ignored; it can be %s", VARIABLE, text, ", ".join(LEVELS))
    else:
        _logger.setLevel(level)


def configure_from_environment() -> None:
    """Configure the logger from the variable `TLOAD_LOG`."""
    configure(os.environ.get(VARIABLE))


def log_events(events: list[tuple[int, str, str, str, int, float]]) -> None:
    """Log events of the core: level, logger, message, source file and line, time.

    Called by the extension module, on a thread that calls the core.
    """
    try:
        for level, name, message, path, line, created in events:
            logger = logging.getLogger(name)
            if logger.isEnabledFor(level):
                record = logger.makeRecord(name, level, path, line, "%s", (message,), None)
                record.created, record.msecs = created, created % 1 * 1000
                logger.handle(record)
    except (StopIteration, StopAsyncIteration) as error:
        # It would end the loop over a load's tensors as if that were complete.
        raise RuntimeError("logging: a handler or filter raised StopIteration") from error


def follow() -> None:
    """Log events on a thread until the cache has what was read.

    Called after a load with a cache: the program may not call tload again before its exit, which
    logs what is left.
    """
    global _follower  # noqa: PLW0603
    if _follower is None or not _follower.is_alive():
        _follower = threading.Thread(target=_follow, name="tload-log", daemon=True)
        with suppress(RuntimeError):  # Python is ending
            _follower.start()


def _follow() -> None:
    while not (_tload.finish_caching(FOLLOW_SECONDS) or _is_exiting.is_set()):
        pass


def _end_following() -> None:
    _is_exiting.set()
    if _follower is not None and _follower.is_alive():
        _follower.join(10 * FOLLOW_SECONDS)


at_exit(_end_following)


def log_end(report: Report) -> None:
    """Log a load that has ended: one line at level `info`, the whole report at level `debug`."""
    _logger.info("%s", report.summary)
    _logger.debug("%s", report)
