"""Keys of encrypted checkpoints: what callers pass, and what the environment has."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tload._errors import InvalidRequestError, advise

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tload.typing import Key

VARIABLES = {"TLOAD_KEY": "text", "TLOAD_KEY_FILE": "file", "TLOAD_KEY_COMMAND": "command"}
"""Variables that the command reads too, and what each holds."""


def read_key(key: Key | None, environment: Mapping[str, str]) -> tuple[str, str] | None:
    """Return a kind of key (`text`, `file` or `command`) and its value, from the caller or else the environment.

    Functions are called.
    """
    if key is None:
        found = [(name, kind) for name, kind in VARIABLES.items() if environment.get(name)]
        if len(found) > 1:
            names = " and ".join(name for name, _ in found)
            raise advise(InvalidRequestError, f"several keys were given: {names}", "set one of them")
        return next(((kind, environment[name]) for name, kind in found), None)
    if isinstance(key, os.PathLike):
        return "file", os.fspath(key)
    text = key() if callable(key) else key
    if isinstance(text, bytes):
        text = _text_of(text)
    if isinstance(text, str):
        return "text", text
    # Its value is not shown: it may be the key in another form.
    source = "the function of key=" if callable(key) else "key="
    message = f"{source}: wanted a str or bytes, found {type(text).__qualname__}"
    raise TypeError(message)


def read_sealing(key: Key | None, recipients: Sequence[str]) -> tuple[list[str], tuple[str, str] | None] | None:
    """Return the recipients and the key of a checkpoint to seal, or None if it is not to be sealed."""
    if isinstance(recipients, str):
        message = "recipients=: wanted a list of str, found str"
        raise TypeError(message)
    if key is None and not recipients:
        return None
    return [*recipients], None if key is None else read_key(key, {})


def _text_of(key: bytes) -> str:
    """Return the text of a key. Those of Tensorizer are any bytes, of which their digits are another form."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key.hex()


def is_secret(key: Key | None) -> bool:
    """Return whether a key must not be pickled: another process finds files and variables by itself."""
    return key is not None and not isinstance(key, os.PathLike)
