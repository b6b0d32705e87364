"""Targets of `load_into` on the Python side: a mapping of names, copies, and autograd's counters.

The extension module describes the caller's tensors and arrays to the core.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tload._tensors import cuda, numpy_arrays, torch_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tload import _tload
    from tload._sources.entries import TensorInfo


def by_name(target: object) -> Mapping[str, Any]:
    """Return the tensors of a module, or a mapping of names unchanged.

    Raises:
        TypeError: `target` is neither a module nor a mapping.
    """
    torch = cuda.imported("torch")
    if torch is not None and isinstance(target, torch.nn.Module):
        return target.state_dict(keep_vars=True)  # type: ignore[no-any-return]
    if not isinstance(target, Mapping):
        message = f"target: wanted a torch.nn.Module or a mapping of names, found {type(target).__qualname__}"
        raise TypeError(message)
    return target


def copier(targets: Mapping[str, Any], copied: Sequence[TensorInfo]) -> Callable[[_tload.Tensor], None]:
    """Return a function that copies a loaded temporary tensor to its target.

    Raises `UnsupportedError` if one of the tensors cannot be converted.
    """
    tensors = [info for info in copied if _is_tensor(targets[info.name])]
    arrays = [info for info in copied if not _is_tensor(targets[info.name])]
    converted = [info for info in tensors if (info.dtype == "F4") != _is_packed(targets[info.name])]
    if converted:
        hint = "load them unconverted (load), and convert them with a library that can"
        raise torch_tensors.unsupported(
            converted, converted[0].dtype, "torch cannot convert from or to 4-bit floats", hint
        )
    to_torch = torch_tensors.converter({info.dtype for info in tensors}, lambda: tensors) if tensors else None
    to_numpy = numpy_arrays.converter({info.dtype for info in arrays}, lambda: arrays) if arrays else None

    def copy(tensor: _tload.Tensor) -> None:
        value = targets[tensor.name]
        if tensor.nbytes == 0:
            return
        if to_torch is not None and _is_tensor(value):
            import torch

            # A tensor that was made in inference mode can only be changed in that mode.
            with torch.inference_mode() if value.is_inference() else torch.no_grad():
                value.copy_(to_torch(tensor))
        elif to_numpy is not None:
            import numpy as np

            np.copyto(value, to_numpy(tensor), casting="unsafe")

    return copy


def mark_changed(written: Sequence[Any]) -> None:
    """Tell autograd which tensors changed: a graph that needs their old values then fails."""
    changed = [value for value in written if _is_tensor(value) and not value.is_inference()]
    if not changed:
        return
    from torch.autograd.graph import increment_version

    try:
        increment_version(changed)
    except (TypeError, RuntimeError):
        # Older versions of torch take one tensor at a time.
        for tensor in changed:
            increment_version(tensor)


def _is_tensor(value: object) -> bool:
    torch = cuda.imported("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _is_packed(tensor: Any) -> bool:
    """Return whether the elements of a torch tensor are pairs of 4-bit floats."""
    import torch

    return tensor.dtype is getattr(torch, torch_tensors.DTYPES["F4"], None)
