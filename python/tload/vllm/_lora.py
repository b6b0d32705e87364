"""LoRA adapters from a store, on demand. Imports no engine."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import tload
from tload import _tload
from tload._errors import ChangedError, InvalidRequestError, IoError, LoadTimeoutError, advise
from tload._options import store_options
from tload._options.keywords import OptionKeywords
from tload._options.load_options import resolve
from tload._sources.opened import show
from tload.vllm._lora_disk import LIMIT_VARIABLE, Disk, LockedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

SOURCE_VARIABLE = "TLOAD_LORA_SOURCE"
DIRECTORY_VARIABLE = "TLOAD_LORA_DIR"

CONFIG = "adapter_config.json"
FILES = ("adapter_model.safetensors", CONFIG)
"""Files that engines read. Weights in other formats than safetensors are pickles, which could run
code: they are not copied."""

REVISIONS = ("hf://", "oci://")
"""Schemes of locations whose revision or tag may move. One copy resolves it once."""

BYTES_MAX = 16 << 20
"""Maximum length of a configuration, bytes. Most have less than 1 KiB."""

FILE_SUFFIXES = (".json", ".safetensors")
"""Suffixes of the names of files, which lead to no adapter: a copy of `NAME/adapter_config.json`
would create a directory of that name in the adapter's."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}(/[A-Za-z0-9_][A-Za-z0-9._-]{0,127}){0,3}")


FAILURE_SECONDS = 10.0
"""Time for which the failure to find or copy an adapter is remembered. Each request with its name
would otherwise cause requests to the store."""

FAILURES_MAX = 1000
"""Maximum number of failures that are remembered. Names come from requests: they have no end."""

THREADS = 8
"""Adapters that are fetched at a time, on threads that nothing else uses."""

LOOK_SECONDS, LOCK_SECONDS = 0.1, 600.0
"""Interval at which the lock of an adapter is tried while another process copies it, and the time
after which that is an error."""

ATTEMPTS = 3
"""Copies of an adapter that changes while it is copied."""


class Failures:
    """Failures of the last seconds, by the name of the adapter."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: dict[str, tuple[float, tload.Error | None]] = {}
        self._lock = threading.Lock()

    def has(self, name: str) -> bool:
        """Return whether there was no such adapter; raise its error if there was one."""
        with self._lock:
            until, error = self._known.get(name, (0.0, None))
            if self._clock() >= until:
                self._known.pop(name, None)
                return False
        if error is not None:
            raise error.with_traceback(None)
        return True

    def add(self, name: str, error: tload.Error | None) -> None:
        """Remember a failure; those before it make way."""
        with self._lock:
            self._known.pop(name, None)
            if len(self._known) >= FAILURES_MAX:
                del self._known[next(iter(self._known))]
            self._known[name] = (self._clock() + FAILURE_SECONDS, error)


@dataclass(frozen=True)
class Adapters:
    """Adapters below one location."""

    source: str
    """Location above the adapters: NAME is at `source/NAME`."""
    directory: Path
    """Directory that they are copied to."""
    limit: int | None = None
    """Maximum bytes of their copies."""
    clock: Callable[[], float] = time.monotonic

    @cached_property
    def _disk(self) -> Disk:
        return Disk(self.directory, self.limit)

    @cached_property
    def _failures(self) -> Failures:
        return Failures(self.clock)

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        # That of asyncio is the engine's: requests for adapters must not hold up others.
        return ThreadPoolExecutor(THREADS, thread_name_prefix="tload-lora")

    @cached_property
    def _locks(self) -> WeakValueDictionary[str, asyncio.Lock]:
        return WeakValueDictionary()

    def fetch(self, name: str) -> Path | None:
        """Return the directory of an adapter's version, copied if it is not there or has changed.

        It stays as it is until `release`, or the end of this process. `None` if there is no adapter
        of this name, which comes from a request and may be anything: only plain names lead to the
        source.

        Raises:
            InvalidRequestError: It is no LoRA adapter.
            NotFoundError: It has no weights in safetensors.
            Error: The source cannot be read, or there is no room for the adapter.
            OSError: The directory cannot be written to.
        """
        pauses = self._pauses(name)
        while True:
            try:
                return self._attempt(name)
            except LockedError:
                time.sleep(next(pauses))

    async def fetch_soon(self, name: str) -> Path | None:
        """Do as `fetch`, one request for a name at a time, without blocking a thread of asyncio."""
        lock, pauses = self._locks.setdefault(name, asyncio.Lock()), self._pauses(name)
        async with lock:
            while True:
                attempt = asyncio.get_running_loop().run_in_executor(self._pool, self._attempt, name)
                try:
                    return await asyncio.shield(attempt)
                except LockedError:
                    await asyncio.sleep(next(pauses))
                except asyncio.CancelledError:
                    attempt.add_done_callback(self._drop)
                    raise

    def release(self, version: Path) -> None:
        """Let other adapters take the place of a version that was fetched, when there is no other."""
        self._disk.release(version)

    def _drop(self, attempt: asyncio.Future[Path | None]) -> None:
        """Release what an attempt has fetched after its request was cancelled."""
        if not attempt.cancelled() and attempt.exception() is None and (version := attempt.result()) is not None:
            self.release(version)

    def _pauses(self, name: str) -> Iterator[float]:
        """Yield the pauses between attempts while another process has the lock of an adapter."""
        until = self.clock() + LOCK_SECONDS
        while self.clock() < until:
            yield LOOK_SECONDS
        message = f"{show(self.directory)}: another process has been copying {name!r} for {LOCK_SECONDS:.0f} s"
        raise advise(LoadTimeoutError, message, "end that process if it hangs: its lock ends with it")

    def _attempt(self, name: str) -> Path | None:
        if _NAME.fullmatch(name) is None or any(part.endswith(FILE_SUFFIXES) for part in name.split("/")):
            return None
        if self._failures.has(name):
            return None
        try:
            version = self._newest(name, f"{self.source.rstrip('/')}/{name}")
        except tload.Error as error:
            self._failures.add(name, error)
            raise
        if version is None:
            self._failures.add(name, None)
        return version

    def _newest(self, name: str, source: str) -> Path | None:
        """Return the version of an adapter that is at the source now, and keep it from removal."""
        # Any name may be requested: before anything is written, the configuration alone is read.
        config = _read_config(source)
        if config is None:
            return None
        _check(config, source)
        with self._disk.locked(name):
            version = self._disk.current(name)
            if version is None or _missing(source, version) is not None:
                self._stage(name, source, config)
                version = self._disk.publish(name)
            self._disk.use(version)
        return version

    def _stage(self, name: str, source: str, config: bytes | None) -> None:
        """Copy an adapter, so that its files are of one version."""
        staging = self._disk.staging(name)
        for _ in range(ATTEMPTS):
            needed = _missing(source, staging)
            if needed is not None:
                self._disk.make_room(needed, name)
                _copy(source, staging)
            copied = (staging / CONFIG).read_bytes()
            # It has not changed since before the weights were copied.
            if source.startswith(REVISIONS) or copied == config:
                _check(copied, source)
                return
            config = copied
        shutil.rmtree(staging)
        message = f"{show(source)}: the adapter changed during each of {ATTEMPTS} copies"
        raise advise(ChangedError, message, "request it again when it is completely written")


def _copy(source: str, target: Path, **options: Any) -> list[tload.CopyReport]:
    """Copy the files of an adapter, the configuration last."""
    if source.startswith(REVISIONS):
        # Two copies could be of two commits.
        return [tload.copy(source, target, names=FILES, **options)]
    # A copy of the directory would list all checkpoints of a training below it, and nothing on a
    # web server.
    return [tload.copy(f"{source}/{file}", target, **options) for file in FILES]


def _missing(source: str, target: Path) -> int | None:
    """Return the bytes that a copy would need on disk; `None` if all files are there, unchanged."""
    plans = [report.plan for report in _copy(source, target, dry_run=True) if report.plan is not None]
    if all(file.action == "skip" for plan in plans for file in plan.files):
        return None
    return sum(plan.needed_bytes for plan in plans)


def _read_config(source: str) -> bytes | None:
    limits = resolve(None, OptionKeywords(), variables=("timeout",))
    pairs = store_options.resolve(source, None, os.environ)
    try:
        return _tload.read_beside(source, CONFIG, bytes_max=BYTES_MAX, options=limits, store=pairs)
    except IoError as error:
        if error.errno == errno.ENOTDIR:  # a local file has this name
            return None
        raise


def _check(config: bytes, source: str) -> None:
    try:
        kind = json.loads(config)["peft_type"]
    except (ValueError, KeyError, RecursionError, TypeError) as error:
        message = f"{show(source)}: {CONFIG} is no configuration of an adapter: {type(error).__name__}"
        raise InvalidRequestError(message) from error
    if kind != "LORA":
        message = f"{show(source)}: the adapter's peft_type is {kind!r}, wanted 'LORA'"
        raise InvalidRequestError(message)


def adapters(environment: Mapping[str, str] = os.environ) -> Adapters | None:
    """Return what the variables of the environment name; `None` without `TLOAD_LORA_SOURCE`.

    Raises:
        InvalidRequestError: `TLOAD_LORA_DIR` is not set, or `TLOAD_LORA_LIMIT` is no size.
    """
    source = environment.get(SOURCE_VARIABLE, "").strip()
    if not source:
        return None
    directory = environment.get(DIRECTORY_VARIABLE, "").strip()
    if not directory:
        message = f"environment variable {SOURCE_VARIABLE} is set, and {DIRECTORY_VARIABLE} is not"
        raise advise(InvalidRequestError, message, f"set {DIRECTORY_VARIABLE} to a directory for adapters")
    limit = environment.get(LIMIT_VARIABLE, "").strip()
    bound = _tload.parse_bytes(f"environment variable {LIMIT_VARIABLE}", limit) if limit else None
    return Adapters(source, Path(directory), bound)
