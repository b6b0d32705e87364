"""Limits and preferences of a load, from keyword arguments and `TLOAD_*` variables."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

from tload import _tload
from tload._errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

Engine: TypeAlias = Literal["auto", "uring", "pread", "tokio-uring"]
Cache: TypeAlias = Literal["auto", "direct", "buffered", "drop", "map"]
Order: TypeAlias = Literal["ready", "file"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to load. Every field is also a keyword of `stream`, `load` and `load_into`, which wins over `options=`.

    Sizes are bytes as `int`, or text with a unit: `"4 MiB"` (powers of 1024), `"4 MB"` (powers of 1000). `None` means:
    what the environment variable says, or else what suits the storage.

    Raises:
        InvalidRequestError: A value can never work.
        TypeError: A value is of the wrong type.
    """

    engine: Engine | None = None
    """What reads: `"uring"` (io_uring), `"pread"` (threads), `"tokio-uring"` (io_uring through the crate of that name,
    to compare with), or `"auto"`: `uring` where the system allows it, else `pread`. Default: `TLOAD_ENGINE`, else
    `"auto"`."""
    cache: Cache | None = None
    """How files are read with regard to the page cache. Default: `TLOAD_CACHE`, else `"auto"`.

    - `"auto"`: What it holds is copied from there, everything else is read past it where the file system can.
    - `"direct"`: Past it, or fail.
    - `"buffered"`: Through it.
    - `"drop"`: As `"auto"`, and nothing of the files is left in it, unless it has yet to be written to storage.
    - `"map"`: Nothing is copied: tensors are views of the files, and their memory is the page cache's, which
      `memory_limit` does not count. (Copied all the same are tensors at offsets that are no multiple of their dtype's
      alignment.) While one of them lives, nobody may truncate its file or overwrite it in place: touching what is gone
      kills the process (`SIGBUS`), and what is overwritten may change in the tensor. Files may be deleted, and replaced
      by renaming another one. Not for GPUs, `load_into`, and object stores.
    """
    writable: bool | None = None
    """With `cache="map"`: whether tensors may be written to. Each page that is written to becomes the process's own;
    files, and other loads of them, stay as they are. If not, arrays of numpy are read-only; DLPack says it of others,
    and in libraries that do not listen, such as torch, a write kills the process (`SIGSEGV`). Tensors that are no views
    of a file may always be written to. Default: `True` with `framework="torch"`, which knows no read-only tensors, else
    `False`."""
    order: Order | None = None
    """In which order tensors come: `"ready"` (as they become complete) or `"file"` (by file, then by offset).
    Default: `TLOAD_ORDER`, else `"ready"`."""
    depth: int | None = None
    """Reads in flight, over all lanes, for each file system; requests in flight for each object store. Default:
    `TLOAD_DEPTH`, else found while the load runs."""
    in_flight_bytes: int | str | None = None
    """Bytes in flight, over all lanes, for each file system and each object store. Default: `TLOAD_IN_FLIGHT`, else
    found while the load runs, or as many as `depth` reads need."""
    extent_bytes: int | str | None = None
    """Bytes of one read at most. Default: `TLOAD_EXTENT`, else what suits the storage."""
    lanes: int | None = None
    """Threads that read the files of each file system, each with its own engine. Default: `TLOAD_LANES`, else as many
    as cores where cores are the limit, as with files that are in memory already; else 1, and more when that one has no
    time left."""
    memory_limit: int | str | None = None
    """Bytes of host memory that the load may hold and the caller has not received yet. What the caller has received
    does not count; staging memory on the way to GPUs or into memory of the caller's does. Default:
    `TLOAD_MEMORY_LIMIT`, else 512 MiB; or the largest tensor, and beside it a quarter of it or what may be in flight,
    if that is more; in a control group (a container) with little memory less: half of what it leaves, or what the load
    cannot do without."""
    device_memory_limit: int | str | None = None
    """Bytes of each GPU that the load may hold and the caller has not received yet. What the caller has received does
    not count, nor does memory of the caller's that `load_into` fills. Default: `TLOAD_DEVICE_MEMORY_LIMIT`, else as for
    `memory_limit`, and no more than is free."""
    verify: str | os.PathLike[str] | None = None
    """Whether what is read is compared with digests that somebody has made of it, while it passes. What differs is a
    `CorruptError` that names the file, the tensor and the bytes: before a tensor is yielded that has a digest of its
    own, before the load ends where there is only one of the whole file. Default: `TLOAD_VERIFY`, else `"off"`.

    - `"off"`: Nothing is compared.
    - `"auto"`: With what there is: a manifest of tload's beside the checkpoint, the store's own checksum of the whole
      object, what a hub says of the file, or a signed manifest. `report.verification` says what was not compared.
    - `"require"`: As `"auto"`; what cannot be compared is an `InvalidRequestError` before the first read. That is a
      file of which nothing is known, and one that is read in part while only its whole could be compared.
    - `"sha256"`: As `"require"`, and only SHA-256 counts. The others compare CRCs where there are any, which find
      damage but do not stop whoever changes bytes on purpose. All tensors of a file have to be read, whole. `"sha256:"`
      and the path or the URL of a manifest compares with that one: keep it where nobody else can write.
    - Anything else is the path or the URL of a manifest of tload's, which has to have it all.

    A manifest that is named, here or after `"sha256:"`, also has to list the index, with the bytes that it has; and
    every file with weights that it lists has to be part of the checkpoint, unless files or tensors were named.
    """
    retries: int | None = None
    """How often a failed request to an object store, or a failed read of a file, is tried again before the load fails;
    0: never. Only what is missing is asked for again. Default: `TLOAD_RETRIES`, else the key `retries` of `store=`,
    else 8 for requests and for files on network file systems, where failures may pass, and 0 for other files."""
    hedge: bool | None = None
    """Whether a request to an object store that takes much longer than others is sent a second time, for what is
    missing; the first answer counts. At most one request in 20 is. Default: `TLOAD_HEDGE` (`true` or `false`), else
    true."""
    timeout: float | None = None
    """Seconds that opening may take, and the whole load after it. Storage that does not answer keeps nobody waiting
    longer than half a second beyond that. Default: `TLOAD_TIMEOUT` (seconds, or with a unit: `500ms`, `30s`, `2m`),
    else no limit."""

    def __post_init__(self) -> None:
        _tload.check_options(self)

    def __repr__(self) -> str:
        fields = ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))
        return f"tload.Options({', '.join(f'{name}={_shown(value)}' for name, value in fields if value is not None)})"


def _shown(value: object) -> str:
    # A manifest's URL may have a secret in it.
    return "<a URL>" if "://" in str(value) else repr(value)


class OptionKeywords(TypedDict, total=False):
    """The fields of `Options` as keyword arguments."""

    engine: Engine | None
    cache: Cache | None
    writable: bool | None
    order: Order | None
    depth: int | None
    in_flight_bytes: int | str | None
    extent_bytes: int | str | None
    lanes: int | None
    memory_limit: int | str | None
    device_memory_limit: int | str | None
    verify: str | os.PathLike[str] | None
    retries: int | None
    hedge: bool | None
    timeout: float | None


# The command reads the same variables, so that one environment means one thing. `writable` has none: what a program
# does with its tensors is for the program to say.
VARIABLES = {
    "engine": "TLOAD_ENGINE",
    "cache": "TLOAD_CACHE",
    "order": "TLOAD_ORDER",
    "depth": "TLOAD_DEPTH",
    "in_flight_bytes": "TLOAD_IN_FLIGHT",
    "extent_bytes": "TLOAD_EXTENT",
    "lanes": "TLOAD_LANES",
    "memory_limit": "TLOAD_MEMORY_LIMIT",
    "device_memory_limit": "TLOAD_DEVICE_MEMORY_LIMIT",
    "verify": "TLOAD_VERIFY",
    "retries": "TLOAD_RETRIES",
    "hedge": "TLOAD_HEDGE",
    "timeout": "TLOAD_TIMEOUT",
}

_COUNT = re.compile(r"\+?[0-9]+")
_DURATION = re.compile(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*([a-z]*)", re.IGNORECASE)
_SECONDS = {"ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def resolve(options: Options | None, keywords: OptionKeywords) -> Options:
    """Merge what a call says: keywords win over `options`, which win over the environment."""
    if options is not None and not isinstance(options, Options):
        message = f"options: wanted tload.Options, found {type(options).__qualname__}"
        raise TypeError(message)
    resolved = options or Options()
    # `__post_init__` checks the types.
    given: dict[str, Any] = {name: value for name, value in keywords.items() if value is not None}
    resolved = dataclasses.replace(resolved, **given)
    return _with_environment(resolved, os.environ)


def verifies() -> bool:
    """Return whether what is read is to be compared where no option says so: `TLOAD_VERIFY`."""
    return os.environ.get(VARIABLES["verify"], "").strip() not in {"", "off"}


def is_strict(options: Options) -> bool:
    """Return whether bytes that cannot be verified are an error, by the core's rule."""
    return options.verify not in {None, "off", "auto"}


def _with_environment(options: Options, environment: Mapping[str, str]) -> Options:
    for name, variable in VARIABLES.items():
        text = environment.get(variable, "").strip()
        if not text or getattr(options, name) is not None:
            continue
        try:
            value: Any = _read(name, text)
            options = dataclasses.replace(options, **{name: value})
        except ValueError as error:  # an InvalidRequestError is one
            # The variable and its text have been named: `memory_limit: "4 XB" is not a size; ` says it again.
            reason = re.sub(rf'^{name}(: ".*")? is [^;]*; ', "", str(error))
            message = f"environment variable {variable}={text!r}: {reason}"
            raise InvalidRequestError(message) from error
    return options


def _read(name: str, text: str) -> str | int | float:
    if name in {"depth", "lanes"}:
        if not _COUNT.fullmatch(text) or not text.strip("+0"):
            message = "wanted a positive int"
            raise ValueError(message)
        return int(text)
    if name == "retries":
        if not _COUNT.fullmatch(text):
            message = "wanted an int, 0 or more"
            raise ValueError(message)
        return int(text)
    if name == "hedge":
        if text.lower() not in {"true", "false"}:
            message = "wanted true or false"
            raise ValueError(message)
        return text.lower() == "true"
    if name == "timeout":
        return _read_seconds(text)
    return text


def _read_seconds(text: str) -> float:
    duration = _DURATION.fullmatch(text)
    try:
        seconds = float(duration[1]) * _SECONDS[duration[2].lower()] if duration else 0.0
    except (KeyError, ValueError):
        seconds = 0.0
    if not 0.0 < seconds < math.inf:
        message = "wanted a positive duration such as 500ms, 30s, 2m or 1h"
        raise ValueError(message)
    return seconds
