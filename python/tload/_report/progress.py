"""Progress of a load or copy, shown by a callback, or by a bar in a terminal or a notebook."""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from tload import _tload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tload.typing import ProgressCallback


INTERVAL = 0.1
"""Seconds between two calls of a callback: ten a second look smooth and cost nothing."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a load, a copy or a verification. `str()` is one line for people.

    Large tensors of all files fill side by side, so that the first ones are complete late: a bar
    shows `bytes_done`. Copies and verifications have no tensors: their counts are 0, and
    `bytes_received` is equal to `bytes_read`.
    """

    tensors_total: int
    """Tensors to load."""
    tensors_received: int
    """Tensors that the caller has received."""
    bytes_total: int
    """Bytes of the tensors to load; of the files to copy or to verify."""
    bytes_received: int
    """Bytes of the tensors that the caller has received."""
    bytes_read: int
    """Bytes that have arrived so far, from storage or from other ranks. Runs ahead of
    `bytes_received`, and ends a little above it: edges are read twice."""

    @property
    def bytes_done(self) -> int:
        """Bytes of the tensors that have arrived, also of tensors that are not complete."""
        return max(self.bytes_received, min(self.bytes_read, self.bytes_total))

    @property
    def fraction(self) -> float:
        """Share of the bytes that has arrived, from 0.0 to 1.0."""
        return self.bytes_done / self.bytes_total if self.bytes_total else 1.0

    def __str__(self) -> str:
        done = _tload.format_bytes(self.bytes_done)
        total = _tload.format_bytes(self.bytes_total)
        line = f"{self.fraction:4.0%} {done} of {total}"
        return f"{line}, {self.tensors_received} of {self.tensors_total} tensors" if self.tensors_total else line


class Watcher(Protocol):
    """Observer of a load's progress."""

    def update(self, progress: Progress) -> None:
        """Record progress. Called at most every `INTERVAL` seconds, and at the end."""

    def close(self) -> None:
        """Clean up. No further calls follow."""


class CallbackWatcher:
    """Calls a function with each update."""

    def __init__(self, callback: ProgressCallback) -> None:
        """Create a watcher that calls `callback`."""
        self._callback = callback

    def update(self, progress: Progress) -> None:
        try:
            self._callback(progress)
        except (StopIteration, StopAsyncIteration) as error:
            # A loop over the stream would end as after the last tensor.
            message = f"progress: the callable raised {type(error).__name__}"
            raise RuntimeError(message) from error

    def close(self) -> None:
        pass


class BarWatcher:
    """Draws a bar in a terminal with tqdm."""

    def __init__(self, tqdm: Any, bytes_total: int) -> None:
        """Draw an empty bar."""
        self._speed = _tload.RecentSpeed()
        self._bar = tqdm(total=bytes_total, desc="tload", bar_format="{l_bar}{bar}|", leave=True)

    def update(self, progress: Progress) -> None:
        # Copies learn their total while they run.
        self._bar.total = progress.bytes_total
        # Its own speed is that since the beginning, and in other units than reports.
        done, total = _tload.format_bytes(progress.bytes_done), _tload.format_bytes(progress.bytes_total)
        numbers = [f"{done}/{total}"]
        if progress.tensors_total:
            numbers.append(f"{progress.tensors_received}/{progress.tensors_total} tensors")
        numbers += self._speed.observe(progress.bytes_done, progress.bytes_total)
        self._bar.bar_format = "{l_bar}{bar}| " + " ".join(numbers)
        self._bar.update(progress.bytes_done - self._bar.n)

    def close(self) -> None:
        self._bar.close()


class LineWatcher:
    """Rewrites one line of a terminal, without tqdm."""

    def __init__(self) -> None:
        """Start the clock."""
        self._speed = _tload.RecentSpeed()
        self._width = 0

    def update(self, progress: Progress) -> None:
        # A line that reached the last column would wrap.
        line = f"tload: {_described(progress, self._speed)}"[: _columns() - 1]
        print("\r" + line.ljust(self._width), end="", file=sys.stderr, flush=True)
        self._width = len(line)

    def close(self) -> None:
        if self._width:
            print(file=sys.stderr, flush=True)


class NotebookWatcher:
    """Draws an HTML bar below a notebook cell.

    HTML needs no widgets and is saved with the notebook.
    """

    def __init__(self, display: Callable[..., Any]) -> None:
        """Start the clock. The first update draws the bar."""
        self._speed = _tload.RecentSpeed()
        self._display = display
        self._handle: Any = None

    def update(self, progress: Progress) -> None:
        bar = _Bar(progress.fraction, _described(progress, self._speed))
        if self._handle is None:
            self._handle = self._display(bar, display_id=True)
        else:
            self._handle.update(bar)

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class _Bar:
    """Progress bar in a notebook."""

    fraction: float
    text: str

    def __repr__(self) -> str:
        return f"tload: {self.text}"

    def _repr_html_(self) -> str:
        bar = f'<progress value="{self.fraction:.3f}" style="width: 20em"></progress>'
        return f"<div>tload {bar} {self.text}</div>"


def _described(progress: Progress, speed: _tload.RecentSpeed) -> str:
    """Return progress, speed and the time left, as far as they mean something."""
    return ", ".join([str(progress), *speed.observe(progress.bytes_done, progress.bytes_total)])


def _columns() -> int:
    """Return the columns of the terminal that shows the line."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except OSError:
        return 80


def watcher_for(progress: bool | ProgressCallback | None, bytes_total: int) -> Watcher | None:  # noqa: FBT001
    """Return the watcher that shows progress. Bars are drawn in notebooks and on terminals only."""
    if progress is None or progress is False:
        return None
    if progress is not True:
        if not callable(progress):
            message = f"progress: wanted True, False, None or a callable, found {type(progress).__qualname__}"
            raise TypeError(message)
        return CallbackWatcher(progress)
    display = _notebook_display()
    if display is not None:
        return NotebookWatcher(display)
    if sys.stderr is None or not sys.stderr.isatty():
        return None
    try:
        # Not `tqdm.auto`: outside of notebooks it is the same bar, with slower imports.
        from tqdm import tqdm
    except ImportError:
        return LineWatcher()
    return BarWatcher(tqdm, bytes_total)


@contextmanager
def shown(progress: bool | ProgressCallback | None) -> Iterator[Callable[[int, int], None] | None]:  # noqa: FBT001
    """Yield the function that shows the bytes done and their total, or `None` if nothing is shown.

    The core calls it, as often as `INTERVAL` allows, and at the end.
    """
    watcher = watcher_for(progress, 0)
    if watcher is None:
        yield None
        return

    def show(done: int, total: int) -> None:
        watcher.update(
            Progress(tensors_total=0, tensors_received=0, bytes_total=total, bytes_received=done, bytes_read=done)
        )

    try:
        yield show
    finally:
        watcher.close()


def _notebook_display() -> Callable[..., Any] | None:
    """Return the function that displays objects in a notebook, or `None` outside of one."""
    # A kernel imports IPython before it runs any code.
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    # Shells in terminals have no kernel.
    if getattr(shell, "kernel", None) is None:
        return None
    display: Callable[..., Any] = importlib.import_module("IPython.display").display
    return display
