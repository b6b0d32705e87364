"""Tensors that are read slice by slice, on request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tload._sources.entries import TensorInfo
    from tload.safetensors._source import Opened


class PySafeSlice:
    """One tensor of a file, of which `slice[index]` reads a part. Made by `safe_open.get_slice`.

    It remains usable after its handle is closed, and is thread-safe.
    """

    __slots__ = ("_info", "_opened")

    def __init__(self, opened: Opened, info: TensorInfo) -> None:
        """Store the tensor's header entry and its source."""
        self._opened = opened
        self._info = info

    def get_shape(self) -> list[int]:
        """Return the shape of the whole tensor in the file: of `F4`, in 4-bit elements."""
        return [*self._info.shape]

    def get_dtype(self) -> str:
        """Return the dtype as files write it, for example `"BF16"`."""
        return self._info.dtype

    def __getitem__(self, index: Any) -> Any:
        """Return the part that an index selects.

        With `framework="pt"` and `backend="mmap"`, indices follow torch's rules, with its results
        and its `IndexError`. Otherwise they follow the package's: ints, slices with positive steps
        and one ellipsis; an index beyond the end of a dimension is a `SafetensorError`.

        A part of a mapped file is a view. Otherwise it has memory of its own, and only its bytes
        are read; with `TLOAD_VERIFY`, the whole tensor is read and compared.
        """
        return self._opened.part(self._info, index)

    def __repr__(self) -> str:
        return f"<tload.safetensors.PySafeSlice {self._info.name!r}: {self._info.dtype} {self.get_shape()}>"
