"""Loads a module by a plan: straight into its parameters, without the engine's loader."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tload._load.load import require_files, stream
from tload._options.keywords import OptionKeywords
from tload._options.load_options import Options, resolve
from tload._ranks.group import beginning
from tload.plans import boxes, straight
from tload.plans.key import headers_of
from tload.plans.places import bind, bits
from tload.plans.plan import DTYPES, TENSOR, RefusedError, check_sources
from tload.plans.reads import rounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from tload._checkpoint.checkpoint import Checkpoint
    from tload._ranks.group import Group
    from tload.plans.plan import Fill, Plan
    from tload.plans.reads import Box, Read
    from tload.report import Report

_INTEGERS = (1, 2, 4, 8)


class Loaded(NamedTuple):
    """A load by a plan."""

    reports: list[Report]
    """Reports of its loads."""
    straight_bytes: int
    """Bytes that came from the page cache straight into parameters, in no load."""


def run(
    plan: Plan,
    module: torch.nn.Module,
    checkpoint: Checkpoint,
    load: Callable[[Iterator[tuple[str, torch.Tensor]]], object] | None = None,
    *,
    device: str | torch.device = "cpu",
    headers: str | None = None,
    options: Options | None = None,
    group: Group | None = None,
) -> Loaded:
    """Load a module by a plan.

    Args:
        plan: The plan, from `record` or `restore`.
        module: The module, whose parameters are as they were recorded.
        checkpoint: The open checkpoint, with the headers that were recorded.
        load: The engine's loader, for tensors that need it (`plan.normal`).
        device: The device of the tensors that the loader gets.
        headers: `headers_of(checkpoint)`, if the caller has it.
        options: Options of the loads.
        group: The ranks that load together. Each has a plan of its own, and takes part in three
            loads: tensors that the core writes to parameters, other tensors of the plan, and those
            of the loader. A rank whose plan does not fit tells the others, which get a `PeerError`;
            after another error, close the group, or they wait for the next load of this rank.

    Returns:
        How it was loaded.

    Raises:
        RefusedError: The plan does not fit, and nothing was written: load the normal way.
        tload.Error: The checkpoint cannot be read.
    """
    if group is not None:
        # Equal on all ranks, whatever they have to load.
        options = boxes.host_options(resolve(options, OptionKeywords()))
    with beginning(group, options or Options()):
        tensors = _checked(plan, module, checkpoint, load, headers or headers_of(checkpoint))
        require_files(checkpoint, options)
    loaded = write(plan, tensors, checkpoint, options, group)
    reports = loaded.reports
    if load is not None and plan.normal:
        with stream(checkpoint, names=plan.normal, device=str(device), options=options, group=group) as weights:
            load(iter(weights))
            reports.append(weights.report)
    elif group is not None:
        reports.append(boxes.take_part(checkpoint, options, group))
    return loaded


def _checked(
    plan: Plan, module: torch.nn.Module, checkpoint: Checkpoint, load: object, headers: str
) -> list[torch.Tensor]:
    """Return the parameters and buffers of the places of a plan that fits."""
    if plan.normal and load is None:
        raise RefusedError("some tensors need the engine's loader")
    if headers != plan.headers:
        raise RefusedError("the headers of the checkpoint are not as they were recorded")
    check_sources(plan, checkpoint)
    try:
        plan.check()
    except ValueError as error:
        raise RefusedError(str(error)) from error
    return bind(module, plan.places)


def write(
    plan: Plan,
    tensors: Sequence[torch.Tensor],
    checkpoint: Checkpoint,
    options: Options | None = None,
    group: Group | None = None,
) -> Loaded:
    """Write the boxes and constants of a plan that was checked into the parameters of its places.

    Ranks that load together must start the same loads: in a group these are two, one of what the
    core writes itself and one of the rest, whatever the rank has of them.
    """
    if group is not None:
        options = boxes.host_options(resolve(options, OptionKeywords()))
    for fill in plan.fills:
        _fill(tensors[fill.place], fill)
    straight_bytes = 0
    if group is None:
        chosen = straight.tensors_in(plan, tensors, checkpoint, options)
        if bool(chosen.any()):
            straight_bytes = straight.load(plan, chosen, tensors, checkpoint)
        if straight_bytes > 0:
            plan = dataclasses.replace(plan, rows=plan.rows[~chosen[plan.rows[:, TENSOR]]])
    chosen = boxes.tensors_in(plan, tensors)
    reports = boxes.load(plan, chosen, tensors, checkpoint, options=options, group=group)
    rest = dataclasses.replace(plan, rows=plan.rows[~chosen[plan.rows[:, TENSOR]]])
    read_at_once = rounds(rest, tensors, is_one=group is not None)
    for reads in read_at_once:
        named = {read.name: read for read in reads}
        slices = {read.name: read.index for read in reads if read.index is not None}
        reports.append(_copy_rest(named, tensors, checkpoint, slices, options=options, group=group))
    if group is not None and not read_at_once:
        reports.append(boxes.take_part(checkpoint, options, group))
    return Loaded(reports, straight_bytes)


def _copy_rest(
    rest: dict[str, Read],
    tensors: Sequence[torch.Tensor],
    checkpoint: Checkpoint,
    slices: dict[str, Any],
    *,
    options: Options | None,
    group: Group | None,
) -> Report:
    """Copy the boxes of tensors that cannot be loaded straight into parameters."""
    places = {name: str(tensors[read.boxes[0].place].device) for name, read in rest.items()}
    if group is not None:
        options = boxes.host_options(resolve(options, OptionKeywords()))
    names = list(rest)
    with stream(
        checkpoint, names=names, slices=slices, device_map=_device_map(places), options=options, group=group
    ) as loaded:
        for name, values in loaded:
            for box in rest[name].boxes:
                copy(values, box, tensors[box.place])
        return loaded.report


def _device_map(places: dict[str, str]) -> dict[str, str]:
    """Return the map of devices by tensor: one entry for all where it is one device."""
    devices = set(places.values())
    return {"": devices.pop()} if len(devices) == 1 else places


def copy(values: torch.Tensor, box: Box, place: torch.Tensor) -> None:
    """Copy a box of a tensor to its parameter."""
    source, target = views(values, box, place)
    with _writing(place):
        target.copy_(source)


def views(values: torch.Tensor, box: Box, place: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the elements of a box in its tensor, and those in its parameter."""
    source_dtype, place_dtype = DTYPES[box.source_dtype], DTYPES[box.place_dtype]
    row, to = values.reshape(-1), place
    if row.dtype is not source_dtype:
        row = row.view(torch.uint8).view(source_dtype)
    start = place.storage_offset()
    if to.dtype is not place_dtype:
        size = place.element_size()
        to = to.as_strided((to.numel(),), (1,)).view(torch.uint8).view(place_dtype)
        start = start * size // place_dtype.itemsize
    source = row.as_strided(box.shape, box.source_stride, row.storage_offset() + box.source_offset)
    target = to.as_strided(box.shape, box.place_stride, start + box.place_offset)
    if source_dtype is place_dtype and source_dtype.itemsize in _INTEGERS:
        # Not every dtype can be copied, and every bit stays as it is.
        source, target = bits(source), bits(target)
    return source, target


def _fill(place: torch.Tensor, fill: Fill) -> None:
    dtype = DTYPES[fill.dtype]
    to, start = place, place.storage_offset()
    if place.dtype is not dtype:
        to = to.as_strided((to.numel(),), (1,)).view(torch.uint8).view(dtype)
        start = start * place.element_size() // dtype.itemsize
    with _writing(place):
        to.as_strided(fill.shape, fill.stride, start + fill.offset).fill_(fill.value)


def _writing(place: torch.Tensor) -> AbstractContextManager[object]:
    # A tensor that was made in inference mode can only be changed in that mode.
    return torch.inference_mode() if place.is_inference() else torch.no_grad()
