"""Frameworks whose tensors a load returns: their names, and converters to their tensors."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeAlias

from tload._errors import InvalidRequestError
from tload._options.keywords import suggestion
from tload._sources.entries import TensorInfo
from tload._tensors import imports, numpy_arrays, torch_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tload import _tload
    from tload._options.load_options import Options
    from tload.typing import Framework

ALIASES: dict[object, Framework] = {"pt": "torch", "np": "numpy"}
"""Names of frameworks as in the package safetensors."""

Converter: TypeAlias = "Callable[[_tload.Tensor], Any]"


def named(framework: Framework) -> Framework:
    """Return the name of a framework that other names stand for."""
    return ALIASES.get(framework, framework) if isinstance(framework, str) else framework


def converters(
    framework: object, options: Options, *, is_shared: bool = False
) -> Callable[[Iterable[str], torch_tensors.Infos], Converter]:
    """Return a function that makes the converter for tensors with given dtypes.

    With `is_shared`, ranks of a group may share the memory of tensors.
    """
    if framework == "torch":
        is_view = options.cache == "map" and not options.writable
        is_read_only = is_view or (is_shared and options.private is False)
        return functools.partial(torch_tensors.converter, is_read_only=is_read_only)
    if framework == "numpy":
        return numpy_arrays.converter
    if framework == "dlpack":
        return lambda _dtypes, _infos: lambda tensor: tensor
    near = suggestion(str(framework), ("torch", "numpy", "dlpack"))
    message = f"framework {framework!r} is unknown; it can be torch, numpy, dlpack{near}"
    raise InvalidRequestError(message)


def is_missing(framework: Framework, dtypes: Iterable[str]) -> bool:
    """Return whether a module that makes the framework's tensors has yet to be imported."""
    if framework == "dlpack":
        return False
    return imports.are_missing(["torch"] if framework == "torch" else numpy_arrays.modules(dtypes))


def check_dtypes(framework: Framework, dtypes: Iterable[str], loader: _tload.Loader) -> None:
    """Raise `UnsupportedError` for dtypes that no version of the framework has."""
    check = torch_tensors.check if framework == "torch" else numpy_arrays.check
    check(dtypes, lambda: map(TensorInfo._make, loader.selected()))
