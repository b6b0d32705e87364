"""What every loader here prints: one line of JSON with its own seconds, CPU seconds, bytes and peak memory."""

from __future__ import annotations

import json
import mmap
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

# Linux 5.14; Python has no name for it before 3.14.
MADV_POPULATE_WRITE = 23


def warm_memory(size: int) -> None:
    """Touches and frees `size` bytes.

    A virtual machine that gave its free memory back to its host gets it again at the first touch, for a second and more per
    GiB: that would be measured in place of the loader.
    """
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        memory.madvise(MADV_POPULATE_WRITE)


def peak_rss_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10


def run(load: Callable[[], Mapping[str, Any]]) -> None:
    """Calls `load`, which returns tensors by name, and keeps them to the end. Imports come before."""
    warm_memory(int(os.environ.get("WARM_BYTES", 5 << 30)))
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_rss_bytes()
    cpu, start = time.process_time(), time.perf_counter()
    tensors = load()
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
    print(
        json.dumps(
            {
                "seconds": seconds,
                "cpu_seconds": cpu_seconds,
                "bytes": sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()),
                "tensors": len(tensors),
                "peak_rss_bytes": peak_rss_bytes(),
                "rss_before_bytes": before,
            }
        )
    )
