"""Reads tensors from the page cache straight into parameters, without memory in between.

The core reads a load into staging memory, and copies from there. That is as fast as a disk, and
slower than one copy where the page cache has the files. All rows are handed over in one table.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import torch

from tload import _tload
from tload._engines import views
from tload._load.load_targets import mark_changed
from tload._options.keywords import OptionKeywords
from tload._options.load_options import resolve
from tload._sources.opened import usable
from tload._tensors import cuda
from tload.plans.plan import (
    DTYPES,
    FIXED,
    PLACE,
    PLACE_DTYPE,
    PLACE_OFFSET,
    SOURCE_DTYPE,
    SOURCE_OFFSET,
    TENSOR,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tload._checkpoint.checkpoint import Checkpoint
    from tload._options.load_options import Options
    from tload.plans.plan import Plan

BYTES_MIN = 1 << 20
"""Fewest bytes that are read so: whether files are in the page cache is found out in a millisecond."""


def tensors_in(
    plan: Plan, tensors: Sequence[torch.Tensor], checkpoint: Checkpoint, options: Options | None
) -> torch.Tensor:
    """Return, by tensor, whether it is read so: as it is, in rows without gaps, and in the page cache."""
    rows, dims = plan.rows, plan.dims
    none = torch.zeros(len(plan.sources), dtype=torch.bool, device="cpu")
    if not len(rows):
        return none
    shape = rows[:, FIXED : FIXED + dims]
    strides, steps = rows[:, FIXED + dims : FIXED + 2 * dims], rows[:, FIXED + 2 * dims :]
    # One dimension is left of what has no gaps: plans join neighbours.
    is_row = ((shape > 1).sum(1) <= 1) & ((shape == 1) | ((strides == 1) & (steps == 1))).all(1)
    kinds = [DTYPES[name] for name in plan.dtypes]
    is_same = torch.tensor([[one is other for other in kinds] for one in kinds], device="cpu")
    on_cpu = torch.tensor([cuda.device_of(each) == "cpu" for each in tensors], device="cpu")
    tensor = rows[:, TENSOR]
    fits = is_row & is_same[rows[:, SOURCE_DTYPE], rows[:, PLACE_DTYPE]] & on_cpu[rows[:, PLACE]]
    chosen = none.clone()
    chosen[tensor] = True
    chosen[tensor[~fits]] = False
    if int(_lengths(plan, rows[chosen[tensor]]).sum()) < BYTES_MIN:
        return none
    shards = (shard.location for shard in checkpoint.shards)
    return chosen if views.are_best(resolve(options, OptionKeywords()), shards) else none


def load(plan: Plan, chosen: torch.Tensor, tensors: Sequence[torch.Tensor], checkpoint: Checkpoint) -> int:
    """Read the chosen tensors of a plan, and return their number of bytes.

    It is 0 if that failed: parameters then have any contents. A load finds out what is wrong, or
    succeeds because it tries again.

    Raises:
        tload.Error: A file has changed.
    """
    rows = plan.rows[chosen[plan.rows[:, TENSOR]]]
    size, length = _sizes(plan, rows), _lengths(plan, rows)
    columns = [rows[:, TENSOR], rows[:, PLACE], rows[:, SOURCE_OFFSET] * size, rows[:, PLACE_OFFSET] * size, length]
    table = torch.stack(columns, 1).contiguous()
    names = [source.name for source in plan.sources]
    memory = [(each.data_ptr(), each.numel() * each.element_size()) for each in tensors]
    try:
        if _tload.scatter(usable(checkpoint), names, memory, ctypes.string_at(table.data_ptr(), table.numel() * 8)):
            return int(length.sum())
        return 0
    finally:
        mark_changed(tensors)


def _sizes(plan: Plan, rows: torch.Tensor) -> torch.Tensor:
    """Return the bytes of an element, by row."""
    sizes = torch.tensor([DTYPES[name].itemsize for name in plan.dtypes], dtype=torch.int64, device="cpu")
    return sizes[rows[:, SOURCE_DTYPE]]


def _lengths(plan: Plan, rows: torch.Tensor) -> torch.Tensor:
    """Return the bytes of each row."""
    return rows[:, FIXED : FIXED + plan.dims].prod(1) * _sizes(plan, rows)
