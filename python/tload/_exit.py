"""Calls at the end of this process, which may be a child of multiprocessing."""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# Each with the last process whose end has made it.
_calls: dict[Callable[[], object], int] = {}
_is_watching = False


def at_exit(call: Callable[[], object]) -> None:
    """Make `call` at the end of this process and of its forks, once in each; Ctrl-C ends it.

    Those that were registered later come first.
    """
    if call in _calls:
        return
    _calls[call] = 0
    atexit.register(_make, call)
    _watch()
    _finalize(call)


def forget() -> None:
    """Make no call at the end of this process."""
    atexit.unregister(_make)


def _make(call: Callable[[], object]) -> None:
    # A child that was spawned ends in both ways.
    if _calls[call] != os.getpid():
        _calls[call] = os.getpid()
        with suppress(KeyboardInterrupt):
            call()


def _finalize(call: Callable[[], object]) -> None:
    """Register `call` for the end of a child of multiprocessing, which may end without atexit."""
    if "multiprocessing.util" in sys.modules:
        from multiprocessing import parent_process, util

        if parent_process() is not None:
            util.Finalize(None, _make, args=(call,), exitpriority=0)


def _watch() -> None:
    """Register calls again in each child of multiprocessing, which begins by forgetting them.

    This module may be imported before that: while the child unpickles its target. A program without
    multiprocessing does not pay for its import.
    """
    global _is_watching  # noqa: PLW0603
    if not _is_watching and "multiprocessing.util" in sys.modules:
        from multiprocessing import util

        _is_watching = True
        util.register_after_fork(_finalize_all, _finalize_all)


def _finalize_all(_: object) -> None:
    for call in _calls:
        _finalize(call)


# The parent may have imported multiprocessing later than this.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_watch)
