"""Loaded tensors as numpy arrays, without a copy.

Imports numpy, and ml_dtypes for its floats, when used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tload._errors import UnsupportedError, advise
from tload._tensors.torch_tensors import unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy as np
    import numpy.typing as npt

    from tload import _tload
    from tload._tensors.torch_tensors import Infos

DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "C64": "complex64",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
}

# Extensions to numpy. Their 4-bit and 6-bit floats take a byte each, so they cannot represent
# packed ones without a copy.
ML_DTYPES = {
    "BF16": "bfloat16",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}


def modules(names: Iterable[str]) -> list[str]:
    """Return the modules that are needed for tensors with these dtypes."""
    return ["numpy", *(["ml_dtypes"] if ML_DTYPES.keys() & set(names) else [])]


def check(names: Iterable[str], infos: Infos) -> None:
    """Raise `UnsupportedError` for dtypes that no version of numpy has, without importing it.

    `infos` supplies the tensors that the error names.
    """
    for name in sorted(set(names) - DTYPES.keys() - ML_DTYPES.keys()):
        reason = "numpy has no packed floats of less than 8 bits"
        hint = 'pass framework="dlpack", or leave these tensors out'
        raise unsupported(infos(), name, reason, hint)


def dtype_names() -> dict[str, str]:
    """Return numpy's names of dtypes with those in safetensors files, for the extension module."""
    return {its: ours for ours, its in {**DTYPES, **ML_DTYPES}.items()}


def converter(names: Iterable[str], infos: Infos) -> Callable[[_tload.Tensor], npt.NDArray[Any]]:
    """Return a function that makes numpy arrays of tensors with these dtypes.

    Raises `UnsupportedError` for a dtype that numpy lacks, naming the tensors of it, which `infos`
    supplies.
    """
    try:
        import numpy as np
    except ImportError as error:
        message = f'framework="numpy" needs numpy, and it cannot be imported ({error})'
        hint = """pip install 'tload[numpy]', or pass framework="torch" or framework="dlpack" instead"""
        raise advise(UnsupportedError, message, hint) from error

    names = list(names)
    check(names, infos)
    dtypes = {name: _dtype(np, infos, name) for name in names}

    def convert(tensor: _tload.Tensor) -> npt.NDArray[Any]:
        flat = np.from_dlpack(tensor.flat())
        return flat.view(dtypes[tensor.dtype]).reshape(tensor.shape)

    return convert


def _dtype(np: Any, infos: Infos, name: str) -> np.dtype[Any]:
    if name in DTYPES:
        return np.dtype(DTYPES[name])  # type: ignore[no-any-return]
    try:
        import ml_dtypes
    except ImportError:
        reason = "numpy has this dtype only with the package ml_dtypes"
        hint = """pip install 'tload[numpy]' (from a clone: '.[numpy]'), or pass framework="torch" instead"""
        raise unsupported(infos(), name, reason, hint) from None
    scalar = getattr(ml_dtypes, ML_DTYPES[name], None)
    if scalar is None:
        reason = f"ml_dtypes {ml_dtypes.__version__} has no such dtype"
        hint = 'upgrade ml_dtypes, or pass framework="torch"'
        raise unsupported(infos(), name, reason, hint)
    return np.dtype(scalar)  # type: ignore[no-any-return]
