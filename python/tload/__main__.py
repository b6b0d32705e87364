"""Entry point of the command `tload`, for `python -m tload` and the console scripts."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from tload import _exit, _tload


def main() -> int:
    """Run the command with this process's arguments and return its exit status."""
    # The command handles signals itself, but not those that already have a handler. Python's own
    # handler for Ctrl-C would only set a flag for an interpreter that is busy running the command.
    # Where it is ignored, as in the background of a script, it stays so.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # It waits itself too, as long as signals reach it: afterwards they have no effect.
    _exit.forget()
    name = "tensorload" if Path(sys.argv[0]).stem == "tensorload" else "tload"
    return _tload.cli_main([name, *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
