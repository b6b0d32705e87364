"""Exceptions of runai_model_streamer's interface, with tload's messages and causes."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import tload

if TYPE_CHECKING:
    from collections.abc import Iterator


class RunaiStreamerInvalidInputException(Exception):  # noqa: N818  # the name is theirs
    """The call is invalid: torch lacks the device, or paths of different stores are mixed."""


class RunaiStreamerMemoryLimitException(Exception):  # noqa: N818  # the name is theirs
    """RUNAI_STREAMER_MEMORY_LIMIT is smaller than the largest tensor or range."""


# runai_model_streamer does not make these a `ValueError` either: torch, torch.distributed and the
# allocator raise them.
_KEPT = (ValueError, tload.OutOfMemoryError, tload.DeviceError, tload.PeerError, tload.CancelledError)


@contextmanager
def value_errors() -> Iterator[None]:
    """Convert failures to `ValueError`, as callers expect for missing, short or unreadable files.

    The message is tload's, and `__cause__` its exception, whose class tells the kind of failure.
    """
    try:
        yield
    except tload.Error as error:
        if isinstance(error, _KEPT):
            raise
        raise ValueError(str(error)) from error
