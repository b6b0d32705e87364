"""safetensors: `load_file` with the device, shard after shard (https://huggingface.co/docs/safetensors/api/torch)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import timed
from safetensors.torch import load_file


def load(files: list[Path], device: str, _: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    tensors: dict[str, Any] = {}
    for file in files:
        tensors |= load_file(file, device=device)
    return tensors, {}


timed.run(load)
