"""Threads and descriptors of this process: what loads leave behind.

Tests share a process, so what those before have left may end at any time. Only what is new counts.
"""

from __future__ import annotations

import gc
import threading
import time
from contextlib import suppress
from pathlib import Path

from conftest import skip_loudly
from servers import PATIENCE

Found = frozenset[tuple[str, str]]


def in_use() -> Found:
    """Return the open descriptors, tload's threads and Python's, each with what it is."""
    if not Path("/proc/self/fd").exists():
        skip_loudly("proc", "no /proc to see files and threads")
    found = {(f"thread {thread.ident}", thread.name) for thread in threading.enumerate()}
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the descriptor of this listing is closed by now
            found.add((f"descriptor {link.name}", str(link.readlink())))
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # the thread has just ended
            name = (task / "comm").read_text().strip()
            # Those for requests are kept for later openings.
            if name.startswith("tload") and name != "tload-net":
                found.add((f"task {task.name}", name))
    return frozenset(found)


def assert_nothing_new(before: Found) -> None:
    """Fail unless everything that is new since `before` ends.

    The system lists a thread for a moment after it has been joined.
    """
    gc.collect()
    deadline = time.monotonic() + PATIENCE
    while new := in_use() - before:
        assert time.monotonic() < deadline, sorted(new)
