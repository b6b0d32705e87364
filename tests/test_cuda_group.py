"""Ranks that load to GPUs: Ctrl-C on one of them leaves nothing there, and the others complete."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import require_stub
from files import Content, tile, write_file

MIB = 1 << 20

RANK = """
import gc, signal, sys
import gpu, tload

path, library, socket, rank, size, interrupted = sys.argv[1:]
stub = gpu.Stub.load(library)
stub.set("copy_delay_us", 300)
group = tload.Group.local(socket, int(rank), int(size), timeout="4m")
# Room for a few tensors: the load cannot be over when it is interrupted.
limits = {"memory_limit": "32 MiB", "device_memory_limit": "6 MiB"}
count = 0
try:
    with tload.stream(path, framework="dlpack", device="cuda:0", group=group, join_timeout="4m", **limits) as tensors:
        for name, tensor in tensors:
            count += 1
            if rank == interrupted and count == 2:
                signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    assert rank == interrupted
else:
    assert rank != interrupted and count == 24, count
    assert tensors.report.group.share == "node", tensors.report.group
del tensor, tensors
gc.collect()
stub.settle()
assert stub.count("violations") == 0, stub.violation()
"""


@pytest.fixture
def megabytes(tmp_path: Path) -> Path:
    path = tmp_path / "a.safetensors"
    write_file(path, {f"t{index:02}": Content("U8", (2 * MIB,), tile(index, 2 * MIB)) for index in range(24)})
    return path


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("interrupted", ["last", "leader"])
def test_interrupted_rank_leaves_nothing(size: int, interrupted: str, megabytes: Path, tmp_path: Path) -> None:
    library = require_stub()
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    chosen = 0 if interrupted == "leader" else size - 1
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, *map(str, (megabytes, library, tmp_path / "g.sock", rank, size, chosen))],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    told = [rank.communicate(timeout=300)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * size, "\n".join(told)
