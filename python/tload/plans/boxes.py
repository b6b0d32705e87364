"""Hands boxes of parameters to the core, as one table."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import TYPE_CHECKING

import torch

from tload._load.call import Call
from tload._load.load_targets import mark_changed
from tload._load.stream import TensorStream
from tload._ranks.group import beginning
from tload._tensors import cuda, torch_tensors
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

    from tload import _tload
    from tload._checkpoint.checkpoint import Checkpoint
    from tload._options.load_options import Options
    from tload._ranks.group import Group
    from tload.plans.plan import Plan
    from tload.report import Report

    _Memory = tuple[int, int, tuple[int, int] | None]
    _Boxes = tuple[list[_Memory], list[tuple[str, str]], int, bytes, object]

_WORTH = 0.9
"""Boxes of a tensor are read one by one if they are less than this share of what lies between them."""

_ROW_BYTES_MIN = 256
"""Shortest rows that are copied to a GPU one by one: two bursts of its memory each."""

_FLOATS = {
    name: dtype
    for dtype, name in torch_tensors.DTYPES.items()
    if dtype in {"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"}
}
"""Dtypes that the core converts to each other: as safetensors files name them, by their names in torch."""

_ROUNDS_MAX = 8
"""Most reads of one tensor: each is in a load of its own."""


def tensors_in(plan: Plan, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return, by tensor, whether the core can write all its boxes itself.

    They are on one device. In host memory, floating-point elements may change their dtype. On a GPU
    nothing does, and short rows are left to torch: each is a transfer of its own for a copy engine.
    """
    rows, dims = plan.rows, plan.dims
    chosen = torch.zeros(len(plan.sources), dtype=torch.bool, device="cpu")
    if not len(rows):
        return chosen
    tensor, place = rows[:, TENSOR], rows[:, PLACE]
    shape, strides = rows[:, FIXED : FIXED + dims], rows[:, FIXED + dims : FIXED + 2 * dims]
    size = _sizes(plan)
    pairs = _pairs(plan)[rows[:, SOURCE_DTYPE], rows[:, PLACE_DTYPE]]
    devices = [cuda.device_of(each) for each in tensors]
    on_cpu = torch.tensor([each == "cpu" for each in devices], device="cpu")[place]
    on_gpu = torch.tensor([each.startswith("cuda:") for each in devices], device="cpu")[place]
    # A dimension that reads elements again, or in another order than that of its strides.
    is_nested = torch.ones(len(rows), dtype=torch.bool, device="cpu")
    run, inner = (
        torch.ones(len(rows), dtype=torch.int64, device="cpu"),
        torch.ones(len(rows), dtype=torch.int64, device="cpu"),
    )
    for dim in range(dims - 1, -1, -1):
        used, stride = shape[:, dim] > 1, strides[:, dim]
        is_nested &= ~used | (stride >= inner)
        is_run = used & (inner == 1) & (stride == 1) & (rows[:, FIXED + 2 * dims + dim] == 1)
        run = torch.where(is_run, shape[:, dim], run)
        inner = torch.where(used, inner + (shape[:, dim] - 1) * stride, inner)
    is_wide = (run * size[rows[:, SOURCE_DTYPE]] >= _ROW_BYTES_MIN) | (run == shape.prod(1))
    fits = is_nested & ((on_cpu & (pairs >= 0)) | (on_gpu & (pairs == 0) & is_wide))
    chosen[tensor] = True
    chosen[tensor[~fits]] = False
    numbers: dict[str, int] = {}
    device = torch.tensor([numbers.setdefault(each, len(numbers)) for each in devices], device="cpu")[place]
    none = torch.zeros(len(plan.sources), dtype=torch.int64, device="cpu")
    first = none.scatter_reduce(0, tensor, device, "amin", include_self=False)
    last = none.scatter_reduce(0, tensor, device, "amax", include_self=False)
    return chosen & (first == last)


def load(
    plan: Plan,
    chosen: torch.Tensor,
    tensors: Sequence[torch.Tensor],
    checkpoint: Checkpoint,
    *,
    options: Options | None,
    group: Group | None,
) -> list[Report]:
    """Load the chosen tensors of a plan into the boxes of their rows.

    In a group, it is one load, in which every rank takes part, whatever it has chosen.
    """
    call = Call(checkpoint, {"options": options})
    call.options = host_options(call.options)
    rows = plan.rows[chosen[plan.rows[:, TENSOR]]]
    if group is not None:
        return [_load(plan, rows, tensors, call, group)]
    return [_load(plan, each, tensors, call, None) for each in rounds(plan, rows) if len(each)]


def take_part(checkpoint: Checkpoint, options: Options | None, group: Group) -> Report:
    """Start a load of nothing, for the other ranks, which wait for this one."""
    call = Call(checkpoint, {"options": options})
    call.options = host_options(call.options)
    return _run(call, [], ([], [], 0, b"", None), group)


def host_options(options: Options) -> Options:
    """Return the options of a load that writes to the caller's memory, equal on all ranks."""
    cache = "auto" if options.cache == "map" else options.cache
    return dataclasses.replace(options, private=True, cache=cache)


def _load(plan: Plan, rows: torch.Tensor, tensors: Sequence[torch.Tensor], call: Call, group: Group | None) -> Report:
    names, table = described(plan, rows, tensors)
    try:
        return _run(call, names, table, group)
    finally:
        mark_changed(tensors)


def described(plan: Plan, rows: torch.Tensor, tensors: Sequence[torch.Tensor]) -> tuple[list[str], _Boxes]:
    """Return the tensors of rows, and the rows as the core reads them."""
    used = torch.zeros(len(plan.sources), dtype=torch.bool, device="cpu")
    used[rows[:, TENSOR]] = True
    names = [plan.sources[index].name for index in used.nonzero().flatten().tolist()]
    return names, (_memory(tensors), _casts(plan), plan.dims, _table(plan, rows, used), tensors)


def loader(call: Call, joined: _tload.Group | None, names: list[str], boxes: _Boxes) -> _tload.Loader:
    """Return the load of boxes, which has not started."""
    return call.loader(call.open(joined), {}, names=names, found=[], globs=[], regexes=[], device="cpu", boxes=boxes)


def _run(call: Call, names: list[str], boxes: _Boxes, group: Group | None) -> Report:
    """Run a load of boxes."""
    with beginning(group, call.options) as joined:
        raw_loader = loader(call, joined, names, boxes)
    raw = None
    try:
        # Inside, because lanes write before it returns: it may fail, or be interrupted.
        raw = raw_loader.stream(None, joined)
        with TensorStream(raw, _given, None) as stream:
            for _ in stream:
                pass
        return stream.report
    finally:
        # Nothing is written to the parameters after the call, whatever ended it.
        if raw is not None:
            raw.close()


def rounds(plan: Plan, rows: torch.Tensor) -> list[torch.Tensor]:
    """Return the rows of each load. A load reads one slice of a tensor: boxes that are far apart are in several."""
    dims = plan.dims
    shape, strides = rows[:, FIXED : FIXED + dims], rows[:, FIXED + dims : FIXED + 2 * dims]
    size, tensor = _sizes(plan)[rows[:, SOURCE_DTYPE]], rows[:, TENSOR]
    low = rows[:, SOURCE_OFFSET] * size
    high = low + (((shape - 1) * strides).sum(1) + 1) * size
    total = len(plan.sources)
    number = torch.bincount(tensor, minlength=total)
    empty = torch.zeros(total, dtype=torch.int64, device="cpu")
    apart = empty.index_add(0, tensor, high - low)
    first = empty.scatter_reduce(0, tensor, low, "amin", include_self=False)
    together = empty.scatter_reduce(0, tensor, high, "amax", include_self=False) - first
    is_split = (number > 1) & (number <= _ROUNDS_MAX) & (apart < together * _WORTH)
    if not bool(is_split.any()):
        return [rows]
    order = tensor.argsort(stable=True)
    index = torch.empty_like(order)
    index[order] = torch.arange(len(order), device="cpu") - (number.cumsum(0) - number)[tensor[order]]
    index[~is_split[tensor]] = 0
    return [rows[index == each] for each in range(int(index.max()) + 1)]


def _memory(tensors: Sequence[torch.Tensor]) -> list[_Memory]:
    """Return address and length of each tensor; on a GPU, also its ordinal and the stream that orders access."""
    streams: dict[str, tuple[int, int] | None] = {"cpu": None}
    memory = []
    for tensor in tensors:
        device = cuda.device_of(tensor)
        if device not in streams:
            kind, _, index = device.partition(":")
            streams[device] = (int(index), cuda.current_stream(int(index))) if kind == "cuda" else None
        memory.append((tensor.data_ptr(), tensor.numel() * tensor.element_size(), streams[device]))
    return memory


def _given(tensor: object) -> object:
    """Return a tensor without bytes: all others are written by the core."""
    return tensor


def _sizes(plan: Plan) -> torch.Tensor:
    """Return the bytes of an element, by dtype."""
    return torch.tensor([DTYPES[name].itemsize for name in plan.dtypes] or [1], dtype=torch.int64, device="cpu")


def _casts(plan: Plan) -> list[tuple[str, str]]:
    """Return the conversions that the core may be asked for, as safetensors files name the dtypes."""
    named = [_FLOATS[name] for name in plan.dtypes if name in _FLOATS]
    return [(one, other) for one in named for other in named if one != other]


def _pairs(plan: Plan) -> torch.Tensor:
    """Return, by dtypes before and after, 0 if they are the same, else the number of the conversion, or -1."""
    numbers = {cast: index for index, cast in enumerate(_casts(plan), 1)}

    def number(one: str, other: str) -> int:
        if DTYPES[one] is DTYPES[other]:
            return 0
        return numbers.get((_FLOATS.get(one, ""), _FLOATS.get(other, "")), -1)

    return torch.tensor([[number(one, other) for other in plan.dtypes] for one in plan.dtypes], device="cpu")


def _table(plan: Plan, rows: torch.Tensor, used: torch.Tensor) -> bytes:
    """Return the boxes of the tensors in use, in bytes, as the core reads them."""
    dims = plan.dims
    numbers = used.to(torch.int64).cumsum(0) - 1
    if not len(rows):
        return b""
    sizes = _sizes(plan)
    size, place_size = sizes[rows[:, SOURCE_DTYPE]], sizes[rows[:, PLACE_DTYPE]]
    columns = [
        numbers[rows[:, TENSOR]],
        rows[:, PLACE],
        rows[:, SOURCE_OFFSET] * size,
        rows[:, PLACE_OFFSET] * place_size,
        size,
        _pairs(plan)[rows[:, SOURCE_DTYPE], rows[:, PLACE_DTYPE]],
    ]
    for dim in range(FIXED, FIXED + dims):
        columns += [rows[:, dim], rows[:, dim + dims] * size, rows[:, dim + 2 * dims] * place_size]
    table = torch.stack(columns, 1).contiguous()
    return ctypes.string_at(table.data_ptr(), table.numel() * 8)
