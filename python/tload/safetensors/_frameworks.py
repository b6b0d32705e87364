"""Frameworks and devices by the safetensors package's names, and views of mapped memory."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tload._tensors import cuda, imports
from tload._tensors.numpy_arrays import DTYPES as NUMPY_DTYPES
from tload._tensors.numpy_arrays import ML_DTYPES
from tload._tensors.torch_tensors import DTYPES as TORCH_DTYPES
from tload.safetensors._errors import SafetensorError

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable

    import numpy as np
    import torch

    from tload._sources.entries import TensorInfo

FRAMEWORKS = {
    "pt": "pytorch",
    "torch": "pytorch",
    "pytorch": "pytorch",
    "np": "numpy",
    "numpy": "numpy",
    "tf": "tensorflow",
    "tensorflow": "tensorflow",
    "jax": "flax",
    "flax": "flax",
    "mlx": "mlx",
    "paddle": "paddle",
}

UNSUPPORTED = frozenset({"tensorflow", "mlx", "paddle"})
"""Frameworks of the package that tload does not support."""

ACCELERATORS = frozenset({"cuda", "hpu", "mlu", "musa", "npu", "xla", "xpu"})
"""Kinds of devices that have indices."""


@dataclass(frozen=True, slots=True)
class Framework:
    """Framework whose tensors are made."""

    name: str
    """Name in the package's messages: a value of `FRAMEWORKS`."""
    convert: Callable[[Any], Any] | None
    """Makes a tensor from a numpy array, with a copy. `None` for torch and numpy themselves."""

    @property
    def is_torch(self) -> bool:
        """`True` if tensors are torch's; tensors of all others are made from numpy arrays."""
        return self.name == "pytorch"


def framework_of(name: object, device: object) -> Framework:
    """Return the framework of a name, and import it.

    Torch, which takes seconds, is imported later if the device is the CPU: while tensors are read.

    Raises:
        SafetensorError: The name is unknown, or tload does not support the framework.
        TypeError: The name is not a str.
        ImportError: The framework is not installed.
    """
    if not isinstance(name, str):
        raise TypeError(f"framework: wanted a str, found {type(name).__qualname__}")
    known = FRAMEWORKS.get(name)
    if known is None:
        raise SafetensorError(f"framework {name} is invalid")
    if known in UNSUPPORTED:
        hint = 'pass framework="np" and convert the arrays, or use the safetensors package itself'
        raise SafetensorError(f"framework {name} is not supported by tload.safetensors\n  hint: {hint}")
    if known != "pytorch":
        importlib.import_module("numpy")
    elif device not in (None, "cpu") or not imports.are_missing(["torch"]):
        importlib.import_module("torch")
    return Framework(known, importlib.import_module("jax.numpy").array if known == "flax" else None)


def device_of(device: object, framework: Framework) -> str:
    """Return a device in torch's notation.

    Raises:
        SafetensorError: The device is unknown, or does not support the framework's tensors.
    """
    name = _device_name(device)
    if name is None:
        raise SafetensorError(f"device {device} is invalid")
    if name != "cpu" and not framework.is_torch:
        shown = device if isinstance(device, int) else name
        raise SafetensorError(f"Device {shown} is not supported for framework {framework.name}")
    return name


def _device_name(device: object) -> str | None:
    if device is None:
        return "cpu"
    if isinstance(device, int):
        return _numbered(int(device)) if device >= 0 else None
    if isinstance(device, str):
        return _named(device)
    torch = cuda.imported("torch")
    return None if torch is None or not isinstance(device, torch.device) else _of_torch(device)


def _named(device: str) -> str | None:
    kind, colon, number = device.partition(":")
    if device in {"cpu", "mps"}:
        return device
    if kind not in ACCELERATORS or (colon and not (number.isascii() and number.isdigit())):
        return None
    return f"{kind}:{int(number or 0)}"


def _numbered(number: int) -> str | None:
    """Return torch's device of an index: one of its accelerator, which is CUDA if it has none."""
    torch = cuda.imported("torch")
    try:
        return f"cuda:{number}" if torch is None else _of_torch(torch.device(number))
    except RuntimeError:
        return f"cuda:{number}"


def _of_torch(device: torch.device) -> str | None:
    if device.type in {"cpu", "mps"}:
        return device.type
    # In torch, a device without an index is the current one.
    return _named(cuda.device_name(device, "torch"))


def check_torch_dtype(name: str) -> None:
    """Raise `SafetensorError` if torch lacks a dtype.

    If torch is not imported yet, only dtypes that all its versions lack are an error.
    """
    if name not in TORCH_DTYPES or not imports.are_missing(["torch"]):
        torch_dtype(name)


def torch_dtype(name: str) -> torch.dtype:
    """Return torch's dtype for one of the file format, or raise `SafetensorError`."""
    import torch

    dtype: torch.dtype | None = getattr(torch, TORCH_DTYPES.get(name, ""), None)
    if dtype is None:
        raise SafetensorError(f"Dtype not understood: {name}")
    return dtype


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return numpy's dtype for one of the file format, or raise `SafetensorError`."""
    import numpy as np

    if name in NUMPY_DTYPES:
        return np.dtype(NUMPY_DTYPES[name])
    if name not in ML_DTYPES:
        hint = 'numpy has no packed floats of less than 8 bits; pass framework="pt"'
        raise SafetensorError(f"Dtype not understood: {name}\n  hint: {hint}")
    try:
        dtype: np.dtype[Any] = np.dtype(getattr(importlib.import_module("ml_dtypes"), ML_DTYPES[name]))
    except (ImportError, AttributeError) as error:
        hint = """pip install --upgrade 'tload[numpy]', or pass framework="pt" instead"""
        raise SafetensorError(f"Dtype not understood: {name} ({error})\n  hint: {hint}") from error
    return dtype


def torch_shape(info: TensorInfo) -> tuple[int, ...]:
    """Return a tensor's shape in torch, where one element holds two 4-bit floats."""
    if info.dtype != "F4":
        return info.shape
    if info.shape[-1] % 2:
        reason = f"requires that the last dim be divisible by 2 in torch: got {[*info.shape]}"
        raise SafetensorError(f"f4_x2 dtype {reason}")
    return (*info.shape[:-1], info.shape[-1] // 2)


def torch_view(memory: mmap.mmap, info: TensorInfo) -> Any:
    """Return a tensor of a mapped file as a torch tensor, with a storage of its own."""
    import torch

    dtype, shape = torch_dtype(info.dtype), torch_shape(info)
    start, end = info.file_range
    if start == end:
        return torch.empty(shape, dtype=dtype, device="cpu")
    if start % dtype.itemsize:
        # Kernels of torch may rely on alignment.
        return (
            torch.frombuffer(memory, dtype=torch.uint8, count=end - start, offset=start).clone().view(dtype).view(shape)
        )
    count = (end - start) // dtype.itemsize
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=start).view(shape)


def numpy_view(memory: mmap.mmap, info: TensorInfo) -> Any:
    """Return a tensor of a mapped file as a numpy array."""
    import numpy as np

    dtype = numpy_dtype(info.dtype)
    start, end = info.file_range
    if start == end:
        return np.zeros(info.shape, dtype)
    array = np.frombuffer(memory, dtype, count=(end - start) // dtype.itemsize, offset=start).reshape(info.shape)
    return array.copy() if start % dtype.alignment else array
