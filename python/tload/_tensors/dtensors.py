"""Parts of tensors that this rank holds of DTensors. Imports torch when used."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, TypeAlias

from tload._errors import InvalidRequestError, UnsupportedError, advise
from tload._tensors import cuda

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch.distributed.tensor import DTensor, Placement

Part: TypeAlias = tuple[str, tuple[int, ...], tuple[slice, ...]]
"""Name, shape of the whole tensor, and index of the part in it."""

PLACES = "use placements that are Shard, Replicate, or both"


def among(targets: Mapping[str, Any]) -> dict[str, DTensor]:
    """Return the DTensors among targets."""
    module = cuda.imported("torch.distributed.tensor")
    if module is None:
        return {}
    return {name: value for name, value in targets.items() if isinstance(value, module.DTensor)}


def local(tensors: Mapping[str, DTensor]) -> dict[str, torch.Tensor]:
    """Return the memory of DTensors on this rank."""
    import torch

    # Otherwise, autograd would record it.
    with torch.no_grad():
        return {name: tensor.to_local() for name, tensor in tensors.items()}


def parts(tensors: Mapping[str, DTensor]) -> list[Part]:
    """Return the part of each DTensor that this rank holds.

    Raises:
        InvalidRequestError: A part is no slice of the tensor, or is not on this rank.
        UnsupportedError: torch is older than 2.7.
    """
    known: dict[Any, slice] = {}
    found: list[Part] = []
    for name, tensor in tensors.items():
        _check(name, tensor)
        index = [slice(0, length) for length in tensor.shape]
        for dim in {dim for place in tensor.placements if (dim := _dim(place)) is not None}:
            # A model has many tensors, but few lengths and placements.
            key = (dim, tensor.shape[dim], tensor.device_mesh, tensor.placements)
            if key not in known:
                known[key] = _indices(name, tensor, dim)
            index[dim] = known[key]
        # Also of a tensor that is not divided: its shape has to be the checkpoint's.
        found.append((name, tuple(tensor.shape), tuple(index)))
    return found


def _check(name: str, tensor: DTensor) -> None:
    """Raise an error for a DTensor that no slice can fill."""
    if tensor.device_mesh.get_coordinate() is None:
        message = f"{name!r} is a DTensor on {tensor.device_mesh}, which this rank is not part of"
        raise advise(InvalidRequestError, message, "leave it out on this rank", tensor=name)
    for place in tensor.placements:
        if not place.is_replicate() and _dim(place) is None:
            message = f"{name!r} is a DTensor with the placement {place!r}, whose values are not those of a slice"
            raise advise(InvalidRequestError, message, PLACES, tensor=name)


def _indices(name: str, tensor: DTensor, dim: int) -> slice:
    """Return this rank's indices along a dimension."""
    import torch
    from torch.distributed.tensor import Replicate, distribute_tensor

    if "src_data_rank" not in inspect.signature(distribute_tensor).parameters:
        message = f"torch {torch.__version__} cannot tell which part of a tensor a rank holds"
        raise advise(UnsupportedError, message, "upgrade torch to version 2.7 or newer, or pass slices=")
    # torch divides the numbers of the indices as it divides the tensor. Without a source rank, no
    # rank communicates.
    shape = [1] * dim + [tensor.shape[dim]]
    numbers = torch.arange(tensor.shape[dim], device="cpu").reshape(shape)
    own = [place if _dim(place) == dim else Replicate() for place in tensor.placements]
    divided = distribute_tensor(numbers, tensor.device_mesh, own, src_data_rank=None)
    mine = divided.to_local().reshape(-1).tolist()
    if not mine:
        return slice(0, 0)
    step = mine[1] - mine[0] if len(mine) > 1 else 1
    if step < 1 or mine != list(range(mine[0], mine[-1] + 1, step)):
        message = (
            f"{name!r} is a DTensor with the placements {tensor.placements}, of which this rank's indices along "
            f"dimension {dim} are no slice"
        )
        raise advise(InvalidRequestError, message, PLACES, tensor=name)
    return slice(mine[0], mine[-1] + 1, step)


def _dim(place: Placement) -> int | None:
    """Return the dimension that a placement divides. Shards of any kind have one."""
    dim: int | None = getattr(place, "dim", None)
    return dim
