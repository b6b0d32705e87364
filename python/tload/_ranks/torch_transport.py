"""Bytes between the leaders of nodes over gloo, apart from the program's own process groups.

Imported by `Group.torch` only.
"""

from __future__ import annotations

import ctypes
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tload._errors import PeerError, advise

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TIMEOUT_MIN = 0.001
"""Shortest time to wait, in seconds: gloo takes 0 for ever."""


class GlooTransport:
    """Connections of this rank with other leaders.

    Each pair of leaders has a process group of its own: after a timeout, gloo closes all
    connections of a group, and those with other leaders must not end with it.
    """

    def __init__(self, ranks: Sequence[int], rank: int) -> None:
        """Prepare the connections of `rank` with the others of `ranks`."""
        self._ranks = ranks
        self._rank = rank
        self._pairs: dict[int, Any] = {}

    def connect(self, store: Any, peer: int, timeout: float) -> None:
        """Connect with `peer`, which does the same, through a store that is used for nothing else."""
        from torch.distributed import ProcessGroupGloo

        self._pairs[peer] = ProcessGroupGloo(store, int(self._rank > peer), 2, _limit(timeout))

    def send(self, to: int, address: int, length: int, timeout: float) -> None:
        """Send memory to a leader, by its position in `ranks`."""
        peer = self._ranks[to]
        self._wait(self._pairs[peer].send, peer, (address, length), timeout)

    def receive(self, origin: int, address: int, length: int, timeout: float) -> None:
        """Receive into memory what a leader sends, by its position in `ranks`."""
        peer = self._ranks[origin]
        self._wait(self._pairs[peer].recv, peer, (address, length), timeout)

    def close(self) -> None:
        """Close the connections."""
        self._pairs.clear()

    def _wait(self, start: Callable[..., Any], peer: int, memory: tuple[int, int], timeout: float) -> None:
        import torch

        address, length = memory
        # The memory itself: gloo reads and writes it without a copy.
        window = (ctypes.c_uint8 * length).from_address(address)
        tensor = torch.frombuffer(window, dtype=torch.uint8)
        try:
            # Releases the GIL.
            start([tensor], int(peer > self._rank), 0).wait(_limit(timeout))
        except RuntimeError as error:
            message = f"the connection with rank {peer} has failed: {reason(error)}"
            hint = "see whether its process runs, and the network between the nodes"
            raise advise(PeerError, message, hint, ranks=[peer]) from None


def reason(error: RuntimeError) -> str:
    """Return the reason that gloo gives, without the place in its sources and its advice."""
    text = str(error).splitlines()[0]
    return re.sub(r"^\[\S+\] ", "", text).split(". ")[0]


def _limit(seconds: float) -> timedelta:
    return timedelta(seconds=max(seconds, TIMEOUT_MIN))
