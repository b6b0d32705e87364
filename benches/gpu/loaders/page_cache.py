"""Page cache of files: evicted or filled, and then queried. Files count as cold only if the query confirms it."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

#: cachestat(2), since Linux 6.5; the number is the same on x86-64 and arm64.
CACHESTAT = 451
#: Tolerance: one page in this many may be in the wrong state, because the kernel reads ahead.
STRAY = 1000

_libc = ctypes.CDLL(None, use_errno=True)


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Stat(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("cache", "dirty", "writeback", "evicted", "recently_evicted"))


def resident(path: Path) -> tuple[int, str]:
    """Return the bytes of a file in the page cache, and the system call that reported them."""
    size = path.stat().st_size
    fd = os.open(path, os.O_RDONLY)
    try:
        whole, found = _Range(0, 0), _Stat()
        if _libc.syscall(CACHESTAT, fd, ctypes.byref(whole), ctypes.byref(found), 0) == 0:
            return min(found.cache * mmap.PAGESIZE, size), "cachestat"
        return _mincore(fd, size), "mincore"
    finally:
        os.close(fd)


def _mincore(fd: int, size: int) -> int:
    if size == 0:
        return 0
    pages = -(-size // mmap.PAGESIZE)
    flags = (ctypes.c_ubyte * pages)()
    _libc.mmap.restype = ctypes.c_void_p
    _libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(3 * (ctypes.c_int,)), ctypes.c_long)
    address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap")
    failed = _libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), flags)
    _libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(size))
    if failed:
        raise OSError(ctypes.get_errno(), "mincore")
    return min(sum(flag & 1 for flag in flags) * mmap.PAGESIZE, size)


def _evict(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def _read(path: Path) -> None:
    room = bytearray(8 << 20)
    with path.open("rb", buffering=0) as file:
        while file.readinto(room):
            pass


def prepare(files: Sequence[Path], state: str) -> dict[str, object]:
    """Bring the files to `state` (`"cold"` or `"warm"`) and report the result: `found` may also be `"mixed"`."""
    total = sum(path.stat().st_size for path in files)
    for _ in range(3):
        answers = [resident(path) for path in files]
        there = sum(count for count, _ in answers)
        found = "cold" if there <= total // STRAY else "warm" if total - there <= total // STRAY else "mixed"
        if found == state:
            break
        for path in files:
            if state == "cold":
                _evict(path)
            else:
                _read(path)
    return {"wanted": state, "found": found, "resident_bytes": there, "total_bytes": total, "method": answers[0][1]}
