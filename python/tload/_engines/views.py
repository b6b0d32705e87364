"""Decides whether the tensors for an engine on a CPU are views of files. Imports no engine.

An engine copies each tensor to a parameter. From a view of the page cache that is the only copy. The
engines' own loaders map files too, all of them; here, only files on local file systems that are in
the page cache, because a page that has to be read is read faster otherwise. A file that another
process truncates meanwhile ends the process, as with the engines' loaders. What the engine keeps of
the tensors after the load follows changes of the file; its parameters are its own.
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
"""Pages of each file that have to be in the page cache: if a tenth is not, one in 800 files passes."""


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
        # The memory of tmpfs is the page cache. Others answer without a read, or not at all.
        return kind == "tmpfs" or all(
            os.preadv(file, [bytearray(1)], at * found.st_size // SAMPLES, os.RWF_NOWAIT) for at in range(SAMPLES)
        )
    except OSError:
        return False
    finally:
        os.close(file)


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
