"""A tensor that is not there yet, and comes as far as it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tload._checkpoint import TensorInfo
    from tload.safetensors._source import Opened


class PySafeSlice:
    """One tensor of a file, to take parts of: `slice[index]` reads what the index wants. Made by `safe_open.get_slice`.

    It goes on working when its handle is closed, and may be used from several threads.
    """

    __slots__ = ("_info", "_opened")

    def __init__(self, opened: Opened, info: TensorInfo) -> None:
        """Keep what to read, and what to read it from."""
        self._opened = opened
        self._info = info

    def get_shape(self) -> list[int]:
        """Return the shape of the whole tensor, as the file has it: of `F4`, elements of 4 bits."""
        return [*self._info.shape]

    def get_dtype(self) -> str:
        """Return the dtype as files write it, for example `"BF16"`."""
        return self._info.dtype

    def __getitem__(self, index: Any) -> Any:
        """Return the part that an index takes.

        With `framework="pt"` and `backend="mmap"`, indices are torch's, with its results and its `IndexError`. Else
        they are the package's: ints, slices with positive steps and one ellipsis, and what reaches over the end of a
        dimension is a `SafetensorError`.

        Of a mapped file the part is a view. Otherwise it is memory of its own, and only its bytes are read; with
        `TLOAD_VERIFY`, all of the tensor, to be compared.
        """
        return self._opened.part(self._info, index)

    def __repr__(self) -> str:
        return f"<tload.safetensors.PySafeSlice {self._info.name!r}: {self._info.dtype} {self.get_shape()}>"
