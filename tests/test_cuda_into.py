"""Loading into the caller's GPU memory, simulated by CPU tensors that the driver treats as GPU
memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tload
from conftest import require
from files import Content
from test_frameworks import only
from test_load_into import empty_for, raw, save
from tload._tensors import cuda, torch_tensors

if TYPE_CHECKING:
    import gpu

Every = tuple[Path, dict[str, Content]]


def test_every_dtype_is_read_directly_into_tensor(torch_cuda: gpu.TorchCuda, every_dtype: Every) -> None:
    path, tensors = every_dtype
    names = only(tensors, set(torch_tensors.DTYPES))
    target = {name: torch_cuda.on_gpu(empty_for(tensors[name]), index % 2) for index, name in enumerate(names)}
    report = tload.load_into(target, path, names=names)
    for name, tensor in target.items():
        assert raw(tensor) == tensors[name].raw, name
    assert sorted(device.device for device in report.devices) == ["cuda:0", "cuda:1"]
    assert [device.memory_limit for device in report.devices] == [0, 0]
    assert torch_cuda.allocated == [], "no memory beside the target's"
    assert set(torch_cuda.streams_asked) == {0, 1}


def test_cpu_and_gpus_at_once(torch_cuda: gpu.TorchCuda, tmp_path: Path) -> None:
    torch = require("torch")
    np = require("numpy")
    values = {name: torch.randn(5, 7) for name in "abcd"}
    path = save(tmp_path / "a.safetensors", values)
    target: dict[str, Any] = {
        "a": torch.zeros(5, 7),
        "b": torch_cuda.on_gpu(torch.zeros(5, 7), 0),
        "c": torch_cuda.on_gpu(torch.zeros(5, 7), 1),
        "d": np.zeros((5, 7), np.float32),
    }
    tload.load_into(target, path)
    for name, tensor in values.items():
        assert torch.equal(torch.as_tensor(target[name]), tensor), name


def test_a_module_with_casts_strides_and_ties(torch_cuda: gpu.TorchCuda, tmp_path: Path) -> None:
    torch = require("torch")
    values = {
        "one.weight": torch.randn(6, 4),
        "one.bias": torch.randn(6),
        "turned": torch.randn(4, 6),
    }
    path = save(tmp_path / "a.safetensors", values)
    model = torch.nn.Module()
    model.one = torch.nn.Linear(4, 6)
    model.one.bias = torch.nn.Parameter(torch.zeros(6, dtype=torch.float16))
    model.two = torch.nn.Linear(4, 6, bias=False)
    model.two.weight = model.one.weight
    model.register_buffer("turned", torch.zeros(6, 4).t())
    for tensor in (model.one.weight, model.one.bias, model.turned):
        torch_cuda.on_gpu(tensor, 1)
    report = tload.load_into(model, path, cast=True)
    assert report.tensors == 3
    assert torch.equal(model.two.weight, values["one.weight"])
    assert torch.equal(model.one.bias, values["one.bias"].half())
    assert torch.equal(model.turned, values["turned"])
    assert {ordinal for ordinal, _ in torch_cuda.allocated} == {1}, "temporary memory is on the target's device"


def test_rejected_requests_leave_targets_unchanged(torch_cuda: gpu.TorchCuda, tmp_path: Path) -> None:
    torch = require("torch")
    path = save(tmp_path / "a.safetensors", {"a": torch.ones(4), "b": torch.ones(4)})
    target = {"a": torch_cuda.on_gpu(torch.zeros(4), 0), "b": torch_cuda.on_gpu(torch.zeros(5), 0)}
    with pytest.raises(tload.InvalidRequestError, match=r'"b" has shape \[4\] in the checkpoint, \[5\] here'):
        tload.load_into(target, path)
    assert not target["a"].any()
    assert torch_cuda.stub.count("cuInit") == 0
    assert torch_cuda.stub.count("cuMemcpyHtoDAsync_v2") == 0


def test_gpu_failing_mid_load(torch_cuda: gpu.TorchCuda, tmp_path: Path) -> None:
    torch = require("torch")
    path = save(tmp_path / "a.safetensors", {f"t{index}": torch.ones(1 << 18) for index in range(16)})
    target = {f"t{index}": torch_cuda.on_gpu(torch.zeros(1 << 18), 0) for index in range(16)}
    torch_cuda.stub.set("fail", "cuMemcpyHtoDAsync_v2:719:4")
    with pytest.raises(tload.DeviceError, match="cuda:0"):
        tload.load_into(target, path)
    torch_cuda.stub.set("fail", "")


def test_load_is_ordered_with_current_stream(
    torch_cuda: gpu.TorchCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = require("torch")
    path = save(tmp_path / "a.safetensors", {"a": torch.ones(4)})
    target = {"a": torch_cuda.on_gpu(torch.zeros(4), 1)}
    # There is no such stream: the driver's refusal shows that it was used.
    monkeypatch.setattr(cuda, "current_stream", lambda _: 0xDEAD0)
    with pytest.raises(tload.DeviceError):
        tload.load_into(target, path)
    assert not target["a"].any()
