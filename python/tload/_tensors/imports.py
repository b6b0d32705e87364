"""Imports of frameworks on threads of their own, while loads read: importing torch takes seconds.

A process that forks or exits first waits for these threads, because a module that is half imported
would hang a child, and may crash the exit.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from tload import _tload
from tload._errors import CancelledError, LoadTimeoutError, advise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType

    from tload.typing import Duration

EXIT_SECONDS = 5.0
"""Seconds that the exit of the interpreter waits for an import to end: one that runs ends within
one, one that hangs must not hang the exit too."""

EXIT_POLL_SECONDS = 0.02
"""Seconds between two looks whether an import that is to end has swallowed the exception."""

_threads: set[threading.Thread] = set()


def are_missing(modules: Iterable[str]) -> bool:
    """Return whether some of the modules are installed and not imported yet."""
    if threading.current_thread() in _threads:
        # The framework itself calls tload while it is imported, and must not wait for itself.
        return False
    # While a thread imports them, they may be in `sys.modules`, and unusable.
    return bool(_threads) or any(name not in sys.modules and importlib.util.find_spec(name) for name in modules)


def _is_importing() -> bool:
    """Return whether this thread executes a module that it imports.

    Then it holds the lock of that module, which another thread that imports the same module, as
    torch does with its backends, waits for: it must not wait for that thread.
    """
    frame: FrameType | None = sys._getframe()  # noqa: SLF001  # in every Python that the wheel is for
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


class BackgroundImport:
    """Call that imports a framework, on a thread of its own.

    Neither Ctrl-C nor a deadline can end an import: they end the wait for it.
    """

    def __init__(self, framework: str, call: Callable[[], object], timeout: Duration | None) -> None:
        """Start `call`, which imports `framework`. It may take `timeout`."""
        # It takes milliseconds to import, and most loads do not need it.
        from concurrent.futures import Future

        self.framework = framework
        self._timeout = None if timeout is None else _tload.seconds("timeout", timeout)
        self._began = time.monotonic()
        self._ended: float | None = None
        self._future: Future[object] = Future()
        if _is_importing():
            self._run(call)
            return
        thread = threading.Thread(target=self._run, args=(call,), name="tload-import", daemon=True)
        _threads.add(thread)
        try:
            thread.start()
        except RuntimeError:
            # The interpreter is exiting, or the system allows no more threads.
            _threads.discard(thread)
            self._run(call)

    @property
    def seconds(self) -> float:
        """Seconds that the import took, or has taken so far."""
        return (time.monotonic() if self._ended is None else self._ended) - self._began

    @property
    def seconds_since(self) -> float:
        """Seconds since the import ended; 0 while it runs."""
        return 0.0 if self._ended is None else time.monotonic() - self._ended

    @property
    def is_done(self) -> bool:
        """`True` once `result` does not wait."""
        return self._future.done()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the import ends, for `seconds` at most. Return whether it has ended.

        Raises `LoadTimeoutError` if the timeout has passed.
        """
        left = self.seconds_left()
        waits = [each for each in (seconds, left) if each is not None]
        with contextlib.suppress(TimeoutError):
            self._future.exception(min(waits, default=None))
        if not self.is_done and left is not None and self.seconds_left() == 0.0:
            message = f"the load took longer than its timeout of {self._timeout:g} s; {self.state()}"
            raise advise(LoadTimeoutError, message, f"import {self.framework} before the load, or raise timeout")
        return self.is_done

    def state(self) -> str:
        """Return the state of an import that has not ended, in words."""
        return f"importing {self.framework} has taken {self.seconds:.1f} s and has not ended"

    def result(self) -> Any:
        """Wait until the import ends, and return what the call returned, or raise its exception.

        Raises `LoadTimeoutError` if the timeout passes, and `CancelledError` after `cancel`.
        """
        while not self.wait():
            pass
        return self._future.result()

    def seconds_left(self) -> float | None:
        """Return the seconds until the timeout passes, or `None` without one."""
        return None if self._timeout is None else max(self._began + self._timeout - time.monotonic(), 0.0)

    def cancel(self) -> None:
        """End the wait for the import with a `CancelledError`. The import goes on."""
        if self._ended is None:
            self._ended = time.monotonic()
        self._settle(self._future.set_exception, CancelledError("the load was cancelled"))

    def on_end(self, callback: Callable[[], object]) -> None:
        """Call `callback` when the wait for the import ends, on the thread that ends it."""
        self._future.add_done_callback(lambda _: callback())

    def _run(self, call: Callable[[], object]) -> None:
        settle: Callable[[Any], None] = self._future.set_result
        value: object
        try:
            value = call()
        except BaseException as error:  # noqa: BLE001  # raised by `result`
            settle, value = self._future.set_exception, error
        if self._ended is None:
            self._ended = time.monotonic()
        _threads.discard(threading.current_thread())
        self._settle(settle, value)

    def _settle(self, settle: Callable[[Any], None], value: object) -> None:
        from concurrent.futures import InvalidStateError

        # Whichever comes first, the end of the import or `cancel`, determines the result.
        with contextlib.suppress(InvalidStateError):
            settle(value)


def _wait_for_imports() -> None:
    for thread in _threads - {threading.current_thread()}:
        # One that has not started yet imports nothing.
        with contextlib.suppress(RuntimeError):
            thread.join()


def _end_imports() -> None:
    """End imports that are still running, as Ctrl-C ends those of the main thread."""
    threads = list(_threads)
    if not threads:
        return
    swallowed: set[threading.Thread] = set()
    show = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        thread = threading.current_thread()
        if unraisable.exc_type is SystemExit and thread in threads:
            swallowed.add(thread)
        else:
            show(unraisable)

    sys.unraisablehook = hook
    try:
        for thread in threads:
            _end(thread, swallowed)
    finally:
        sys.unraisablehook = show


def _end(thread: threading.Thread, swallowed: set[threading.Thread]) -> None:
    """Raise `SystemExit` in a thread and wait until it ends, for `EXIT_SECONDS` at most."""
    import ctypes

    deadline = time.monotonic() + EXIT_SECONDS
    swallowed.add(thread)
    while thread.is_alive() and time.monotonic() < deadline:
        # A callback of a weak reference, such as importlib's for the lock of each module, and a
        # finalizer cannot pass the exception on: it is raised again.
        if thread in swallowed:
            swallowed.discard(thread)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
        thread.join(EXIT_POLL_SECONDS)


# In a forked process, the thread that imports a module does not exist, so that every import of the
# module would wait for it forever.
os.register_at_fork(before=_wait_for_imports, after_in_child=_threads.clear)
atexit.register(_end_imports)
