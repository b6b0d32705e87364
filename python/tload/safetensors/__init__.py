"""Drop-in replacement of the safetensors package: the same functions and results, read by tload.

>>> from tload.safetensors import safe_open
>>> with safe_open("s3://bucket/model.safetensors", framework="pt") as f:
...     rows = f.get_slice("lm_head.weight")[:1024]
>>> from tload.safetensors.torch import load_file
>>> state = load_file("model.safetensors")

`safe_open`, and `load_file`, `load` and `load_model` of `tload.safetensors.torch`, `.numpy` and
`.flax`, are implemented by tload, whether or not the package is installed. The docs of `safe_open`
list the differences. All other functions, such as `save_file` and `serialize`, are the package's
own, under the same names, if it is installed.

`tload.patch` makes libraries that use the package use this module instead.
"""

from __future__ import annotations

import importlib
from typing import Any

from tload.safetensors._errors import SafetensorError
from tload.safetensors._open import TensorMeta, safe_open
from tload.safetensors._package import attribute
from tload.safetensors._prefetch import PrefetchLoader
from tload.safetensors._slice import PySafeSlice

__all__ = ["PrefetchLoader", "PySafeSlice", "SafetensorError", "TensorMeta", "safe_open"]


def __getattr__(name: str) -> Any:
    # `from tload.safetensors import torch` asks here first, and would get the package's module.
    if name in {"torch", "numpy", "flax"}:
        return importlib.import_module(f"{__name__}.{name}")
    return attribute(__name__, name)
