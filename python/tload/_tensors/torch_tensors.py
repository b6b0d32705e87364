"""Loaded tensors as torch tensors, without a copy. Imports torch when used.

On a GPU a tensor is in memory from torch's own allocator: see `cuda.py`.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import os
import sys
from typing import TYPE_CHECKING, TypeAlias

from tload._errors import UnsupportedError, advise
from tload._tensors import cuda

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch

    from tload import _tload
    from tload._options.load_options import Options
    from tload._sources.entries import TensorInfo

Infos: TypeAlias = "Callable[[], Iterable[TensorInfo]]"

# Names, because older versions of torch lack some dtypes. One element of torch holds two 4-bit
# floats. Torch has no 6-bit floats.
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


def dtype_names() -> dict[torch.dtype, str]:
    """Return torch's dtypes with their names in safetensors files, for the extension module."""
    import torch

    return {getattr(torch, its): ours for ours, its in DTYPES.items() if hasattr(torch, its)}


IMPORTED = frozenset({"U8", "I8", "I16", "I32", "I64", "F16", "BF16", "F32", "F64", "C64"})
"""Dtypes that every version of torch imports by DLPack."""

NAMES_SHOWN = 3
"""Maximum number of tensors that an error names: enough to show the kind, and fits a line."""


def check(names: Iterable[str], infos: Infos) -> None:
    """Raise `UnsupportedError` for tensors that no version of torch has, without importing it.

    `infos` is called only if there may be some: to describe thousands of tensors takes as long as
    to load some of them.
    """
    names = set(names)
    for name in sorted(names - DTYPES.keys()):
        raise _unsupported(infos(), name, "torch has no such dtype")
    odd = [info for info in infos() if info.dtype == "F4" and info.shape[-1] % 2] if "F4" in names else []
    if odd:
        reason = f"torch packs two of them into one element, and {odd[0].name!r} has the shape {odd[0].shape}"
        raise _unsupported(odd[:1], "F4", reason)


def converter(
    names: Iterable[str], infos: Infos, *, is_read_only: bool = False
) -> Callable[[_tload.Tensor], torch.Tensor]:
    """Return a function that makes torch tensors of tensors with these dtypes.

    Raises `UnsupportedError` for a dtype that torch lacks, naming the tensors of it, or if torch
    cannot import memory that is read-only.
    """
    try:
        _link_libraries()
        import torch
        from torch.utils.dlpack import from_dlpack
    except ImportError as error:
        message = f'framework="torch" needs torch, and it cannot be imported ({error})'
        hint = 'install torch, or pass framework="numpy" or framework="dlpack"'
        raise advise(UnsupportedError, message, hint) from error

    # DLPack before version 1 cannot mark memory as read-only; torch imports version 1 since 2.9.
    if is_read_only and "max_version" not in inspect.signature(torch.Tensor.__dlpack__).parameters:
        message = f"torch {torch.__version__} cannot import a read-only view of a file or of memory that ranks share"
        raise advise(UnsupportedError, message, "load with writable=True or private=True, or upgrade torch")
    names = list(names)
    check(names, infos)
    dtypes: dict[str, torch.dtype] = {}
    for name in names:
        dtype = getattr(torch, DTYPES[name], None)
        if dtype is None:
            raise _unsupported(infos(), name, f"torch {torch.__version__} has no such dtype")
        dtypes[name] = dtype
    # Others are imported as bytes, in four times the time. F4 has two elements in one of torch's.
    direct = IMPORTED & dtypes.keys()
    direct |= {name for name in dtypes.keys() - direct - {"F4"} if _is_exchanged(dtypes[name])}

    is_inference = torch.is_inference_mode_enabled
    blanks: dict[tuple[str, str, bool], torch.Tensor] = {}

    def convert(tensor: _tload.Tensor) -> torch.Tensor:
        name, device = tensor.dtype, tensor.device
        if name in direct and device == "cpu":
            # A capsule from before version 1 is imported in half the time, but cannot mark memory
            # as read-only.
            imported: torch.Tensor = from_dlpack(tensor.__dlpack__() if tensor.writable else tensor)
            return imported
        dtype = made = dtypes[name]
        shape = tensor.shape
        if name == "F4":
            # In its deterministic mode, torch cannot make tensors of them.
            made, shape = torch.uint8, (*shape[:-1], shape[-1] // 2)
        memory = tensor.owner()
        if memory is not None:
            # Not a view of `owner`: tensors in one allocation must not share autograd's version
            # counter.
            owner, offset = memory
            key = name, device, is_inference()
            blank = blanks.get(key)
            if blank is None:
                blanks[key] = blank = owner.new_empty(0, dtype=made)
            # `data` is a new tensor, in two thirds of the time of another empty one.
            own: torch.Tensor = blank.data.set_(owner.untyped_storage(), offset // made.itemsize, shape)
            return own if made is dtype else own.view(dtype)
        ordinal = cuda.ordinal_of(device)
        if ordinal is not None:
            return cuda.empty(ordinal, shape, made).view(dtype)
        # DLPack imports it as bytes.
        return from_dlpack(tensor.flat()).view(dtype).view(shape)

    return convert


def _is_exchanged(dtype: torch.dtype) -> bool:
    """Return whether this version of torch imports the dtype by DLPack: it then exports it too."""
    import torch
    from torch.utils.dlpack import from_dlpack

    try:
        # Not on the caller's default device. Not `torch.empty`, which fills the memory in torch's
        # deterministic mode.
        exported = torch.zeros(dtype.itemsize, dtype=torch.uint8, device="cpu").view(dtype)
        imported: torch.Tensor = from_dlpack(exported.__dlpack__())
    except (BufferError, RuntimeError):
        return False
    return imported.dtype is dtype


def with_writable(options: Options) -> Options:
    """Return the options with `writable` set to torch's default, if the caller did not set it."""
    return dataclasses.replace(options, writable=True) if options.writable is None else options


def _link_libraries() -> None:
    """Link torch's libraries, as `import torch` would, without the lock of the interpreter.

    The system links them for 0.5 to 0.9 s (torch 2.15, two busy cores, 2026-11). `import torch`
    would hold the lock meanwhile, so that no other thread could run: no event loop, and none that
    receives tensors. If this fails, so will the import, with torch's own error.
    """
    spec = None if "torch" in sys.modules else importlib.util.find_spec("torch")
    folders = (spec and spec.submodule_search_locations) or ()
    if not folders:
        return
    import ctypes

    # `ctypes.CDLL` keeps the lock; functions that it calls run without.
    link = ctypes.CDLL(None).dlopen
    link.restype = ctypes.c_void_p
    libraries = {"libtorch_global_deps.so": os.RTLD_NOW | os.RTLD_GLOBAL, "libtorch.so": os.RTLD_NOW}
    for name, mode in libraries.items():
        if not link(os.fsencode(f"{folders[0]}/lib/{name}"), mode):
            return


def _unsupported(infos: Iterable[TensorInfo], dtype: str, reason: str) -> UnsupportedError:
    return unsupported(infos, dtype, reason, 'pass framework="dlpack", or leave these tensors out')


def unsupported(infos: Iterable[TensorInfo], dtype: str, reason: str, hint: str) -> UnsupportedError:
    """Make the error for tensors whose dtype a framework lacks. It names the first few tensors."""
    names = [info.name for info in infos if info.dtype == dtype]
    shown = ", ".join(map(repr, names[:NAMES_SHOWN]))
    if len(names) > NAMES_SHOWN:
        shown += f" and {len(names) - NAMES_SHOWN} more"
    return advise(UnsupportedError, f"dtype {dtype} of {shown}: {reason}", hint, tensor=names[0])
