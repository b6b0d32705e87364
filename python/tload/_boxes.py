"""Boxes of a tensor that several files have: their overlaps and gaps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Box: TypeAlias = tuple[tuple[int, int], ...]
"""Start and end along each dimension."""


def contains(box: Box, other: Box) -> bool:
    """Return whether all of the other box is in this one."""
    return all(
        start <= its_start and its_end <= end for (start, end), (its_start, its_end) in zip(box, other, strict=True)
    )


def size(box: Box) -> int:
    """Return the number of its elements."""
    return math.prod(end - start for start, end in box)


def meet(one: Box, other: Box) -> bool:
    """Return whether two boxes that are not empty share an element."""
    return all(
        start < its_end and its_start < end for (start, end), (its_start, its_end) in zip(one, other, strict=True)
    )


def overlaps(boxes: Sequence[Box]) -> Iterator[tuple[int, int]]:
    """Yield the positions of each two that share an element. None of them may be empty."""
    # Along the dimension that is cut most often, few are beside each other.
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
    """Return what two boxes that meet share."""
    return tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))


def missing(shape: Sequence[int], boxes: Sequence[Box]) -> Iterator[Box]:
    """Yield boxes that make up what of a tensor is in none of `boxes`. None of these may be empty."""
    left: list[Box] = [tuple((0, length) for length in shape)]
    while left:
        rest = left.pop()
        cut = next((box for box in boxes if meet(box, rest)), None)
        if cut is None:
            yield rest
            continue
        # Below and above the cut along each dimension. What is lowest comes last, so that it is looked at first.
        for axis in reversed(range(len(shape))):
            start, end = rest[axis]
            inner_start, inner_end = max(start, cut[axis][0]), min(end, cut[axis][1])
            inner = shared(rest[:axis], cut[:axis])
            beside = [(inner_end, end), (start, inner_start)]
            left.extend((*inner, bounds, *rest[axis + 1 :]) for bounds in beside if bounds[0] < bounds[1])


def slabs(box: Box, elements: int) -> Iterator[Box]:
    """Cut it along its first dimension into boxes of at most so many elements, or of one row."""
    if not box:
        yield box
        return
    (first, last), *rest = box
    rows = max(1, elements // max(1, size(tuple(rest))))
    for start in range(first, last, rows):
        yield ((start, min(start + rows, last)), *rest)


def show(box: Box) -> str:
    """Return it as Python would index it."""
    return f"[{', '.join(f'{start}:{end}' for start, end in box)}]"
