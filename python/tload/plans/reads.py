"""Which parts of tensors a plan reads: slices that hold boxes, and where the boxes are in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tload.plans.plan import (
    DTYPES,
    FIXED,
    PLACE,
    PLACE_DTYPE,
    PLACE_OFFSET,
    SOURCE_DTYPE,
    SOURCE_OFFSET,
    TENSOR,
    torch_form,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from tload.plans.plan import Plan, Source

    _Index = tuple[slice, ...]
    _Along = tuple[int, int, int]

_WORTH = 0.9
"""Parts of a tensor are read one by one if they are fewer elements than this share of the slice that
holds them all."""


class Box(NamedTuple):
    """A box of what was read, and the box of a parameter that it is copied to."""

    place: int
    source_dtype: str
    place_dtype: str
    source_offset: int
    place_offset: int
    shape: tuple[int, ...]
    source_stride: tuple[int, ...]
    place_stride: tuple[int, ...]


@dataclass(slots=True)
class Read:
    """A tensor, or a slice of it, and the boxes in it."""

    name: str
    index: _Index | None
    shape: tuple[int, ...]
    boxes: list[Box]


class _Part(NamedTuple):
    """Elements along one dimension of a tensor that a box takes."""

    dim: int
    number: int
    step: int
    place_step: int


class _Taken(NamedTuple):
    """A box by the dimensions of its tensor."""

    box: Box
    starts: tuple[int, ...]
    parts: tuple[_Part, ...]

    def bounds(self) -> list[tuple[int, int]]:
        """Return the range along each dimension."""
        ends = [start + 1 for start in self.starts]
        for part in self.parts:
            ends[part.dim] += (part.number - 1) * part.step
        return list(zip(self.starts, ends, strict=True))


def rounds(plan: Plan, tensors: Sequence[torch.Tensor], *, is_one: bool) -> list[list[Read]]:
    """Return the reads of a plan. No tensor is twice in a round; with `is_one`, there is one."""
    made: list[list[Read]] = []
    for source, boxes in zip(plan.sources, by_tensor(plan), strict=True):
        if not boxes:
            continue
        # A tensor of a device map is on one device.
        groups: dict[str, list[Box]] = {}
        for box in boxes:
            groups.setdefault(str(tensors[box.place].device), []).append(box)
        reads = [read for group in groups.values() for read in _reads(source, group, is_one=is_one)]
        for number, read in enumerate(reads):
            if number == len(made):
                made.append([])
            made[number].append(read)
    return made


def by_tensor(plan: Plan) -> list[list[Box]]:
    """Return the boxes of each tensor of a plan."""
    dims = plan.dims
    found: list[list[Box]] = [[] for _ in plan.sources]
    for row in plan.rows.tolist():
        shape = row[FIXED : FIXED + dims]
        source_stride, place_stride = row[FIXED + dims : FIXED + 2 * dims], row[FIXED + 2 * dims :]
        used = [index for index, n in enumerate(shape) if n > 1]
        box = Box(
            row[PLACE],
            plan.dtypes[row[SOURCE_DTYPE]],
            plan.dtypes[row[PLACE_DTYPE]],
            row[SOURCE_OFFSET],
            row[PLACE_OFFSET],
            tuple(shape[index] for index in used),
            tuple(source_stride[index] for index in used),
            tuple(place_stride[index] for index in used),
        )
        found[row[TENSOR]].append(box)
    return found


def _reads(source: Source, boxes: list[Box], *, is_one: bool) -> list[Read]:
    dtype, shape = torch_form(source.dtype, source.shape)
    whole = [Read(source.name, None, shape, boxes)]
    if source.dtype == "F4" or any(DTYPES[box.source_dtype] is not dtype for box in boxes):
        return whole
    strides = _row_major(shape)
    taken = []
    for box in boxes:
        one = _take(box, shape, strides)
        if one is None:
            return whole
        taken.append(one)
    single = [_read(source, shape, [one]) for one in taken]
    together = _read(source, shape, taken)
    if len(single) == 1:
        return single
    apart = sum(_size(read.shape) for read in single)
    if not is_one and len(single) <= _ROUNDS_MAX and apart < _WORTH * _size(together.shape):
        return single
    return [together]


_ROUNDS_MAX = 8
"""Most reads of one tensor: each is in a load of its own."""


def _read(source: Source, shape: tuple[int, ...], taken: list[_Taken]) -> Read:
    """Return the read of the smallest slice that has these boxes."""
    bounds = [one.bounds() for one in taken]
    low = [min(each[dim][0] for each in bounds) for dim in range(len(shape))]
    high = [max(each[dim][1] for each in bounds) for dim in range(len(shape))]
    cut = tuple(end - start for start, end in zip(low, high, strict=True))
    strides = _row_major(cut)
    boxes = [_within(one, low, strides) for one in taken]
    index = None if cut == shape else tuple(slice(start, end) for start, end in zip(low, high, strict=True))
    return Read(source.name, index, cut, boxes)


def _within(one: _Taken, low: Sequence[int], strides: Sequence[int]) -> Box:
    """Return a box as it is in a slice that begins at `low`."""
    offset = sum((start - first) * step for start, first, step in zip(one.starts, low, strides, strict=True))
    return one.box._replace(
        source_offset=offset,
        shape=tuple(part.number for part in one.parts),
        source_stride=tuple(part.step * strides[part.dim] for part in one.parts),
        place_stride=tuple(part.place_step for part in one.parts),
    )


def _take(box: Box, shape: tuple[int, ...], strides: tuple[int, ...]) -> _Taken | None:
    """Return a box by the dimensions of its tensor, if its elements are a slice along each."""
    starts = []
    rest = box.source_offset
    for step in strides:
        start, rest = divmod(rest, step)
        starts.append(start)
    if rest:
        return None
    parts: list[_Part] = []
    for along in zip(box.shape, box.source_stride, box.place_stride, strict=True):
        found = _divide(along, shape, strides, starts)
        if found is None:
            return None
        parts += found
    # Several parts along one dimension must not leave it together.
    reach = list(starts)
    for part in parts:
        reach[part.dim] += (part.number - 1) * part.step
    if any(last >= n for last, n in zip(reach, shape, strict=True)):
        return None
    return _Taken(box, tuple(starts), tuple(parts))


def _divide(along: _Along, shape: Sequence[int], strides: Sequence[int], starts: Sequence[int]) -> list[_Part] | None:
    """Divide a dimension of a box into those of its tensor that it spans, the innermost first."""
    count, stride, place_stride = along
    parts = []
    for dim in range(len(shape) - 1, -1, -1):
        if count == 1:
            break
        if shape[dim] == 1 or stride >= strides[dim] * shape[dim]:
            continue
        if stride % strides[dim]:
            return None
        step = stride // strides[dim]
        if starts[dim] + (count - 1) * step < shape[dim]:
            parts.append(_Part(dim, count, step, place_stride))
            return parts
        # It goes on in the next dimension: only whole ones do.
        if step != 1 or starts[dim] or count % shape[dim]:
            return None
        parts.append(_Part(dim, shape[dim], 1, place_stride))
        count //= shape[dim]
        stride, place_stride = stride * shape[dim], place_stride * shape[dim]
    return parts if count == 1 else None


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def _size(shape: Sequence[int]) -> int:
    total = 1
    for n in shape:
        total *= n
    return total
