"""Loads under `tload exec`, which reads the source ahead until one of them begins."""

from __future__ import annotations

import os

VARIABLE = "TLOAD_PREFETCH"
"""Environment variable that names the socket of the process that reads ahead."""


def load_begins() -> None:
    """Stop what `tload exec` reads ahead for this process, if it does. Does not wait."""
    name = os.environ.get(VARIABLE)
    if not name:
        return
    # Here, since most loads need no sockets.
    import contextlib
    import socket

    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(0)
        connection.connect("\0" + name)  # an abstract name, which ends with that process
