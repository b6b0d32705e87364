"""Telling people how far a load is: a callback or a bar."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from tload import _tload

INTERVAL = 0.1
"""Seconds between two calls of a callback: ten a second look smooth and cost nothing."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a load is."""

    tensors_total: int
    """Tensors that are wanted."""
    tensors_received: int
    """Tensors that the caller has received."""
    bytes_total: int
    """Bytes of the tensors that are wanted."""
    bytes_received: int
    """Bytes of the tensors that the caller has received."""
    bytes_read: int
    """Bytes read so far. Runs ahead of what was received, and ends a little above it: edges are read twice."""

    @property
    def fraction(self) -> float:
        """What share of the bytes was received, from 0.0 to 1.0."""
        return self.bytes_received / self.bytes_total if self.bytes_total else 1.0


Callback: TypeAlias = Callable[[Progress], object]


class Watcher(Protocol):
    """Something that wants to know how far a load is."""

    def update(self, progress: Progress) -> None:
        """Take note: called at most every `INTERVAL` seconds, and at the end."""

    def close(self) -> None:
        """Clean up: nothing more will come."""


class CallbackWatcher:
    """Calls a function."""

    def __init__(self, callback: Callback) -> None:
        """Call `callback` with every update."""
        self._callback = callback

    def update(self, progress: Progress) -> None:
        self._callback(progress)

    def close(self) -> None:
        pass


class BarWatcher:
    """Draws a bar with tqdm."""

    def __init__(self, tqdm: Any, bytes_total: int) -> None:
        """Draw an empty bar."""
        self._bar = tqdm(total=bytes_total, desc="tload", unit="B", unit_scale=True, unit_divisor=1024, leave=True)

    def update(self, progress: Progress) -> None:
        self._bar.set_postfix_str(f"{progress.tensors_received}/{progress.tensors_total} tensors", refresh=False)
        self._bar.update(progress.bytes_received - self._bar.n)

    def close(self) -> None:
        self._bar.close()


class LineWatcher:
    """Rewrites one line of a terminal, for those who do not have tqdm."""

    def __init__(self) -> None:
        """Start the clock."""
        self._started = time.monotonic()
        self._width = 0

    def update(self, progress: Progress) -> None:
        seconds = time.monotonic() - self._started
        speed = progress.bytes_received / seconds / 1e9 if seconds > 0 else 0.0
        received = _tload.format_bytes(progress.bytes_received)
        total = _tload.format_bytes(progress.bytes_total)
        line = f"tload: {progress.fraction:4.0%} {received} of {total}, {speed:.2f} GB/s"
        print("\r" + line.ljust(self._width), end="", file=sys.stderr, flush=True)
        self._width = len(line)

    def close(self) -> None:
        if self._width:
            print(file=sys.stderr, flush=True)


def watcher_for(progress: bool | Callback | None, bytes_total: int) -> Watcher | None:  # noqa: FBT001
    """Choose what shows progress. A bar is drawn on terminals only."""
    if progress is None or progress is False:
        return None
    if progress is not True:
        if not callable(progress):
            message = f"progress: wanted True, False, None or a callable, found {type(progress).__qualname__}"
            raise TypeError(message)
        return CallbackWatcher(progress)
    if not sys.stderr.isatty():
        return None
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return LineWatcher()
    return BarWatcher(tqdm, bytes_total)
