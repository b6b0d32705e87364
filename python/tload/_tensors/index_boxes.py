"""Boxes of one tensor that is spread over several files: their overlaps and gaps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Box: TypeAlias = tuple[tuple[int, int], ...]
"""Start and end (exclusive) along each dimension, in elements."""


def contains(box: Box, other: Box) -> bool:
    """Return whether `box` contains all of `other`."""
    return all(
        start <= its_start and its_end <= end for (start, end), (its_start, its_end) in zip(box, other, strict=True)
    )


def size(box: Box) -> int:
    """Return the number of elements in a box."""
    return math.prod(end - start for start, end in box)


def meet(one: Box, other: Box) -> bool:
    """Return whether two non-empty boxes share an element."""
    return all(
        start < its_end and its_start < end for (start, end), (its_start, its_end) in zip(one, other, strict=True)
    )


def overlaps(boxes: Sequence[Box]) -> Iterator[tuple[int, int]]:
    """Yield the positions of each pair of boxes that share an element. No box may be empty."""
    # Along the dimension with the most distinct bounds, few boxes are side by side.
    cuts = [len(set(bounds)) for bounds in zip(*boxes, strict=True)]
    axis = cuts.index(max(cuts)) if cuts else None
    order = range(len(boxes)) if axis is None else sorted(range(len(boxes)), key=lambda at: boxes[at][axis])
    beside: list[int] = []
    for index in order:
        if axis is not None:
            beside = [other for other in beside if boxes[other][axis][1] > boxes[index][axis][0]]
        yield from ((other, index) for other in beside if meet(boxes[other], boxes[index]))
        beside.append(index)


def shared(one: Box, other: Box) -> Box:
    """Return the intersection of two boxes that meet."""
    return tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))


def missing(shape: Sequence[int], boxes: Sequence[Box]) -> Iterator[Box]:
    """Yield boxes that together cover what `boxes` leave out of a tensor. No box may be empty."""
    left: list[Box] = [tuple((0, length) for length in shape)]
    while left:
        rest = left.pop()
        cut = next((box for box in boxes if meet(box, rest)), None)
        if cut is None:
            yield rest
            continue
        # Below and above the cut along each dimension. The lowest box comes last, so that it is
        # examined first.
        for axis in reversed(range(len(shape))):
            start, end = rest[axis]
            inner_start, inner_end = max(start, cut[axis][0]), min(end, cut[axis][1])
            inner = shared(rest[:axis], cut[:axis])
            beside = [(inner_end, end), (start, inner_start)]
            left.extend((*inner, bounds, *rest[axis + 1 :]) for bounds in beside if bounds[0] < bounds[1])


def slabs(box: Box, elements: int) -> Iterator[Box]:
    """Cut a box along its first dimension into boxes of one row, or at most `elements` elements."""
    if not box:
        yield box
        return
    (first, last), *rest = box
    rows = max(1, elements // max(1, size(tuple(rest))))
    for start in range(first, last, rows):
        yield ((start, min(start + rows, last)), *rest)


def show(box: Box) -> str:
    """Return a box in Python's index syntax."""
    return f"[{', '.join(f'{start}:{end}' for start, end in box)}]"
