"""Local files mapped into memory that tensors share, for `backend="mmap"`, without a copy."""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tload._errors import ChangedError

if TYPE_CHECKING:
    from collections.abc import Iterable

# Named since Python 3.13. Without this flag, the kernel may refuse to map a file larger than
# memory.
_FLAGS = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0)


class FileSeen(NamedTuple):
    """Identity of a file before its header was read."""

    path: str
    identity: tuple[int, int, int, int]

    def map(self) -> mmap.mmap | None:
        """Map the whole file privately: pages that are written to become private to the process.

        Returns `None` if that is refused: some file systems have no mappings, and a process may
        have no room for one. The file is read instead.

        The file is unmapped when the last tensor made from it is freed. Until then, the file must
        not be truncated or overwritten in place: see `tload.Options.cache`.

        Raises:
            ChangedError: The file was replaced or written to.
            OSError: The file cannot be opened.
        """
        with Path(self.path).open("rb", buffering=0) as file:
            found = os.fstat(file.fileno())
            if _identity(found) != self.identity:
                raise ChangedError(f"{self.path}: the file changed while it was opened", location=self.path)
            try:
                return mmap.mmap(file.fileno(), found.st_size, flags=_FLAGS, prot=mmap.PROT_READ | mmap.PROT_WRITE)
            except OSError:
                return None


def may_be_mapped(paths: Iterable[str]) -> bool:
    """Return whether files may be mapped: for each file system, one of its files can be."""
    first_of: dict[int, FileSeen] = {}
    for path in paths:
        seen = look(path)
        if seen is None:
            return False
        first_of.setdefault(seen.identity[0], seen)
    return all(seen.map() is not None for seen in first_of.values())


def look(path: str | None) -> FileSeen | None:
    """Return the file at a path, or `None` if it is not a file: a directory, a URL, or nothing."""
    if path is None:
        return None
    try:
        found = Path(path).stat()
    except (OSError, ValueError):
        return None
    return FileSeen(path, _identity(found)) if stat.S_ISREG(found.st_mode) else None


def _identity(found: os.stat_result) -> tuple[int, int, int, int]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
