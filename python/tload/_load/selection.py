"""Selections of tensors: names, globs, and regular expressions, as text or compiled."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypedDict

from tload._errors import InvalidRequestError, NoSuchTensorError, advise

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from tload import _tload
    from tload.typing import Names, Pattern, Patterns


class Rules(TypedDict):
    """Keyword arguments of the extension module's `Loader`."""

    names: list[str]
    found: list[str]
    globs: list[str]
    regexes: list[str]


def rules(checkpoint: _tload.Checkpoint, names: Names | None, glob: Names | None, regex: Patterns | None) -> Rules:
    """Check the arguments that select tensors.

    Compiled patterns are matched here, with the names of the checkpoint: the core's regular
    expressions have another syntax than Python's.
    """
    chosen, globs = texts("names", names), texts("glob", glob)
    found: list[str] = []
    patterns: list[Pattern] = (
        [] if regex is None else _listed("regex", "a str, a compiled pattern or several", regex, _is_pattern)
    )
    compiled = [pattern for pattern in patterns if not isinstance(pattern, str)]
    if compiled:
        known = [info[0] for info in checkpoint.tensors()]
        for pattern in compiled:
            found += _matches(checkpoint.location, pattern, known)
    texts_only = [one for one in patterns if isinstance(one, str)]
    return {"names": chosen, "found": found, "globs": globs, "regexes": texts_only}


def texts(name: str, value: Names | None) -> list[str]:
    """Return an argument that is a text or several as a list."""
    return [] if value is None else _listed(name, "a str or several", value, lambda one: isinstance(one, str))


def _is_pattern(value: object) -> bool:
    # The pattern of a compiled one may be bytes.
    return isinstance(value, str) or (isinstance(value, re.Pattern) and isinstance(value.pattern, str))


def _listed(name: str, wanted: str, value: object, is_valid: Callable[[object], bool]) -> list[Any]:
    if is_valid(value):
        return [value]
    listed = list(value) if isinstance(value, Iterable) and not isinstance(value, bytes) else [value]
    for one in listed:
        if not is_valid(one):
            is_bytes = isinstance(one, re.Pattern) and isinstance(one.pattern, bytes)
            found = "a pattern of bytes" if is_bytes else type(one).__qualname__
            message = f"{name}: wanted {wanted}, found {found}"
            raise TypeError(message)
    if not listed:
        # An empty list must not select everything, as passing no rule does.
        message = f"{name} is empty, so nothing is selected"
        raise InvalidRequestError(message)
    return listed


def _matches(location: str, pattern: re.Pattern[str], names: list[str]) -> list[str]:
    found = [name for name in names if pattern.search(name)]
    if not found:
        message = f"{location}: regex {pattern.pattern!r} matches none of {len(names)} tensors"
        hint = f"list the names with list(tload.open({location!r}))"
        raise advise(NoSuchTensorError, message, hint, location=location)
    return found
