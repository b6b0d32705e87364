"""Tensors of a checkpoint that are read when they are indexed, as transformers wants them in a `state_dict`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tload import _torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch

    from tload._checkpoint import TensorInfo


class LazyTensor:
    """What safetensors calls a slice: shape and dtype at once, elements by `[…]`."""

    __slots__ = ("_info", "_read", "_take")

    def __init__(
        self, info: TensorInfo, take: Callable[[str], torch.Tensor], read: Callable[[str, Any], torch.Tensor]
    ) -> None:
        """Wrap what the checkpoint says of a tensor.

        Args:
            info: What it says.
            take: Returns the whole tensor of a name, to keep.
            read: Returns part of the tensor of a name.
        """
        self._info = info
        self._take = take
        self._read = read

    def get_shape(self) -> list[int]:
        """Return the elements along each dimension, as the file has them."""
        return list(self._info.shape)

    def get_dtype(self) -> str:
        """Return the element type as safetensors files write it."""
        return self._info.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each dimension."""
        return self._info.shape

    @property
    def dtype(self) -> torch.dtype:
        """The element type in torch."""
        import torch

        return getattr(torch, _torch.DTYPES[self._info.dtype])  # type: ignore[no-any-return]

    def is_floating_point(self) -> bool:
        """Whether `dtype` is one of floats."""
        return self._info.dtype in _torch.DTYPES and self.dtype.is_floating_point

    def __getitem__(self, index: Any) -> torch.Tensor:
        """Read all of it (`[...]`) or a part."""
        return self._take(self._info.name) if index is Ellipsis else self._read(self._info.name, index)

    def __repr__(self) -> str:
        return f"<tensor {self._info.name!r}: {self._info.dtype} {list(self._info.shape)}, not read>"


def in_order_of_use(names: Iterable[str]) -> list[str]:
    """Sort names as transformers asks for their tensors: numbers by their value, and experts by what is merged.

    What is merged is asked for at once: of all experts of a layer first `down_proj`, then `gate_proj`, then `up_proj`.
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
