"""Conversion of floating-point tensors by torch as they arrive, in loads to GPUs.

In loads to host memory the core converts them, by the same rules.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from tload import _tload
from tload._errors import UnsupportedError, advise
from tload._options.dtypes import TARGETS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tload._options.load_options import Options
    from tload.report import Report
    from tload.typing import Framework

SCALED = frozenset({"F8_E5M2", "F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2FNUZ"})
"""Dtypes whose tensors may have scales, without which a value means nothing."""

FLOATS = frozenset({*(name.upper() for name in TARGETS), *SCALED})
"""Dtypes that are converted. Others are integers, scales, or packed: their values are codes."""

MARK = "scaled_fp8"
"""Name of a tensor that marks all 8-bit floats of a checkpoint as scaled, in some formats."""


def by_torch(options: Options, framework: Framework) -> tuple[Conversion | None, Options]:
    """Return the conversion of a load to GPUs, and the options of the core, which converts nothing then.

    Raises:
        UnsupportedError: The framework is not torch.
    """
    if options.dtype is None:
        return None, options
    dtype = str(options.dtype)
    if framework != "torch":
        message = f'dtype={TARGETS[dtype]} needs framework="torch" in a load with a GPU, where torch converts tensors'
        hint = "leave dtype= out, and convert the tensors with the library that imports them"
        raise advise(UnsupportedError, message, hint)
    return Conversion(dtype), dataclasses.replace(options, dtype=None)


def needed(options: Options, found: list[str], changes: Conversion | None, checkpoint: _tload.Checkpoint) -> list[str]:
    """Return the dtypes that a framework needs for tensors with the dtypes `found`.

    Tells `changes` which of the checkpoint's tensors have scales.
    """
    if options.dtype is None or FLOATS.isdisjoint(found):
        return found
    if changes is not None and not SCALED.isdisjoint(found):
        changes.leave(quantised({info[0]: info[1] for info in checkpoint.tensors()}))
    return [*dict.fromkeys([*found, str(options.dtype).upper()])]


class Conversion:
    """Converts the tensors of one load, and counts them."""

    def __init__(self, dtype: str) -> None:
        """Convert to `dtype`, of those in `TARGETS`."""
        self._dtype = dtype.upper()
        self._torch = TARGETS[dtype]
        self._quantised: frozenset[str] = frozenset()
        self._tensors = 0
        self._after = 0

    def leave(self, quantised: frozenset[str]) -> None:
        """Leave tensors that have scales as they are, with the scales."""
        self._quantised = quantised

    def wrap(self, convert: Callable[[_tload.Tensor], Any]) -> Callable[[_tload.Tensor], Any]:
        """Return `convert`, which makes tensors of torch, with the conversion."""
        import torch

        wanted = getattr(torch, self._torch)

        def convert_and_change(tensor: _tload.Tensor) -> Any:
            dtype = tensor.dtype
            made = convert(tensor)
            if dtype == self._dtype or dtype not in FLOATS or tensor.name in self._quantised:
                return made
            changed = made.to(wanted)
            self._tensors += 1
            self._after += changed.nbytes
            return changed

        return convert_and_change

    def told(self, report: Report) -> Report:
        """Return the report with what was converted so far."""
        plural = "" if self._tensors == 1 else "s"
        text = f"{report.text}\nconvert  {self._tensors} tensor{plural} to {_tload.format_bytes(self._after)}"
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
