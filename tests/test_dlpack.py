"""Capsules: both kinds, taken over once, freed always."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import tload
from capsules import Taken, look
from conftest import require, skip_loudly
from files import Content, tile, write_file

Floats = tuple[Path, dict[str, Content]]
MIB = 1 << 20


def first(path: Path) -> tload.Tensor:
    return next(iter(tload.load(path, framework="dlpack").values()))


def test_consumer_chooses_dlpack_version(floats: Floats) -> None:
    tensor = first(floats[0])
    for max_version in (None, (0, 8)):
        seen = look(tensor.__dlpack__(max_version=max_version))
        assert (seen.name, seen.version) == ("dltensor", None)
    for max_version, version in (((1, 0), (1, 0)), ((1, 1), (1, 1)), ((1, 3), (1, 1)), ((2, 0), (1, 0))):
        seen = look(tensor.__dlpack__(max_version=max_version))
        assert (seen.name, seen.version) == ("dltensor_versioned", version)
        assert seen.flags == 0, "neither read-only nor copied"


def test_strides_are_those_of_rows(tmp_path: Path) -> None:
    write_file(tmp_path / "a.safetensors", {"a": Content.random("I16", (2, 3, 5), 0)})
    seen = look(first(tmp_path / "a.safetensors").__dlpack__())
    assert (seen.shape, seen.strides) == ((2, 3, 5), (15, 5, 1))


def test_requested_copy_is_independent(floats: Floats) -> None:
    tensor = first(floats[0])
    capsule = tensor.__dlpack__(max_version=(1, 0), copy=True)
    seen, own = look(capsule), look(tensor.__dlpack__())
    assert seen.raw == own.raw
    assert seen.address != own.address
    assert seen.flags == 2
    assert look(tensor.__dlpack__(copy=False)).address == own.address


def test_cpu_tensor_rejects_streams_and_other_devices(floats: Floats) -> None:
    tensor = first(floats[0])
    wrong: Any = 1
    with pytest.raises(BufferError, match="no streams"):
        tensor.__dlpack__(stream=wrong)
    with pytest.raises(BufferError, match=r"device \(2, 0\)"):
        tensor.__dlpack__(dl_device=(2, 0))
    assert look(tensor.__dlpack__(dl_device=(1, 0))).raw == look(tensor.__dlpack__()).raw
    with pytest.raises(BufferError, match="no streams"):
        tensor.flat().__dlpack__(stream=wrong)


def test_capsule_is_consumed_once(floats: Floats) -> None:
    torch = require("torch")
    for max_version in (None, (1, 0)):
        capsule: Any = first(floats[0]).flat().__dlpack__(max_version=max_version)
        kept = torch.from_dlpack(capsule)
        with pytest.raises(RuntimeError):
            torch.from_dlpack(capsule)
        del capsule
        gc.collect()
        assert bytes(kept.numpy()) == floats[1]["layer.0.weight"].raw


def test_numpy_imports_known_dtypes_and_rejects_others(tmp_path: Path) -> None:
    np = require("numpy")
    contents = {"f": Content.random("F64", (3, 2), 0), "b": Content.random("BF16", (4,), 0)}
    write_file(tmp_path / "a.safetensors", contents)
    loaded = tload.load(tmp_path / "a.safetensors", framework="dlpack")
    assert np.from_dlpack(loaded["f"]).tobytes() == contents["f"].raw
    with pytest.raises((BufferError, RuntimeError)):
        np.from_dlpack(loaded["b"])


def test_consumer_can_free_on_any_thread(floats: Floats) -> None:
    tensor = first(floats[0])
    wanted = floats[1]["layer.0.weight"].raw
    taken = [Taken(tensor.flat().__dlpack__(max_version=(1, 0))) for _ in range(100)]
    del tensor
    gc.collect()
    assert all(one.read() == wanted for one in taken)
    threads = [threading.Thread(target=one.free) for one in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("way", ["unconsumed", "refused", "consumed", "copied", "dropped"])
def test_nothing_leaks(way: str, tmp_path: Path) -> None:
    if not Path("/proc/self/statm").exists():
        skip_loudly("proc", "no /proc to see the memory in use")
    torch = require("torch")
    np = require("numpy")
    size = 8 * MIB
    path = tmp_path / "a.safetensors"
    write_file(path, {"a": Content("BF16", (size // 2,), tile(0, size))})

    def once() -> None:
        tensor = first(path)
        if way == "unconsumed":
            for version in (None, (1, 0)):
                tensor.__dlpack__(max_version=version)
        elif way == "refused":
            with pytest.raises((BufferError, RuntimeError)):
                np.from_dlpack(tensor)
        elif way == "consumed":
            torch.from_dlpack(tensor)
            np.from_dlpack(tensor.flat())
        elif way == "copied":
            tensor.__dlpack__(copy=True)

    for _ in range(5):
        once()
    before = resident()
    for _ in range(40):
        once()
    gc.collect()
    assert resident() - before < 4 * size, "40 leaks would be ten times that"


def test_capsules_left_at_exit_do_no_harm(floats: Floats) -> None:
    script = f"""
import tload
path = {str(floats[0])!r}
stream = tload.stream(path, framework="dlpack", memory_limit=1 << 20)
name, tensor = next(stream)
capsules = [tensor.__dlpack__(), tensor.__dlpack__(max_version=(1, 0))]
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)
