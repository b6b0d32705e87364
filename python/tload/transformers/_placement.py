"""Devices of the weights, as far as they are known before reading."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection

PLANS = frozenset({"auto", "balanced", "balanced_low_0", "sequential"})
"""Device maps that transformers computes itself, once it has the model."""


def placement(device_map: Any, names: Collection[str]) -> tuple[str, dict[str, str]]:
    """Return the device, and globs for other devices, to stream weights with these names to.

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
    globs = {}
    # The longest matching prefix decides in transformers; here, the first matching glob does.
    for prefix in sorted(device_map, key=len, reverse=True):
        if prefix in names:
            globs[prefix] = _device(device_map[prefix])
        if prefix and any(name.startswith(f"{prefix}.") for name in names):
            globs[f"{prefix}.*"] = _device(device_map[prefix])
    return _device(device_map.get("", "cpu")), globs


def _device(device: Any) -> str:
    """Return the name of an NVIDIA CUDA device, else `"cpu"`."""
    import torch

    if isinstance(device, int):
        device = f"cuda:{device}"
    name = str(device)
    return name if name.partition(":")[0] == "cuda" and torch.version.cuda and torch.cuda.is_available() else "cpu"
