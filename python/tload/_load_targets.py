"""Targets of `load_into`: the caller's torch tensors and numpy arrays, described for the core."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from tload import _cuda, _numpy, _torch
from tload._errors import InvalidRequestError, advise

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch

    from tload import _tload

Layout: TypeAlias = tuple[int, int, list[tuple[int, int]], str]
Described: TypeAlias = tuple[str, str | None, tuple[int, ...], str, tuple[int, int, int, object] | None, Layout | None]

EXTRA_STATE = "_extra_state"
"""Key under which modules keep state that is not a tensor; checkpoints do not hold it."""

NAMES_SHOWN = 100
"""Maximum number of targets that an error names: a whole model on "meta" has thousands."""


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """Tensor or array of the caller, as the core sees it."""

    described: Described
    value: Any

    @property
    def name(self) -> str:
        """Name of the tensor to load into it."""
        return self.described[0]

    def is_filled_by_the_core(self, dtype: str) -> bool:
        """Return whether the core writes a tensor of this dtype directly into the target."""
        return self.described[4] is not None and self.described[1] == dtype

    def fill(self, tensor: _tload.Tensor, convert: _Converters) -> None:
        """Copy a loaded temporary tensor into the target."""
        if tensor.nbytes == 0:
            return
        if _is_tensor(self.value):
            import torch

            # A tensor that was made in inference mode can only be changed in that mode.
            with torch.inference_mode() if self.value.is_inference() else torch.no_grad():
                self.value.copy_(convert.torch(tensor))
        else:
            import numpy as np

            np.copyto(self.value, convert.numpy(tensor), casting="unsafe")


@dataclass(frozen=True, slots=True)
class _Converters:
    """Functions that convert loaded tensors to those of a library."""

    torch: Any
    numpy: Any


def converters(targets: Mapping[str, LoadTarget], infos: tuple[Any, ...]) -> _Converters:
    """Return converters for all tensors that have to be copied.

    Raises `UnsupportedError` if a tensor cannot be converted.
    """
    copied = [info for info in infos if info.nbytes and not targets[info.name].is_filled_by_the_core(info.dtype)]
    tensors = [info for info in copied if _is_tensor(targets[info.name].value)]
    arrays = [info for info in copied if not _is_tensor(targets[info.name].value)]
    packed = [info for info in tensors if "F4" in {info.dtype, targets[info.name].described[1]}]
    converted = [info for info in packed if info.dtype != targets[info.name].described[1]]
    if converted:
        hint = "load them unconverted (load), and convert them with a library that can"
        raise _torch.unsupported(converted, converted[0].dtype, "torch cannot convert from or to 4-bit floats", hint)
    return _Converters(
        torch=_torch.converter({info.dtype for info in tensors}, lambda: tensors) if tensors else None,
        numpy=_numpy.converter({info.dtype for info in arrays}, lambda: arrays) if arrays else None,
    )


def targets_of(target: object) -> tuple[dict[str, LoadTarget], dict[str, str]]:
    """Describe each valid target, and give the reason why each other one is invalid, by name.

    Raises:
        TypeError: `target` is neither a module nor a mapping.
    """
    torch = _cuda.imported("torch")
    if torch is not None and isinstance(target, torch.nn.Module):
        target = target.state_dict(keep_vars=True)
    if not isinstance(target, Mapping):
        message = f"target: wanted a torch.nn.Module or a mapping of names, found {type(target).__qualname__}"
        raise TypeError(message)
    targets: dict[str, LoadTarget] = {}
    faults: dict[str, str] = {}
    for name, value in target.items():
        if not isinstance(name, str):
            message = f"target: wanted names (str) as keys, found {type(name).__qualname__}"
            raise TypeError(message)
        described = _describe(name, value)
        if not isinstance(described, str):
            targets[name] = LoadTarget(described, value)
        elif not name.endswith(EXTRA_STATE):
            faults[name] = described
    return targets, faults


def reject(faults: Mapping[str, str]) -> None:
    """Raise `InvalidRequestError` that lists the invalid targets, if there are any."""
    if not faults:
        return
    shown = "; ".join(f"{name!r} {reason}" for name, reason in list(faults.items())[:NAMES_SHOWN])
    if len(faults) > NAMES_SHOWN:
        shown += f"; and {len(faults) - NAMES_SHOWN} more"
    hint = "allocate their memory first (module.to_empty(device=…), DTensor.to_local()), or leave them out"
    raise advise(InvalidRequestError, f"cannot load into these targets: {shown}", hint)


def mark_changed(targets: Iterable[LoadTarget]) -> None:
    """Tell autograd which tensors changed: a graph that needs their old values then fails."""
    for target in targets:
        if _is_tensor(target.value) and not target.value.is_inference():
            import torch

            torch.autograd.graph.increment_version(target.value)


def _is_tensor(value: object) -> bool:
    torch = _cuda.imported("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _describe(name: str, value: object) -> Described | str:
    """Return the description of a target for the core, or the reason why it is invalid."""
    if _is_tensor(value):
        return _describe_tensor(name, value)  # type: ignore[arg-type]
    numpy = _cuda.imported("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return _describe_array(name, value)
    return f"is not a tensor or array but a {type(value).__qualname__}"


def _describe_tensor(name: str, tensor: torch.Tensor) -> Described | str:
    reason = _unfit(tensor)
    if reason is not None:
        return reason
    device = _cuda.device_of(tensor)
    ordinal = _cuda.ordinal_of(device)
    stream = 0 if ordinal is None else _cuda.current_stream(ordinal)
    dtype = _torch_names().get(tensor.dtype)
    shape = tuple(tensor.shape)
    if dtype == "F4" and shape:
        shape = (*shape[:-1], shape[-1] * 2)
    memory = None
    nbytes = tensor.numel() * tensor.element_size()
    if nbytes and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
        memory = (tensor.data_ptr(), nbytes, stream, tensor)
    return name, dtype, shape, device, memory, _layout_of_tensor(tensor, dtype) if nbytes else None


def _layout_of_tensor(tensor: torch.Tensor, dtype: str | None) -> Layout:
    size = tensor.element_size()
    strides = [(dim, stride * size) for dim, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    # A conjugate shares the memory of its base, but has other values.
    lazy = " conjugated" * tensor.is_conj() + " negated" * tensor.is_neg()
    return tensor.data_ptr(), size, strides, (dtype or str(tensor.dtype)) + lazy


def _unfit(tensor: torch.Tensor) -> str | None:
    """Return the reason why a tensor is an invalid target, or `None`."""
    import torch

    if torch.nn.parameter.is_lazy(tensor):
        # No other property of a lazy tensor may be read.
        return "is not initialised yet, so it has no shape"
    device = _cuda.device_of(tensor)
    strided = tensor.layout == torch.strided and not tensor.is_nested
    reasons = {
        "is on the meta device, which has no memory": tensor.is_meta,
        f"is sparse ({str(tensor.layout).removeprefix('torch.')})": tensor.layout != torch.strided,
        "is quantized": getattr(tensor, "is_quantized", False),
        "is nested": tensor.is_nested,
        f"is on {device}": device != "cpu" and _cuda.ordinal_of(device) is None,
        "has overlapping elements in memory": strided and _repeats(tensor.shape, tensor.stride()),
        f"is a {type(tensor).__name__} without memory of its own": strided and not _has_memory(tensor),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _has_memory(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has memory of its own, unlike subclasses that wrap other tensors."""
    try:
        return tensor.numel() == 0 or tensor.data_ptr() != 0
    except RuntimeError:
        return False


def _describe_array(name: str, array: npt.NDArray[Any]) -> Described | str:
    if not array.flags.writeable:
        return "is read-only"
    if _repeats(array.shape, array.strides):
        return "has overlapping elements in memory"
    memory = None
    if array.nbytes and array.flags.c_contiguous:
        memory = (array.ctypes.data, array.nbytes, 0, array)
    dtype = _numpy_name(array.dtype)
    strides = list(zip(array.shape, array.strides, strict=True))
    layout = (array.ctypes.data, array.itemsize, strides, dtype or array.dtype.str) if array.nbytes else None
    return name, dtype, array.shape, "cpu", memory, layout


def _repeats(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    if 0 in shape:
        return False
    reach = 0
    steps = sorted((abs(stride), dim) for dim, stride in zip(shape, strides, strict=True) if dim > 1)
    for stride, dim in steps:
        if stride <= reach:
            return True
        reach += stride * (dim - 1)
    return False


def _torch_names() -> dict[torch.dtype, str]:
    import torch

    return {getattr(torch, its): ours for ours, its in _torch.DTYPES.items() if hasattr(torch, its)}


def _numpy_name(dtype: Any) -> str | None:
    # Bytes written in native order would be misread in a foreign byte order.
    if not dtype.isnative:
        return None
    return {its: ours for ours, its in {**_numpy.DTYPES, **_numpy.ML_DTYPES}.items()}.get(dtype.name)
