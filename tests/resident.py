"""Measures and empties a file's part of the page cache."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from typing import TYPE_CHECKING, NoReturn

from conftest import skip_loudly

if TYPE_CHECKING:
    from pathlib import Path


def resident_bytes(path: Path) -> int:
    """Return the bytes of a file in the page cache, in whole pages, or skip loudly if that cannot
    be measured."""
    if sys.platform != "linux":
        skip_loudly("page-cache", f"{sys.platform} says nothing of it that we understand")
    try:
        mincore = ctypes.CDLL(None, use_errno=True).mincore
    except (AttributeError, OSError) as error:
        skip_loudly("mincore", str(error))
    mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        pages = ctypes.create_string_buffer(-(-len(mapped) // mmap.PAGESIZE))
        first = ctypes.c_char.from_buffer(mapped)
        failed = mincore(ctypes.addressof(first), len(mapped), pages)
        del first  # it keeps the mapping open
        if failed:
            skip_loudly("mincore", os.strerror(ctypes.get_errno()))
    return sum(byte & 1 for byte in pages.raw) * mmap.PAGESIZE


def evict(path: Path) -> None:
    """Drop the file from the page cache, or skip loudly if it stays, as on tmpfs."""
    resident_bytes(path)  # skips where the next lines would not work
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if resident_bytes(path):
        _stays(path)


def warm(path: Path) -> None:
    """Read the file into the page cache, written back, or skip loudly if it does not stay."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        file.read()
    if resident_bytes(path) < path.stat().st_size:
        _stays(path)


def _stays(path: Path) -> NoReturn:
    skip_loudly("page-cache", f"what it holds of {path} is not ours to say")
