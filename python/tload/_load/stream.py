"""Stream of tensors: an iterator that yields them as they arrive."""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from tload import _tload
from tload._errors import InvalidRequestError, LoadTimeoutError
from tload._report import log, spans
from tload._report.decode import import_wait, read_report
from tload._report.progress import INTERVAL, Progress, Watcher
from tload._sources.entries import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from tload._load.event_loop import Waiter
    from tload._tensors.conversion import Conversion
    from tload._tensors.imports import BackgroundImport
    from tload.report import Report

T = TypeVar("T")

_logger = logging.getLogger("tload")
_noted: set[str] = set()


class TensorStream(Generic[T]):
    """Iterator of `(name, tensor)` that reads ahead of the caller. Made by `tload.stream`.

    The caller owns a tensor once it is yielded: its memory is valid as long as it is referenced,
    whatever the stream does next. Leaving a `with` block, `close`, or dropping the stream stops the
    reading.

    An error ends the stream. Tensors that were yielded before it stay valid.

    In an event loop, `async for name, tensor in stream` waits without blocking the loop, and
    without a thread. Cancelling a task that waits loses no tensor: the stream continues until it is
    closed or dropped.
    """

    def __init__(
        self,
        raw: _tload.Stream,
        convert: Callable[[_tload.Tensor], T] | None,
        watcher: Watcher | None,
        importing: BackgroundImport | None = None,
        changes: Conversion | None = None,
    ) -> None:
        """Wrap the stream that `tload.stream` started.

        `convert` makes the framework's tensors; if it is `None`, it is the result of `importing`.
        `changes` are those that it makes to their dtypes.
        """
        self._raw = raw
        self._convert = convert
        self._watcher = watcher
        self._importing = importing
        self._import_wait = 0.0
        self._changes = changes
        self._watched = time.monotonic()
        self._ended = False
        self._waiter: Waiter | None = None
        self._closed = False
        self._told = False

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        """Tensors of the load, by file, then by offset.

        With `order="file"` they arrive in this order. Dtypes are those of the file.
        """
        return tuple(map(TensorInfo._make, self._raw.tensors()))

    @property
    def progress(self) -> Progress:
        """Current progress of the load."""
        return Progress(*self._raw.progress())

    @property
    def report(self) -> Report:
        """Report of the load so far; final once the stream has ended."""
        report = read_report(*self._raw.report(), self._importing, self._import_wait)
        return report if self._changes is None else self._changes.told(report)

    def cancel(self) -> None:
        """Stop reading. May be called from any thread.

        A thread or task that waits for the next tensor promptly gets a `CancelledError`.
        """
        self._raw.cancel()
        if self._importing is not None:
            self._importing.cancel()

    def close(self) -> None:
        """Stop reading and free tensors that were not yielded.

        `report` and `progress` remain available.
        """
        self._raw.close()
        if self._importing is not None:
            self._importing.cancel()
        self._closed = True
        try:
            if self._watcher is not None:
                watcher, self._watcher = self._watcher, None
                watcher.close()
        finally:
            # Log lines appear below the bar, not in it.
            self._tell()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[str, T]:
        if self._ended:
            raise StopIteration
        try:
            convert = self._convert or self._await_converter()
            tensor = self._raw.receive(None) if self._watcher is None else self._receive(self._watcher)
            converted = convert(tensor)
        except StopIteration:
            self._end()
            raise
        except BaseException:
            self._fail()
            raise
        return tensor.name, converted

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[str, T]:
        from tload._load import event_loop

        if self._ended:
            raise StopAsyncIteration
        if self._waiter is None:
            self._waiter = event_loop.Waiter(self._raw)
        self._waiter.refuse_a_second()
        try:
            if self._convert is None and self._importing is not None:
                await self._waiter.ready(self._importing)
                self._await_converter()
            tensor = await self._waiter.receive()
        except StopAsyncIteration:
            self._end()
            raise
        except event_loop.GIVES_UP:
            raise
        except BaseException:
            self._fail()
            raise
        try:
            if self._watcher is not None:
                self._look(self._watcher)
            convert = self._convert or self._await_converter()
            return tensor.name, convert(tensor)
        except BaseException:
            self._fail()
            raise

    def __len__(self) -> int:
        """Return the number of tensors of the load, however many have been received."""
        return self.progress.tensors_total

    def __reduce__(self) -> tuple[Any, ...]:
        message = (
            "cannot pickle or copy a tload.TensorStream, which belongs to its process: pass the location or an open "
            "Checkpoint, and call tload.stream in the other process"
        )
        raise TypeError(message)

    def __repr__(self) -> str:
        try:
            progress = self.progress
        except InvalidRequestError:
            return "<tload.TensorStream of another process>"
        received = _tload.format_bytes(progress.bytes_received)
        total = _tload.format_bytes(progress.bytes_total)
        state = "ended" if self._ended else "closed" if self._closed else "running"
        return (
            f"<tload.TensorStream {state}: {progress.tensors_received} of {progress.tensors_total} tensors, "
            f"{received} of {total} received>"
        )

    def _receive(self, watcher: Watcher) -> _tload.Tensor:
        while True:
            due = self._watched + INTERVAL - time.monotonic()
            tensor = self._raw.receive(max(due, 0.0))
            self._look(watcher)
            if tensor is not None:
                return tensor

    def _await_converter(self) -> Callable[[_tload.Tensor], T]:
        if self._closed:
            self._raw.receive(0.0)  # raises
        # Without an import, the converter is there from the start.
        importing = cast("BackgroundImport", self._importing)
        while self._watcher is not None and not importing.wait(INTERVAL):
            self._look(self._watcher)
        convert: Callable[[_tload.Tensor], T] = importing.result()
        self._convert = convert
        self._import_wait = import_wait(self._raw.report()[0], self.progress) - importing.seconds_since
        return convert

    def _collect(self) -> dict[str, T]:
        """Receive all tensors, in batches: one by one takes as long as it takes to convert them.

        Those that arrive before the framework is imported are converted later. The result is in the
        order of the files.
        """
        received: list[_tload.Tensor] = []
        # Each tensor takes the place of its name, in whatever order they arrive.
        converted = cast("dict[str, T]", dict.fromkeys(self._raw.names()))
        importing = self._importing if self._convert is None else None
        while True:
            try:
                received += self._raw.receive_several()
            except StopIteration:
                break
            except LoadTimeoutError as error:
                if importing is not None and not importing.is_done:
                    # Reads are late too.
                    error.add_note(importing.state())
                raise
            if self._watcher is not None:
                self._look(self._watcher)
            if importing is None or importing.is_done:
                convert = self._convert or self._await_converter()
                _convert_all(received, convert, converted)
        _convert_all(received, convert=self._convert or self._await_converter(), converted=converted)
        self._end()
        return converted

    def _look(self, watcher: Watcher) -> None:
        if time.monotonic() - self._watched >= INTERVAL:
            self._watched = time.monotonic()
            watcher.update(self.progress)

    def _end(self) -> None:
        self._ended = True
        try:
            if self._watcher is not None:
                self._watcher.update(self.progress)
        finally:
            self.close()

    def _tell(self) -> None:
        """Log the report once, when there is one.

        There is none in a forked process, or if a signal handler closes the stream during an
        allocation of GPU memory: the load then fails, and closes it again.
        """
        if self._told:
            return
        _tload.forward_events()
        with contextlib.suppress(InvalidRequestError):
            report = self.report
            self._told = True
            log_notes(report)
            log.log_end(report)
            if report.cache is not None:
                log.follow()
            spans.emit(report)

    def _fail(self) -> None:
        # A failed iterator is finished: no reads continue behind the traceback.
        self._ended = True
        self.close()


def _convert_all(received: list[_tload.Tensor], convert: Callable[[_tload.Tensor], T], converted: dict[str, T]) -> None:
    """Convert tensors, and drop each: a dtype that changes takes other memory."""
    received.reverse()
    while received:
        tensor = received.pop()
        converted[tensor.name] = convert(tensor)


def log_notes(report: Report) -> None:
    """Log the notes of a report, each once per process."""
    for note in report.notes:
        if note not in _noted:
            _noted.add(note)
            _logger.warning("%s", note)
