"""Records what an engine's loader copies, over stand-ins for the tensors of a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tload._load.collections import no_collections
from tload._options.load_options import Options
from tload._ranks.group import beginning
from tload.plans import quick
from tload.plans import run as runs
from tload.plans.check import require_repeated, require_replaced
from tload.plans.key import headers_of
from tload.plans.places import Owners, Slots, bind, place_of
from tload.plans.plan import (
    FIXED,
    PLACE,
    PLACE_OFFSET,
    TENSOR,
    Fill,
    Place,
    Plan,
    RefusedError,
    Source,
    Written,
    meet,
    torch_form,
)
from tload.plans.recorder import Recorder
from tload.plans.stand_in import Form, Origin, stand_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tload._checkpoint.checkpoint import Checkpoint
    from tload._ranks.group import Group

    _Load = Callable[[Iterator[tuple[str, torch.Tensor]]], object]


def record(
    module: torch.nn.Module,
    checkpoint: Checkpoint,
    load: _Load,
    *,
    key: str = "",
    names: Iterable[str] | None = None,
    device: str | torch.device = "cpu",
    headers: str | None = None,
    options: Options | None = None,
    group: Group | None = None,
) -> Plan:
    """Record the copies of a loader, and load the module by them.

    When this function returns, the module is loaded, and the plan was checked: every element that
    it writes was replaced, and tensors that go the normal way write the same without the others.

    Args:
        module: The module whose parameters and buffers are loaded.
        checkpoint: The open checkpoint.
        load: The engine's loader, such as `model.load_weights`. It is called with the names and
            tensors of the checkpoint, and, if some go the normal way, again with these only.
        key: The key of the plan: see `tload.plans.key`.
        names: The tensors that the loader gets, in this order. Default: all, in the order of the
            checkpoint.
        device: The device of the tensors that the loader gets.
        headers: `headers_of(checkpoint)`, if the caller has it.
        options: Options of the loads.
        group: The ranks that load together. A rank that refuses tells the others, which get a
            `PeerError`.

    Raises:
        RefusedError: There is no plan for this load: load the module the normal way, since the
            contents of its parameters are undefined. An exception of the loader is its cause.
        tload.Error: The checkpoint cannot be read.
    """
    with no_collections():
        digests = key, headers or headers_of(checkpoint)
        return _record(
            module, checkpoint, load, digests, list(checkpoint if names is None else names), device, options, group
        )


def _record(  # noqa: PLR0917
    module: torch.nn.Module,
    checkpoint: Checkpoint,
    load: _Load,
    digests: tuple[str, str],
    names: list[str],
    device: str | torch.device,
    options: Options | None,
    group: Group | None,
) -> Plan:
    recorder = Recorder(module, checkpoint)
    slots = Slots(module)
    try:
        # Other ranks are told of a refusal: they would wait for this one.
        with beginning(group, options or Options()):
            returned = _call(recorder, load, _stand_ins(recorder, checkpoint, names, torch.device(device)))
            plan = _plan(recorder, checkpoint, digests, returned)
            try:
                plan.check()
            except ValueError as error:
                raise RefusedError(str(error)) from error
            tensors = bind(module, plan.places)

        def write(written: Plan) -> None:
            # The doubtful tensors differ by rank: each rank reads them alone.
            runs.write(written, tensors, checkpoint, options, group if written is plan else None)

        require_replaced(plan, tensors, write)
        if recorder.writes:
            _repeat(recorder, checkpoint, load, plan, torch.device(device))
    except BaseException:
        # A loader may have made parameters of stand-ins.
        slots.restore()
        raise
    return plan


def _stand_ins(
    recorder: Recorder, checkpoint: Checkpoint, names: list[str], device: torch.device
) -> Iterator[tuple[str, torch.Tensor]]:
    forms: dict[tuple[str, tuple[int, ...]], Form] = {}
    for name in names:
        info = checkpoint[name]
        form = forms.get((info.dtype, info.shape))
        if form is None:
            try:
                dtype, shape = torch_form(info.dtype, info.shape)
            except ValueError as error:
                message = f"tensor {name!r}: {error}"
                raise RefusedError(message) from error
            meta = torch.empty(shape, dtype=dtype, device="meta")
            form = forms[info.dtype, info.shape] = Form(meta, meta, device)
        origin = Origin(len(recorder.names), name)
        recorder.names.append(name)
        yield name, stand_in(origin, form)


def _call(recorder: Recorder, load: _Load, weights: Iterator[tuple[str, torch.Tensor]]) -> object:
    try:
        with recorder, quick.views():
            returned = load(weights)
        recorder.require_no_number()
    except RefusedError:
        raise
    except Exception as error:
        if recorder.failed is not None:
            raise recorder.failed from None
        message = f"the loader failed: {type(error).__name__}: {error}"
        raise RefusedError(message) from error
    # A loader may have caught it.
    if recorder.refused is not None:
        raise recorder.refused
    return returned


def _plan(recorder: Recorder, checkpoint: Checkpoint, digests: tuple[str, str], returned: object) -> Plan:
    state = Owners(recorder.module).state()
    for name, _ in recorder.state.items() ^ state.items():
        message = f"parameter {name!r} was made or replaced during the load"
        raise RefusedError(message)
    places: list[Place] = []
    numbers: dict[str, int] = {}
    for owner in recorder.written.values():
        numbers[owner.name] = len(places)
        places.append(place_of(owner.name, owner.tensor))
    for owner in recorder.read:
        if owner.name in numbers:
            message = f"{owner.name!r} is read, and written to"
            raise RefusedError(message)
    sources, dtypes, table = _rows(recorder, checkpoint)
    normal = tuple(recorder.names[number] for number in sorted(recorder.normal))
    if recorder.writes and not normal:
        place = next(iter(recorder.writes)).place
        message = f"parameter {place!r} is written to with values that are of no tensor of the checkpoint"
        raise RefusedError(message)
    loaded = _names(returned)
    _require_covered(recorder, loaded)
    fills = [
        Fill(numbers[write.place], write.dtype, write.offset, write.shape, write.stride, value)
        for write, value in recorder.fills.items()
    ]
    plan = Plan(*digests, sources, tuple(places), dtypes, table, tuple(fills), normal, loaded)
    _require_apart(recorder, plan, numbers)
    return plan


def _rows(recorder: Recorder, checkpoint: Checkpoint) -> tuple[tuple[Source, ...], tuple[str, ...], torch.Tensor]:
    """Return the tensors that are copied, the dtypes, and the table of copies, in the order of the tensors."""
    copies = torch.tensor(recorder.copies, dtype=torch.int64, device="cpu").reshape(-1, 4)
    is_normal = torch.zeros(len(recorder.names) + 1, dtype=torch.bool, device="cpu")
    is_normal[list(recorder.normal)] = True
    copies = copies[~is_normal[copies[:, 0]]]
    copies = copies[copies[:, 0].argsort(stable=True)]
    used, tensors = torch.unique_consecutive(copies[:, 0], return_inverse=True)
    names = [recorder.names[number] for number in used.tolist()]
    sources = tuple(Source(name, info.dtype, info.shape) for name in names for info in (checkpoint[name],))
    kept, pairs = torch.unique(copies[:, 2], return_inverse=True)
    known = list(recorder.pairs)
    chosen = [known[number] for number in kept.tolist()]
    dims = max((len(pair.shape) for pair in chosen), default=0)
    dtypes: dict[str, int] = {}
    rows: list[list[int]] = []
    for pair in chosen:
        unused = dims - len(pair.shape)
        rows.append(
            [
                0,
                0,
                dtypes.setdefault(pair.source_dtype, len(dtypes)),
                dtypes.setdefault(pair.place_dtype, len(dtypes)),
                pair.source_offset,
                0,
                *pair.shape,
                *[1] * unused,
                *pair.source_stride,
                *[0] * unused,
                *pair.place_stride,
                *[0] * unused,
            ]
        )
    table = torch.tensor(rows, dtype=torch.int64, device="cpu").reshape(len(rows), FIXED + 3 * dims)[pairs]
    table[:, TENSOR], table[:, PLACE], table[:, PLACE_OFFSET] = tensors, copies[:, 1], copies[:, 3]
    return sources, tuple(dtypes), table


def _require_covered(recorder: Recorder, loaded: tuple[str, ...] | None) -> None:
    """Require that what the loader says it has loaded was written."""
    for name in loaded or ():
        owner = recorder.owners.named(name)
        if owner is not None and owner.tensor.numel() > 0 and owner.name not in recorder.written:
            message = f"the loader says that it has loaded {name!r}, and nothing was written to it"
            raise RefusedError(message)


def _require_apart(recorder: Recorder, plan: Plan, numbers: dict[str, int]) -> None:
    """Require that what the normal way writes is not what the plan writes."""
    planned = plan.written() if recorder.writes else {}
    normal: dict[int, list[Written]] = {}
    for write in recorder.writes:
        normal.setdefault(numbers[write.place], []).append(write.box())
    for place, boxes in normal.items():
        if meet(boxes, planned.get(place, ())):
            message = f"a part of parameter {plan.places[place].name!r} is written to in two ways"
            raise RefusedError(message)


def _names(returned: object) -> tuple[str, ...] | None:
    if isinstance(returned, (set, frozenset)) and all(isinstance(name, str) for name in returned):
        return tuple(sorted(returned))
    return None


def _repeat(recorder: Recorder, checkpoint: Checkpoint, load: _Load, plan: Plan, device: torch.device) -> None:
    """Load the tensors that go the normal way once more, and require that they write the same."""
    again = Recorder(recorder.module, checkpoint)

    def weights() -> Iterator[tuple[str, torch.Tensor]]:
        for name in plan.normal:
            tensor = recorder.read_tensor(name).to(device)
            again.watch(tensor)
            yield name, tensor

    def repeat() -> None:
        _call(again, load, weights())

    require_repeated(recorder.writes, recorder.written, repeat)
    if not recorder.writes.keys() <= again.writes.keys() | again.fills.keys():
        raise RefusedError("tensors that need the normal way write less without the others")
    if not again.writes.keys() | again.fills.keys() <= recorder.writes.keys() | recorder.fills.keys():
        raise RefusedError("tensors that need the normal way write more without the others")
