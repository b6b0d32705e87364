"""Ceiling of the page cache: threads `pread` all bytes into one fresh mapping of huge pages.

The mapping is kept. Options: `threads`, and `piece`, the bytes of one read.
"""

from __future__ import annotations

import itertools
import mmap
import os
import threading
import time
from pathlib import Path
from typing import Any

import measure

HUGE = 2 << 20


def result(job: measure.Job) -> dict[str, Any]:
    threads, piece = job.options["threads"], job.options["piece"]
    residency = measure.prepare(job)
    Path("/proc/self/clear_refs").write_text("5")
    before, cpu, start = measure.memory_bytes()["VmRSS"], measure.cpu_seconds(), time.perf_counter()
    fds = [os.open(file, os.O_RDONLY) for file in job.files]
    sizes = [os.fstat(fd).st_size for fd in fds]
    room = mmap.mmap(-1, -(-sum(sizes) // HUGE) * HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    room.madvise(mmap.MADV_HUGEPAGE)
    begins = itertools.accumulate(sizes, initial=0)
    jobs = iter(
        [
            (fd, offset, begin + offset, min(piece, size - offset))
            for fd, size, begin in zip(fds, sizes, begins, strict=False)
            for offset in range(0, size, piece)
        ]
    )
    into, lock, failed = memoryview(room), threading.Lock(), []

    def work() -> None:
        while True:
            with lock:
                one = next(jobs, None)
            if one is None:
                return
            fd, offset, to, length = one
            if os.preadv(fd, [into[to : to + length]], offset) != length:
                failed.append(offset)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    seconds, cpu = time.perf_counter() - start, measure.cpu_seconds() - cpu
    if failed:
        raise OSError(f"{len(failed)} short reads")
    return {
        "seconds": seconds,
        "cpu_seconds": cpu,
        "bytes": sum(sizes),
        "peak_rss_bytes": measure.memory_bytes()["VmHWM"],
        "rss_before_bytes": before,
        "residency": residency,
    }


measure.finish(result(measure.arguments()))
