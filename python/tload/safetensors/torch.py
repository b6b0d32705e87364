"""Drop-in for `safetensors.torch`: tload reads; `save_file` and all else is the package's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tload._options.store_options import take, takes_keywords
from tload.safetensors._bytes import load_bytes
from tload.safetensors._open import safe_open
from tload.safetensors._package import attribute
from tload.safetensors._tied import removed_names

if TYPE_CHECKING:
    from typing import Unpack

    import torch

    from tload._options.keywords import StoreKeywords
    from tload.typing import Source, Store

__all__ = ["load", "load_file", "load_model"]


@takes_keywords
def load_file(
    filename: Source,
    device: str | int | torch.device = "cpu",
    *,
    backend: str = "mmap",
    store: Store | None = None,
    follow_symlinks: bool | None = None,
    **keywords: Unpack[StoreKeywords],
) -> dict[str, torch.Tensor]:
    """Load the tensors of a file, or of any other source of `safe_open`, in file order.

    On the CPU, `backend="mmap"` makes views of local files, without a copy. Unlike the package's,
    they are already in memory when this function returns; pages that the page cache lacks are read
    at its speed. `backend="pread"` bypasses the page cache.

    Args:
        filename: See `tload.safetensors.safe_open`.
        device: Device of the tensors: see `tload.safetensors.safe_open`. Default: `"cpu"`.
        backend: `"mmap"` or `"pread"`. Default: `"mmap"`.
        store: Options of object stores: see `tload.open`.
        follow_symlinks: Allow symbolic links that lead out of the source's directory: see
            `tload.open`.
        **keywords: Keys of `store`: see `tload.open`.

    Raises:
        SafetensorError, tload.Error: See `tload.safetensors.safe_open`.
    """
    store = take(store, keywords)
    with safe_open(filename, "pt", device, backend=backend, store=store, follow_symlinks=follow_symlinks) as file:
        return file.get_tensors()


def load(data: bytes) -> dict[str, torch.Tensor]:
    """Load the tensors of a file's content.

    Raises:
        SafetensorError: The content is not a valid file.
    """
    return load_bytes(data, "pt")


@takes_keywords
def load_model(
    model: torch.nn.Module,
    filename: Source,
    strict: bool = True,  # noqa: FBT001, FBT002  # as the package has it
    device: str | int | torch.device = "cpu",
    *,
    backend: str = "mmap",
    store: Store | None = None,
    follow_symlinks: bool | None = None,
    **keywords: Unpack[StoreKeywords],
) -> tuple[set[str], list[str]]:
    """Load a file into a module; of tied parameters, the file may hold one, as with `save_model`.

    `tload.load_into` does the same without moving the tensors to a `device` first.

    Args:
        model: The module to load into.
        filename: See `tload.safetensors.safe_open`.
        strict: Raise an error for missing and unexpected names. Default: `True`.
        device: Device that tensors are moved to before they are copied into the module. Default:
            `"cpu"`.
        backend: `"mmap"` or `"pread"`. Default: `"mmap"`.
        store: Options of object stores: see `tload.open`.
        follow_symlinks: Allow symbolic links that lead out of the source's directory: see
            `tload.open`.
        **keywords: Keys of `store`: see `tload.open`.

    Returns:
        Names of the module that are not in the file, and names of the file that are not in the
        module.

    Raises:
        RuntimeError: With `strict`, names are missing or unexpected; or shapes differ.
        SafetensorError, tload.Error: See `tload.safetensors.safe_open`.
    """
    store = take(store, keywords)
    state = load_file(filename, device, backend=backend, store=store, follow_symlinks=follow_symlinks)
    removed = removed_names(model.state_dict(), preferred=state.keys())
    result = model.load_state_dict(state, strict=False)
    missing, unexpected = set(result.missing_keys), list(result.unexpected_keys)
    for name in removed:
        if name in missing:
            missing.remove(name)
        else:
            unexpected.append(name)
    if strict and (missing or unexpected):
        message = f"Error(s) in loading state_dict for {type(model).__name__}:"
        for kind, names in (("Missing", missing), ("Unexpected", unexpected)):
            if names:
                message += f"\n    {kind} key(s) in state_dict: " + ", ".join(f'"{name}"' for name in sorted(names))
        raise RuntimeError(message)
    return missing, unexpected


def __getattr__(name: str) -> Any:
    return attribute(__name__, name)
