"""Applies a patch to the parameters of a module, by the plan that filled them.

Parameters may hold several tensors of a checkpoint, in another order or in parts. The tensors that
the patch changes are put together in host memory, compared and changed there, and copied back.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

import torch

from tload._checkpoint.checkpoint import Checkpoint
from tload._checkpoint.opening import open_for
from tload._files.delta import DeltaReport
from tload._files.delta import apply_into as apply_by_name
from tload._options import store_options
from tload._options.keywords import OptionKeywords
from tload._options.load_options import resolve
from tload.plans.places import bind
from tload.plans.plan import RefusedError, torch_form
from tload.plans.reads import by_tensor
from tload.plans.run import copy, views

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Unpack

    from tload._options.keywords import StoreKeywords
    from tload.plans.plan import Plan, Source
    from tload.plans.reads import Box
    from tload.typing import Duration, Store
    from tload.typing import Source as Location


@store_options.takes_keywords
def apply_into(
    plan: Plan,
    module: torch.nn.Module,
    patch: Location,
    *,
    timeout: Duration | None = None,
    store: Store | None = None,
    **keywords: Unpack[StoreKeywords],
) -> DeltaReport:
    """Apply a patch to the parameters of a module, in place, on any device.

    As by `tload.apply_into`, the SHA-256 of every tensor that changes is compared, as it is and as
    it will be, before the first byte of a parameter is written. The tensors that change are in host
    memory meanwhile. Ctrl-C, or a failed copy to a GPU, while they are copied back leaves parameters
    of both versions, and the exception has a note that says so.

    Only what the plan fills is changed: not what a module has computed from it, and not a tied
    weight that has memory of its own since the plan was made.

    Args:
        plan: The plan that the module was loaded by, from `record` or `restore`.
        module: The module, with the weights that the patch was made for.
        patch: The patch, from `tload.diff`: see `tload.open`.
        timeout: As in `tload.apply_into`.
        store: Options of the object store: see `tload.open`.
        **keywords: Keys of `store`.

    Returns:
        What has changed.

    Raises:
        RefusedError: The plan does not fit; or a tensor that changes is not in the plan, is only in
            part in the module, has another dtype there, or is there twice and differs. Nothing was
            written: load the new checkpoint.
        tload.Error: As in `tload.apply_into`. Nothing was written.

    Examples:
        >>> tload.plans.apply_into(plan, module, "s3://bucket/step-8.safetensors")
    """
    try:
        plan.check()
    except ValueError as error:
        raise RefusedError(str(error)) from error
    tensors = bind(module, plan.places)
    limits = OptionKeywords(timeout=timeout)
    opened = open_for(patch, store_options.take(store, keywords), resolve(None, limits, variables=limits))
    with contextlib.nullcontext() if isinstance(patch, Checkpoint) else opened:
        changed = _changed(opened)
        found = {source.name: (source, boxes) for source, boxes in zip(plan.sources, by_tensor(plan), strict=True)}
        for name in changed:
            if name not in found:
                message = f"tensor {name!r} changes, which the plan does not copy"
                raise RefusedError(message)
        whole = {name: _put_together(*found[name], tensors) for name in changed}
        with _noting(lambda: "no parameter was written"):
            report = apply_by_name(whole, opened, timeout=timeout)
    written = 0
    with _noting(lambda: f"{written} of {len(whole)} tensors were written: load the parameters again"):
        for name, values in whole.items():
            for box in found[name][1]:
                copy(values, box, tensors[box.place])
            written += 1
    return report


@contextlib.contextmanager
def _noting(note: Callable[[], str]) -> Iterator[None]:
    """Add a note to an exception, also to that of Ctrl-C."""
    try:
        yield
    except BaseException as error:
        error.add_note(note())
        raise


def _changed(patch: Checkpoint) -> list[str]:
    """Return the names of the tensors that a patch changes. It has none that is no patch."""
    try:
        tensors = json.loads(patch.metadata["delta"])["tensors"]
        names = [one["name"] for one in tensors if one["change"] != "none"]
    except (KeyError, RecursionError, TypeError, ValueError):
        return []
    return names if all(isinstance(name, str) for name in names) else []


def _put_together(source: Source, boxes: Sequence[Box], tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return a tensor of the checkpoint from its boxes in parameters."""
    dtype, shape = torch_form(source.dtype, source.shape)
    size = torch.empty(shape, dtype=dtype, device="meta").untyped_storage().nbytes()
    # Elements in no box keep what was there before.
    zeros, ones = (torch.full((size,), byte, dtype=torch.uint8, device="cpu") for byte in (0, 255))
    for raw in (ones, zeros):
        whole = raw.view(dtype).reshape(shape)
        for box in boxes:
            if box.source_dtype != box.place_dtype:
                message = f"tensor {source.name!r} is {box.source_dtype}, and {box.place_dtype} in the module"
                raise RefusedError(message)
            own, other = views(whole, box, tensors[box.place])
            own.copy_(other)
    if not torch.equal(zeros, ones):
        message = f"tensor {source.name!r} is only in part in the module"
        raise RefusedError(message)
    for box in boxes:
        own, other = views(whole, box, tensors[box.place])
        if not torch.equal(own, other.to(own.device)):
            message = f"tensor {source.name!r} is several times in the module, with different values"
            raise RefusedError(message)
    return whole
