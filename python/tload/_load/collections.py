"""Keeps the garbage collector away while many objects are made."""

from __future__ import annotations

import contextlib
import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    """Keep the garbage collector from looking through all objects of an engine again and again.

    Code that makes an object for each tensor of a large checkpoint starts it hundreds of times, and one
    pass through an engine's objects takes longer than a load by a plan.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
