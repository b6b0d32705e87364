"""Drop-in for `safetensors.numpy`: reading is tload's, everything else, such as `save_file`, the package's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tload.safetensors._bytes import load_bytes
from tload.safetensors._open import safe_open
from tload.safetensors._package import attribute

if TYPE_CHECKING:
    import numpy.typing as npt

    from tload._checkpoint import Source
    from tload._store import Store

__all__ = ["load", "load_file"]


def load_file(filename: Source, *, backend: str = "mmap", store: Store | None = None) -> dict[str, npt.NDArray[Any]]:
    """Load the tensors of a file, or of whatever else `safe_open` opens, in the order of the file.

    Args:
        filename: See `tload.safetensors.safe_open`.
        backend: `"mmap"`: arrays are views of local files, without a copy. `"pread"`: they are not. Default: `"mmap"`.
        store: How to reach object stores: see `tload.open`.

    Raises:
        SafetensorError, tload.Error: See `tload.safetensors.safe_open`.
    """
    with safe_open(filename, "np", backend=backend, store=store) as file:
        return file.get_tensors()


def load(data: bytes) -> dict[str, npt.NDArray[Any]]:
    """Load the tensors of a file's content.

    Raises:
        SafetensorError: It is no valid file.
    """
    return load_bytes(data, "np")


def __getattr__(name: str) -> Any:
    return attribute(__name__, name)
