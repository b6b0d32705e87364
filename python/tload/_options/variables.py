"""Warnings of misspelt `TLOAD_*` variables."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tload import _tload

if TYPE_CHECKING:
    from collections.abc import Mapping

_logger = logging.getLogger("tload")
_noted: set[str] = set()


def warn_of_unknown(environment: Mapping[str, str]) -> None:
    """Log a warning for each variable that has no effect, with the nearest name, once per process."""
    names = [name for name in environment if name.startswith("TLOAD_") and name.isprintable() and name not in _noted]
    for name, warning in _tload.unknown_variables(names):
        _noted.add(name)
        _logger.warning("%s", warning)
