"""Asynchronous wait for the tensors of a load. Imports asyncio, which `import tload` does not."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

from tload._errors import InvalidRequestError

if TYPE_CHECKING:
    from tload import _tload
    from tload._tensors.imports import BackgroundImport

GIVES_UP = (asyncio.CancelledError, GeneratorExit)
"""Exceptions with which a task gives up waiting; the load goes on."""

TURN_SECONDS = 0.01
"""Seconds after which the event loop gets a turn even if tensors are always ready."""


class Waiter:
    """Waits for the next tensor of one stream without a thread: the loop watches a descriptor."""

    def __init__(self, raw: _tload.Stream) -> None:
        """Wait for the tensors of `raw`."""
        self._raw = raw
        self._waiting = False
        self._turn = time.monotonic()

    def refuse_a_second(self) -> None:
        """Raise `InvalidRequestError` if another task is already waiting."""
        if self._waiting:
            raise InvalidRequestError("two tasks wait for the same stream; only one is supported")

    async def receive(self) -> _tload.Tensor:
        """Return the next tensor. Raise the stream's error, or `StopAsyncIteration` at its end."""
        self._waiting = True
        try:
            if time.monotonic() - self._turn >= TURN_SECONDS:
                await asyncio.sleep(0)
                self._turn = time.monotonic()
            while (tensor := self._poll()) is None:
                await self._readable()
                self._turn = time.monotonic()
            return tensor
        finally:
            self._waiting = False

    async def ready(self, importing: BackgroundImport) -> None:
        """Wait until the result of an import is there. Raise `LoadTimeoutError` if it is late."""
        self._waiting = True
        try:
            loop = asyncio.get_running_loop()
            ended = asyncio.Event()

            def end() -> None:
                # The loop may be closed when the import ends.
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(ended.set)

            importing.on_end(end)
            while not importing.wait(0.0):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(ended.wait(), importing.seconds_left())
        finally:
            self._waiting = False

    def _poll(self) -> _tload.Tensor | None:
        try:
            return self._raw.poll()
        except StopIteration:
            # A coroutine cannot raise `StopIteration`.
            raise StopAsyncIteration from None

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        descriptor = self._raw.fileno()
        loop.add_reader(descriptor, _resolve, future)
        try:
            await future
        finally:
            loop.remove_reader(descriptor)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
