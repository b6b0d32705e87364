"""fastsafetensors without GPUDirect Storage: whole files to the device, tensors as views of them
(https://github.com/foundation-model-stack/fastsafetensors)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import timed
from fastsafetensors import SafeTensorsFileLoader, SingleGroup


def load(files: list[Path], device: str, options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    loader = SafeTensorsFileLoader(SingleGroup(), device, nogds=True, **options)
    loader.add_filenames({0: [str(file) for file in files]})
    copied = loader.copy_files_to_device()
    tensors = {name: copied.get_tensor(name) for name in loader.get_keys()}
    # Since 0.4, tensors outlive both.
    copied.close()
    loader.close()
    return tensors, {}


timed.run(load)
