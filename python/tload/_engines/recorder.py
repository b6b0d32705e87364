"""Records which memory of a model's parameters is written while an engine loads weights.

Engines copy a tensor, or a part of it, into a part of a parameter with `Tensor.copy_`, from any
thread. That method is replaced for the duration of the load, which costs less than a microsecond for
each call. A `TorchDispatchMode` would see more, but not other threads, and would cost ten times as
much.

Loads may overlap, in threads, and end in any order. The replacement is therefore one for all
recorders: it comes with the first and goes with the last.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from tload._engines.coverage import Columns, Parameter, Writes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Self

Describe: TypeAlias = Callable[[str, torch.Tensor], dict[str, Any]]
"""Returns the fields of a `Parameter` that an engine knows, for a parameter and its name."""

FILLING = ("copy_", "fill_", "zero_", "index_copy_", "index_put_", "masked_scatter_", "scatter_")
"""Methods that write to the tensor that they are called on."""

VIRTUAL = 1 << 64
"""First address for parameters on the device `meta`, which have none. Real ones are smaller."""


class Recorder:
    """Records the writes to parameters of a model within a `with` block."""

    def __init__(self, parameters: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Note where the parameters are."""
        self.handed: list[str] = []
        """Names of the tensors that were handed over, in that order."""
        # Holding the parameters keeps their addresses from being used again.
        self._places: list[tuple[str, torch.Tensor, int]] = []
        self._virtual: dict[int, int] = {}
        following = VIRTUAL
        for name, parameter in parameters:
            if not _has_storage(parameter):
                continue
            address = parameter.data_ptr()
            if parameter.is_meta:
                storage = parameter.untyped_storage()
                if storage._cdata not in self._virtual:  # noqa: SLF001
                    self._virtual[storage._cdata] = following  # noqa: SLF001
                    following += storage.nbytes()
                address = self._virtual[storage._cdata] + int(parameter.storage_offset()) * parameter.itemsize  # noqa: SLF001
            self._places.append((name, parameter, address))
        self._simple = array("Q")
        """Address, length, and number of names that were handed over, of each contiguous write."""
        self._others: list[tuple[int, int, Sequence[int], Sequence[int], int, int]] = []

    def watch(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the weights, and note their names."""
        note = self.handed.append
        for weight in weights:
            note(weight[0])
            yield weight

    def parameters(self, now: Iterable[tuple[str, torch.Tensor]], describe: Describe) -> Iterator[Parameter]:
        """Yield the parameters that can be judged: not those that were given other memory meanwhile.

        Args:
            now: The parameters of the model after the load.
            describe: Returns the fields of a `Parameter` that engines know.
        """
        kept = {id(parameter) for _, parameter in now}
        for name, parameter, address in self._places:
            # The engine puts others in the place of those on `meta`, and copies into them itself.
            if not parameter.is_meta and (id(parameter) not in kept or parameter.data_ptr() != address):
                continue
            if _is_dense(parameter):
                yield Parameter(name, address, parameter.nbytes, **describe(name, parameter))

    def writes(self) -> Writes:
        """Return what was written."""
        starts, sizes = list(self._simple[::3]), list(self._simple[1::3])
        tensors = [handed - 1 for handed in self._simple[2::3]]
        made = Writes(starts, sizes, tensors, [])
        for address, storage, shape, strides, itemsize, tensor in self._others:
            base = address
            if storage:
                if storage not in self._virtual:
                    continue
                base += self._virtual[storage]
            writes_of(made, base, shape, strides, itemsize, tensor)
        return made

    def __enter__(self) -> Self:
        _replacement.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        _replacement.remove(self)

    def note(self, target: torch.Tensor) -> None:
        """Note that a tensor was written to."""
        try:
            if target.is_contiguous() and not target.is_meta:
                # One call, so that writes of other threads are not mixed with it.
                self._simple.extend((target.data_ptr(), target.nbytes, len(self.handed)))
            else:
                self._note_other(target)
        except RuntimeError:  # it has no memory of its own
            pass

    def _note_other(self, target: torch.Tensor) -> None:
        address, storage = target.data_ptr(), 0
        if target.is_meta:
            storage = target.untyped_storage()._cdata  # noqa: SLF001
            address = int(target.storage_offset()) * target.itemsize
        at = len(self.handed) - 1
        self._others.append((address, storage, tuple(target.shape), target.stride(), target.itemsize, at))


class _Replacement:
    """The methods that write, replaced while there are recorders."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recorders: tuple[Recorder, ...] = ()
        self._plain: dict[str, Any] = {}
        """Entries of the class before they were replaced; `None` for an inherited method."""
        self._ours: dict[str, Any] = {}
        self._foreach: Any = None
        self._our_foreach: Any = None

    def add(self, recorder: Recorder) -> None:
        with self._lock:
            if not self._recorders:
                self._install()
            self._recorders = (*self._recorders, recorder)

    def remove(self, recorder: Recorder) -> None:
        with self._lock:
            self._recorders = tuple(each for each in self._recorders if each is not recorder)
            if not self._recorders:
                self._uninstall()

    def _install(self) -> None:
        for name in (*FILLING, "__setitem__"):
            self._plain[name] = torch.Tensor.__dict__.get(name)
            plain = getattr(torch.Tensor, name)
            self._ours[name] = (self._setting if name == "__setitem__" else self._writing)(plain)
            setattr(torch.Tensor, name, self._ours[name])
        self._foreach = torch._foreach_copy_
        self._our_foreach = torch._foreach_copy_ = self._copying(self._foreach)

    def _uninstall(self) -> None:
        # A replacement of this one stays, and calls it: without recorders it does nothing.
        if torch._foreach_copy_ is self._our_foreach:
            torch._foreach_copy_ = self._foreach
        for name, plain in self._plain.items():
            if torch.Tensor.__dict__.get(name) is not self._ours[name]:
                continue
            if plain is None:
                delattr(torch.Tensor, name)
            else:
                setattr(torch.Tensor, name, plain)

    def _note(self, target: torch.Tensor) -> None:
        for recorder in self._recorders:
            recorder.note(target)

    def _writing(self, plain: Any) -> Any:
        note = self._note
        hooks = torch._C._len_torch_function_stack  # noqa: SLF001

        def write(target: torch.Tensor, *arguments: Any, **keywords: Any) -> Any:
            result = plain(target, *arguments, **keywords)
            # Engines load within `torch.device`, a hook that calls this method once more.
            if not hooks():
                note(target)
            return result

        return write

    def _setting(self, plain: Any) -> Any:
        def set_item(target: torch.Tensor, index: Any, value: Any) -> None:
            plain(target, index, value)
            parts = index if isinstance(index, tuple) else (index,)
            basic = all(part is None or part is Ellipsis or isinstance(part, (int, slice)) for part in parts)
            # Other indices select anything: the whole tensor counts as written.
            with suppress(RuntimeError):
                self._note(target[index] if basic else target)

        return set_item

    def _copying(self, plain: Any) -> Any:
        def copy_all(targets: Any, sources: Any, *arguments: Any, **keywords: Any) -> Any:
            result = plain(targets, sources, *arguments, **keywords)
            for target in targets:
                self._note(target)
            return result

        return copy_all


_replacement = _Replacement()


def _has_storage(parameter: torch.Tensor) -> bool:
    try:
        return parameter.numel() > 0 and parameter.data_ptr() is not None
    except (AttributeError, NotImplementedError, RuntimeError, ValueError):
        return False  # not made yet, or not one tensor


def _is_dense(parameter: torch.Tensor) -> bool:
    """Return whether the elements lie next to each other, in any order."""
    expected = 1
    for size, stride in sorted(zip(parameter.shape, parameter.stride(), strict=True), key=lambda each: each[1]):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def writes_of(  # noqa: PLR0917
    made: Writes, address: int, shape: Sequence[int], strides: Sequence[int], itemsize: int, tensor: int
) -> None:
    """Add the writes of a tensor with these strides in memory."""
    for write in _columns(address, shape, strides, itemsize, tensor):
        if write.count == 1:
            made.starts.append(write.start)
            made.sizes.append(write.run)
            made.tensors.append(tensor)
        else:
            made.columns.append(write)


def _columns(
    address: int, shape: Sequence[int], strides: Sequence[int], itemsize: int, tensor: int
) -> Iterator[Columns]:
    """Split a tensor into writes of equal runs at equal distances."""
    if 0 in shape:
        return
    run = 1
    rest: list[tuple[int, int]] = []
    # From the innermost dimension on, those without holes make the run longer.
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape, strict=True) if size > 1):
        if not rest and stride == run:
            run *= size
        else:
            rest.append((stride, size))
    pitch, count = rest[0] if rest else (0, 1)
    for at in _offsets(rest[1:]):
        yield Columns(address + at * itemsize, run * itemsize, pitch * itemsize, count, tensor)


def _offsets(dimensions: Sequence[tuple[int, int]]) -> Iterator[int]:
    if not dimensions:
        yield 0
        return
    stride, size = dimensions[-1]
    for at in range(size):
        for inner in _offsets(dimensions[:-1]):
            yield at * stride + inner
