"""A proxy in front of a store that limits what all connections receive together, as a link would.

toxiproxy limits each connection. This one gives all of them turns at one bucket of tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator

PIECE = 64 << 10


class _Line:
    """The link: bytes leave it one piece after another."""

    def __init__(self, bytes_per_second: float) -> None:
        self._pace = 1 / bytes_per_second
        self._free = 0.0

    async def take(self, count: int) -> None:
        now = time.monotonic()
        self._free = max(self._free, now) + count * self._pace
        # Sleeps of less than some milliseconds last longer than asked.
        if self._free - now > 0.005:
            await asyncio.sleep(self._free - now)


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: _Line | None) -> None:
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(PIECE):
            if line is not None:
                await line.take(len(piece))
            writer.write(piece)
            await writer.drain()
    writer.close()


@contextlib.contextmanager
def throttled(port: int, bytes_per_second: float) -> Iterator[int]:
    """Yield the port of a proxy of a server on this machine."""
    line = _Line(bytes_per_second)
    loop = asyncio.new_event_loop()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_connection("127.0.0.1", port, limit=PIECE)
        await asyncio.gather(_pass(reader, ours, None), _pass(theirs, writer, line))

    server = loop.run_until_complete(asyncio.start_server(accept, "127.0.0.1", 0, limit=PIECE))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
