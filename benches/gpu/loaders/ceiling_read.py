"""Ceiling of the storage: all bytes of the files, past or from the page cache, into a few buffers.

Options: `threads`, 32 by default, and `bytes` of one read, 4 MiB by default.
"""

from __future__ import annotations

import json
import mmap
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import page_cache
import timed


def open_for(path: Path, state: str) -> int:
    if state == "cold":
        try:
            return os.open(path, os.O_RDONLY | os.O_DIRECT)
        except OSError:
            # The file system does not support direct reads: read through the page cache.
            pass
    return os.open(path, os.O_RDONLY)


def main() -> None:
    args = timed.arguments()
    threads, length = args.options.get("threads", 32), args.options.get("bytes", 4 << 20)
    files = timed.files_of(args.folder)
    buffers: SimpleQueue[mmap.mmap] = SimpleQueue()
    for _ in range(threads):
        room = mmap.mmap(-1, length)
        room.write(bytes(length))
        buffers.put(room)

    def read(job: tuple[int, int]) -> int:
        fd, offset = job
        room = buffers.get()
        try:
            return os.preadv(fd, [room], offset)
        finally:
            buffers.put(room)

    samples = []
    for _ in range(1 + args.again):
        residency = page_cache.prepare(files, args.state)
        fds = [open_for(path, args.state) for path in files]
        jobs = [
            (fd, offset)
            for fd, path in zip(fds, files, strict=True)
            for offset in range(0, path.stat().st_size, length)
        ]
        with ThreadPoolExecutor(threads) as pool:
            cpu, start = timed.cpu_seconds(), time.perf_counter()
            nbytes = sum(pool.map(read, jobs))
            seconds, cpu = time.perf_counter() - start, timed.cpu_seconds() - cpu
        for fd in fds:
            os.close(fd)
        sample = {"kind": "again", "seconds": seconds, "cpu_seconds": cpu, "bytes": nbytes, "residency": residency}
        samples.append(sample)
    print(json.dumps({"samples": samples}))


main()
