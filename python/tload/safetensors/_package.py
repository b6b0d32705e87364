"""Attributes that tload leaves to the safetensors package, above all for writing files.

They are looked up on access.
"""

from __future__ import annotations

import importlib
from typing import Any

HINT = "tload reads safetensors files, and leaves writing them to the safetensors package: pip install safetensors"


def attribute(module: str, name: str) -> Any:
    """Return an attribute of the package's module with the same name, such as `safetensors.torch`.

    Raises:
        AttributeError: The package has no such name either, or the name has underscores at both
            ends, as those that the import system and tools look up.
        ImportError: The package is not installed.
    """
    if name.startswith("__"):
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    theirs = module.removeprefix("tload.")
    try:
        package = importlib.import_module(theirs)
    except ImportError as error:
        raise ImportError(f"{module}.{name}: {theirs} cannot be imported ({error})\n  hint: {HINT}") from error
    try:
        return getattr(package, name)
    except AttributeError:
        raise AttributeError(f"neither {module!r} nor {theirs!r} has an attribute {name!r}") from None
