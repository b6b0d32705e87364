"""Reads tensors from the page cache straight into parameters, without memory in between.

The core reads a load into staging memory, and copies from there. That is as fast as a disk, and
slower than one copy where the page cache has the files.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch

from tload._engines import views
from tload._load.load_targets import mark_changed
from tload._options.keywords import OptionKeywords
from tload._options.load_options import resolve
from tload._tensors import cuda
from tload.plans.places import flat
from tload.plans.plan import DTYPES, FIXED, PLACE, PLACE_DTYPE, PLACE_OFFSET, SOURCE_DTYPE, TENSOR

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tload._checkpoint.checkpoint import Checkpoint
    from tload._options.load_options import Options
    from tload.plans.plan import Plan

TENSOR_BYTES_MIN = 1 << 19
"""Shortest tensors that are read so: each is a read of its own, which costs some 10 µs."""

BYTES_MIN = 16 << 20
"""Fewest bytes that are read so: opening the files once more takes milliseconds."""


def tensors_in(
    plan: Plan, tensors: Sequence[torch.Tensor], checkpoint: Checkpoint, options: Options | None
) -> torch.Tensor:
    """Return, by tensor, whether it is read so: long, whole, as it is, and in the page cache."""
    rows, dims = plan.rows, plan.dims
    none = torch.zeros(len(plan.sources), dtype=torch.bool)
    if not len(rows):
        return none
    sizes = torch.tensor([DTYPES[name].itemsize for name in plan.dtypes], dtype=torch.int64)
    size = sizes[rows[:, SOURCE_DTYPE]]
    shape = rows[:, FIXED : FIXED + dims]
    strides, steps = rows[:, FIXED + dims : FIXED + 2 * dims], rows[:, FIXED + 2 * dims :]
    # One dimension is left of what has no gaps: plans join neighbours.
    is_row = ((shape > 1).sum(1) <= 1) & ((shape == 1) | ((strides == 1) & (steps == 1))).all(1)
    kinds = [DTYPES[name] for name in plan.dtypes]
    is_same = torch.tensor([[one is other for other in kinds] for one in kinds])
    on_cpu = torch.tensor([cuda.device_of(each) == "cpu" for each in tensors])
    tensor, length = rows[:, TENSOR], shape.prod(1) * size
    fits = (
        is_row
        & is_same[rows[:, SOURCE_DTYPE], rows[:, PLACE_DTYPE]]
        & on_cpu[rows[:, PLACE]]
        & (length >= TENSOR_BYTES_MIN)
    )
    if int(length[fits].sum()) < BYTES_MIN:
        return none
    nbytes = torch.zeros(len(none), dtype=torch.int64)
    for number in set(tensor[fits].tolist()):
        nbytes[number] = checkpoint[plan.sources[number].name].nbytes
    fits &= length == nbytes[tensor]
    chosen = none.clone()
    chosen[tensor] = True
    chosen[tensor[~fits]] = False
    if not bool(chosen.any()):
        return none
    shards = (shard.location for shard in checkpoint.shards)
    return chosen if views.are_best(resolve(options, OptionKeywords()), shards) else none


def load(
    plan: Plan, chosen: torch.Tensor, tensors: Sequence[torch.Tensor], checkpoint: Checkpoint, options: Options | None
) -> int:
    """Read the chosen tensors of a plan, and return their number of bytes.

    Raises:
        tload.Error: The checkpoint cannot be read.
    """
    rows = plan.rows[chosen[plan.rows[:, TENSOR]]]
    given = dataclasses.replace(resolve(options, OptionKeywords()), engine="pread", cache="buffered")
    memory, total = [], 0
    for row in rows.tolist():
        size = DTYPES[plan.dtypes[row[PLACE_DTYPE]]].itemsize
        source = plan.sources[row[TENSOR]].name
        nbytes = checkpoint[source].nbytes
        place = flat(tensors[row[PLACE]]).view(torch.uint8)
        memory.append((source, place.narrow(0, row[PLACE_OFFSET] * size, nbytes)))
        total += nbytes
    try:
        with checkpoint.reader(given) as reader:
            reader.read_into(memory)
    finally:
        mark_changed(tensors)
    return total
