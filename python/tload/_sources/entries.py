"""Entries of a checkpoint's headers: its tensors and its files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class TensorInfo(NamedTuple):
    """Header entry of one tensor."""

    name: str
    """The tensor's name. It comes from a file: print it with `repr`."""
    dtype: str
    """The element type as safetensors files write it, for example `"BF16"` or `"F8_E4M3"`."""
    shape: tuple[int, ...]
    """Elements along each dimension; `()` for a scalar."""
    nbytes: int
    """Length in bytes."""
    shard: int
    """Index of the file that holds it, in `Checkpoint.shards`."""
    file_range: tuple[int, int]
    """Byte range of the tensor in that file, `(start, end)`, from the start of the file."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of a checkpoint."""

    location: str
    """Its path or URL."""
    file_bytes: int
    """Length of the file, bytes."""
    header_bytes: int
    """Length of everything before the first tensor, bytes."""
    tensor_count: int
    """Number of tensors of the checkpoint in this file."""
    metadata: dict[str, str]
    """The file's `__metadata__`."""
