"""LoRA adapters from a store, on demand. Imports no engine."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tload
from tload import _store, _tload
from tload._checkpoint import show
from tload._errors import InvalidRequestError, IoError, advise
from tload._options import OptionKeywords, resolve

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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

LOCKS = ".locks"
"""Directory of lock files in the directory of adapters. No adapter's name begins with a dot."""

FILE_SUFFIXES = (".json", ".safetensors")
"""Suffixes of the names of files, which lead to no adapter: a copy of `NAME/adapter_config.json`
would create a directory of that name in the adapter's."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}(/[A-Za-z0-9_][A-Za-z0-9._-]{0,127}){0,3}")


@dataclass(frozen=True, slots=True)
class Adapters:
    """Adapters below one location."""

    source: str
    """Location above the adapters: NAME is at `source/NAME`."""
    directory: Path
    """Directory that they are copied to."""

    def fetch(self, name: str) -> Path | None:
        """Return the directory of an adapter, copied from the source if it is not there or changed.

        `None` if there is none of this name, which comes from a request and may be anything: only
        plain names lead to the source.

        Raises:
            InvalidRequestError: It is no LoRA adapter.
            NotFoundError: It has no weights in safetensors.
            Error: The source cannot be read.
            OSError: The directory cannot be written to.
        """
        if _NAME.fullmatch(name) is None or any(part.endswith(FILE_SUFFIXES) for part in name.split("/")):
            return None
        source, target = f"{self.source.rstrip('/')}/{name}", self.directory / name
        # Any name may be requested: before anything is written, the configuration alone is read.
        config = _read_config(source)
        if config is None:
            return None
        _check(config, source)
        with _locked(self.directory / LOCKS, name):
            if source.startswith(REVISIONS):
                # Two copies could be of two commits.
                tload.copy(source, target, names=FILES)
                return target
            # A copy of the directory would list all checkpoints of a training below it, and nothing
            # on a web server.
            for file in FILES:
                tload.copy(f"{source}/{file}", target)
        return target


def _read_config(source: str) -> bytes | None:
    limits = resolve(None, OptionKeywords(), variables=("timeout",))
    pairs = _store.resolve(None, os.environ)
    try:
        return _tload.read_beside(source, CONFIG, bytes_max=BYTES_MAX, options=limits, store=pairs)
    except IoError as error:
        if error.errno == errno.ENOTDIR:  # a local file has this name
            return None
        raise


def _check(config: bytes, source: str) -> None:
    try:
        kind = json.loads(config)["peft_type"]
    except (ValueError, KeyError, TypeError) as error:
        message = f"{show(source)}: {CONFIG} is no configuration of an adapter: {type(error).__name__}"
        raise InvalidRequestError(message) from error
    if kind != "LORA":
        message = f"{show(source)}: the adapter's peft_type is {kind!r}, wanted 'LORA'"
        raise InvalidRequestError(message)


@contextmanager
def _locked(directory: Path, name: str) -> Iterator[None]:
    """Hold the lock of an adapter, and wait until no other process does.

    The kernel releases it if the process dies.
    """
    directory.mkdir(parents=True, exist_ok=True)
    # An adapter's name may have slashes, and may be too long for a file's.
    with (directory / hashlib.sha256(name.encode()).hexdigest()).open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            # Lustre and others have no locks unless mounted with them: there, a second copy fails.
            if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK):
                raise
        yield


def adapters(environment: Mapping[str, str] = os.environ) -> Adapters | None:
    """Return what the variables of the environment name; `None` without `TLOAD_LORA_SOURCE`.

    Raises:
        InvalidRequestError: `TLOAD_LORA_DIR` is not set.
    """
    source = environment.get(SOURCE_VARIABLE, "").strip()
    if not source:
        return None
    directory = environment.get(DIRECTORY_VARIABLE, "").strip()
    if not directory:
        message = f"environment variable {SOURCE_VARIABLE} is set, and {DIRECTORY_VARIABLE} is not"
        raise advise(InvalidRequestError, message, f"set {DIRECTORY_VARIABLE} to a directory for adapters")
    return Adapters(source, Path(directory))
