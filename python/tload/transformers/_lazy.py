"""Tensors that are read when they are indexed, in place of the slices of safetensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch

    from tload._sources.entries import TensorInfo


class LazyTensor:
    """Slice in the sense of safetensors: shape and dtype at once, elements on indexing."""

    __slots__ = ("_info", "_read", "_take")

    def __init__(
        self, info: TensorInfo, take: Callable[[str], torch.Tensor], read: Callable[[str, Any], torch.Tensor]
    ) -> None:
        """Wrap the header entry of a tensor.

        Args:
            info: The header entry.
            take: Returns the whole tensor with a name, which the caller then owns.
            read: Returns a part of the tensor with a name.
        """
        self._info = info
        self._take = take
        self._read = read

    def get_shape(self) -> list[int]:
        """Return the shape of the tensor in the file."""
        return list(self._info.shape)

    def get_dtype(self) -> str:
        """Return the element type as safetensors files write it."""
        return self._info.dtype

    def __getitem__(self, index: Any) -> torch.Tensor:
        """Read the whole tensor (`[...]`) or a part."""
        return self._take(self._info.name) if index is Ellipsis else self._read(self._info.name, index)

    def __repr__(self) -> str:
        return f"<tensor {self._info.name!r}: {self._info.dtype} {list(self._info.shape)}, not read>"


def in_order_of_use(names: Iterable[str]) -> list[str]:
    """Sort names in the order in which transformers requests their tensors.

    Numbers are sorted by value, and experts by the tensors they are merged into.

    Merged tensors are requested together: of all experts of a layer first `down_proj`, then
    `gate_proj`, then `up_proj`.
    """
    return sorted(names, key=_place)


def _place(name: str) -> tuple[list[tuple[int, str, int]], int]:
    parts = []
    expert = 0
    before = ""
    for part in name.split("."):
        if part.isdecimal() and before == "experts":
            expert = int(part)
            parts.append((0, "", 0))
        elif part.isdecimal():
            parts.append((0, "", int(part)))
        else:
            text = part.rstrip("0123456789")
            parts.append((1, text, int(part[len(text) :] or -1)))
        before = part
    return parts, expert
