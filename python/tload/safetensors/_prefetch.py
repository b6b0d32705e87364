"""Tensors that are loaded in the background and returned once each.

They are taken by name, or in order of arrival.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tload.safetensors._errors import SafetensorError
from tload.safetensors._frameworks import device_of
from tload.safetensors._index import strict

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from tload.safetensors._index import Basic
    from tload.safetensors._source import Opened


class PrefetchLoader:
    """Tensors being loaded. Made by `safe_open.prefetch`, and independent of its handle.

    Thread-safe. Tensors that arrive while a caller waits for another one are kept until they are
    taken.
    """

    __slots__ = ("_arrived", "_changed", "_failure", "_is_closed", "_names", "_receiver", "_stream", "_waiting")

    def __init__(self, opened: Opened, plan: Mapping[str, Any] | None, device: object, threads: object) -> None:
        """Check the plan and start to read."""
        if isinstance(threads, bool) or not isinstance(threads, int):
            raise TypeError(f"threads: wanted an int, found {type(threads).__qualname__}")
        if device is not None:
            opened = opened.moved_to(device_of(device, opened.framework))
        indices = read_plan(opened, plan)
        self._names = dict.fromkeys(indices)
        self._waiting = {*indices}
        self._arrived: dict[str, Any] = {}
        self._failure: Exception | None = None
        # Identifier of the thread that receives, if one does.
        self._receiver: int | None = None
        self._is_closed = False
        self._changed = threading.Condition()
        self._stream = opened.stream(indices)

    def names(self) -> list[str]:
        """Return the names of all planned tensors, in file order."""
        return [*self._names]

    def __len__(self) -> int:
        return len(self._names)

    def take(self, name: str) -> Any:
        """Return a tensor, waiting until it is loaded.

        Each tensor can be taken once, by this method or by iterating.

        Raises:
            SafetensorError: The tensor is not in the plan or has been taken, or the loader is
                closed.
            tload.Error: The load failed.
        """
        if name not in self._names:
            raise SafetensorError(f"{name} is not in the prefetch plan")
        found = self._wait_for(name)
        if found is None:
            raise SafetensorError(
                f"{name}: tensor already delivered (prefetch hands each tensor out once, via take or iteration)"
            )
        return found[1]

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Yield names with tensors as they arrive, except tensors that have been taken."""
        while (found := self._wait_for(None)) is not None:
            yield found

    def close(self) -> None:
        """Stop reading and free tensors that were not taken. Those that were taken stay valid."""
        with self._changed:
            self._is_closed = True
            self._stream.cancel()
            self._changed.notify_all()
            # Tensors that another thread waits for must not be freed. A signal handler may close
            # on the thread that receives, which goes on only after it.
            ended = (None, threading.get_ident())
            self._changed.wait_for(lambda: self._receiver in ended)
            self._arrived.clear()
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self._is_closed else ""
        left = len(self._waiting) + len(self._arrived)
        return f"<tload.safetensors.PrefetchLoader: {left} of {len(self._names)} tensors to take{state}>"

    def _wait_for(self, name: str | None) -> tuple[str, Any] | None:
        """Return the tensor of a name, or the first to arrive.

        `None` if that tensor, or every tensor, has been taken.
        """
        while True:
            with self._changed:
                # One thread receives for all threads.
                self._changed.wait_for(lambda: self._is_settled(name) or self._receiver is None)
                if self._is_closed:
                    raise SafetensorError("prefetch loader closed")
                first = next(iter(self._arrived), None) if name is None else name
                if first in self._arrived:
                    return first, self._arrived.pop(first)
                if not self._waiting if name is None else name not in self._waiting:
                    return None
                if self._failure is not None:
                    raise self._failure
                self._receiver = threading.get_ident()
            self._receive()

    def _is_settled(self, name: str | None) -> bool:
        if self._is_closed or self._failure is not None:
            return True
        if name is None:
            return bool(self._arrived) or not self._waiting
        return name in self._arrived or name not in self._waiting

    def _receive(self) -> None:
        arrived: tuple[str, Any] | None = None
        failure: Exception | None = SafetensorError("prefetch loader interrupted")
        try:
            arrived, failure = next(self._stream), None
        except Exception as error:  # noqa: BLE001  # a waiting thread raises it
            failure = error
        finally:
            with self._changed:
                self._receiver = None
                self._failure = self._failure or failure
                if arrived is not None:
                    self._waiting.discard(arrived[0])
                    self._arrived[arrived[0]] = arrived[1]
                self._changed.notify_all()


def read_plan(opened: Opened, plan: Mapping[str, Any] | None) -> dict[str, Basic | None]:
    """Return the planned names in file order, with their indices (`None`: the whole tensor)."""
    if plan is None:
        plan = dict.fromkeys(opened.checkpoint)
    if not isinstance(plan, Mapping):
        raise TypeError(f"plan: wanted a mapping of names to None or an index, found {type(plan).__qualname__}")
    indices: dict[str, Basic | None] = {}
    for name, index in plan.items():
        if not isinstance(name, str):
            raise SafetensorError("prefetch plan keys must be tensor names")
        info = opened.info(name)
        opened.check_dtypes([info])
        try:
            indices[name] = None if index is None else strict(index, info.shape)
        except SafetensorError as error:
            raise SafetensorError(f"prefetch plan for {name}: {error}") from error
    if not indices:
        raise SafetensorError("prefetch plan selects no tensors")
    return {name: indices[name] for name in opened.checkpoint if name in indices}
