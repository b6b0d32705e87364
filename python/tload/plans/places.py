"""Parameters and buffers of a module, by the memory that they are in."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch

from tload.plans.plan import DTYPES, Place, RefusedError, is_dense

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Owner(NamedTuple):
    """A parameter or buffer."""

    name: str
    tensor: torch.Tensor
    is_parameter: bool

    def is_all_memory(self) -> bool:
        """Return whether nothing else is in its storage."""
        return self.tensor.numel() * self.tensor.element_size() == self.tensor.untyped_storage().nbytes()


class Slots:
    """Parameters and buffers of all modules within a module, to put them back."""

    def __init__(self, module: torch.nn.Module) -> None:
        """Note the parameters and buffers."""
        self._known = [(each, dict(each._parameters), dict(each._buffers)) for each in module.modules()]  # noqa: SLF001

    def restore(self) -> None:
        """Put back those that were replaced."""
        for module, parameters, buffers in self._known:
            module._parameters.update(parameters)  # noqa: SLF001
            module._buffers.update(buffers)  # noqa: SLF001


class Owners:
    """Parameters and buffers of a module by storage.

    Tied ones are one: the first name stands for all.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        """Look up the parameters and buffers of `module`."""
        self._module = module
        self.by_storage: dict[int, list[Owner]] = {}
        self._names: dict[str, Owner] = {}
        self._alone: dict[int, Owner] = {}
        """Those that nothing shares the storage with, and that are all of it."""
        self.refresh()

    def refresh(self) -> None:
        """Look up the parameters and buffers again."""
        self.by_storage, self._names = {}, {}
        for owner in _owners(self._module):
            known = self.by_storage.setdefault(storage_of(owner.tensor), [])
            first = next((other for other in known if _is_same(owner.tensor, other.tensor)), None)
            if first is None:
                known.append(owner)
            self._names[owner.name] = first or owner
        self._alone = {
            storage: owners[0]
            for storage, owners in self.by_storage.items()
            if len(owners) == 1 and owners[0].is_all_memory()
        }

    def named(self, name: str) -> Owner | None:
        """Return the parameter or buffer of this name, or the first one that it is tied to."""
        return self._names.get(name)

    def state(self) -> dict[str, tuple[int, int]]:
        """Return what changes if a parameter is replaced."""
        return {
            name: (storage_of(owner.tensor), int(owner.tensor.storage_offset())) for name, owner in self._names.items()
        }

    def find(self, tensor: torch.Tensor) -> Owner | None:
        """Return the parameter or buffer that has all of a tensor's elements; the largest of several.

        Raises:
            RefusedError: The tensor is in the storage of parameters, and in none or in parts of
                several.
        """
        storage = storage_of(tensor)
        alone = self._alone.get(storage)
        if alone is not None:
            return alone
        owners = self.by_storage.get(storage)
        if owners is None:
            return None
        low, high = span(tensor)
        around = [owner for owner in owners if _contains(owner.tensor, low, high)]
        if not around:
            message = f"memory beside parameter {owners[0].name!r} is used"
            raise RefusedError(message)
        found = max(around, key=lambda owner: owner.tensor.numel() * owner.tensor.element_size())
        for owner in owners:
            if (
                owner is not found
                and _meets(owner.tensor, found.tensor)
                and not _contains(found.tensor, *span(owner.tensor))
            ):
                message = f"parameters {found.name!r} and {owner.name!r} share part of their memory"
                raise RefusedError(message)
        return found

    def meets(self, tensor: torch.Tensor) -> Owner | None:
        """Return a parameter or buffer, a parameter if there is one, that has a byte of a tensor."""
        owners = self.by_storage.get(storage_of(tensor), ())
        found = [owner for owner in owners if _meets(owner.tensor, tensor)]
        return max(found, key=lambda owner: owner.is_parameter, default=None)


def bind(module: torch.nn.Module, places: Sequence[Place]) -> list[torch.Tensor]:
    """Return the parameters and buffers of a plan, without gradients.

    Raises:
        RefusedError: One is missing, differs from the recorded one, has no memory, or shares some
            with another one.
    """
    known = {owner.name: owner.tensor for owner in _owners(module)}
    tensors = []
    spans: dict[torch.device, list[tuple[int, int, str]]] = {}
    for place in places:
        tensor = known.get(place.name)
        if tensor is None or place_of(place.name, tensor) != place:
            message = f"parameter {place.name!r} is not as it was recorded"
            raise RefusedError(message)
        if tensor.is_meta:
            message = f"parameter {place.name!r} is on the meta device, which has no memory"
            raise RefusedError(message)
        low, high = span(tensor)
        if high > max(low, tensor.untyped_storage().nbytes()):
            message = f"parameter {place.name!r} has less memory than elements"
            raise RefusedError(message)
        if high > low:
            # Storages of other libraries' memory may be two for one.
            start = tensor.data_ptr()
            spans.setdefault(tensor.device, []).append((start, start + high - low, place.name))
        tensors.append(tensor.detach())
    for ordered in map(sorted, spans.values()):
        for (_, high, one), (low, _, other) in pairwise(ordered):
            if high > low:
                message = f"parameters {one!r} and {other!r} share memory"
                raise RefusedError(message)
    return tensors


def place_of(name: str, tensor: torch.Tensor) -> Place:
    """Return the description of a parameter."""
    return Place(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tuple(tensor.stride()))


def require_plain(owner: Owner) -> None:
    """Require memory that a plan can describe.

    Raises:
        RefusedError: The parameter has gaps, or is of an unusual layout.
    """
    tensor = owner.tensor
    is_plain = tensor.layout is torch.strided and not tensor.is_conj() and not tensor.is_neg() and not tensor.is_meta
    if not is_plain or place_of(owner.name, tensor).dtype not in DTYPES or not is_dense(tensor.shape, tensor.stride()):
        message = f"parameter {owner.name!r} has gaps, or an unusual layout"
        raise RefusedError(message)
    if tensor.element_size() not in _INTEGERS:
        message = f"parameter {owner.name!r} has elements of {tensor.element_size()} bytes"
        raise RefusedError(message)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements as integers."""
    return tensor.view(_INTEGERS[tensor.element_size()])


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements of a dense tensor in the order of memory."""
    return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())


def digest(tensor: torch.Tensor) -> bytes:
    """Return a digest of the bytes of a dense tensor, in the order of memory."""
    import ctypes

    found = hashlib.blake2b()
    for piece in torch.split(flat(bits(tensor)), 1 << 22):
        here = piece.cpu()
        size = here.numel() * here.element_size()
        if size:
            found.update((ctypes.c_char * size).from_address(here.data_ptr()))
    return found.digest()


def storage_of(tensor: torch.Tensor) -> int:
    """Return the identity of a tensor's storage."""
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the range of a tensor in its storage, in bytes; an empty one if it has no elements."""
    size, start = tensor.element_size(), int(tensor.storage_offset())
    if tensor.numel() == 0:
        return start * size, start * size
    last = sum(int(n - 1) * int(step) for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return start * size, (start + last + 1) * size


def _owners(module: torch.nn.Module) -> Iterator[Owner]:
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if _has_storage(parameter):
            yield Owner(name, parameter, is_parameter=True)
    for name, buffer in module.named_buffers(remove_duplicate=False):
        if _has_storage(buffer):
            yield Owner(name, buffer, is_parameter=False)


def _has_storage(tensor: torch.Tensor) -> bool:
    if torch.nn.parameter.is_lazy(tensor) or tensor.layout is not torch.strided:
        return False
    try:
        tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return False  # a wrapper of other tensors
    return True


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(
        one.storage_offset() == other.storage_offset()
        and one.shape == other.shape
        and one.stride() == other.stride()
        and one.dtype is other.dtype
    )


def _contains(tensor: torch.Tensor, low: int, high: int) -> bool:
    start, end = span(tensor)
    return start <= low and high <= end


def _meets(one: torch.Tensor, other: torch.Tensor) -> bool:
    (start, end), (low, high) = span(one), span(other)
    return start < high and low < end
