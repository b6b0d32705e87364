"""Types of arguments, for annotations of programs that pass them on.

They are aliases of types: a value of any type that an alias lists will do.

>>> def load_model(source: tload.typing.Source, **keywords: Unpack[tload.typing.LoadKeywords]) -> Model: ...
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from types import EllipsisType
from typing import Literal, TypeAlias

from tload._checkpoint.checkpoint import Checkpoint
from tload._options.keywords import IntoKeywords, LoadKeywords, OptionKeywords, StoreKeywords
from tload._report.progress import Progress

__all__ = [
    "Cache",
    "CacheCheck",
    "Duration",
    "Engine",
    "Framework",
    "Index",
    "IntoKeywords",
    "Key",
    "LoadKeywords",
    "Location",
    "Names",
    "OnPeerLoss",
    "OptionKeywords",
    "Order",
    "Pattern",
    "Patterns",
    "ProgressCallback",
    "Share",
    "Size",
    "Source",
    "Store",
    "StoreKeywords",
    "StoreValue",
]

Location: TypeAlias = str | os.PathLike[str]
"""A path or URL."""

Source: TypeAlias = Location | Sequence[Location] | Checkpoint
"""A file, a directory or an index, as a path or URL; a list of files; or an open checkpoint."""

Key: TypeAlias = str | bytes | os.PathLike[str] | Callable[[], str | bytes]
"""Key of an encrypted checkpoint: its text, a path of a file with it, or a function that returns it."""

Index: TypeAlias = int | slice | EllipsisType | tuple[int | slice | EllipsisType, ...]
"""Index of an array, as in the brackets after its name; steps must be positive."""

Names: TypeAlias = str | Iterable[str]
"""One name or pattern, or several."""

Pattern: TypeAlias = str | re.Pattern[str]
"""A regular expression, as text or compiled."""

Patterns: TypeAlias = Pattern | Iterable[Pattern]
"""One regular expression, or several, as text or compiled."""

Framework: TypeAlias = Literal["torch", "pt", "numpy", "np", "dlpack"]
"""The type of the tensors that a load returns."""

StoreValue: TypeAlias = str | int | float | bool | timedelta | os.PathLike[str] | list[str] | tuple[str, ...]
"""The value of one option of a store."""

Store: TypeAlias = Mapping[str, StoreValue | Mapping[str, str]]
"""Options of object stores: a `tload.S3` or one of its siblings, or a mapping of the same keys."""

ProgressCallback: TypeAlias = Callable[[Progress], object]
"""A function that is called with the progress of a load; its result is ignored."""

Engine: TypeAlias = Literal["auto", "uring", "pread", "tokio-uring"]
"""Values of `Options.engine`."""

Cache: TypeAlias = Literal["auto", "direct", "buffered", "drop", "map"]
"""Values of `Options.cache`."""

CacheCheck: TypeAlias = Literal["always", "never", "offline"]
"""Values of the key `cache_check` of `store=`."""

Order: TypeAlias = Literal["ready", "file"]
"""Values of `Options.order`."""

Share: TypeAlias = Literal["node", "cluster", "none"]
"""Values of `Options.share`."""

OnPeerLoss: TypeAlias = Literal["error", "read"]
"""Values of `Options.on_peer_loss`."""

Size: TypeAlias = float | str
"""Bytes as a whole number (`4096`, `1e9`), or text with a unit: `"4 MiB"`, `"4 MB"`."""

Duration: TypeAlias = float | str | timedelta
"""Seconds, text with units (`"500ms"`, `"10m"`, `"1h30m"`), or a `datetime.timedelta`."""
