"""Locations of checkpoints: their types and checks, and whether links are followed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tload import _tload
from tload._errors import InvalidRequestError, advise

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMES = frozenset(_tload.SCHEMES)
"""URL schemes that the core reads."""

VARIABLE = "TLOAD_FOLLOW_SYMLINKS"
"""Environment variable that the command reads too."""

WORDS = {
    **dict.fromkeys(("1", "y", "yes", "t", "true", "on"), True),
    **dict.fromkeys(("", "0", "n", "no", "f", "false", "off"), False),
}
"""Truth values of environment variables, as the command reads them."""


def follows(follow_symlinks: object, environment: Mapping[str, str]) -> bool:
    """Return whether to follow symbolic links, from the caller or else the environment."""
    if follow_symlinks is None:
        text = environment.get(VARIABLE, "").strip()
        if text.lower() not in WORDS:
            message = f"environment variable {VARIABLE}: {text!r} is neither yes nor no"
            raise advise(InvalidRequestError, message, "set it to 1 or 0, or unset it")
        return WORDS[text.lower()]
    if not isinstance(follow_symlinks, bool):
        # Truthiness is not enough: the text "no" would be true.
        message = f"follow_symlinks: wanted a bool, found {type(follow_symlinks).__qualname__}"
        raise TypeError(message)
    return follow_symlinks


def check_location(name: str, location: object) -> None:
    """Raise `TypeError` if an argument is not a path or URL."""
    if not isinstance(location, (str, os.PathLike)):
        message = f"{name}: wanted a str or os.PathLike, found {type(location).__qualname__}"
        raise TypeError(message)
    path = os.fspath(location)
    if not isinstance(path, str):
        message = f"{name}: wanted a str or an os.PathLike of one, found one of bytes"
        raise TypeError(message)
    scheme = path.partition(":/")[0].lower()
    if not isinstance(location, str) and scheme in SCHEMES and len(scheme) < len(path):
        # The message omits the path: a URL may carry credentials.
        kind = type(location).__qualname__
        message = f"{name}: a {kind} that begins with {scheme}:/ is not a URL: path classes remove one of the slashes"
        raise advise(InvalidRequestError, message, f'pass the URL as a str: "{scheme}://…"')
