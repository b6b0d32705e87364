"""Drop-in for `safetensors.flax`: reading is tload's, everything else, such as `save_file`, the package's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tload.safetensors._bytes import load_bytes
from tload.safetensors._open import safe_open
from tload.safetensors._package import attribute

if TYPE_CHECKING:
    from tload._checkpoint import Source
    from tload._store import Store

__all__ = ["load", "load_file"]


def load_file(filename: Source, *, backend: str = "mmap", store: Store | None = None) -> dict[str, Any]:
    """Load the tensors of a file, or of whatever else `safe_open` opens, in the order of the file.

    Args:
        filename: See `tload.safetensors.safe_open`.
        backend: `"mmap"`: the file is mapped, and copied from there. `"pread"`: it is read. Default: `"mmap"`.
        store: How to reach object stores: see `tload.open`.

    Raises:
        SafetensorError, tload.Error: See `tload.safetensors.safe_open`.
    """
    with safe_open(filename, "flax", backend=backend, store=store) as file:
        return file.get_tensors()


def load(data: bytes) -> dict[str, Any]:
    """Load the tensors of a file's content.

    Raises:
        SafetensorError: It is no valid file.
    """
    return load_bytes(data, "flax")


def __getattr__(name: str) -> Any:
    return attribute(__name__, name)
