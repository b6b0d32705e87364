"""Hands boxes of host memory to the core, as one table."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import TYPE_CHECKING

import torch

from tload._load.call import Call
from tload._load.load_targets import mark_changed
from tload._load.stream import TensorStream
from tload._ranks.group import beginning
from tload.plans.plan import (
    DTYPES,
    FIXED,
    PLACE,
    PLACE_DTYPE,
    PLACE_OFFSET,
    SOURCE_DTYPE,
    SOURCE_OFFSET,
    TENSOR,
    source_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tload._checkpoint.checkpoint import Checkpoint
    from tload._options.load_options import Options
    from tload.plans.plan import Plan
    from tload.report import Report

_WORTH = 0.9
"""A tensor is read as a whole if at least this share of it goes to parameters."""


def tensors_in(plan: Plan, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return, by tensor, whether the core can write all its boxes itself, from the whole tensor.

    The parameters are in host memory, no dtype changes, and little that is read is dropped.
    """
    rows, dims = plan.rows, plan.dims
    shape, strides = rows[:, FIXED : FIXED + dims], rows[:, FIXED + dims : FIXED + 2 * dims]
    sizes = torch.tensor([DTYPES[name].itemsize for name in plan.dtypes] or [1], dtype=torch.int64)
    size = sizes[rows[:, SOURCE_DTYPE]]
    on_cpu = torch.tensor([tensor.device.type == "cpu" for tensor in tensors], dtype=torch.bool)
    is_same = torch.tensor([[DTYPES[one] is DTYPES[other] for other in plan.dtypes] for one in plan.dtypes])
    fits = on_cpu[rows[:, PLACE]] & is_same.reshape(len(plan.dtypes), -1)[rows[:, SOURCE_DTYPE], rows[:, PLACE_DTYPE]]
    # A dimension that reads elements again, or in another order than that of its strides.
    inner = torch.ones(len(rows), dtype=torch.int64)
    for dim in range(dims - 1, -1, -1):
        used = shape[:, dim] > 1
        fits &= ~used | (strides[:, dim] >= inner)
        inner = torch.where(used, inner + (shape[:, dim] - 1) * strides[:, dim], inner)
    read = torch.zeros(len(plan.sources), dtype=torch.int64)
    read.index_add_(0, rows[:, TENSOR], shape.prod(1) * size)
    whole = torch.tensor([source_bytes(source) for source in plan.sources], dtype=torch.int64)
    chosen = read >= whole * _WORTH
    chosen[rows[:, TENSOR][~fits]] = False
    chosen[whole == 0] = False
    return chosen


def load(
    plan: Plan,
    chosen: torch.Tensor,
    tensors: Sequence[torch.Tensor],
    checkpoint: Checkpoint,
    options: Options | None,
) -> Report:
    """Load the chosen tensors of a plan into the boxes of their rows."""
    call = Call(checkpoint, {"options": options})
    cache = "auto" if call.options.cache == "map" else call.options.cache
    call.options = dataclasses.replace(call.options, private=True, cache=cache)
    names = [source.name for source, is_chosen in zip(plan.sources, chosen.tolist(), strict=True) if is_chosen]
    memory = [(tensor.data_ptr(), tensor.numel() * tensor.element_size()) for tensor in tensors]
    with beginning(None, call.options) as joined:
        loader = call.loader(
            call.open(joined),
            {},
            names=names,
            found=[],
            globs=[],
            regexes=[],
            device="cpu",
            boxes=(memory, plan.dims, _table(plan, chosen), tensors),
        )
    raw = None
    try:
        # Inside, because lanes write before it returns: it may fail, or be interrupted.
        raw = loader.stream(None, joined)
        with TensorStream(raw, _given, None) as stream:
            for _ in stream:
                pass
        return stream.report
    finally:
        # Nothing is written to the parameters after the call, whatever ended it.
        if raw is not None:
            raw.close()
        mark_changed(tensors)


def _given(tensor: object) -> object:
    """Return a tensor without bytes: all others are written by the core."""
    return tensor


def _table(plan: Plan, chosen: torch.Tensor) -> bytes:
    """Return the boxes of chosen tensors, in bytes, as the core reads them."""
    dims = plan.dims
    rows = plan.rows[chosen[plan.rows[:, TENSOR]]]
    numbers = chosen.to(torch.int64).cumsum(0) - 1
    sizes = torch.tensor([DTYPES[name].itemsize for name in plan.dtypes] or [1], dtype=torch.int64)
    size = sizes[rows[:, SOURCE_DTYPE]]
    columns = [
        numbers[rows[:, TENSOR]],
        rows[:, PLACE],
        rows[:, SOURCE_OFFSET] * size,
        rows[:, PLACE_OFFSET] * size,
        size,
    ]
    for dim in range(FIXED, FIXED + dims):
        columns += [rows[:, dim], rows[:, dim + dims] * size, rows[:, dim + 2 * dims] * size]
    table = torch.stack(columns, 1).contiguous()
    return ctypes.string_at(table.data_ptr(), table.numel() * 8) if table.numel() else b""
