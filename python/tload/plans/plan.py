"""A load plan: pure data, and the checks that it needs whatever it came from.

A box is a set of elements: an offset, and a number of elements with a stride along each dimension.
A row of a plan pairs a box of a tensor of the checkpoint with a box of a parameter, element by
element:

```text
tensor place source_dtype place_dtype source_offset place_offset  shape…  source_strides…  place_strides…
```

The first four are indices into lists of the plan. Offsets and strides count elements of the dtypes
that the row names, from the beginning of the tensor and of the parameter. Unused dimensions have
one element and no stride.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch

from tload._tensors import torch_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tload._sources.entries import TensorInfo

TENSOR, PLACE, SOURCE_DTYPE, PLACE_DTYPE, SOURCE_OFFSET, PLACE_OFFSET, FIXED = range(7)
"""Columns of a row, and the number of them before the dimensions."""

DIMS_MAX = 8
"""Most dimensions of a box after neighbours are joined: models have four."""

ELEMENTS_MAX = 1 << 48
"""Most elements, and largest offset and stride: products of two are checked before they are made."""

GAPS_MAX = 64
"""Most bytes between interleaved boxes, for each byte of theirs: memory is needed to compare them."""

DTYPES: dict[str, torch.dtype] = {
    str(value).removeprefix("torch."): value
    for name in dir(torch)
    if isinstance(value := getattr(torch, name), torch.dtype)
}
"""Dtypes of torch by name."""


class RefusedError(Exception):
    """There is no plan for this load, or a plan does not fit: load the normal way.

    The contents of the module's parameters are undefined.
    """


class Source(NamedTuple):
    """A tensor of the checkpoint that a plan reads."""

    name: str
    dtype: str
    """As safetensors files write it."""
    shape: tuple[int, ...]


class Place(NamedTuple):
    """A parameter or buffer that a plan writes to."""

    name: str
    dtype: str
    """As torch names it."""
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class Fill(NamedTuple):
    """A box of a parameter that gets one constant."""

    place: int
    dtype: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    value: float | int | bool


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A load plan. Made by `record` and `restore`."""

    key: str
    """Digest of everything that the plan may depend on: see `tload.plans.key`."""
    headers: str
    """Digest of the names, dtypes and shapes of the checkpoint."""
    sources: tuple[Source, ...]
    places: tuple[Place, ...]
    dtypes: tuple[str, ...]
    rows: torch.Tensor
    """Boxes, one in a row: int64, on the CPU."""
    fills: tuple[Fill, ...]
    normal: tuple[str, ...]
    """Tensors that the engine's loader has to load, because it computes with them."""
    loaded: tuple[str, ...] | None
    """Names that the engine's loader returned, sorted, if it returned a set of names."""
    _is_checked: bool = field(default=False, init=False)
    """True once `check` has passed: nothing changes a plan."""

    @property
    def dims(self) -> int:
        """Number of dimensions of each box."""
        return (self.rows.shape[1] - FIXED) // 3

    def coverage(self) -> dict[str, int]:
        """Return the number of elements that the boxes write, by name of the parameter."""
        sizes = [DTYPES[place.dtype].itemsize for place in self.places]
        return {
            place.name: nbytes // size for place, size, nbytes in zip(self.places, sizes, self._bytes(), strict=True)
        }

    def full(self) -> set[int]:
        """Return the indices of the parameters that are written completely.

        Boxes do not overlap, so the number of their bytes tells.
        """
        covered = self._bytes()
        for fill in self.fills:
            covered[fill.place] += _product(fill.shape) * DTYPES[fill.dtype].itemsize
        return {index for index, place in enumerate(self.places) if covered[index] == place_bytes(place)}

    def _bytes(self) -> list[int]:
        """Return the number of bytes that the boxes write, by parameter."""
        numbers = self.rows[:, FIXED : FIXED + self.dims].prod(1) * self._sizes()[1]
        total = torch.zeros(len(self.places), dtype=torch.int64, device="cpu").index_add_(
            0, self.rows[:, PLACE], numbers
        )
        return [int(each) for each in total]

    def check(self) -> None:
        """Check everything that the plan alone tells.

        Raises:
            ValueError: A number is out of its range, a box leaves its tensor or parameter, or boxes
                of parameters overlap.
        """
        if self._is_checked:
            return
        self._check_names()
        self._check_numbers()
        self._check_bounds()
        self._check_fills()
        overlap = self._overlap()
        if overlap is not None:
            message = f"boxes overlap in parameter {self.places[overlap].name!r}"
            raise ValueError(message)
        object.__setattr__(self, "_is_checked", True)

    def _check_names(self) -> None:
        if any(name not in DTYPES for name in (*self.dtypes, *(place.dtype for place in self.places))):
            raise ValueError("a dtype is unknown")
        for what, names in (
            ("tensor", [*(source.name for source in self.sources), *self.normal]),
            ("parameter", [place.name for place in self.places]),
        ):
            if len(set(names)) != len(names):
                message = f"a {what} is listed twice"
                raise ValueError(message)
        for place in self.places:
            if not is_dense(place.shape, place.stride):
                message = f"parameter {place.name!r} has gaps"
                raise ValueError(message)

    def _check_numbers(self) -> None:
        rows = self.rows
        if rows.dim() != 2 or rows.dtype is not torch.int64:  # noqa: PLR2004
            raise ValueError("the boxes are no table")
        width = rows.shape[1] - FIXED
        if width < 0 or width % 3 or width // 3 > DIMS_MAX:
            message = f"the boxes have {rows.shape[1]} columns"
            raise ValueError(message)
        tops = (len(self.sources), len(self.places), len(self.dtypes), len(self.dtypes))
        for column, top in enumerate(tops):
            if bool(((rows[:, column] < 0) | (rows[:, column] >= top)).any()):
                raise ValueError("an index of a box is out of range")
        if bool((rows < 0).any()) or bool((rows > ELEMENTS_MAX).any()):
            raise ValueError("a number of a box is out of range")
        if bool((rows[:, FIXED : FIXED + self.dims] < 1).any()):
            raise ValueError("a box is empty")

    def _check_bounds(self) -> None:
        source_sizes, place_sizes = self._sizes()
        for column, strides, sizes, limits in (
            (SOURCE_OFFSET, 1, source_sizes, [source_bytes(source) for source in self.sources]),
            (PLACE_OFFSET, 2, place_sizes, [place_bytes(place) for place in self.places]),
        ):
            owner = self.rows[:, TENSOR if column == SOURCE_OFFSET else PLACE]
            steps = self.rows[:, FIXED : FIXED + self.dims] - 1
            strided = self.rows[:, FIXED + strides * self.dims : FIXED + (strides + 1) * self.dims]
            # In floats first, which cannot overflow.
            rough = (steps.double() * strided.double()).sum(1) + self.rows[:, column].double()
            if bool((rough > ELEMENTS_MAX).any()):
                raise ValueError("a box is too large")
            ends = ((steps * strided).sum(1) + self.rows[:, column] + 1) * sizes
            if bool((ends > torch.tensor(limits, dtype=torch.int64, device="cpu")[owner]).any()):
                what = "tensor" if column == SOURCE_OFFSET else "parameter"
                message = f"a box leaves its {what}"
                raise ValueError(message)

    def _check_fills(self) -> None:
        for fill in self.fills:
            if not 0 <= fill.place < len(self.places) or fill.dtype not in DTYPES:
                raise ValueError("an index of a constant is out of range")
            numbers = (fill.offset, *fill.shape, *fill.stride)
            if len(fill.shape) != len(fill.stride) or min(numbers) < 0 or max(numbers) > ELEMENTS_MAX:
                raise ValueError("a number of a constant is out of range")
            end = fill.offset + sum((n - 1) * step for n, step in zip(fill.shape, fill.stride, strict=True)) + 1
            if end * DTYPES[fill.dtype].itemsize > place_bytes(self.places[fill.place]):
                raise ValueError("a constant leaves its parameter")
            # Fails if no element of the dtype has this value.
            torch.empty((), dtype=DTYPES[fill.dtype], device="cpu").fill_(fill.value)

    def _sizes(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the bytes of an element on each side, by row."""
        sizes = torch.tensor([DTYPES[name].itemsize for name in self.dtypes] or [1], dtype=torch.int64, device="cpu")
        return sizes[self.rows[:, SOURCE_DTYPE]], sizes[self.rows[:, PLACE_DTYPE]]

    def written(self) -> dict[int, list[Written]]:
        """Return the boxes and constants, by index of the parameter that they are written to."""
        boxes: dict[int, list[Written]] = {}
        dims = self.dims
        for row in self.rows.tolist():
            shape = tuple(row[FIXED : FIXED + dims])
            strides = tuple(row[FIXED + 2 * dims :])
            size = DTYPES[self.dtypes[row[PLACE_DTYPE]]].itemsize
            boxes.setdefault(row[PLACE], []).append(Written(row[PLACE_OFFSET], shape, strides, size))
        for fill in self.fills:
            size = DTYPES[fill.dtype].itemsize
            boxes.setdefault(fill.place, []).append(Written(fill.offset, fill.shape, fill.stride, size))
        return boxes

    def _overlap(self) -> int | None:
        """Return the index of a parameter with an element that is written twice, if there is one."""
        rows, dims = self.rows, self.dims
        sizes = self._sizes()[1]
        shape, strides = rows[:, FIXED : FIXED + dims], rows[:, FIXED + 2 * dims :]
        lows = rows[:, PLACE_OFFSET] * sizes
        highs = (rows[:, PLACE_OFFSET] + ((shape - 1) * strides).sum(1) + 1) * sizes
        # One row of numbers that ascends with the parameter, then with the position in it.
        far = int(highs.max()) + 1 if len(rows) else 1
        places = rows[:, PLACE]
        suspects = {fill.place for fill in self.fills}
        if far * (len(self.places) + 1) < 1 << 62:
            low, order = (places * far + lows).sort()
            high = (places * far + highs)[order].cummax(0).values
            suspects |= set(places[order][1:][high[:-1] > low[1:]].tolist())
        else:
            suspects |= set(places.tolist())
        # A box with one stride cannot overlap itself, unless that is zero.
        several = ((shape > 1).sum(1) > 1) | ((shape > 1) & (strides == 0)).any(1)
        suspects |= set(places[several].tolist())
        if not suspects:
            return None
        written = self.written()
        return next((place for place in sorted(suspects) if overlaps(written[place])), None)


class Written(NamedTuple):
    """A box of a parameter, with the bytes of its elements."""

    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    size: int

    def low(self) -> int:
        """Return the offset of the first byte."""
        return self.offset * self.size

    def high(self) -> int:
        """Return the offset behind the last byte."""
        steps = sum((n - 1) * step for n, step in zip(self.shape, self.stride, strict=True))
        return (self.offset + steps + 1) * self.size

    def is_nested(self) -> bool:
        """Return whether no step of a dimension reaches into the next one of another."""
        reach = 1
        dims = [(step, n) for n, step in zip(self.shape, self.stride, strict=True) if n > 1]
        for step, n in sorted(dims):
            if step < reach:
                return False
            reach += (n - 1) * step
        return True


def overlaps(boxes: Sequence[Written]) -> bool:
    """Return whether an element is in two boxes, or twice in one.

    Raises:
        ValueError: They are too far apart to tell.
    """
    ordered = sorted(boxes, key=Written.low)
    apart = all(one.high() <= other.low() for one, other in pairwise(ordered))
    if apart and all(box.is_nested() for box in ordered):
        return False
    start, end = ordered[0].low(), max(box.high() for box in ordered)
    sizes = {box.size for box in ordered}
    unit = sizes.pop() if len(sizes) == 1 else 1
    if start % unit:
        unit = 1
    used = sum(_product(box.shape) * box.size for box in boxes)
    if end - start > used * GAPS_MAX:
        raise ValueError("boxes of a parameter are too far apart")
    seen = torch.zeros((end - start) // unit, dtype=torch.bool, device="cpu")
    for box in ordered:
        scale = box.size // unit
        shape, stride = (*box.shape, scale), (*(step * scale for step in box.stride), 1)
        if any(step == 0 and n > 1 for n, step in zip(shape, stride, strict=True)):
            return True
        view = seen.as_strided(shape, stride, (box.low() - start) // unit)
        if bool(view.any()):
            return True
        before = 0 if box.is_nested() else int(seen.sum())
        view.fill_(True)  # noqa: FBT003
        if not box.is_nested() and int(seen.sum()) - before < view.numel():
            return True
    return False


def meet(boxes: Sequence[Written], others: Sequence[Written]) -> bool:
    """Return whether an element of some boxes is in one of others."""
    if not boxes or not others:
        return False
    start = min(box.low() for box in (*boxes, *others))
    seen: torch.Tensor | None = None
    spans = sorted((box.low(), box.high()) for box in others)
    starts = [low for low, _ in spans]
    highest = 0
    tops = [highest := max(highest, high) for _, high in spans]
    for box in boxes:
        before = bisect_left(starts, box.high())
        if before == 0 or tops[before - 1] <= box.low():
            continue
        if seen is None:
            end = max(box.high() for box in (*boxes, *others))
            seen = torch.zeros(end - start, dtype=torch.bool, device="cpu")
            for other in others:
                _bytes_in(seen, other, start).fill_(True)  # noqa: FBT003
        if bool(_bytes_in(seen, box, start).any()):
            return True
    return False


def _bytes_in(mask: torch.Tensor, box: Written, start: int) -> torch.Tensor:
    """Return the elements of a mask that stand for the bytes of a box."""
    stride = (*(step * box.size for step in box.stride), 1)
    return mask.as_strided((*box.shape, box.size), stride, box.low() - start)


def joined(
    shape: Sequence[int], source: Sequence[int], place: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the same pairs of elements with as few dimensions as possible.

    Dimensions come in the order of their strides in the source, the largest first.
    """
    dims = [dim for dim in zip(source, place, shape, strict=True) if dim[2] != 1]
    dims.sort(reverse=True)
    made: list[tuple[int, int, int]] = []
    for step, place_step, n in dims:
        if made:
            outer, place_outer, count = made[-1]
            if outer == step * n and place_outer == place_step * n:
                made[-1] = (step, place_step, count * n)
                continue
        made.append((step, place_step, n))
    return tuple(n for _, _, n in made), tuple(step for step, _, _ in made), tuple(step for _, step, _ in made)


def is_dense(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Return whether the elements are next to each other, in any order of the dimensions."""
    if len(shape) != len(stride):
        return False
    reach = 1
    for step, n in sorted((step, n) for n, step in zip(shape, stride, strict=True) if n != 1):
        if step != reach and 0 not in shape:
            return False
        reach *= n
    return True


def place_bytes(place: Place) -> int:
    """Return the length of a parameter."""
    return _product(place.shape) * DTYPES[place.dtype].itemsize


def source_bytes(source: Source) -> int:
    """Return the length of a tensor."""
    return _bytes_of(source.dtype, source.shape)


@lru_cache(maxsize=1024)
def _bytes_of(name: str, shape: tuple[int, ...]) -> int:
    """Return the length of a tensor of a dtype and shape, which many have."""
    dtype, shape = torch_form(name, shape)
    return _product(shape) * dtype.itemsize


def torch_form(name: str, shape: tuple[int, ...]) -> tuple[torch.dtype, tuple[int, ...]]:
    """Return the dtype and the shape of a tensor in torch, whose 4-bit floats are pairs.

    Raises:
        ValueError: torch has no such dtype.
    """
    dtype = getattr(torch, torch_tensors.DTYPES.get(name, ""), None)
    if not isinstance(dtype, torch.dtype):
        message = f"torch has no dtype {name}"
        raise ValueError(message)  # noqa: TRY004
    if name == "F4":
        if not shape or shape[-1] % 2:
            raise ValueError("torch packs two 4-bit floats into one element")
        shape = (*shape[:-1], shape[-1] // 2)
    return dtype, shape


def check_sources(plan: Plan, infos: Mapping[str, TensorInfo]) -> None:
    """Check that the checkpoint has the tensors of a plan.

    Raises:
        RefusedError: One is missing, or differs.
    """
    for source in plan.sources:
        info = infos.get(source.name)
        if info is None or info.dtype != source.dtype or info.shape != source.shape:
            message = f"tensor {source.name!r} is not as it was recorded"
            raise RefusedError(message)
    for name in plan.normal:
        if name not in infos:
            message = f"tensor {name!r} is missing"
            raise RefusedError(message)


def _product(shape: Sequence[int]) -> int:
    total = 1
    for n in shape:
        total *= n
    return total
