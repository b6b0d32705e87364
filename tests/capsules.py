"""Looks into DLPack capsules, as a consumer in C would."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("start", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p))]


class _ManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_get_name = ctypes.pythonapi.PyCapsule_GetName
_get_name.restype = ctypes.c_char_p
_get_name.argtypes = [ctypes.py_object]
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_set_name = ctypes.pythonapi.PyCapsule_SetName
_set_name.restype = ctypes.c_int
_set_name.argtypes = [ctypes.py_object, ctypes.c_char_p]

_USED = b"used_dltensor_versioned"


@dataclass(frozen=True)
class Seen:
    """Content of a capsule."""

    name: str
    version: tuple[int, int] | None
    flags: int
    address: int | None
    device: tuple[int, int]
    dtype: tuple[int, int, int]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    raw: bytes


def look(capsule: object) -> Seen:
    """Read a capsule and leave it as it is."""
    name = _get_name(capsule)
    assert name is not None
    address = _get_pointer(capsule, name)
    version = None
    flags = 0
    if name == b"dltensor_versioned":
        versioned = _ManagedVersioned.from_address(address)
        tensor, version, flags = versioned.tensor, (versioned.major, versioned.minor), versioned.flags
    else:
        tensor = _Managed.from_address(address).tensor
    shape = tuple(tensor.shape[: tensor.ndim])
    elements = 1
    for dim in shape:
        elements *= dim
    size = elements * tensor.bits * tensor.lanes // 8
    return Seen(
        name=name.decode(),
        version=version,
        flags=flags,
        address=tensor.start,
        device=(tensor.device_type, tensor.device_id),
        dtype=(tensor.code, tensor.bits, tensor.lanes),
        shape=shape,
        strides=tuple(tensor.strides[: tensor.ndim]),
        raw=ctypes.string_at(tensor.start, size) if size else b"",
    )


class Taken:
    """A versioned capsule that has been taken over, as a consumer does: this object owns its memory
    until `free`."""

    def __init__(self, capsule: object) -> None:
        self._address = _get_pointer(capsule, b"dltensor_versioned")
        assert _set_name(capsule, _USED) == 0

    def read(self) -> bytes:
        tensor = _ManagedVersioned.from_address(self._address).tensor
        return ctypes.string_at(tensor.start, tensor.shape[0])

    def free(self) -> None:
        """Call the producer's deleter. ctypes releases the GIL meanwhile, as a consumer in C
        may."""
        _ManagedVersioned.from_address(self._address).deleter(self._address)
