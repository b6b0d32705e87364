"""Writes of a checkpoint: `tload.save` beside `safetensors.torch.save_file`, and fio.

    python benches/compare/save.py --size 2GiB --rounds 5 --folder /mnt/disk

All are timed until files and directories are flushed. Contenders run by turns, and ratios are taken within a round.
`fio` writes as many bytes sequentially with direct I/O, if it is installed. Prints a JSON document.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch

import tload

if TYPE_CHECKING:
    from collections.abc import Callable

GOALS = {"save_file": 1.5, "fio": 0.9}
TENSOR_BYTES = 64 << 20


def flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def save_file(tensors: dict[str, torch.Tensor], path: Path) -> None:
    path.mkdir()
    safetensors.torch.save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    for entry in (path / "model.safetensors", path, path.parent):
        flush(entry)


def save(tensors: dict[str, torch.Tensor], path: Path) -> None:
    tload.save(tensors, path, max_shard_size=1 << 62)


def fio(tensors: dict[str, torch.Tensor], path: Path) -> None:
    size = sum(tensor.nbytes for tensor in tensors.values())
    path.mkdir()
    options = ["--rw=write", "--direct=1", "--ioengine=io_uring", "--iodepth=4", "--bs=8M", "--end_fsync=1"]
    command = ["fio", "--name=write", f"--filename={path / 'file'}", f"--size={size}", *options]
    subprocess.run(command, check=True, capture_output=True)


def measured(write: Callable[[dict[str, torch.Tensor], Path], None], tensors: dict[str, Any], folder: Path) -> Any:
    path = folder / "written"
    os.sync()
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    write(tensors, path)
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    shutil.rmtree(path)
    os.sync()
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": seconds, "cpu_seconds": cpu}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="2GiB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path())
    arguments = parser.parse_args()
    size = tload._tload.parse_bytes("--size", arguments.size)  # noqa: SLF001
    count = max(1, size // TENSOR_BYTES)
    tensors = {
        f"layers.{index}": torch.randint(0, 255, (TENSOR_BYTES,), dtype=torch.uint8).view(torch.bfloat16)
        for index in range(count)
    }
    contenders = {"save": save, "save_file": save_file}
    if shutil.which("fio"):
        contenders["fio"] = fio
    rounds: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for turn in range(arguments.rounds):
            names = list(contenders)
            names = names[turn % len(names) :] + names[: turn % len(names)]
            rounds.append({name: measured(contenders[name], tensors, Path(folder)) for name in names})
    ratios = {
        name: statistics.median(turn[name]["seconds"] / turn["save"]["seconds"] for turn in rounds)
        for name in contenders
        if name != "save"
    }
    document = {
        "bytes": count * TENSOR_BYTES,
        "rounds": rounds,
        "median_seconds": {name: statistics.median(turn[name]["seconds"] for turn in rounds) for name in contenders},
        "speed_ratios": ratios,
        "goals": {name: goal for name, goal in GOALS.items() if name in ratios},
    }
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
