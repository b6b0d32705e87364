"""Calls that wait for storage, on a thread of their own, for callers in an event loop.

Not on the threads of the loop: `asyncio.run` waits for those at its end, however long storage takes.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tload._exit import at_exit

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

EXIT_SECONDS = 1.0
"""Time that the end of the process waits for calls whose callers have given up."""

_threads: set[threading.Thread] = set()


async def run(call: Callable[[], T], discard: Callable[[T], object]) -> T:
    """Return the result of `call`, or raise its exception.

    If the task is cancelled, the call goes on, and `discard` gets its result.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            outcome = _Outcome(context.run(call), None)
        except BaseException as error:  # noqa: BLE001
            outcome = _Outcome(None, error)
        try:
            loop.call_soon_threadsafe(outcome.deliver, future, discard)
        except RuntimeError:  # The loop is closed.
            outcome.drop(discard)
        finally:
            _threads.discard(threading.current_thread())

    thread = threading.Thread(target=work, name="tload-open", daemon=True)
    _threads.add(thread)
    thread.start()
    try:
        return await future
    except asyncio.CancelledError:
        # It may have been delivered before the task was cancelled.
        if future.done() and not future.cancelled() and future.exception() is None:
            discard(future.result())
        raise


class _Outcome(NamedTuple):
    result: Any
    error: BaseException | None

    def deliver(self, future: asyncio.Future[Any], discard: Callable[[Any], object]) -> None:
        if future.done():
            self.drop(discard)
        elif self.error is None:
            future.set_result(self.result)
        else:
            future.set_exception(self.error)

    def drop(self, discard: Callable[[Any], object]) -> None:
        if self.error is None:
            discard(self.result)


def _finish() -> None:
    # A thread that comes back from the core while Python ends would be stopped in the middle.
    until = time.monotonic() + EXIT_SECONDS
    for thread in list(_threads):
        thread.join(max(until - time.monotonic(), 0.0))


at_exit(_finish)
