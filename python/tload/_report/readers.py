"""Counts of what `tload.safetensors` has opened and handed out, also inside `tload.patch`."""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import dataclass, fields
from typing import TypeVar

FILES_MAX = 1000
"""Locations that are kept: each costs memory for as long as the process runs."""

_logger = logging.getLogger("tload")

T = TypeVar("T")


@dataclass(slots=True)
class Counts:
    """Numbers of files, and of tensors and bytes by how they were handed out."""

    opened: int = 0
    viewed_tensors: int = 0
    viewed_bytes: int = 0
    read_tensors: int = 0
    read_bytes: int = 0

    def since(self, before: Counts) -> Counts:
        """Return what was added since `before`."""
        return Counts(*(getattr(self, each.name) - getattr(before, each.name) for each in fields(self)))


class Readers:
    """Counts of one process."""

    def __init__(self) -> None:
        """Start at zero."""
        self._reset()
        if hasattr(os, "register_at_fork"):
            # The thread that holds the lock does not exist in the child.
            os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._counts = Counts()
        self._files: dict[str, None] = {}

    def opened(self, location: str, *, is_mapped: bool) -> None:
        """Count a file, or another source, that was opened."""
        with self._lock:
            self._counts.opened += 1
            if len(self._files) < FILES_MAX:
                self._files[location] = None
        _logger.debug("%s: opened by tload.safetensors, %s", location, "mapped" if is_mapped else "not mapped")

    def handed_out(self, tensor: T, *, is_view: bool) -> T:
        """Count a tensor or array, and return it."""
        size = int(getattr(tensor, "nbytes", 0))
        with self._lock:
            if is_view:
                self._counts.viewed_tensors += 1
                self._counts.viewed_bytes += size
            else:
                self._counts.read_tensors += 1
                self._counts.read_bytes += size
        return tensor

    def counts(self) -> Counts:
        """Return the counts so far."""
        with self._lock:
            return self._counts.since(Counts())

    def files(self) -> tuple[str, ...]:
        """Return the locations opened since `forget_files`, without repetition."""
        with self._lock:
            return tuple(self._files)

    def forget_files(self) -> None:
        """Forget the locations."""
        with self._lock:
            self._files.clear()

    def metrics(self) -> str:
        """Return the counts in the text format of Prometheus."""
        counts = self.counts()
        views, reads = (counts.viewed_tensors, counts.viewed_bytes), (counts.read_tensors, counts.read_bytes)
        lines = [
            "# HELP tload_safetensors_files_total Files opened by tload.safetensors and inside tload.patch.",
            "# TYPE tload_safetensors_files_total counter",
            f"tload_safetensors_files_total {counts.opened}",
        ]
        for index, (name, what) in enumerate((("tensors", "Tensors"), ("bytes", "Bytes of the tensors"))):
            family = f"tload_safetensors_{name}_total"
            lines += [
                f"# HELP {family} {what} handed out by tload.safetensors: views of mapped files, or read.",
                f"# TYPE {family} counter",
                f'{family}{{how="view"}} {views[index]}',
                f'{family}{{how="read"}} {reads[index]}',
            ]
        return "\n".join([*lines, ""])


readers = Readers()
