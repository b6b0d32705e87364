"""Reads ranges of files with threads, in order, a bounded number of bytes ahead of the caller."""

from __future__ import annotations

import os
import threading
from collections import Counter, deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tload import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

THREADS = 16
"""Number of threads, runai_model_streamer's default."""

AHEAD_PER_THREAD = 8
"""Maximum ranges waiting per thread or for the caller: enough to keep threads busy with tiny
ranges."""


@dataclass(frozen=True, slots=True)
class Range:
    """A range to read, with the caller's identifiers of it."""

    id: int
    index: int
    path: str
    offset: int
    size: int


class RangeReads:
    """Iterator of `(range, bytes)` in order.

    Reading starts at once. It must be closed in any case.
    """

    def __init__(self, ranges: list[Range], *, ahead_bytes: int, threads: int | None) -> None:
        """Start to read.

        At most `ahead_bytes` wait for the caller, or one range if it is longer.
        """
        self.outstanding = len(ranges)
        self._ranges = deque(ranges)
        self._left = Counter(range.path for range in ranges)
        self._ahead_bytes = ahead_bytes
        self._held_bytes = 0
        self._stopped = False
        self._pending: deque[tuple[Range, Future[bytearray]]] = deque()
        self._pending_max = AHEAD_PER_THREAD * (threads or THREADS)
        self._files = _Files()
        self._pool = ThreadPoolExecutor(max_workers=threads or THREADS, thread_name_prefix="tload-ranges")
        self._fill()

    def __iter__(self) -> Iterator[tuple[Range, bytearray]]:
        while self._pending:
            range, future = self._pending.popleft()
            buffer = future.result()
            del future  # It would keep the bytes alive.
            self._held_bytes -= range.size
            self.outstanding -= 1
            self._left[range.path] -= 1
            if not self._left[range.path]:
                self._files.close(range.path)
            yield range, buffer
            del buffer
            if self._stopped:
                message = "the streamer was closed before the last range was taken"
                raise InvalidRequestError(message)
            self._fill()

    def close(self) -> None:
        """Stop reading and wait for running reads."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._files.close_all()
        self._stopped = self._stopped or self.outstanding > 0
        self._pending.clear()
        self._ranges.clear()
        self.outstanding = 0

    def _fill(self) -> None:
        while self._ranges and len(self._pending) < self._pending_max:
            range = self._ranges[0]
            if self._pending and self._held_bytes + range.size > self._ahead_bytes:
                return
            self._ranges.popleft()
            self._held_bytes += range.size
            self._pending.append((range, self._pool.submit(self._files.read, range)))


class _Files:
    """Files by path, each opened on first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, int] = {}

    def read(self, range: Range) -> bytearray:
        where = f"{range.path} [{range.offset}..{range.offset + range.size}]"
        buffer = bytearray(range.size)
        rest, done = memoryview(buffer), 0
        try:
            file = self._file(range.path)
            while done < range.size:
                count = os.preadv(file, [rest[done:]], range.offset + done)
                if not count:
                    message = f"{where}: End of file at {range.offset + done}"
                    raise ValueError(message)
                done += count
        except OSError as error:
            message = f"{where}: cannot be read: {error.strerror}"
            raise ValueError(message) from error
        return buffer

    def close(self, path: str) -> None:
        """Close a file that is no longer read."""
        with self._lock:
            file = self._open.pop(path, None)
        if file is not None:
            os.close(file)

    def close_all(self) -> None:
        for path in list(self._open):
            self.close(path)

    def _file(self, path: str) -> int:
        with self._lock:
            if path not in self._open:
                self._open[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            return self._open[path]
