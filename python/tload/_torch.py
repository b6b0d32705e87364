"""Loaded tensors as torch tensors, without a copy. Imports torch when used.

On a GPU a tensor is a view of memory that torch's own allocator gave: see `_cuda.py`.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING

from tload import _cuda
from tload._errors import UnsupportedError, advise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch

    from tload import _tload
    from tload._checkpoint import TensorInfo
    from tload._options import Options

# Names, because older versions of torch lack some. Two 4-bit floats are one element of torch's. It has no 6-bit floats.
DTYPES = {
    "BOOL": "bool",
    "F4": "float4_e2m1fn_x2",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "C64": "complex64",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
}

NAMES_SHOWN = 3
"""Tensors that an error names: enough to know the kind, few enough for a line."""


def converter(infos: Iterable[TensorInfo]) -> Callable[[_tload.Tensor], torch.Tensor]:
    """Return what makes a torch tensor of each of these, or raise `UnsupportedError` and name those that it cannot."""
    try:
        import torch
        from torch.utils.dlpack import from_dlpack
    except ImportError as error:
        message = f'framework="torch" needs torch, and it cannot be imported ({error})'
        hint = 'install torch, or pass framework="numpy" or framework="dlpack"'
        raise advise(UnsupportedError, message, hint) from error

    dtypes: dict[str, torch.dtype] = {}
    for info in infos:
        if info.dtype not in dtypes:
            dtype = getattr(torch, DTYPES.get(info.dtype, ""), None)
            if dtype is None:
                raise _unsupported(infos, info.dtype, f"torch {torch.__version__} has no such dtype")
            dtypes[info.dtype] = dtype
        if info.dtype == "F4" and info.shape[-1] % 2:
            reason = f"torch packs two of them into one element, and {info.name!r} has the shape {info.shape}"
            raise _unsupported([info], "F4", reason)

    def convert(tensor: _tload.Tensor) -> torch.Tensor:
        dtype, shape = dtypes[tensor.dtype], tensor.shape
        if tensor.dtype == "F4":
            shape = (*shape[:-1], shape[-1] // 2)
        ordinal = _cuda.ordinal_of(tensor.device)
        if ordinal is None:
            # By way of bytes: torch's own DLPack import refuses some of these dtypes in some of its versions.
            flat = from_dlpack(tensor.flat())
        else:
            memory = tensor.owner()
            if memory is None:
                return _cuda.empty(ordinal, shape, dtype)
            owner, offset = memory
            # `data`: neighbours in one allocation must not share autograd's count of changes.
            own: torch.Tensor = owner[offset : offset + tensor.nbytes].view(dtype).view(shape).data
            return own
        return flat.view(dtype).view(shape)

    return convert


def with_writable(options: Options) -> Options:
    """Return the options with `writable` as torch has it unless it was asked for otherwise, and then if torch can."""
    if options.writable is None:
        return dataclasses.replace(options, writable=True)
    if options.writable or options.cache != "map":
        return options
    try:
        import torch
    except ImportError:
        return options  # `converter` says so.
    # Before version 1, which torch 2.9 learned to import, DLPack cannot say that memory is read-only.
    if "max_version" not in inspect.signature(torch.Tensor.__dlpack__).parameters:
        message = f"writable=False: torch {torch.__version__} cannot import memory that is read-only"
        raise advise(UnsupportedError, message, "leave writable= out, or upgrade torch")
    return options


def _unsupported(infos: Iterable[TensorInfo], dtype: str, reason: str) -> UnsupportedError:
    return unsupported(infos, dtype, reason, 'pass framework="dlpack", or leave these tensors out')


def unsupported(infos: Iterable[TensorInfo], dtype: str, reason: str, hint: str) -> UnsupportedError:
    """Make the error for tensors whose dtype a framework lacks; names the first few."""
    names = [info.name for info in infos if info.dtype == dtype]
    shown = ", ".join(map(repr, names[:NAMES_SHOWN]))
    if len(names) > NAMES_SHOWN:
        shown += f" and {len(names) - NAMES_SHOWN} more"
    return advise(UnsupportedError, f"dtype {dtype} of {shown}: {reason}", hint, tensor=names[0])
