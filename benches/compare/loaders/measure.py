"""Harness of the loaders: loads once, in a process of its own, and prints one line of JSON.

    load_x.py LOCATION… [--mode keep|stream] [--state cold|warm] [--options JSON] [--digest]

A loader is a generator of names and tensors. With `--mode keep` all tensors are kept to the end;
with `stream` each is dropped before the next one is taken. Imports, the preparation of the page
cache and the first touch of memory come before the clock. The output has `seconds` and
`cpu_seconds` (user and system, of all threads and children) of the load, `bytes` and `tensors`,
`peak_rss_bytes` and `rss_before_bytes`, the growth of resident memory of the process
(`anonymous_bytes`) and of mapped page cache (`file_bytes`) when the last tensor is loaded, and
`residency`: the state of the page cache just before the clock started.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Linux 5.14; Python has no name for it before 3.14.
MADV_POPULATE_WRITE = 23
#: Bytes touched for objects, whose size is not known here.
WARM_BYTES = 5 << 30
DIGEST_BITS = 128

Tensors = Iterator[tuple[str, Any]]


@dataclass(frozen=True)
class Job:
    """One load: its files and options."""

    #: As on the command line: a directory, files, or URLs.
    locations: list[str]
    keep: bool
    state: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    digest: bool = False

    @property
    def names(self) -> list[str]:
        """Return the files or URLs, with directories expanded."""
        found = []
        for location in self.locations:
            files = sorted(Path(location).glob("*.safetensors")) if Path(location).is_dir() else [location]
            found += [str(file) for file in files]
        return found

    @property
    def files(self) -> list[Path]:
        """Return the local files, which the page cache can hold."""
        return [Path(name) for name in self.names if "://" not in name]

    @property
    def total_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.files)


def arguments() -> Job:
    parser = argparse.ArgumentParser()
    parser.add_argument("locations", nargs="+")
    parser.add_argument("--mode", choices=["keep", "stream"], default="keep")
    parser.add_argument("--state", choices=["cold", "warm"], help="state of the page cache (default: unchanged)")
    parser.add_argument("--options", type=json.loads, default={})
    parser.add_argument("--digest", action="store_true", help="hash all tensors, outside the clock")
    args = parser.parse_args()
    return Job(args.locations, args.mode == "keep", args.state, args.options, args.digest)


def warm_memory(size: int) -> None:
    """Touch and free `size` bytes.

    A virtual machine that gave its free memory back to its host gets it again at the first touch,
    at a second and more per GiB. Without this, that would be measured in place of the loader.
    """
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        memory.madvise(MADV_POPULATE_WRITE)


def free_bytes() -> int:
    text = Path("/proc/meminfo").read_text()
    line = next(line for line in text.splitlines() if line.startswith("MemFree:"))
    return int(line.split()[1]) << 10


def prepare(job: Job) -> dict[str, Any] | None:
    """Prepare memory and page cache, and return the state of the page cache then."""
    total = job.total_bytes
    # Twice: bytes may pass through the page cache on their way into the loader's memory. At most
    # the free memory, since more would evict files.
    wanted = min(2 * total + (1 << 30), free_bytes() * 9 // 10) if job.files else WARM_BYTES
    if job.state is None or not job.files:
        warm_memory(wanted)
        return None
    import page_cache

    page_cache.prepare(job.files, job.state)
    warm_memory(wanted)
    return page_cache.prepare(job.files, job.state)


def cpu_seconds() -> float:
    """Return user and system time of all threads and of children that have ended."""
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def memory_bytes() -> dict[str, int]:
    """Return the memory sizes in `/proc/self/status`, in bytes."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) << 10 for words in lines if words[-1] == "kB"}


def touch(tensors: Iterable[Any]) -> None:
    """Read one byte of every page: a mapped tensor is in memory only after that."""
    spans: list[list[int]] = []
    for begin, end in sorted((it.data_ptr(), it.data_ptr() + it.nbytes) for it in tensors if it.nbytes):
        if spans and begin - spans[-1][1] < mmap.PAGESIZE:
            spans[-1][1] = max(end, spans[-1][1])
        else:
            spans.append([begin, end])
    import numpy as np

    for begin, end in spans:
        np.ctypeslib.as_array((ctypes.c_ubyte * (end - begin)).from_address(begin))[:: mmap.PAGESIZE].max()


class Digest:
    """Digest of names, dtypes, shapes and bytes of all tensors, independent of their order."""

    def __init__(self) -> None:
        import xxhash

        self._hash, self._sum = xxhash.xxh3_128, 0

    def add(self, name: str, tensor: Any) -> None:
        one = self._hash(f"{name} {tensor.dtype} {tuple(tensor.shape)}")
        plain = tensor.contiguous()
        if plain.nbytes:
            one.update((ctypes.c_ubyte * plain.nbytes).from_address(plain.data_ptr()))
        self._sum = (self._sum + one.intdigest()) % (1 << DIGEST_BITS)

    def __str__(self) -> str:
        return f"{self._sum:032x}"


def digest_of(load: Callable[[Job], Tensors], job: Job, kept: Mapping[str, Any]) -> str:
    """Return the digest of the kept tensors, or of another load, since streamed tensors are gone."""
    digest = Digest()
    for name, tensor in kept.items() if job.keep else load(job):
        digest.add(name, tensor)
    return str(digest)


def finish(result: dict[str, Any]) -> None:
    print(json.dumps(result), flush=True)
    # Skips the interpreter's shutdown: some peers hang or crash there, and the result is printed.
    os._exit(0)


def skip(reason: str) -> None:
    """Report that there is nothing to measure, for example because this version lacks an option."""
    finish({"skipped": reason})


def run(load: Callable[[Job], Tensors]) -> None:
    """Call `load` with the arguments of the command line, and print the measurement."""
    job = arguments()
    residency = prepare(job)
    Path("/proc/self/clear_refs").write_text("5")
    before, kept, nbytes, count = memory_bytes(), {}, 0, 0
    cpu, start = cpu_seconds(), time.perf_counter()
    for name, tensor in load(job):
        nbytes += tensor.nbytes
        count += 1
        if job.keep:
            kept[name] = tensor
        del tensor
    seconds, cpu = time.perf_counter() - start, cpu_seconds() - cpu
    after = memory_bytes()
    result = {
        "seconds": seconds,
        "cpu_seconds": cpu,
        "bytes": nbytes,
        "tensors": count,
        "peak_rss_bytes": after["VmHWM"],
        "rss_before_bytes": before["VmRSS"],
        "anonymous_bytes": after["RssAnon"] - before["RssAnon"],
        "file_bytes": after["RssFile"] - before["RssFile"],
        "residency": residency,
    }
    if job.digest:
        result["digest"] = digest_of(load, job, kept)
    sys.stdout.flush()
    finish(result)
