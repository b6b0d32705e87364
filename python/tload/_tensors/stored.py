"""Tensors of torch and arrays of numpy as safetensors files store them. Imports neither."""

from __future__ import annotations

import ctypes
import json
import re
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from tload._errors import Error, InvalidRequestError, UnsupportedError, advise
from tload._tensors import numpy_arrays, torch_tensors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import numpy as np
    import torch

PIECE_BYTES = 16 << 20
"""Bytes of a tensor that are copied at a time where they cannot be written from their place: enough
that a copy from a GPU has the bandwidth of its bus."""


class Stored(NamedTuple):
    """Tensor to store."""

    name: str
    dtype: str
    """Its name in safetensors files."""
    shape: tuple[int, ...]
    value: Any

    def pieces(self) -> Iterator[Any]:
        """Yield buffers with its bytes, in order."""
        if _is_torch(self.value):
            yield from _torch_pieces(self.value)
        else:
            yield from _numpy_pieces(self.value)


def described(name: str, value: Any) -> Stored:
    """Describe a tensor or array.

    Raises:
        InvalidRequestError: It is neither, or has no bytes of its own.
        UnsupportedError: Files have no such dtype.
    """
    if not isinstance(name, str):
        message = f"wanted a str as the name of a tensor, found {type(name).__qualname__}"
        raise TypeError(message)
    check_name(name)
    if _is_torch(value):
        return _torch(name, value)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return _numpy(name, value)
    message = f"wanted a tensor of torch or an array of numpy, found {type(value).__qualname__}"
    raise _refused(InvalidRequestError, name, message, "convert it, for example with numpy.asarray")


def check_name(name: str) -> None:
    """Raise `InvalidRequestError` for a name that files cannot have."""
    # The extension module would raise a `UnicodeEncodeError`.
    if any("\ud800" <= character <= "\udfff" for character in name):
        message = f"the name of a tensor, {name!r}, is not Unicode"
        raise advise(InvalidRequestError, message, "rename the tensor", tensor=name)


def shape_in_files(name: str, dtype: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a tensor of torch as files have it.

    Raises:
        UnsupportedError: There is none.
    """
    if dtype != "F4":
        return shape
    if not shape:
        message = "has no dimension, and torch packs two elements of this dtype (F4) into one"
        raise _refused(UnsupportedError, name, message, "pass tensor.reshape(1)")
    return (*shape[:-1], 2 * shape[-1])


def _refused(error: type[Error], name: str, message: str, hint: str) -> Error:
    return advise(error, f"tensor {json.dumps(name, ensure_ascii=False)}: {message}", hint, tensor=name)


def _is_torch(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _torch(name: str, tensor: torch.Tensor) -> Stored:
    import torch

    message = hint = None
    if tensor.is_nested:
        message, hint = "is a nested tensor", "pass each tensor of tensor.unbind()"
    elif tensor.layout != torch.strided:
        message, hint = f"is a tensor of the layout {tensor.layout}", "pass tensor.to_dense()"
    elif tensor.device.type == "meta":
        message, hint = "is on the device meta and has no bytes", "load the weights first"
    elif hasattr(tensor, "full_tensor"):
        message, hint = "is distributed over ranks", "pass tensor.full_tensor(), on one rank"
    elif tensor.is_quantized:
        message, hint = "is quantised by torch", "pass tensor.int_repr() and its scales"
    elif not _has_memory(tensor):
        message, hint = "has no memory of its own", "pass a plain tensor, such as tensor.dequantize()"
    if message is not None and hint is not None:
        raise _refused(InvalidRequestError, name, message, hint)
    dtype = torch_tensors.dtype_names().get(tensor.dtype)
    if dtype is None:
        message = f"safetensors files have no dtype {tensor.dtype}"
        raise _refused(UnsupportedError, name, message, "convert it with tensor.to(…)")
    return Stored(name, dtype, shape_in_files(name, dtype, tuple(tensor.shape)), tensor.detach())


def _has_memory(tensor: torch.Tensor) -> bool:
    """Return whether all elements are in the tensor's storage, which may have been freed."""
    if not tensor.nbytes:
        return True
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    end = (tensor.storage_offset() + last + 1) * tensor.element_size()
    return tensor.data_ptr() != 0 and bool(end <= tensor.untyped_storage().nbytes())


def _torch_pieces(tensor: torch.Tensor) -> Iterator[Any]:
    if not tensor.nbytes:
        return
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if tensor.is_contiguous():
        if tensor.device.type == "cpu":
            # Torch has no buffers without numpy. `tensor` outlives the buffer: the caller holds it.
            yield memoryview((ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr()))
            return
        flat = tensor.view(-1)
        step = max(1, PIECE_BYTES // tensor.element_size())
        for start in range(0, flat.numel(), step):
            yield from _torch_pieces(flat[start : start + step].cpu())
    elif tensor.nbytes <= PIECE_BYTES:
        yield from _torch_pieces(tensor.contiguous())
    else:
        rows = max(1, PIECE_BYTES * len(tensor) // tensor.nbytes)
        for start in range(0, len(tensor), rows):
            piece = tensor[start : start + rows]
            # One row may be too large by itself.
            yield from _torch_pieces(piece[0] if rows == 1 else piece)


def _numpy(name: str, array: np.ndarray[Any, Any]) -> Stored:
    import numpy as np

    if np.ma.is_masked(array):
        raise _refused(InvalidRequestError, name, "has masked elements, which have no value", "pass array.filled()")
    array = np.asarray(array)
    dtype = numpy_arrays.dtype_names().get(array.dtype.name)
    if dtype is None:
        message = f"safetensors files have no dtype {array.dtype}"
        raise _refused(UnsupportedError, name, message, "convert it with array.astype(…)")
    return Stored(name, dtype, array.shape, array)


def _numpy_pieces(array: np.ndarray[Any, Any]) -> Iterator[Any]:
    import numpy as np

    if not array.nbytes:
        return
    little = array.dtype.newbyteorder("<")
    if array.flags.c_contiguous and array.dtype == little:
        # Dtypes of ml_dtypes have no buffers.
        yield array.reshape(-1).view(np.uint8).data
    elif array.nbytes <= PIECE_BYTES or array.ndim == 0:
        yield from _numpy_pieces(np.ascontiguousarray(array, dtype=little))
    else:
        rows = max(1, PIECE_BYTES * len(array) // array.nbytes)
        for start in range(0, len(array), rows):
            piece = array[start : start + rows]
            yield from _numpy_pieces(piece[0] if rows == 1 else piece)


def aliases(tensors: Mapping[str, Stored], *, taken: Iterable[str], tied: Iterable[str]) -> dict[str, str]:
    """Return names of tensors that are the same memory as another one, with the name to keep.

    As in `safetensors.torch.save_model`, that is the first in alphabetical order. Tensors that only
    overlap are no aliases: no name could stand for both.

    Args:
        tensors: The tensors, by name.
        taken: Names that mean something else where aliases are stored.
        tied: Patterns of names that are kept only if no other is.
    """
    taken, patterns = set(taken), [re.compile(pattern) for pattern in tied]
    kept: dict[tuple[Any, ...], str] = {}
    found = {}
    for name in sorted(tensors, key=lambda name: (any(pattern.search(name) for pattern in patterns), name)):
        tensor = tensors[name].value
        if not _is_torch(tensor) or not tensor.nbytes:
            continue
        changes = (tensor.is_conj(), tensor.is_neg())
        key = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), changes)
        if kept.setdefault(key, name) != name and name not in taken:
            found[name] = kept[key]
    return found
