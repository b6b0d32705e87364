"""Devices of the weights, as far as they are known before reading."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection

PLANS = frozenset({"auto", "balanced", "balanced_low_0", "sequential"})
"""Device maps that transformers computes itself, once it has the model."""


def placement(device_map: Any, names: Collection[str]) -> tuple[str, dict[str, str]]:
    """Return the device, and a `device_map` of `tload.stream`, for weights with these names.

    transformers moves misplaced weights: a tensor whose name it changes, or whose device is not a
    CUDA device, is streamed to the CPU, and still gets to its device.

    Args:
        device_map: The caller's `device_map` for transformers.
        names: The names of the checkpoint.
    """
    if device_map is None or (isinstance(device_map, str) and device_map in PLANS):
        return "cpu", {}
    if not isinstance(device_map, dict):
        if device_map == "cuda":
            # As in transformers: each process of a node has a GPU.
            device_map = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
        return _device(device_map), {}
    whole = _device(device_map.get("", "cpu"))
    # Modules without weights are no error in transformers.
    modules = {
        module: _device(device)
        for module, device in device_map.items()
        if module and any(name == module or name.startswith(f"{module}.") for name in names)
    }
    # Weights in CPU memory and "on disk" alone need no map: then they may be views of the files.
    return whole, modules if any(device != whole for device in modules.values()) else {}


def _device(device: Any) -> str:
    """Return the name of an NVIDIA CUDA device, else `"cpu"`."""
    import torch

    if isinstance(device, int):
        device = f"cuda:{device}"
    name = str(device)
    return name if name.partition(":")[0] == "cuda" and torch.version.cuda and torch.cuda.is_available() else "cpu"
