"""Logging with Python's `logging`: the logger `"tload"`, those below it, and the variable `TLOAD_LOG`."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tload._report import Report

VARIABLE = "TLOAD_LOG"
LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL + 1,
}

_logger = logging.getLogger("tload")


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


def log_end(report: Report) -> None:
    """Log a load that has ended: one line at level `info`, the whole report at level `debug`."""
    _logger.info("%s", report.summary)
    _logger.debug("%s", report)
