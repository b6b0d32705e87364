"""Decides whether the tensors for an engine on a CPU are views of files. Imports no engine.

An engine copies each tensor to a parameter. From a view of the page cache that is the only copy. The
engines' own loaders map files too, all of them; here, only files on local file systems that are for
the most part in the page cache, because pages that have to be read are read faster otherwise. A
file that another process truncates meanwhile ends the process, as with the engines' loaders. Tensors
that the engine keeps after the load follow changes of the file; its parameters are its own.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from tload import _tload

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tload._options.load_options import Options

LOCAL = frozenset({"btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs"})
"""File systems without a server that may not respond."""
SAMPLES = 64
"""Pages of each file that are looked for in the page cache, at equal distances."""
MISSES_MAX = SAMPLES // 4
"""Pages of each file that may be missing. Kernels drop single pages of files that were read long ago.
With two fifths of a Llama of 1.1 GiB missing, views still took 0.6 of the time (ext4 on a virtual
disk of 2 GB/s)."""


def are_best(options: Options, locations: Iterable[str]) -> bool:
    """Return whether views are faster than other memory, and nothing in the options is against them.

    Args:
        options: Options of the load, with those of the environment.
        locations: Files of the checkpoint, or their URLs.
    """
    if options.cache is not None or options.engine not in {None, "auto"}:
        return False
    if _tload.verify_mode(options) != "off":
        return False  # bytes of a view may change after they were verified
    kinds = _file_systems()
    return all(_is_resident(location, kinds) for location in locations)


def _is_resident(path: str, kinds: dict[int, str]) -> bool:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError):  # a URL, for one
        return False
    try:
        found = os.fstat(file)
        kind = kinds.get(found.st_dev)
        if not stat.S_ISREG(found.st_mode) or kind not in LOCAL:
            return False
        # The memory of tmpfs is the page cache.
        return kind == "tmpfs" or _misses(file, found.st_size) <= MISSES_MAX
    except OSError:
        return False
    finally:
        os.close(file)


def _misses(file: int, size: int) -> int:
    """Return how many pages of the samples are not in the page cache, up to one too many."""
    # The kernel reads a page that was not there, and with this nothing behind it.
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
    misses = 0
    for at in range(SAMPLES):
        try:
            os.preadv(file, [bytearray(1)], at * size // SAMPLES, os.RWF_NOWAIT)
        except BlockingIOError:
            misses += 1
            if misses > MISSES_MAX:
                break
    return misses


def _file_systems() -> dict[int, str]:
    """Return the types of the mounted file systems by their devices. Nothing where that is not known."""
    found: dict[int, str] = {}
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return found
    for line in lines:
        # 36 35 98:0 /root /mount options optional… - type source options
        before, _, after = line.partition(" - ")
        major, _, minor = before.split(" ")[2].partition(":")
        found[os.makedev(int(major), int(minor))] = after.split(" ")[0]
    return found
