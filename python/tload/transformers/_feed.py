"""Tensors by name, from streams in the order in which they are expected to be requested.

A checkpoint has its tensors in file order, but loaders of models request them in another order: the
last tensor of the last file may come first. Streaming file by file would then keep all tensors
before it in memory. So the remaining tensors are cut into windows, in the order in which they are
expected to be requested, and each window is a stream of its own; the next one already runs while
one is received.

A requested tensor is always returned next, whatever the expected order was. So a wrong guess is
slow but never wrong, and callers only wait for storage. Memory is bounded by dropping tensors that
have not been requested: if one is requested later, it is read again.

In a group, every window is a load of all ranks. They start all of them in the same order, also
those of which a rank requests nothing.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from tload._errors import CancelledError
from tload._load.into import load_into
from tload._load.load import stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import torch

    from tload._checkpoint.checkpoint import Checkpoint
    from tload._load.stream import TensorStream
    from tload._options.load_options import Options
    from tload._ranks.group import Group
    from tload.typing import Index

WINDOW_BYTES = 512 << 20
"""Bytes of a window, unless one tensor is larger: as much as a load reads ahead by default, so that
the next window can be complete when one has been received."""

WINDOWS_RUNNING = 2
"""Concurrent windows: one that is received, and one that reads ahead."""

WAITING_BYTES_MAX = 2 * WINDOW_BYTES
"""Maximum bytes of received tensors that wait to be requested. Two windows: if the order of windows
is right, whatever the order within them, nothing is read twice."""


class Feed:
    """Returns each tensor of a checkpoint on request. Thread-safe."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        names: Sequence[str],
        read: Callable[[str], torch.Tensor],
        *,
        device: str,
        device_map: Mapping[str, str],
        options: Options | None,
        group: Group | None = None,
    ) -> None:
        """Prepare to stream the tensors with these names in this order.

        Args:
            checkpoint: The open checkpoint. It must stay open.
            names: All tensors that may be requested, in the expected order.
            read: Reads one tensor that is requested a second time, or after it was dropped.
            device: Device of the tensors: see `tload.stream`.
            device_map: Devices by module: see `tload.stream`.
            options: Limits and preferences of each stream.
            group: The ranks that make the same feed.
        """
        self._checkpoint = checkpoint
        self._read = read
        self._device = device
        self._device_map = device_map
        self._options = options
        self._group = group
        # A group serves one load at a time.
        self._running_max = WINDOWS_RUNNING if group is None else 1
        self._divided: tuple[str, torch.Tensor] | None = None
        self._windows = deque(_windows(checkpoint, names))
        self._running: deque[tuple[set[str], TensorStream[torch.Tensor]]] = deque()
        self._waiting: dict[str, torch.Tensor] = {}
        self._waiting_bytes = 0
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        self._closed = False

    def take(self, name: str) -> torch.Tensor:
        """Return the tensor `name`, waiting until it is read.

        The caller owns it: the feed drops it.

        Raises:
            Error: Reading this tensor or an earlier one failed; or the feed is closed.
        """
        with self._lock:
            while name not in self._waiting:
                self._check()
                if not self._is_coming(name):
                    return self._read(name)
                try:
                    self._receive(name)
                except BaseException as error:
                    # Also on an interrupt: its stream has ended, so nothing must wait for it.
                    self._failure = error
                    raise
            tensor = self._waiting.pop(name)
            self._waiting_bytes -= tensor.nbytes
            return tensor

    def take_copy(self, name: str) -> torch.Tensor:
        """Return a copy of the tensor `name` that shares no memory with other ranks."""
        tensor = self.take(name)
        return tensor.clone() if tensor.is_cpu else tensor

    def take_part(self, name: str, index: Index) -> torch.Tensor:
        """Return a copy of a part of the tensor `name`. Other parts may be taken next."""
        # Another thread may replace or drop the tensor that is kept.
        divided = self._divided
        if divided is None or divided[0] != name:
            divided = self._divided = (name, self.take(name))
        return divided[1][index].clone()

    def finish(self) -> None:
        """Take part in the loads of the windows that are left: other ranks may need them."""
        if self._group is None:
            return
        with self._lock:
            while self._windows:
                for _, running in self._running:
                    running.close()
                self._running.clear()
                self._windows.popleft()
                load_into({}, self._checkpoint, strict=False, group=self._group, options=self._options)

    def close(self) -> None:
        """Stop reading. Current and later calls of `take` raise a `CancelledError`."""
        self._closed = True
        for _, running in tuple(self._running):
            running.cancel()
        with self._lock:
            for _, running in self._running:
                running.close()
            self._running.clear()
            self._windows.clear()
            self._waiting.clear()
            self._waiting_bytes = 0
            self._divided = None

    def _check(self) -> None:
        if isinstance(self._failure, Exception) and not self._closed:
            raise self._failure
        if self._failure is not None or self._closed:
            raise CancelledError(f"{self._checkpoint.location}: the load has ended") from self._failure

    def _is_coming(self, name: str) -> bool:
        """Return whether a stream will yield the tensor.

        Windows before its own are skipped, unless they already run or are loads of a group.
        """
        if any(name in names for names, _ in self._running):
            return True
        if not any(name in names for names in self._windows):
            return False
        while self._group is None and name not in self._windows[0]:
            # None of these tensors was requested during its turn, and may never be.
            # (`lm_head.weight` of an encoder, or a further layer for speculation, never is.)
            self._windows.popleft()
        return True

    def _receive(self, wanted: str) -> None:
        """Wait for the next tensor of the streams, and keep it."""
        while self._windows and len(self._running) < self._running_max:
            names = self._windows.popleft()
            running = stream(
                self._checkpoint,
                names=names,
                device=self._device,
                device_map=self._device_map or None,
                group=self._group,
                options=self._options,
            )
            self._running.append((names, running))
            if self._closed:
                # `close` may have looked for streams to cancel before this one was there.
                running.cancel()
        names, running = self._running[0]
        received = next(running, None)
        if received is None:
            self._running.popleft()
            return
        name, tensor = received
        names.discard(name)
        self._waiting[name] = tensor
        self._waiting_bytes += tensor.nbytes
        self._drop(wanted)

    def _drop(self, wanted: str) -> None:
        while self._waiting_bytes > WAITING_BYTES_MAX:
            oldest = next((name for name in self._waiting if name != wanted), None)
            if oldest is None:
                return
            self._waiting_bytes -= self._waiting.pop(oldest).nbytes


def _windows(checkpoint: Checkpoint, names: Sequence[str]) -> Iterator[set[str]]:
    window: list[str] = []
    window_bytes = 0
    for name in names:
        nbytes = checkpoint[name].nbytes
        if window and window_bytes + nbytes > WINDOW_BYTES:
            yield set(window)
            window, window_bytes = [], 0
        window.append(name)
        window_bytes += nbytes
    if window:
        yield set(window)
