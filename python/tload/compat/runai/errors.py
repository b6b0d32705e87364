"""The exceptions that callers of runai_model_streamer know, with messages and causes of tload's."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import tload

if TYPE_CHECKING:
    from collections.abc import Iterator


class RunaiStreamerInvalidInputException(Exception):  # noqa: N818  # the name is theirs
    """The call asks for something that cannot be: a device that is none, or paths of different stores at once."""


class RunaiStreamerMemoryLimitException(Exception):  # noqa: N818  # the name is theirs
    """RUNAI_STREAMER_MEMORY_LIMIT is smaller than the largest tensor or range."""


# Theirs are no `ValueError` either: torch and the allocator raise them.
_KEPT = (ValueError, tload.OutOfMemoryError, tload.DeviceError, tload.CancelledError)


@contextmanager
def value_errors() -> Iterator[None]:
    """Raise as a `ValueError` what fails in here, as callers expect of a file that is missing, short or unreadable.

    The message is tload's, and `__cause__` its exception, which says by its class what went wrong.
    """
    try:
        yield
    except tload.Error as error:
        if isinstance(error, _KEPT):
            raise
        raise ValueError(str(error)) from error
