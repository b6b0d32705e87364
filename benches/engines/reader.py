"""Measures single reads (`Checkpoint.reader`) against a load of the same bytes, and what a read costs.

    python benches/engines/reader.py [--mib 1024] [--rounds 5] [--folder FOLDER]

Needs numpy and a release build of tload (`make wheel`). Tensors of 1, 4 and 16 MiB are read from the
disk in random order, nine in flight, into memory that is used again, as the experts of a mixture
are. `sequential` reads them in the order of the file into the same memory, by nine threads that call
`os.preadv`; `load` is `tload.load_into` into memory of their own. All read around the page cache, in
turns. On a virtual machine the memory matters as much as the order: a load's staging memory stays in
the CPU's cache, nine buffers of 16 MiB do not. The cost of a read is its time in calls for one and
for nine tensors of 4 KiB and of 1 MiB that are in the page cache, less that of `os.preadv` into the
same memory: two threads are woken a call, which takes longest on a virtual machine without work.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import statistics
import struct
import sys
import tempfile
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import tload

if TYPE_CHECKING:
    from collections.abc import Callable

#: Tensors that are read at a time: the experts of one token of a large mixture, and the shared one.
AT_A_TIME = 9


def write(file: Path, size: int, count: int) -> int:
    """Write `count` tensors of `size` random bytes, and return where they begin."""
    header = {
        str(it): {"dtype": "U8", "shape": [size], "data_offsets": [it * size, (it + 1) * size]} for it in range(count)
    }
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 4096)
    with file.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        tensor = os.urandom(size)
        for number in range(count):
            out.write(struct.pack("<Q", number) + tensor[8:])
        out.flush()
        os.fsync(out.fileno())
    return 8 + len(text)


def memory(count: int, size: int) -> list[np.ndarray]:
    """Return arrays in memory that begins with a page, all of it touched."""
    mapping = mmap.mmap(-1, count * size)
    # Otherwise its speed depends on which pages were free.
    mapping.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(mapping, dtype=np.uint8)
    whole[:] = 0
    return [whole[it * size : (it + 1) * size] for it in range(count)]


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that `work` takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def right(array: np.ndarray, number: int) -> None:
    """Fail if the array does not hold the tensor of this number."""
    if array[:8].view(np.uint64)[0] != number:
        raise SystemExit(f"tensor {number} has bytes of another one")


class Disk:
    """Tensors of one size on the disk, and three ways to read them all."""

    def __init__(self, folder: Path, mib: int, count_mib: int) -> None:
        """Write the tensors."""
        self.size, self.count = mib << 20, count_mib // mib
        self.file = folder / f"{mib}.safetensors"
        self.begin = write(self.file, self.size, self.count)
        self.own, self.reused = memory(self.count, self.size), memory(AT_A_TIME, self.size)
        self.checkpoint = tload.open(self.file)
        self.handle = self.checkpoint.reader(tload.Options(cache="direct"))
        self.descriptor = os.open(self.file, os.O_RDONLY | os.O_DIRECT)
        self.threads = ThreadPoolExecutor(AT_A_TIME)

    def reader(self) -> None:
        """Read them in random order, and check each before its buffer is used again."""
        free, running = list(self.reused), deque[tuple[int, np.ndarray, tload.Reading]]()

        def finish() -> None:
            number, buffer, reading = running.popleft()
            reading.wait()
            right(buffer, number)
            free.append(buffer)

        for number in random.sample(range(self.count), self.count):
            if not free:
                finish()
            buffer = free.pop()
            running.append((number, buffer, self.handle.submit({str(number): buffer})))
        while running:
            finish()

    def sequential(self) -> None:
        """Read them in order, by nine threads."""

        def read(start: int) -> None:
            for number in range(start, self.count, AT_A_TIME):
                at = self.begin + number * self.size
                if os.preadv(self.descriptor, [self.reused[start]], at) != self.size:
                    raise SystemExit(f"{self.file}: a short read")

        list(self.threads.map(read, range(AT_A_TIME)))

    def load(self) -> None:
        """Load them."""
        tload.load_into({str(it): self.own[it] for it in range(self.count)}, self.checkpoint, cache="direct")

    def measure(self, rounds: int) -> dict[str, object]:
        """Return the speeds of all ways, in turns, after a round that warms up."""
        ways = {"reader": self.reader, "sequential": self.sequential, "load": self.load}
        speeds: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(rounds + 1):
            names = list(ways)
            for name in names[number % 3 :] + names[: number % 3]:
                seconds = timed(ways[name])
                if number:
                    speeds[name].append(self.count * self.size / seconds)
        for number, tensor in enumerate(self.own):
            right(tensor, number)
        found: dict[str, object] = {"mib": self.size >> 20, "bytes_per_second": speeds}
        for name in ("sequential", "load"):
            ratios = [one / other for one, other in zip(speeds["reader"], speeds[name], strict=True)]
            found[f"of_{name}"] = {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}
        return found


def cost(folder: Path, size: int, at_a_time: int, calls: int) -> dict[str, object]:
    """Measure calls for `at_a_time` tensors of `size` bytes, from the page cache, against `preadv`."""
    file = folder / f"{size}-bytes.safetensors"
    begin = write(file, size, AT_A_TIME)
    buffers = memory(at_a_time, size)
    reader = tload.open(file).reader(tload.Options(cache="buffered"))
    wanted = {str(it): buffer for it, buffer in enumerate(buffers)}
    descriptor = os.open(file, os.O_RDONLY)

    def preadv() -> None:
        for it, buffer in enumerate(buffers):
            os.preadv(descriptor, [buffer], begin + it * size)

    micros: dict[str, list[float]] = {"reader": [], "preadv": []}
    for _ in range(calls):
        micros["reader"].append(timed(lambda: reader.read_into(wanted)) * 1e6 / at_a_time)
        micros["preadv"].append(timed(preadv) * 1e6 / at_a_time)
    for it, buffer in enumerate(buffers):
        right(buffer, it)
    os.close(descriptor)
    medians = {name: statistics.median(it) for name, it in micros.items()}
    return {
        "bytes": size,
        "at_a_time": at_a_time,
        "micros_a_read": medians,
        "cost_micros": medians["reader"] - medians["preadv"],
    }


def main() -> None:
    """Measure, and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mib", type=int, default=1024, help="bytes of tensors of each size, MiB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="on the disk to measure; default: a temporary one")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        found = {
            "tload": tload.__version__,
            "disk": [Disk(folder, mib, args.mib).measure(args.rounds) for mib in (1, 4, 16)],
            "cost": [cost(folder, size, at, 1000) for size in (4096, 1 << 20) for at in (1, AT_A_TIME)],
        }
    json.dump(found, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
