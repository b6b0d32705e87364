"""Boxes of tensors, which the files of a save hold."""

from __future__ import annotations

import json
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

from tload._dcp.writer import SHARDING_INFO
from tload._errors import FormatError, UnsupportedError
from tload._tensors import torch_tensors

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tload._sources.entries import TensorInfo
    from tload._tensors.index_boxes import Box

LENGTH_MAX = (1 << 63) - 1
"""Largest dimension that torch accepts."""


@dataclass(frozen=True, slots=True, eq=False)
class Saved:
    """A box of a tensor that is stored in a file."""

    checkpoint: int
    """Position of the file's checkpoint in `StorageReader._checkpoints`."""
    file: str
    """Name of the file, without its directory."""
    info: TensorInfo
    box: Box


def kind(info: TensorInfo) -> tuple[str, int]:
    return info.dtype, len(info.shape)


def show_kind(info: TensorInfo) -> str:
    return f"{info.dtype} with {len(info.shape)} dimensions"


def saved_offsets(location: str, metadata: dict[str, str]) -> dict[str, list[int]] | None:
    """Return the starts of a file's boxes in their tensors, if the file has them."""
    text = metadata.get(SHARDING_INFO)
    if text is None:
        return None
    try:
        return {name: list(map(operator.index, said["saved_offsets"])) for name, said in json.loads(text).items()}
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        message = f"{location}: {SHARDING_INFO} of the metadata is not what torch writes ({error!r})"
        raise FormatError(message, location=location) from error


def box_of(info: TensorInfo, location: str, offsets: dict[str, list[int]] | None) -> Box:
    """Return the box of a file's tensor in the whole tensor."""
    shape = shape_of(info)
    start = [0] * len(shape) if offsets is None else offsets.get(info.name, [])
    if len(start) != len(shape) or not all(
        0 <= low <= LENGTH_MAX - length for low, length in zip(start, shape, strict=True)
    ):
        message = f"{location}: {SHARDING_INFO} says that {info.name!r} begins at {start}, and it has the shape {shape}"
        raise FormatError(message, location=location, tensor=info.name)
    return tuple((low, low + length) for low, length in zip(start, shape, strict=True))


def whole(found: Iterable[Saved]) -> tuple[int, ...]:
    """Return the shape of a tensor.

    Each rank knows only its own box; all boxes together give the shape.
    """
    return tuple(max(end for _, end in bounds) for bounds in zip(*(one.box for one in found), strict=True))


def chunk(box: Box) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size(low for low, _ in box), torch.Size(high - low for low, high in box))


def index_in(saved: Saved, box: Box) -> tuple[slice, ...]:
    """Return the index of a box in a file's tensor."""
    index = [slice(low - start, high - start) for (low, high), (start, _) in zip(box, saved.box, strict=True)]
    if saved.info.dtype == "F4":
        index[-1] = slice(2 * index[-1].start, 2 * index[-1].stop)
    return tuple(index)


def shape_of(info: TensorInfo) -> tuple[int, ...]:
    # torch packs two 4-bit floats into one element.
    return (*info.shape[:-1], info.shape[-1] // 2) if info.dtype == "F4" else info.shape


def dtype_of(info: TensorInfo) -> torch.dtype:
    dtype = getattr(torch, torch_tensors.DTYPES.get(info.dtype, ""), None)
    if not isinstance(dtype, torch.dtype):
        message = f"{info.name!r} has the dtype {info.dtype}, and torch {torch.__version__} has no such dtype"
        raise UnsupportedError(message, tensor=info.name)
    return dtype
