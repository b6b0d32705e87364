"""Adapters on disk: versions that appear whole, stay while they are used, and make way for others.

```text
DIR/NAME/@3/                   both files of one version of an adapter, which never change
DIR/NAME/@3/.use               locked, shared, by each process that uses it
DIR/NAME/.staging/             the next version while it is copied
DIR/.locks/SHA-256 of NAME     locked by the process that copies or removes versions of an adapter
```

A version appears by one rename: a reader sees both of its files, or neither. The kernel releases
the locks of a process that dies. Nothing waits for a lock.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import threading
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tload import _tload
from tload._errors import IoError, advise

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LIMIT_VARIABLE = "TLOAD_LORA_LIMIT"

LOCKS = ".locks"
"""Directory of lock files in the directory of adapters. No adapter's name begins with a dot."""

STAGING, REMOVED, USE = ".staging", ".removed", ".use"

VERSION = "@"
"""First character of the directories of versions, which no adapter's name has."""

_UNSUPPORTED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
"""Errors of file systems without locks, such as Lustre unless mounted with them."""


class LockedError(Exception):
    """Another process copies or removes versions of the adapter: try again later."""


@dataclass(slots=True)
class _Use:
    descriptor: int
    """File of its lock. It stays open without this object: the version may still be read."""
    count: int = 1


@dataclass(frozen=True, slots=True)
class Disk:
    """Directory of adapters, which several processes may share."""

    directory: Path
    limit: int | None = None
    """Maximum bytes of all versions, or `None`: the disk is the limit."""
    _uses: dict[Path, _Use] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Hold the lock of an adapter.

        Raises:
            LockedError: Another process holds it.
        """
        folder = self.directory / LOCKS
        folder.mkdir(parents=True, exist_ok=True)
        # An adapter's name may have slashes, and may be too long for a file's.
        with (folder / hashlib.sha256(name.encode()).hexdigest()).open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LockedError from None
            except OSError as error:
                # There, a second copy fails.
                if error.errno not in _UNSUPPORTED:
                    raise
            yield

    def current(self, name: str) -> Path | None:
        """Return the directory of the newest version of an adapter."""
        versions = _versions_in(self.directory / name)
        return versions[-1] if versions else None

    def staging(self, name: str) -> Path:
        """Return the directory that the next version of an adapter is copied to."""
        return self.directory / name / STAGING

    def publish(self, name: str) -> Path:
        """Make the staged version of an adapter, whose lock is held, the newest one.

        Others are removed unless a process uses them.
        """
        staging, older = self.staging(name), _versions_in(self.directory / name)
        (staging / USE).touch()
        version = staging.with_name(f"{VERSION}{_number(older[-1]) + 1 if older else 1}")
        staging.rename(version)
        for other in older:
            _remove(other)
        return version

    def use(self, version: Path) -> None:
        """Keep a version, whose adapter's lock is held, from removal until it is released.

        If it is not released, it stays until this process ends, and those that it has forked.
        """
        with self._lock:
            known = self._uses.get(version)
            if known is not None:
                known.count += 1
            else:
                descriptor = os.open(version / USE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
                # Not locked by any other process: it would hold the adapter's lock.
                with suppress(OSError):
                    fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                self._uses[version] = _Use(descriptor)
        os.utime(version / USE)

    def release(self, version: Path) -> None:
        """End one use of a version."""
        with self._lock:
            known = self._uses[version]
            known.count -= 1
            if known.count == 0:
                del self._uses[version]
                os.close(known.descriptor)

    def make_room(self, needed: int, name: str) -> None:
        """Remove versions that no process uses until an adapter of `needed` bytes has room.

        The least recently used ones are removed first. The adapter's lock is held.

        Raises:
            IoError: The versions in use leave less of the limit.
        """
        patterns = (f"{VERSION}*", STAGING, REMOVED)
        sizes = {folder: _size(folder) for pattern in patterns for folder in self.directory.rglob(pattern)}
        excess = needed - shutil.disk_usage(self.directory).free
        if self.limit is not None:
            excess = max(excess, sum(sizes.values()) + needed - self.limit)
        sizes.pop(self.staging(name), None)
        for folder in sorted(sizes, key=_used):
            if excess <= 0:
                return
            with suppress(LockedError):
                if self._evict(folder, name):
                    excess -= sizes[folder]
        if excess > 0 and self.limit is not None:
            left = _tload.format_bytes(max(needed - excess, 0))
            message = (
                f"{_tload.show_location(self.directory)}: the adapter {name!r} needs {_tload.format_bytes(needed)}, "
                f"and those in use leave {left} of {_tload.format_bytes(self.limit)}"
            )
            raise advise(IoError, message, f"raise {LIMIT_VARIABLE}, or use fewer adapters at a time")

    def _evict(self, folder: Path, locked: str) -> bool:
        """Remove a version, or what a process that was killed has left. An adapter may be locked."""
        name = folder.parent.relative_to(self.directory).as_posix()
        with nullcontext() if name == locked else self.locked(name):
            if folder.name.startswith(VERSION):
                return _remove(folder)
            shutil.rmtree(folder, ignore_errors=True)
            return True


def _number(version: Path) -> int:
    return int(version.name.removeprefix(VERSION))


def _versions_in(folder: Path) -> list[Path]:
    """Return the directories of an adapter's versions, the newest one last."""
    return sorted((path for path in folder.glob(f"{VERSION}*") if path.name[1:].isdecimal()), key=_number)


def _used(folder: Path) -> float:
    """Return the time at which a version was used last; zero for what is none."""
    try:
        return (folder / USE).stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _size(folder: Path) -> int:
    size = 0
    for file in folder.glob("*"):
        # Another process may remove it.
        with suppress(FileNotFoundError):
            size += file.stat().st_size
    return size


def _remove(version: Path) -> bool:
    """Remove a version, whose adapter's lock is held, unless a process uses it.

    It disappears from its place before its files are removed.
    """
    removed = version.with_name(REMOVED)
    # Left by a process that was killed.
    shutil.rmtree(removed, ignore_errors=True)
    try:
        with (version / USE).open("ab") as file:
            # Where there are no locks, nothing tells whether it is used.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            version.rename(removed)
    except OSError:
        return False
    shutil.rmtree(removed, ignore_errors=True)
    return True
