"""Checks of a recording on the module itself: nothing that is said to be written stays as it was."""

from __future__ import annotations

import dataclasses
import random
from typing import TYPE_CHECKING

import torch

from tload.plans.places import bits, digest, flat
from tload.plans.plan import DTYPES, PLACE, Plan, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from tload.plans.places import Owner
    from tload.plans.plan import Written
    from tload.plans.recorder import Write

_STEP = 1 << 22
"""Elements that are compared at a time."""

_HIGHEST = {"float16", "bfloat16", "float32", "float64"}
"""Dtypes whose bits, as the highest integer, are no number: few weights are, and it is found fast."""


def require_replaced(plan: Plan, tensors: Sequence[torch.Tensor], write: Callable[[Plan], object]) -> None:
    """Write a plan, and require that it replaces each element that it says it writes.

    They have a pattern before. Parameters in which it is found afterwards are inverted and written
    once more: bytes may be anything.

    Raises:
        RefusedError: An element was not replaced.
    """
    boxes = _boxes(plan)
    patterns = {place: _pattern(plan.places[place].dtype) for place in boxes}
    with torch.no_grad():
        for place, view in _each(tensors, boxes):
            view.fill_(patterns[place])
        write(plan)
        doubtful = {place for place, view in _each(tensors, boxes) if _has(view, patterns[place])}
        if not doubtful:
            return
        before = {place: digest(tensors[place]) for place in doubtful}
        for _, view in _each(tensors, {place: boxes[place] for place in doubtful}):
            view.bitwise_not_()
        chosen = torch.tensor(
            [place in doubtful for place in plan.rows[:, PLACE].tolist()], dtype=torch.bool, device="cpu"
        )
        fills = tuple(fill for fill in plan.fills if fill.place in doubtful)
        write(dataclasses.replace(plan, rows=plan.rows[chosen], fills=fills))
        for place in doubtful:
            if digest(tensors[place]) != before[place]:
                message = f"not all of parameter {plan.places[place].name!r} is written"
                raise RefusedError(message)


def require_repeated(writes: Iterable[Write], owners: Mapping[str, Owner], repeat: Callable[[], object]) -> None:
    """Require that `repeat` writes the values that are there again.

    Raises:
        RefusedError: It does not.
    """
    by_name: dict[str, list[Written]] = {}
    for written in writes:
        by_name.setdefault(written.place, []).append(written.box())
    tensors = {name: owners[name].tensor.detach() for name in by_name}
    before = {name: digest(tensor) for name, tensor in tensors.items()}
    with torch.no_grad():
        for name, boxes in by_name.items():
            tensor = tensors[name]
            row = flat(tensor).view(torch.uint8) if tensor.dtype is not torch.bool else flat(bits(tensor))
            mask = torch.zeros(row.numel(), dtype=torch.bool, device=tensor.device)
            for box in boxes:
                stride = (*(step * box.size for step in box.stride), 1)
                mask.as_strided((*box.shape, box.size), stride, box.low()).fill_(True)  # noqa: FBT003
            row.bitwise_xor_(mask.to(torch.uint8).mul_(255))
    repeat()
    for name, tensor in tensors.items():
        if digest(tensor) != before[name]:
            message = f"parameter {name!r} gets other values when tensors that need the normal way are loaded alone"
            raise RefusedError(message)


def _each(
    tensors: Sequence[torch.Tensor], boxes: Mapping[int, Sequence[Written]]
) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield the elements of the boxes of parameters, as integers."""
    for place, written in boxes.items():
        for view in _views(tensors[place], written):
            yield place, view


def _boxes(plan: Plan) -> dict[int, list[Written]]:
    """Return the boxes that are written, by parameter; none for one that is written completely."""
    full = plan.full()
    boxes: dict[int, list[Written]] = {place: [] for place in sorted(full)}
    for place, written in plan.written().items() if len(full) < len(plan.places) else ():
        boxes.setdefault(place, written)
    return boxes


def _views(tensor: torch.Tensor, boxes: Sequence[Written]) -> list[torch.Tensor]:
    """Return the elements of boxes as integers; without any, the whole parameter as one row."""
    if not boxes:
        return [flat(bits(tensor))]
    size = tensor.element_size()
    views = []
    for box in boxes:
        row = flat(bits(tensor))
        if box.size != size:
            row = row.view(torch.uint8)
            shape, stride = (*box.shape, box.size), (*(step * box.size for step in box.stride), 1)
            start = row.storage_offset() + box.low()
        else:
            shape, stride, start = box.shape, box.stride, row.storage_offset() + box.offset
        views.append(row.as_strided(shape, stride, start))
    return views


def _pattern(dtype: str) -> int:
    width = DTYPES[dtype].itemsize * 8
    if dtype in _HIGHEST:
        return (1 << (width - 1)) - 1
    return random.SystemRandom().getrandbits(width - 1)


def _has(view: torch.Tensor, pattern: int) -> bool:
    """Return whether an element has a pattern."""
    if pattern == torch.iinfo(view.dtype).max:
        # A twentieth of the time of a comparison.
        return view.numel() > 0 and int(view.max()) == pattern
    pieces = torch.split(view, _STEP) if view.dim() == 1 else [view]
    return any(bool((piece == pattern).any()) for piece in pieces)
