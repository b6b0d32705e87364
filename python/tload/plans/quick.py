"""Views of parameters while a loader is recorded, made without a call of the recorder.

A loader makes several views of a parameter for each tensor that it copies there. They neither read
nor write memory, so there is nothing to note, but each call of the recorder takes ten times as long
as the view.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NAMES = ("__getitem__", "narrow", "select")
"""Methods that make views if all their arguments are integers. The property `data` makes one too."""

_PLAIN = torch.Tensor, torch.nn.Parameter
"""Classes without hooks of their own. Others may do anything for a view."""

_lock = threading.Lock()
_threads: list[int] = []
"""Threads that record, with an entry for each recording."""
_before: dict[str, Any] = {}
"""Entries of the class of tensors while they are replaced; `None` for what it inherits."""


@contextlib.contextmanager
def views() -> Iterator[None]:
    """Make views of parameters on this thread past all modes of torch."""
    with _lock:
        if not _threads:
            _install()
        _threads.append(threading.get_ident())
    try:
        yield
    finally:
        with _lock:
            _threads.remove(threading.get_ident())
            if not _threads:
                _uninstall()


def _install() -> None:
    plain: Any = torch.Tensor.data
    replaced: dict[str, Any] = {name: _viewing(getattr(torch.Tensor, name)) for name in NAMES}
    replaced["data"] = property(_viewing(plain.__get__), plain.__set__)
    for name, one in replaced.items():
        _before[name] = torch.Tensor.__dict__.get(name)
        setattr(torch.Tensor, name, one)


def _uninstall() -> None:
    for name, before in _before.items():
        if before is None:
            delattr(torch.Tensor, name)
        else:
            setattr(torch.Tensor, name, before)
    _before.clear()


def _viewing(plain: Callable[..., Any]) -> Callable[..., Any]:
    def view(tensor: Any, *arguments: Any, **keywords: Any) -> Any:
        if type(tensor) not in _PLAIN or keywords or threading.get_ident() not in _threads:
            return plain(tensor, *arguments, **keywords)
        for each in arguments:
            # A bool is an index of another kind.
            if type(each) is not int:
                return plain(tensor, *arguments)
        with torch._C._DisableTorchDispatch():  # noqa: SLF001
            return plain(tensor, *arguments)

    return view
