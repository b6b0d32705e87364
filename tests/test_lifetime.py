"""Tensors stay valid as long as they are referenced, whatever the stream does."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest

import tload
from conftest import require, skip_loudly
from files import Content, tile, write_file

MIB = 1 << 20


def large(path: Path, count: int, size: int, first_seed: int) -> dict[str, Content]:
    tensors = {f"t{index}": Content("U8", (size,), tile(first_seed + index, size)) for index in range(count)}
    write_file(path, tensors)
    return tensors


@pytest.mark.parametrize("framework", ["torch", "numpy"])
@pytest.mark.parametrize("size", [3 * MIB + 77, 5003])
def test_tensors_outlive_everything(framework: str, size: int, tmp_path: Path) -> None:
    require(framework)
    old = large(tmp_path / "old.safetensors", 12, size, 0)
    new = large(tmp_path / "new.safetensors", 12, size, 100)
    with tload.open(tmp_path / "old.safetensors") as checkpoint:
        stream = tload.stream(checkpoint, framework=framework, memory_limit="16 MiB")  # type: ignore[call-overload]
        kept = {name: tensor for index, (name, tensor) in enumerate(stream) if index % 3 == 0}
    del stream, checkpoint
    gc.collect()
    others = tload.load(tmp_path / "new.safetensors", framework=framework)  # type: ignore[call-overload]
    (tmp_path / "old.safetensors").unlink()
    for name, tensor in others.items():
        array = tensor.numpy() if framework == "torch" else tensor
        assert array.tobytes() == new[name].raw
        array.fill(0xEE)  # would show shared memory
    for name, tensor in kept.items():
        assert bytes(tensor.numpy() if framework == "torch" else tensor) == old[name].raw
    assert len(kept) == 4


def test_views_keep_the_memory(tmp_path: Path) -> None:
    require("torch")
    contents = large(tmp_path / "a.safetensors", 1, MIB, 0)
    view = tload.load(tmp_path / "a.safetensors")["t0"].view(16, -1)[3][5:50]
    gc.collect()
    tload.load(tmp_path / "a.safetensors")["t0"].zero_()
    start = 3 * (MIB // 16)
    assert bytes(view.numpy()) == contents["t0"].raw[start + 5 : start + 50]


def test_neighbours_in_one_region_do_not_touch(tmp_path: Path) -> None:
    require("torch")
    tensors = {f"t{index}": Content.random("U8", (1 + index % 7,), index) for index in range(500)}
    write_file(tmp_path / "a.safetensors", tensors)
    loaded = tload.load(tmp_path / "a.safetensors")
    for name in list(loaded)[::2]:
        loaded[name].fill_(0xEE)
    for name in list(loaded)[1::2]:
        assert bytes(loaded[name].numpy()) == tensors[name].raw, name


RETENTION = """
import os, random, sys
import tload

path, count, size, keep, limit = sys.argv[1], *map(int, sys.argv[2:])
page = os.sysconf("SC_PAGE_SIZE")
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * page
def tile(seed):
    return (random.Random(seed).randbytes(4093) * (size // 4093 + 1))[:size]

import numpy
numpy.from_dlpack  # imported before we look
for _ in tload.stream(path, framework="numpy", names="t0"):
    pass
before = peak = resident()
kept = {}
stream = tload.stream(path, framework="numpy", memory_limit=limit)
for name, array in stream:
    if int(name[1:]) % keep == 0:
        kept[name] = array
    peak = max(peak, resident())
    del array
allowed = before + limit + len(kept) * size + (64 << 20)
print(f"peak {peak >> 20} MiB, allowed {allowed >> 20} MiB, before {before >> 20} MiB, kept {len(kept)}")
print(stream.report)
assert peak <= allowed
assert stream.report.memory_peak <= limit
assert len(kept) == (count + keep - 1) // keep
for name, array in kept.items():
    assert array.tobytes() == tile(int(name[1:])), name
"""


def test_kept_tensors_are_right_and_memory_is_bounded(tmp_path: Path) -> None:
    """Every 16th tensor of a 2 GiB stream is kept, the rest dropped."""
    require("numpy")
    if not Path("/proc/self/statm").exists():
        skip_loudly("proc", "no /proc to see the memory in use")
    count, size, keep, limit = 256, 8 * MIB, 16, 128 * MIB
    path = tmp_path / "large.safetensors"
    from files import header

    text = header({f"t{index}": Content("U8", (size,), _Sized(size)) for index in range(count)})  # type: ignore[arg-type]
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for index in range(count):
            file.write(tile(index, size))
    try:
        arguments = [str(path), *map(str, (count, size, keep, limit))]
        done = subprocess.run(
            [sys.executable, "-c", RETENTION, *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        path.unlink()


class _Sized:
    """An object with a length and no bytes."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size
