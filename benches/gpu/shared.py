"""Shared parts of the checks: a checkpoint, files written by hand, and comparisons."""

from __future__ import annotations

import json
import random
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import tload

MIB = 1 << 20
#: Bits of each dtype, including those that `synth` leaves out.
BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}


class Skipped(Exception):
    """A check that this machine or build does not support."""


class Bench:
    """Shared fixtures of the checks."""

    def __init__(self, device: str, folder: Path) -> None:
        self.device, self.folder = device, folder
        self.on_gpu = device != "cpu"
        self.model = folder / "tiny"
        command = [sys.executable, "-m", "tload", "synth", str(self.model), "--preset", "tiny", "--size", "8MiB"]
        subprocess.run([*command, "--shards", "3"], check=True, capture_output=True, timeout=60)
        self.truth = read_raw(self.model)
        # 64 MiB in tensors large enough that a load with a small memory limit stops in the middle.
        self.long = folder / "long.safetensors"
        write(self.long, {f"t{index:02}": ("U8", [2 * MIB], tile(index, 2 * MIB)) for index in range(32)})
        self.limit = {"device_memory_limit" if self.on_gpu else "memory_limit": "6 MiB"}

    def loads_well(self, framework: str) -> None:
        """Check that the next load is complete and right."""
        tensors = tload.load(self.long, framework=framework, device=self.device)
        for name, (_, _, raw) in read_file(self.long).items():
            tensor = tensors[name] if framework == "torch" else torch.from_dlpack(tensors[name].flat())
            equal(bytes_of(tensor) == raw, True, f"bytes of {name} afterwards")

    def need(self, name: str) -> Any:
        if not hasattr(tload, name):
            raise Skipped(f"this version of tload has no {name}")
        return getattr(tload, name)

    def need_gpu(self) -> None:
        if not self.on_gpu:
            raise Skipped("only on a GPU")


Content = tuple[str, list[int], bytes]


def tile(seed: int, size: int) -> bytes:
    """Return bytes that differ by seed."""
    return (random.Random(seed).randbytes(4093) * (size // 4093 + 1))[:size]


def write(path: Path, tensors: dict[str, Content]) -> None:
    """Write a file by hand, since safetensors lacks some dtypes. Tensors are contiguous, also at odd offsets."""
    entries, offset = {}, 0
    for name, (dtype, shape, raw) in tensors.items():
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(raw)]}
        offset += len(raw)
    text = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(raw for _, _, raw in tensors.values()))


def read_file(path: Path) -> dict[str, Content]:
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__", None)
    found = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        found[name] = (entry["dtype"], entry["shape"], raw[begin:end])
    return found


def read_raw(folder: Path) -> dict[str, Content]:
    """Return dtype, shape and bytes of every tensor, read without a library."""
    return {name: content for path in sorted(folder.glob("*.safetensors")) for name, content in read_file(path).items()}


def bytes_of(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy())


def equal(found: Any, wanted: Any, what: str) -> None:
    if found != wanted:
        shown = [text if len(text) < 200 else f"{text[:200]}…" for text in (repr(found), repr(wanted))]
        raise AssertionError(f"{what}: found {shown[0]}, expected {shown[1]}")


def same_bytes(bench: Bench, tensors: dict[str, torch.Tensor], what: str) -> None:
    equal(sorted(tensors), sorted(bench.truth), f"{what}: names")
    for name, (_, shape, raw) in bench.truth.items():
        equal(list(tensors[name].shape), shape, f"{what}: shape of {name}")
        if bytes_of(tensors[name]) != raw:
            raise AssertionError(f"{what}: wrong bytes in {name}")
