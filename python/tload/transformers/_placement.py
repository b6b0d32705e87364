"""Where weights are going, as far as that is known before they are read."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection

PLANS = frozenset({"auto", "balanced", "balanced_low_0", "sequential"})
"""Device maps that transformers works out itself, once it has the model."""


def placement(device_map: Any, names: Collection[str]) -> tuple[str, dict[str, str]]:
    """Return the device and the globs of others that weights of these names are to be streamed to.

    transformers moves whatever is not where it belongs: a name that it changes, or a device that is no CUDA device, is
    streamed to the CPU, and arrives all the same.

    Args:
        device_map: As callers of transformers write it.
        names: The names of the checkpoint.
    """
    if device_map is None or (isinstance(device_map, str) and device_map in PLANS):
        return "cpu", {}
    if not isinstance(device_map, dict):
        if device_map == "cuda":
            # As transformers reads it: each process of a node has a GPU.
            device_map = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
        return _device(device_map), {}
    globs = {}
    # The most exact prefix says where to, and here the first glob that matches.
    for prefix in sorted(device_map, key=len, reverse=True):
        if prefix in names:
            globs[prefix] = _device(device_map[prefix])
        if prefix and any(name.startswith(f"{prefix}.") for name in names):
            globs[f"{prefix}.*"] = _device(device_map[prefix])
    return _device(device_map.get("", "cpu")), globs


def _device(device: Any) -> str:
    """Return the name of a CUDA device of NVIDIA's, else `"cpu"`."""
    import torch

    if isinstance(device, int):
        device = f"cuda:{device}"
    name = str(device)
    return name if name.partition(":")[0] == "cuda" and torch.version.cuda and torch.cuda.is_available() else "cpu"
