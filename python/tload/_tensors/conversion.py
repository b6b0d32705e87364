"""Conversion of floating-point tensors to another dtype as they arrive, by the framework they are for."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from tload import _tload
from tload._errors import InvalidRequestError, UnsupportedError, advise
from tload._options.keywords import suggestion

if TYPE_CHECKING:
    from collections.abc import Callable

    from tload.report import Report
    from tload.typing import Framework

TARGETS = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}
"""Dtypes that tensors are converted to, with their names in torch and numpy."""

FLOATS = frozenset({*TARGETS, "F8_E5M2", "F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2FNUZ"})
"""Dtypes that are converted. Others are integers, scales, or packed: their values are codes."""

SCALED = frozenset({"F8_E5M2", "F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2FNUZ"})
"""Dtypes whose tensors may have scales, without which a value means nothing."""

MARK = "scaled_fp8"
"""Name of a tensor that marks all 8-bit floats of a checkpoint as scaled, in some formats."""


def named(dtype: object, framework: Framework) -> str | None:
    """Return the name in safetensors files of a dtype that a caller passes; `None` for none.

    Raises:
        InvalidRequestError: Nothing is converted to it.
        UnsupportedError: The framework converts nothing.
        TypeError: It is no dtype.
    """
    if dtype is None:
        return None
    text = _text(dtype)
    names = {**{name.lower(): name for name in TARGETS}, **{its: ours for ours, its in TARGETS.items()}}
    name = names.get(text.lower())
    if name is None:
        message = f"dtype {text!r} is not one that tensors are converted to; it can be {', '.join(TARGETS.values())}"
        raise InvalidRequestError(message + suggestion(text, TARGETS.values()))
    if framework == "dlpack":
        message = f'dtype={TARGETS[name]} needs framework="torch" or framework="numpy", which convert tensors'
        hint = "leave dtype= out, and convert the tensors with the library that imports them"
        raise advise(UnsupportedError, message, hint)
    return name


def _text(dtype: object) -> str:
    if isinstance(dtype, str):
        return dtype
    kind = type(dtype)
    if kind.__module__ == "torch" and kind.__name__ == "dtype":
        return str(dtype).removeprefix("torch.")
    if kind.__module__.startswith("numpy"):
        return str(getattr(dtype, "name", dtype))
    if isinstance(dtype, type) and dtype.__module__ in {"numpy", "ml_dtypes"}:
        return dtype.__name__
    message = f"dtype: wanted a torch.dtype, a numpy dtype or a str, found {kind.__qualname__}"
    raise TypeError(message)


class Conversion:
    """Converts the tensors of one load, and counts them."""

    def __init__(self, dtype: str, framework: Framework) -> None:
        """Convert to `dtype`, of those in `TARGETS`."""
        self._dtype = dtype
        self._framework = framework
        self._quantised: frozenset[str] = frozenset()
        self._tensors = 0
        self._before = 0
        self._after = 0

    def dtypes(self, found: set[str]) -> set[str]:
        """Return the dtypes that the framework needs for tensors with the dtypes `found`."""
        return {*found, self._dtype} if found & FLOATS else found

    def leave_scaled(self, checkpoint: _tload.Checkpoint, found: set[str]) -> None:
        """Find the tensors that have scales: they stay as they are, with the scales."""
        if found & SCALED:
            self._quantised = quantised({info[0]: info[1] for info in checkpoint.tensors()})

    def wrap(self, convert: Callable[[_tload.Tensor], Any]) -> Callable[[_tload.Tensor], Any]:
        """Return `convert`, which makes tensors of the framework, with the conversion."""
        change = _torch_change(self._dtype) if self._framework == "torch" else _numpy_change(self._dtype)

        def convert_and_change(tensor: _tload.Tensor) -> Any:
            dtype = tensor.dtype
            made = convert(tensor)
            if dtype == self._dtype or dtype not in FLOATS or tensor.name in self._quantised:
                return made
            changed = change(made)
            self._tensors += 1
            self._before += tensor.nbytes
            self._after += changed.nbytes
            return changed

        return convert_and_change

    def told(self, report: Report) -> Report:
        """Return the report with what was converted so far."""
        before, after = _tload.format_bytes(self._before), _tload.format_bytes(self._after)
        plural = "" if self._tensors == 1 else "s"
        text = f"{report.text}\nconvert  {self._tensors} tensor{plural} to {self._dtype}: {before} to {after}"
        return dataclasses.replace(report, text=text, converted_tensors=self._tensors, converted_bytes=self._after)


def quantised(dtypes: dict[str, str]) -> frozenset[str]:
    """Return the names of 8-bit floats that have a scale: a tensor beside them says so by its name.

    `dtypes` has the dtypes of all tensors of a checkpoint by name.
    """
    eight = [name for name, dtype in dtypes.items() if dtype in SCALED]
    if MARK in dtypes:
        return frozenset(eight)
    parts = (name.rpartition(".") for name in dtypes)
    modules = {module for module, _, last in parts if "scale" in last.lower()}
    return frozenset(name for name in eight if name.rpartition(".")[0] in modules)


def _torch_change(dtype: str) -> Callable[[Any], Any]:
    import torch

    wanted = getattr(torch, TARGETS[dtype])
    return lambda tensor: tensor.to(wanted)


def _numpy_change(dtype: str) -> Callable[[Any], Any]:
    import numpy as np

    if dtype == "BF16":
        try:
            import ml_dtypes
        except ImportError:
            message = "dtype=bfloat16 with numpy needs the package ml_dtypes"
            hint = """pip install 'tload[numpy]' (from a clone: '.[numpy]'), or pass framework="torch" instead"""
            raise advise(UnsupportedError, message, hint) from None
        wanted = np.dtype(ml_dtypes.bfloat16)
    else:
        wanted = np.dtype(TARGETS[dtype])

    def change(array: Any) -> Any:
        # Values beyond the range become infinite, as in torch, without a warning.
        with np.errstate(all="ignore"):
            return array.astype(wanted)

    return change
