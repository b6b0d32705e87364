"""The command `tload`, as `python -m tload` and as the console script."""

from __future__ import annotations

import signal
import sys

from tload import _tload


def main() -> int:
    """Run the command with this process's arguments and return its exit status."""
    # The command handles signals itself, and leaves alone those that somebody handles already: Python's own handler for
    # Ctrl-C would only make a note for an interpreter that is busy running the command.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _tload.cli_main(["tload", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
