"""Tensors on GPUs as capsules: bytes, devices, streams, and ownership."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tload
from capsules import Taken, look
from files import BITS, Content
from test_frameworks import CODES, shape_in_pairs

if TYPE_CHECKING:
    import gpu

Every = tuple[Path, dict[str, Content]]
Floats = tuple[Path, dict[str, Content]]


def first(path: Path, device: str = "cuda:1") -> tload.Tensor:
    return next(iter(tload.load(path, framework="dlpack", device=device).values()))


@pytest.mark.parametrize("ordinal", [0, 1])
@pytest.mark.usefixtures("cuda")
def test_every_dtype_and_shape_arrives(ordinal: int, every_dtype: Every) -> None:
    path, tensors = every_dtype
    loaded = tload.load(path, framework="dlpack", device=f"cuda:{ordinal}")
    assert list(loaded) == list(tensors)
    for name, content in tensors.items():
        tensor = loaded[name]
        assert tensor.device == f"cuda:{ordinal}", name
        assert tensor.owner() is None
        for max_version in (None, (1, 0)):
            seen = look(tensor.__dlpack__(max_version=max_version))
            assert (seen.dtype, seen.shape) == (CODES[content.dtype], shape_in_pairs(content)), name
            assert seen.raw == content.raw, name
            assert seen.device == tensor.__dlpack_device__() == (2, ordinal)
            assert (seen.address is None) == (not content.raw)
            if seen.address is not None:
                assert seen.address % max(BITS[content.dtype] // 8, 1) == 0, "aligned for its dtype"
        flat = look(tensor.flat().__dlpack__(max_version=(1, 1)))
        assert (flat.dtype, flat.shape, flat.raw) == ((1, 8, 1), (len(content.raw),), content.raw)
        assert flat.device == tensor.flat().__dlpack_device__() == (2, ordinal)


@pytest.mark.parametrize("stream", [None, -1, 1, 2, 3, 1 << 47, (1 << 64) - 1])
@pytest.mark.usefixtures("cuda")
def test_any_stream_may_use_a_tensor(stream: int | None, floats: Floats) -> None:
    tensor = first(floats[0])
    for thing in (tensor, tensor.flat()):
        assert look(thing.__dlpack__(stream=stream)).raw == floats[1]["layer.0.weight"].raw


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        (0, "stream=0 is ambiguous"),
        (-2, "stream=-2 is not a stream"),
        (True, "stream=True is not a stream"),
        ("1", "stream='1' is not a stream"),
        (1.0, "stream=1.0 is not a stream"),
    ],
)
@pytest.mark.usefixtures("cuda")
def test_invalid_dlpack_stream_rejected(stream: Any, message: str, floats: Floats) -> None:
    tensor = first(floats[0])
    for thing in (tensor, tensor.flat()):
        with pytest.raises(BufferError, match=message):
            thing.__dlpack__(stream=stream)


@pytest.mark.usefixtures("cuda")
def test_dlpack_export_to_other_device_or_copy_rejected(floats: Floats) -> None:
    tensor = first(floats[0])
    for device in ((1, 0), (2, 0), (3, 0), (13, 1)):
        with pytest.raises(BufferError, match=r"GPU memory .* cannot be exported .* device="):
            tensor.__dlpack__(dl_device=device)
    with pytest.raises(BufferError, match="let the importing library copy it"):
        tensor.__dlpack__(copy=True)
    seen = look(tensor.__dlpack__(dl_device=(2, 1), copy=False, max_version=(1, 0)))
    assert (seen.raw, seen.flags) == (floats[1]["layer.0.weight"].raw, 0)


def test_capsule_outlives_tensor_and_stream(cuda: gpu.Stub, floats: Floats) -> None:
    tensor = first(floats[0])
    wanted = floats[1]["layer.0.weight"].raw
    taken = [Taken(tensor.flat().__dlpack__(max_version=(1, 0))) for _ in range(20)]
    assert "cuda:1" in repr(tensor)
    del tensor
    gc.collect()
    assert all(one.read() == wanted for one in taken)
    assert cuda.live("allocations") == 1
    threads = [threading.Thread(target=one.free) for one in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cuda.live("allocations") == 0
