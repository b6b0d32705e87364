"""Prints digests of what torch makes of floating-point elements, for `torch.rs`.

    python results_of_torch.py > results_of_torch.txt

`torch.rs` makes the same elements, and describes them. The bits of NaN depend on the CPU and on the
place of the element: all are replaced by ones.
"""
# ruff: noqa: INP001 (a script)

from __future__ import annotations

import hashlib
import itertools
import sys
from typing import Any

import numpy as np
import torch

DTYPES = {
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}
LOWS = np.array([0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF], dtype=np.uint32)
LOWS_OF_DOUBLES = np.array([0, 1, 0x0FFF_FFFF, 0x1000_0000, 0x1000_0001, 0x1FFF_FFFF], dtype=np.uint64)
RANDOM = 1_000_000


def singles() -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Return bits of F32."""
    tops = np.arange(1 << 19, dtype=np.uint32) << np.uint32(13)
    return (tops[:, None] | LOWS[None, :]).reshape(-1)


def doubles() -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return bits of F64."""
    with np.errstate(invalid="ignore"):
        near = singles()[::5].view(np.float32).astype(np.float64).view(np.uint64)
    near |= LOWS_OF_DOUBLES[np.arange(near.size) % LOWS_OF_DOUBLES.size]
    bits = np.arange(1, RANDOM + 1, dtype=np.uint64) * np.uint64(0x9E37_79B9_7F4A_7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    return np.concatenate([near, bits ^ (bits >> np.uint64(31))])


def elements(name: str) -> torch.Tensor:
    """Return the elements of a dtype that are converted."""
    dtype = DTYPES[name]
    every = {1: np.uint8, 2: np.uint16}.get(dtype.itemsize)
    bits: Any
    if every is not None:
        bits = np.arange(256**dtype.itemsize, dtype=every)
    else:
        bits = singles() if dtype is torch.float32 else doubles()
    return torch.from_numpy(bits.view(np.uint8)).view(dtype)


def digest(converted: torch.Tensor) -> str:
    """Return the SHA-256 of elements, in which every NaN is all ones."""
    bits = converted.view(torch.uint8).numpy().reshape(-1, converted.dtype.itemsize).copy()
    bits[converted.isnan().numpy()] = 0xFF
    return hashlib.sha256(bits.tobytes()).hexdigest()


def lines() -> list[str]:
    """Return the lines of `results_of_torch.txt`."""
    pairs = itertools.permutations(DTYPES, 2)
    return [f"{name} {other} {digest(elements(name).to(DTYPES[other]))}" for name, other in pairs]


if __name__ == "__main__":
    sys.stdout.write("\n".join(lines()) + "\n")
