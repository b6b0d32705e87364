"""A local file as memory that tensors share: what `backend="mmap"` hands out, without a copy."""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path
from typing import NamedTuple

from tload._errors import ChangedError

# Python 3.13 names it. Without it, the kernel may refuse to map a file larger than memory.
_FLAGS = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0)


class FileSeen(NamedTuple):
    """A file as it was before its header was read."""

    path: str
    identity: tuple[int, int, int, int]

    def map(self) -> mmap.mmap:
        """Map the whole file privately: whoever writes to it writes to pages of the process's own.

        It is unmapped when the last tensor is gone that was made of it. While there are any, nobody may truncate the
        file or overwrite it in place: see `tload.Options.cache`.

        Raises:
            ChangedError: Another file is there by now, or it has been written to.
            OSError: The file system has no mappings.
        """
        with Path(self.path).open("rb", buffering=0) as file:
            found = os.fstat(file.fileno())
            if _identity(found) != self.identity:
                raise ChangedError(f"{self.path}: the file changed while it was opened", location=self.path)
            return mmap.mmap(file.fileno(), found.st_size, flags=_FLAGS, prot=mmap.PROT_READ | mmap.PROT_WRITE)


def look(path: str | None) -> FileSeen | None:
    """Return what is there, or `None` if it is no file: a folder, a URL, or nothing."""
    if path is None:
        return None
    try:
        found = Path(path).stat()
    except (OSError, ValueError):
        return None
    return FileSeen(path, _identity(found)) if stat.S_ISREG(found.st_mode) else None


def _identity(found: os.stat_result) -> tuple[int, int, int, int]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
