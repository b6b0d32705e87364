"""Writes safetensors files by hand, with dtypes and layouts that the safetensors package does not
write."""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

# The dtypes of safetensors 0.8, in its order of alignment.
BITS = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}


@dataclass(frozen=True)
class Content:
    """A tensor to write."""

    dtype: str
    shape: tuple[int, ...]
    raw: bytes

    @classmethod
    def random(cls, dtype: str, shape: tuple[int, ...], seed: int) -> Content:
        """Return random bytes; for BOOL, zeros and ones."""
        size = math.prod(shape) * BITS[dtype] // 8
        raw = random.Random(f"{dtype} {shape} {seed}").randbytes(size)
        if dtype == "BOOL":
            raw = bytes(byte & 1 for byte in raw)
        return cls(dtype, shape, raw)


def shapes_for(dtype: str) -> list[tuple[int, ...]]:
    """Return shapes that fill whole bytes: scalar, empty, tiny, odd, several dimensions, more than
    a page."""
    if dtype == "F4":
        return [(0,), (3, 0), (2,), (7, 2), (3, 5, 4), (8190,), (2, 0, 2)]
    if BITS[dtype] == 6:
        return [(0,), (4,), (3, 4), (2, 6), (4, 1021)]
    return [(), (0,), (3, 0, 2), (1,), (7,), (5, 3), (2, 3, 5), (1, 1, 1, 1), (257, 17), (4099,)]


EVERY_DTYPE = {
    f"{dtype}.{index}": Content.random(dtype, shape, seed=index)
    for dtype in BITS
    for index, shape in enumerate(shapes_for(dtype))
}


def header(tensors: Mapping[str, Content], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return the header of a file of these tensors, without the 8 bytes of its length. Not padded:
    offsets are deliberately odd."""
    entries: dict[str, object] = {} if metadata is None else {"__metadata__": dict(metadata)}
    offset = 0
    for name, content in tensors.items():
        end = offset + len(content.raw)
        entries[name] = {"dtype": content.dtype, "shape": list(content.shape), "data_offsets": [offset, end]}
        offset = end
    return json.dumps(entries, separators=(",", ":")).encode()


def write_file(path: Path, tensors: Mapping[str, Content], metadata: Mapping[str, str] | None = None) -> None:
    """Write the tensors in this order, one right after the other."""
    text = header(tensors, metadata)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for content in tensors.values():
            file.write(content.raw)


def write_checkpoint(folder: Path, shards: Sequence[Mapping[str, Content]]) -> None:
    """Write shards and their index, with names as on Hugging Face."""
    weight_map = {}
    for index, tensors in enumerate(shards, start=1):
        name = f"model-{index:05}-of-{len(shards):05}.safetensors"
        write_file(folder / name, tensors)
        weight_map.update(dict.fromkeys(tensors, name))
    total = sum(len(content.raw) for tensors in shards for content in tensors.values())
    index_file = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index_file))


def tile(seed: int, size: int) -> bytes:
    """Return `size` bytes that differ by seed and are quick to make, for large files."""
    return (random.Random(seed).randbytes(4093) * (size // 4093 + 1))[:size]
