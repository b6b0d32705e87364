"""Loads into GPU memory from torch's allocator, simulated by CPU tensors that the driver treats as
GPU memory."""

from __future__ import annotations

import gc
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import tload
from conftest import require
from files import Content, tile, write_file
from test_frameworks import only, shape_in_pairs
from test_group import Members, group_of
from tload._report import log
from tload._tensors import cuda, torch_tensors

if TYPE_CHECKING:
    import gpu

Every = tuple[Path, dict[str, Content]]
Floats = tuple[Path, dict[str, Content]]
MIB = 1 << 20


@pytest.fixture
def megabytes(tmp_path: Path) -> tuple[Path, dict[str, Content]]:
    path = tmp_path / "large.safetensors"
    tensors = {f"t{index:02}": Content("U8", (2 * MIB,), tile(index, 2 * MIB)) for index in range(16)}
    write_file(path, tensors)
    return path, tensors


def raw(tensor: Any) -> bytes:
    torch = require("torch")
    return bytes(tensor.reshape(-1).view(torch.uint8).numpy())


def test_every_torch_dtype_is_loaded_to_torch_memory(torch_cuda: gpu.TorchCuda, every_dtype: Every) -> None:
    torch = require("torch")
    path, tensors = every_dtype
    names = only(tensors, set(torch_tensors.DTYPES))
    loaded = tload.load(path, names=names, device="cuda:1")
    assert list(loaded) == names
    for name in names:
        tensor, content = loaded[name], tensors[name]
        assert tensor.dtype == getattr(torch, torch_tensors.DTYPES[content.dtype]), name
        assert tuple(tensor.shape) == shape_in_pairs(content), name
        assert tensor.is_contiguous()
        assert tensor.is_leaf
        if tensor.numel():
            assert raw(tensor) == content.raw, name
            assert torch_cuda.device_of(tensor) == "cuda:1", "of the allocator's memory"
            assert tensor.data_ptr() % tensor.element_size() == 0
    assert {ordinal for ordinal, _ in torch_cuda.allocated} == {1}
    assert set(torch_cuda.streams_asked) == {1}
    assert torch_cuda.stub.count("cuMemAllocAsync") + torch_cuda.stub.count("cuMemAlloc_v2") == 0, "no other memory"


def test_deterministic_mode_does_not_change_loads(torch_cuda: gpu.TorchCuda, every_dtype: Every) -> None:
    torch = require("torch")
    path, tensors = every_dtype
    names = only(tensors, set(torch_tensors.DTYPES))
    torch.use_deterministic_algorithms(mode=True)
    try:
        loaded = tload.load(path, names=names, device="cuda:0")
    finally:
        torch.use_deterministic_algorithms(mode=False)
    assert torch_cuda.allocated
    for name in names:
        assert loaded[name].dtype == getattr(torch, torch_tensors.DTYPES[tensors[name].dtype]), name
        assert tuple(loaded[name].shape) == shape_in_pairs(tensors[name]), name
        if loaded[name].numel():
            assert raw(loaded[name]) == tensors[name].raw, name


def test_unsupported_torch_dtype_rejected_before_allocation(torch_cuda: gpu.TorchCuda, every_dtype: Every) -> None:
    with pytest.raises(tload.UnsupportedError, match="F6_E2M3"):
        tload.stream(every_dtype[0], device="cuda:0")
    assert torch_cuda.allocated == []


def test_memory_returns_to_torch_with_last_view(torch_cuda: gpu.TorchCuda, floats: Floats) -> None:
    loaded = tload.load(floats[0], device="cuda:0")
    view = loaded["layer.3.weight"][1][2:5]
    wanted = view.clone()
    del loaded
    gc.collect()
    assert torch_cuda.live() == 1
    assert view.equal(wanted)
    del view
    gc.collect()
    assert torch_cuda.live() == 0


def test_neighbours_in_one_allocation_are_independent_tensors(torch_cuda: gpu.TorchCuda, floats: Floats) -> None:
    torch = require("torch")
    with tload.stream(floats[0], device="cuda:0", order="file") as stream:
        first, second = next(stream)[1], next(stream)[1]
        with torch.inference_mode():
            third = next(stream)[1]
        fourth = next(stream)[1]
    assert len(torch_cuda.allocated) == 1
    assert first.untyped_storage().data_ptr() == fourth.untyped_storage().data_ptr()
    assert [tensor.is_inference() for tensor in (first, second, third, fourth)] == [False, False, True, False]
    wanted = second.clone()
    first.add_(1)
    assert (first._version, second._version, fourth._version) == (1, 0, 0)
    assert second.equal(wanted)
    assert all(tensor._base is None and not tensor.requires_grad for tensor in (first, second, fourth))
    first.requires_grad_()
    first.square().sum().backward()
    assert first.grad is not None
    assert fourth.grad is None


def test_two_devices_and_the_cpu_at_once(torch_cuda: gpu.TorchCuda, floats: Floats) -> None:
    torch = require("torch")
    rules = {"layer.1.*": torch.device("cuda", 0), "layer.2.*": "cpu"}
    loaded = tload.load(floats[0], device="cuda:1", device_map=rules)
    places = {"layer.1.weight": "cuda:0", "layer.2.weight": "cpu"}
    for name, tensor in loaded.items():
        assert torch_cuda.device_of(tensor) == places.get(name, "cuda:1")
        assert raw(tensor) == floats[1][name].raw


@pytest.mark.usefixtures("torch_cuda")
@pytest.mark.parametrize(("other", "is_refused"), [("cpu", True), ("cuda:1", False)])
def test_old_torch_refuses_shared_host_memory_beside_a_gpu(
    other: str, *, is_refused: bool, floats: Floats, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Meeting(Members):
        def exchange(self, message: bytes, timeout: float) -> list[bytes]:
            raise tload.PeerError(f"{len(message)} bytes, {timeout} s")

    torch = require("torch")
    monkeypatch.setattr(torch.Tensor, "__dlpack__", lambda self, stream=None: (self, stream))
    rules = {"": "cuda:0", "layer.3.weight": other}
    with pytest.raises(tload.UnsupportedError if is_refused else tload.PeerError):
        tload.load(floats[0], device_map=rules, group=group_of(Meeting()), private=False)


def test_cuda_alone_is_torchs_current_device(torch_cuda: gpu.TorchCuda, floats: Floats) -> None:
    torch_cuda.device = 1
    for keywords in ({"device": "cuda"}, {"device_map": {"*": "cuda"}}):
        loaded = tload.load(floats[0], **keywords)
        assert {torch_cuda.device_of(tensor) for tensor in loaded.values()} == {"cuda:1"}
    loaded_by_dlpack = tload.load(floats[0], framework="dlpack", device="cuda")
    assert {tensor.device for tensor in loaded_by_dlpack.values()} == {"cuda:0"}


def test_memory_is_allocated_on_callers_thread_within_limit(
    torch_cuda: gpu.TorchCuda, megabytes: tuple[Path, dict[str, Content]], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set()
    empty = torch_cuda.empty

    def noting(*arguments: Any) -> Any:
        threads.add(threading.current_thread())
        return empty(*arguments)

    monkeypatch.setattr(cuda, "empty", noting)
    path, tensors = megabytes
    stream = tload.stream(path, device="cuda:0", device_memory_limit="6 MiB")
    assert len(torch_cuda.allocated) == 3
    for name, tensor in stream:
        assert raw(tensor) == tensors[name].raw
        del tensor
        assert torch_cuda.live() <= 4
    assert threads == {threading.current_thread()}
    assert stream.report.devices[0].memory_peak == 6 * MIB


def test_torch_free_memory_bounds_load(torch_cuda: gpu.TorchCuda, megabytes: tuple[Path, dict[str, Content]]) -> None:
    torch_cuda.free = MIB
    with pytest.raises(tload.OutOfMemoryError, match="cuda:0"):
        tload.stream(megabytes[0], device="cuda:0")
    assert torch_cuda.allocated == []
    torch_cuda.free = 7 * MIB
    stream = tload.stream(megabytes[0], device="cuda:0")
    assert len(torch_cuda.allocated) == 2
    stream.close()


@pytest.mark.parametrize("at", [0, 1, 7])
def test_torch_runs_out_of_memory(
    at: int, torch_cuda: gpu.TorchCuda, megabytes: tuple[Path, dict[str, Content]]
) -> None:
    torch = require("torch")
    torch_cuda.fails_at[at] = torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")
    path, tensors = megabytes
    kept = {}
    with pytest.raises(MemoryError) as caught:  # noqa: PT012
        for name, tensor in tload.stream(path, device="cuda:0", device_memory_limit="4 MiB"):
            kept[name] = tensor  # noqa: PERF403  # what came before the error counts
    error = caught.value
    assert isinstance(error, tload.OutOfMemoryError)
    assert re.search(r"cuda:0 has no room for 2\.0 MiB \(2097152 bytes\): .* are free", str(error))
    assert "Tried to allocate 2.00 MiB" in str(error)
    assert error.tensor in tensors
    assert error.__cause__ is not None
    assert isinstance(error.__cause__.__cause__, torch.cuda.OutOfMemoryError)
    assert len(kept) < len(tensors)
    for name, tensor in kept.items():
        assert raw(tensor) == tensors[name].raw, "tensors that were yielded stay valid"


@pytest.mark.parametrize("at", [0, 7])
def test_allocator_exception_is_cause_of_error(
    at: int, torch_cuda: gpu.TorchCuda, megabytes: tuple[Path, dict[str, Content]]
) -> None:
    original = RuntimeError("CUDA error: an illegal memory access was encountered")
    torch_cuda.fails_at[at] = original
    with pytest.raises(tload.DeviceError, match="illegal memory access") as caught:
        list(tload.stream(megabytes[0], device="cuda:0", device_memory_limit="4 MiB"))
    assert caught.value.__cause__ is original


@pytest.mark.parametrize("at", [0, 7])
@pytest.mark.parametrize("order", [KeyboardInterrupt, SystemExit])
def test_keyboard_interrupt_in_allocator_is_raised(
    at: int, order: type[BaseException], torch_cuda: gpu.TorchCuda, megabytes: tuple[Path, dict[str, Content]]
) -> None:
    torch_cuda.fails_at[at] = order("now")
    seen: list[str] = []
    with pytest.raises(order, match="now"):  # noqa: PT012
        for name, _ in tload.stream(megabytes[0], device="cuda:0", device_memory_limit="4 MiB"):
            seen.append(name)
    assert len(torch_cuda.allocated) == at
    # Two allocations before the first tensor, one more with each: the tensor that came with the
    # order to stop is not yielded.
    assert len(seen) == max(at - 2, 0)


@pytest.mark.parametrize("way", ["close", "cancel", "drop"])
def test_consumer_leaving_mid_load(
    way: str, torch_cuda: gpu.TorchCuda, megabytes: tuple[Path, dict[str, Content]]
) -> None:
    torch_cuda.stub.set("copy_delay_us", 2000)
    stream = tload.stream(megabytes[0], device="cuda:0", device_memory_limit="6 MiB")
    name, kept = next(stream)
    if way == "close":
        stream.close()
    elif way == "cancel":
        stream.cancel()
        with pytest.raises(tload.CancelledError):
            list(stream)
    del stream
    gc.collect()
    torch_cuda.stub.settle()
    assert raw(kept) == megabytes[1][name].raw
    assert torch_cuda.live() == 1


@pytest.mark.parametrize("way", ["close", "cancel"])
def test_signal_handler_during_allocation_can_stop_load(
    way: str,
    torch_cuda: gpu.TorchCuda,
    megabytes: tuple[Path, dict[str, Content]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    empty = torch_cuda.empty
    refused: list[Any] = []
    told: list[tload.Report] = []
    monkeypatch.setattr(log, "log_end", told.append)

    def interrupted(*arguments: Any) -> Any:
        if len(torch_cuda.allocated) == 5:
            for use in (lambda: stream.report, lambda: stream.progress, lambda: stream._raw.receive(None)):
                with pytest.raises(tload.InvalidRequestError, match="while it allocates GPU memory"):
                    use()
                refused.append(use)
            getattr(stream, way)()
        return empty(*arguments)

    stream = tload.stream(megabytes[0], device="cuda:0", device_memory_limit="4 MiB")
    monkeypatch.setattr(cuda, "empty", interrupted)
    seen: list[str] = []
    with pytest.raises(tload.CancelledError):
        seen.extend(name for name, _ in stream)
    assert len(refused) == 3
    assert stream.report.outcome == "cancelled"
    assert [report.outcome for report in told] == ["cancelled"]


def test_stream_of_each_thread_is_synchronized(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = require("torch")
    calls: list[str] = []
    for address in (0, 2):
        stream = SimpleNamespace(cuda_stream=address, synchronize=lambda: calls.append("synchronize"))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _, stream=stream: stream)
        assert cuda.current_stream(0) == address
        assert calls == ["synchronize"] * (address == 2)


def test_memory_is_ordered_with_torchs_current_stream(torch_cuda: gpu.TorchCuda, floats: Floats) -> None:
    # There is no such stream: the driver's refusal shows that it was used.
    torch_cuda.stream = 0xDEAD0
    with pytest.raises(tload.DeviceError, match="cuda:1"):
        tload.load(floats[0], device="cuda:1")
    assert torch_cuda.streams_asked == [1]


def test_torch_without_cuda_rejected_before_reading(
    cuda: gpu.Stub, floats: Floats, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = require("torch")
    if torch.cuda.is_available():
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    for keywords in ({"device": "cuda"}, {"device": "cuda:0"}, {"device_map": {"layer.3.*": "cuda:1"}}):
        with pytest.raises(tload.UnsupportedError, match="finds no CUDA GPU") as caught:
            tload.stream(floats[0], **keywords)
        assert caught.value.hint is not None
        assert 'framework="dlpack"' in caught.value.hint
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    with pytest.raises(tload.UnsupportedError, match="is built without CUDA"):
        tload.stream(floats[0], device="cuda:0")
    monkeypatch.setattr(torch.version, "hip", "7.0")
    with pytest.raises(tload.UnsupportedError, match="is built for ROCm"):
        tload.stream(floats[0], device="cuda:0")
    assert cuda.count("cuInit") == 0
    assert len(tload.load(floats[0], names="layer.2.weight")) == 1, "the CPU needs none of it"


def test_torch_functions_used_exist() -> None:
    torch = require("torch")
    for name in ("current_device", "current_stream", "mem_get_info", "memory_reserved", "memory_allocated"):
        assert callable(getattr(torch.cuda, name))
    assert issubclass(torch.cuda.OutOfMemoryError, Exception)
    assert cuda.device_of(torch.zeros(1)) == "cpu"
    assert (cuda.ordinal_of("cpu"), cuda.ordinal_of("cuda:11"), cuda.ordinal_of("meta")) == (None, 11, None)


def test_region_neighbours_have_own_version_counter(torch_cuda: gpu.TorchCuda, tmp_path: Path) -> None:
    torch = require("torch")
    path = tmp_path / "small.safetensors"
    write_file(path, {name: Content("F32", (64,), tile(1, 256)) for name in ("a", "b")})
    loaded = tload.load(path, device=0)
    assert len(torch_cuda.allocated) == 1, "one region"
    version = loaded["b"]._version
    with torch.no_grad():
        loaded["a"].add_(1)
    assert loaded["b"]._version == version
    assert not loaded["b"]._is_view()
