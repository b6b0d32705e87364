"""Devices of a load, as the caller names them, and the allocator of their memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tload._errors import InvalidRequestError, advise
from tload._tensors import cuda

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tload.typing import Framework


def uses_gpu(device: object, device_map: Mapping[str, object] | None) -> bool:
    """Return whether a load with these arguments uses a GPU."""
    others = device_map.values() if isinstance(device_map, Mapping) else ()
    return any(str(each) != "cpu" for each in (device, *others))


def entries(device_map: Mapping[str, object] | None, framework: Framework) -> list[tuple[str, str]]:
    """Return the entries of a device map, with devices in the core's notation."""
    if device_map is None:
        return []
    if not isinstance(device_map, Mapping):
        found = repr(device_map) if isinstance(device_map, str) else type(device_map).__qualname__
        message = f"device_map: wanted a mapping of modules or globs to devices, found {found}"
        if isinstance(device_map, str):
            message += "; pass one device for all tensors as device="
        raise TypeError(message)
    for key in device_map:
        if not isinstance(key, str):
            message = f"device_map: wanted modules or globs (str) as keys, found {type(key).__qualname__}"
            raise TypeError(message)
    return [(key, cuda.device_name(device, framework)) for key, device in device_map.items()]


def allocator(framework: Framework, devices: Iterable[str]) -> cuda.Allocator | None:
    """Return torch's allocator of GPU memory, or `None` if the core allocates it or needs none."""
    gpu = next((device for device in devices if cuda.ordinal_of(device) is not None), None)
    if gpu is None or framework == "dlpack":
        return None
    if framework == "numpy":
        message = f'framework="numpy" and device {gpu!r}: numpy arrays live in CPU memory'
        hint = 'pass framework="torch", or framework="dlpack" for CuPy, JAX and others'
        raise advise(InvalidRequestError, message, hint)
    cuda.check()
    return cuda.Allocator()
