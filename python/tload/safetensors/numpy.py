"""Drop-in for `safetensors.numpy`: tload reads; `save_file` and all else is the package's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tload._options.store_options import take, takes_keywords
from tload.safetensors._bytes import load_bytes
from tload.safetensors._open import safe_open
from tload.safetensors._package import attribute

if TYPE_CHECKING:
    from typing import Unpack

    import numpy.typing as npt

    from tload._options.keywords import StoreKeywords
    from tload.typing import Source, Store

__all__ = ["load", "load_file"]


@takes_keywords
def load_file(
    filename: Source,
    *,
    backend: str = "mmap",
    store: Store | None = None,
    follow_symlinks: bool | None = None,
    **keywords: Unpack[StoreKeywords],
) -> dict[str, npt.NDArray[Any]]:
    """Load the tensors of a file, or of any other source of `safe_open`, in file order.

    Args:
        filename: See `tload.safetensors.safe_open`.
        backend: `"mmap"`: arrays are views of local files, without a copy. `"pread"`: they have
            memory of their own. Default: `"mmap"`.
        store: Options of object stores: see `tload.open`.
        follow_symlinks: Allow symbolic links that lead out of the source's directory: see
            `tload.open`.
        **keywords: Keys of `store`: see `tload.open`.

    Raises:
        SafetensorError, tload.Error: See `tload.safetensors.safe_open`.
    """
    store = take(store, keywords)
    with safe_open(filename, "np", backend=backend, store=store, follow_symlinks=follow_symlinks) as file:
        return file.get_tensors()


def load(data: bytes) -> dict[str, npt.NDArray[Any]]:
    """Load the tensors of a file's content.

    Raises:
        SafetensorError: The content is not a valid file.
    """
    return load_bytes(data, "np")


def __getattr__(name: str) -> Any:
    return attribute(__name__, name)
