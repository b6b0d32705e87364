"""Patterns for whole keys of an object store, as globs of `tload cp` for paths below a prefix. Pure.

Theirs matches the whole key with `fnmatch`, whose wildcards match `/`, too. `tload cp` matches what is below the
prefix, or the last component of that, and there they do not.
"""

from __future__ import annotations

import fnmatch
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_PART = re.compile(r"\*|\?|\[!?\]?[^\]]*\]|.", re.DOTALL)


def below(patterns: Iterable[str], prefix: str) -> list[str]:
    """Return globs that match below `prefix` what the patterns match of whole keys. Those of `inexact` match more."""
    found = []
    for pattern in patterns:
        parts = _PART.findall(pattern)
        found += ["".join(map(_glob, parts[start:])) for start in _starts(parts, prefix)]
    return found


def inexact(pattern: str, prefix: str) -> bool:
    """Whether a pattern says how a name right below the prefix begins: files called so further down match, too."""
    parts = _PART.findall(pattern)
    return any(
        # Behind `*/`, all of that name are meant.
        parts[start] != "*" and "/" not in parts[start:] and parts[max(start - 2, 0) : start] != ["*", "/"]
        for start in _starts(parts, prefix)
    )


def _starts(parts: list[str], prefix: str) -> list[int]:
    """Return where the rest of a pattern begins when the prefix has been matched, each way that it can be."""
    starts = {0}
    for character in prefix:
        starts = {
            # A star may take more.
            start if parts[start] == "*" else start + 1
            for start in _reachable(parts, starts)
            if start < len(parts) and fnmatch.fnmatchcase(character, parts[start])
        }
    return sorted(start for start in starts if start < len(parts))


def _reachable(parts: list[str], starts: set[int]) -> set[int]:
    """Return the places in the pattern, and those behind stars that match nothing."""
    reached = set(starts)
    for start in starts:
        place = start
        while place < len(parts) and parts[place] == "*":
            place += 1
            reached.add(place)
    return reached


def _glob(part: str) -> str:
    if part == "*":
        return "{*,*/**/*}"
    if part == "?":
        return "{?,/}"
    if len(part) > 1:
        return part
    return f"\\{part}" if part in "*?[]{},!\\" else part
