"""Temporary replacement of the safetensors package's readers in other libraries."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import threading
from contextlib import ContextDecorator, ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from tload._report.readers import Counts, readers
from tload.report import PatchReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType, TracebackType

LIBRARIES = ("transformers", "accelerate", "diffusers")
"""Libraries whose imported modules are all patched."""

MODULES = ("transformers.modeling_utils", "accelerate.utils.modeling")
"""Modules of these libraries that read checkpoints. They are imported first, if possible."""

READERS = {
    "": ("safe_open",),
    ".torch": ("load", "load_file", "load_model"),
    ".numpy": ("load", "load_file"),
    ".flax": ("load", "load_file"),
}
"""Functions and classes to replace, by module of the package."""

_replaced: list[tuple[ModuleType, str, Any, Any]] = []
_before = Counts()
_last: PatchReport | None = None
_logger = logging.getLogger("tload")


class SharedChange:
    """Change to the process that lasts while at least one block of any thread is active."""

    def __init__(self, make: Callable[[], None], undo: Callable[[], None]) -> None:
        """Prepare the change.

        Args:
            make: Called at the beginning of each block. What is changed already stays so.
            undo: Called at the end of the last active block.
        """
        self._make = make
        self._undo = undo
        self._active = 0
        self._renew()
        if hasattr(os, "register_at_fork"):
            # The thread that holds the lock does not exist in the child.
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()

    @property
    def is_active(self) -> bool:
        """`True` while a block is active."""
        return self._active > 0

    @property
    def is_first(self) -> bool:
        """`True` in `make` if no other block is active."""
        return self._active == 1

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Make the change for a block."""
        with self._lock:
            self._active += 1
            try:
                self._make()
            except BaseException:
                self._leave()
                raise
        try:
            yield
        finally:
            with self._lock:
                self._leave()

    def _leave(self) -> None:
        self._active -= 1
        if not self._active:
            self._undo()


class patch(ContextDecorator):  # noqa: N801  # used like a function
    """Let transformers, accelerate and diffusers read safetensors files with tload in a block.

    In their modules, `safe_open`, `load_file`, `load` and `load_model` of the safetensors package
    are replaced by those of `tload.safetensors`, and references to the package itself by
    `tload.safetensors`. The package is unchanged, and so are all other libraries, modules that are
    imported later, and functions that import the package when they run. Your own calls of safetensors
    are not replaced: import from `tload.safetensors` there. At the end of the outermost block of the
    process, however it ends, everything is restored; attributes that other code has replaced in the
    meantime are left alone.

    transformers and accelerate are imported if they are installed, diffusers is not.

    The block yields the replaced attributes, as `module.name`: none if neither the package nor one of
    the libraries is installed. `tload.patch.report()` tells what was read; the end of the block logs
    it at level `INFO`, and each file that is opened at level `DEBUG`.

    Examples:
        >>> with tload.patch():
        ...     model = AutoModelForCausalLM.from_pretrained("model_dir")
        >>> print(tload.patch.report())
        1 file opened, 39 tensors: 6.4 MiB as views of mapped files
    """

    def __init__(self) -> None:
        """Prepare a block. It begins with `with`."""
        self._blocks: list[ExitStack] = []

    def __enter__(self) -> tuple[str, ...]:
        """Replace the readers, and return the replaced attributes."""
        with ExitStack() as stack:
            stack.enter_context(_readers())
            replaced = _names()
            self._blocks.append(stack.pop_all())
        return replaced

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Restore the readers at the end of the outermost block."""
        self._blocks.pop().__exit__(kind, error, traceback)

    @staticmethod
    def report() -> PatchReport:
        """Return what was opened and read in the outermost block: the active or the last one.

        Other uses of `tload.safetensors` at the same time are counted too.

        Examples:
            >>> tload.patch.report().viewed_tensors
            39
        """
        return _report() if _readers.is_active or _last is None else _last


def _names() -> tuple[str, ...]:
    return tuple(f"{module.__name__}.{name}" for module, name, _, _ in _replaced)


def _report() -> PatchReport:
    counts = readers.counts().since(_before)
    return PatchReport(
        replaced=_names(),
        files=readers.files(),
        opened=counts.opened,
        viewed_tensors=counts.viewed_tensors,
        viewed_bytes=counts.viewed_bytes,
        read_tensors=counts.read_tensors,
        read_bytes=counts.read_bytes,
    )


def _restore() -> None:
    global _last  # noqa: PLW0603
    _last = _report()
    _logger.info("patch: %s", _last)
    while _replaced:
        module, name, theirs, ours = _replaced.pop()
        if vars(module).get(name) is ours:
            setattr(module, name, theirs)


def _replace() -> None:
    global _before  # noqa: PLW0603
    if _readers.is_first:
        readers.forget_files()
        _before = readers.counts()
    for name in MODULES:
        # A module that cannot be imported reads nothing.
        with suppress(Exception):
            importlib.import_module(name)
    substitutes = _substitutes()
    for name, module in [*sys.modules.items()]:
        if name.partition(".")[0] not in LIBRARIES or module is None:
            continue
        # By identity, whatever the name it was imported under; and without `getattr`, which would
        # import lazy modules.
        for key, value in [*vars(module).items()]:
            ours = substitutes.get(id(value))
            if ours is not None:
                _replaced.append((module, key, value, ours))
                setattr(module, key, ours)


def _substitutes() -> dict[int, Any]:
    """Return the substitutes, by the identity of the objects that they replace."""
    substitutes: dict[int, Any] = {}
    for suffix, names in READERS.items():
        theirs = sys.modules.get(f"safetensors{suffix}")
        if theirs is None:
            continue  # Then no module has a reference to it.
        ours = importlib.import_module(f"tload.safetensors{suffix}")
        substitutes[id(theirs)] = ours
        substitutes.update({id(getattr(theirs, name)): getattr(ours, name) for name in names if hasattr(theirs, name)})
    return substitutes


_readers = SharedChange(_replace, _restore)
