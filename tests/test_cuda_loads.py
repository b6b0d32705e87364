"""Loads into GPU memory of tload's own: destinations, limits, and early ends of loads."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tload
from capsules import look
from conftest import require
from files import Content, tile, write_file
from tload._load import early

if TYPE_CHECKING:
    import gpu

Floats = tuple[Path, dict[str, Content]]
MIB = 1 << 20


@pytest.fixture
def megabytes(tmp_path: Path) -> tuple[Path, dict[str, Content]]:
    path = tmp_path / "large.safetensors"
    tensors = {f"t{index:02}": Content("U8", (2 * MIB,), tile(index, 2 * MIB)) for index in range(16)}
    write_file(path, tensors)
    return path, tensors


def raw(tensor: tload.Tensor) -> bytes:
    return look(tensor.__dlpack__()).raw


@pytest.mark.usefixtures("cuda")
def test_device_map_globs_choose_device(floats: Floats) -> None:
    rules = {"layer.1?.*": "cuda:1", "layer.1*": "cpu", "layer.2.*": "cuda"}
    loaded = tload.load(floats[0], framework="dlpack", device="cuda:0", device_map=rules)
    for name, tensor in loaded.items():
        index = int(name.split(".")[1])
        wanted = "cuda:1" if index >= 10 else "cpu" if index == 1 else "cuda:0"
        assert tensor.device == wanted, name
        assert raw(tensor) == floats[1][name].raw


@pytest.mark.usefixtures("cuda")
def test_device_map_glob_must_match_checkpoint(floats: Floats) -> None:
    rules = {"layer.3.*": "cuda:1"}
    loaded = tload.load(floats[0], framework="dlpack", names="layer.2.weight", device_map=rules)
    assert [tensor.device for tensor in loaded.values()] == ["cpu"]
    with pytest.raises(tload.NoSuchTensorError, match=r"layer\.99"):
        tload.load(floats[0], framework="dlpack", device_map={"layer.99.*": "cuda:0"})


def test_tensors_share_regions_of_gpu_memory(cuda: gpu.Stub, megabytes: tuple[Path, dict[str, Content]]) -> None:
    def allocations(call: Any, **options: Any) -> int:
        before = cuda.count("cuMemAllocAsync")
        for name, tensor in dict(call(megabytes[0], framework="dlpack", device="cuda", **options)).items():
            assert raw(tensor) == megabytes[1][name].raw
        return cuda.count("cuMemAllocAsync") - before

    assert allocations(tload.stream) == 1, "32 MiB in a region of 64"
    assert allocations(tload.stream, region_bytes="8 MiB") == 4
    assert allocations(tload.stream, region_bytes=1) == 16, "one for each tensor"
    assert allocations(tload.stream, device_memory_limit="64 MiB") == 4, "an eighth of the limit"


def test_load_keeps_all_tensors_in_larger_regions(cuda: gpu.Stub, tmp_path: Path) -> None:
    path = tmp_path / "large.safetensors"
    write_file(path, {f"t{index}": Content("U8", (16 * MIB,), tile(index, 16 * MIB)) for index in range(6)})
    counts = []
    cuda.set("memory", 4 << 30)
    for call in (tload.stream, tload.load):
        before = cuda.count("cuMemAllocAsync")
        dict(call(path, framework="dlpack", device="cuda"))
        counts.append(cuda.count("cuMemAllocAsync") - before)
    assert counts == [2, 1]


def test_report_has_staging_and_devices(cuda: gpu.Stub, megabytes: tuple[Path, dict[str, Content]]) -> None:
    path, tensors = megabytes
    rules = {"t0*": "cuda:0"}
    stream = tload.stream(path, framework="dlpack", device="cuda:1", device_map=rules, device_memory_limit="8 MiB")
    for name, tensor in stream:
        assert raw(tensor) == tensors[name].raw
    report = stream.report
    assert report.outcome == "complete"
    assert report.staging is not None
    assert 0 < report.staging.bytes <= report.memory_limit
    assert report.staging.pinned_bytes == report.staging.bytes
    assert report.staging.slots > 0
    assert (report.staging.reused, report.staging.refusal) == (False, None)
    devices = {device.device: device for device in report.devices}
    assert {name: device.copied_bytes for name, device in devices.items()} == {
        "cuda:0": 20 * MIB,
        "cuda:1": 12 * MIB,
    }
    for device in devices.values():
        assert device.copies > 0
        assert device.memory_limit == 8 * MIB
        assert 0 < device.memory_peak <= 8 * MIB
        assert device.copy_seconds >= 0.0
    assert report.stages.copy_wait >= 0.0
    core = json.loads(stream._raw.report()[0])
    own = {
        "import_seconds": report.import_seconds,
        "import_wait_seconds": report.import_wait_seconds,
        "bytes_per_second": report.bytes_per_second,
    }
    own |= {"converted_tensors": 0, "converted_bytes": 0}
    assert report.to_dict() == {**core, **own}
    assert "cuda:1" in str(report)
    assert cuda.count("pageable_copies") == 0


def test_staging_memory_is_kept_until_released(cuda: gpu.Stub, floats: Floats) -> None:
    def load() -> tload.Report:
        stream = tload.stream(floats[0], framework="dlpack", device="cuda:0")
        list(stream)
        return stream.report

    first, second = load(), load()
    assert first.staging is not None
    assert second.staging is not None
    assert (first.staging.reused, second.staging.reused) == (False, True)
    assert cuda.live("registrations") > 0
    assert tload.release_staging() == first.staging.bytes
    assert tload.release_staging() == 0
    assert cuda.live("registrations") == 0


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize(
    ("devices", "known"),
    [
        ({"device": "cuda:1"}, [1]),
        ({"device": 1}, [1]),
        ({"device": "cuda"}, [0]),
        ({"device": "cuda:0", "device_map": {"t0*": 1, "t1*": "cpu"}}, [0, 1]),
        ({}, []),
        ({"device": "cuda:x"}, []),
        ({"device": -1}, []),
    ],
)
def test_gpus_are_prepared_as_soon_as_they_are_known(devices: dict[str, Any], known: list[int]) -> None:
    both = devices.get("device", "cpu"), devices.get("device_map")
    assert early._ordinals(*both, "dlpack") == known


def test_locations_are_prepared_but_not_open_checkpoints(floats: Floats) -> None:
    path = floats[0]
    assert early._locations(path) == [path]
    assert early._locations([str(path), path]) == [str(path), path]
    with tload.open(path) as checkpoint:
        assert early._locations(checkpoint) == []
    assert early._locations(iter([path])) == []  # type: ignore[arg-type]


def test_early_start_is_used_or_freed(
    cuda: gpu.Stub, megabytes: tuple[Path, dict[str, Content]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TLOAD_TRY", "early")
    path, tensors = megabytes
    with pytest.raises(tload.NotFoundError):
        tload.stream(path.parent / "none.safetensors", framework="dlpack", device="cuda:0")
    with pytest.raises(tload.NoSuchTensorError):
        tload.stream(path, framework="dlpack", device="cuda:0", names="none")
    cuda.settle()
    for reused in (False, True):
        with tload.stream(path, framework="dlpack", device="cuda:0") as stream:
            assert {name: raw(tensor) for name, tensor in stream} == {
                name: content.raw for name, content in tensors.items()
            }
        assert stream.report.staging is not None
        assert stream.report.staging.reused is reused


def test_small_device_limit_error_names_minimum(megabytes: tuple[Path, dict[str, Content]]) -> None:
    with pytest.raises(MemoryError) as caught:
        tload.stream(megabytes[0], framework="dlpack", device="cuda:1", device_memory_limit="1 MiB")
    assert isinstance(caught.value, tload.OutOfMemoryError)
    assert "device_memory_limit" in str(caught.value)
    assert "cuda:1" in str(caught.value)
    assert caught.value.tensor is not None


def test_full_gpu_is_rejected_before_first_read(cuda: gpu.Stub, megabytes: tuple[Path, dict[str, Content]]) -> None:
    cuda.set("busy", (1 << 30) - MIB)
    with pytest.raises(tload.OutOfMemoryError, match="cuda:0"):
        tload.stream(megabytes[0], framework="dlpack", device="cuda:0")
    assert cuda.live("allocations") == 0


def test_gpu_filling_up_mid_load(cuda: gpu.Stub, megabytes: tuple[Path, dict[str, Content]]) -> None:
    stream = tload.stream(megabytes[0], framework="dlpack", device="cuda:0", device_memory_limit="4 MiB")
    kept = dict([next(stream)])
    cuda.set("busy", 1 << 30)
    with pytest.raises(tload.OutOfMemoryError, match=r"cuda:0 has no room for 2\.0 MiB .* are free") as caught:
        kept.update(stream)
    assert caught.value.tensor in megabytes[1]
    assert stream.report.outcome == "out_of_memory"
    for name, tensor in kept.items():
        assert raw(tensor) == megabytes[1][name].raw, "tensors that were yielded stay valid"


def test_failed_copy_raises_device_error(cuda: gpu.Stub, megabytes: tuple[Path, dict[str, Content]]) -> None:
    cuda.set("fail", "cuMemcpyHtoDAsync_v2:719:3")
    with pytest.raises(RuntimeError) as caught:
        tload.load(megabytes[0], framework="dlpack", device="cuda:0")
    assert isinstance(caught.value, tload.DeviceError)
    assert caught.value.kind == "device"
    assert "cuda:0" in str(caught.value)


@pytest.mark.parametrize("way", ["close", "cancel", "drop", "with"])
def test_consumer_leaving_mid_load(way: str, cuda: gpu.Stub, megabytes: tuple[Path, dict[str, Content]]) -> None:
    cuda.set("copy_delay_us", 2000)
    stream = tload.stream(megabytes[0], framework="dlpack", device="cuda:0", device_memory_limit="6 MiB")
    name, kept = next(stream)
    if way == "close":
        stream.close()
    elif way == "with":
        with stream:
            next(stream)
    elif way == "cancel":
        stream.cancel()
        with pytest.raises(tload.CancelledError):
            list(stream)
    del stream
    gc.collect()
    assert raw(kept) == megabytes[1][name].raw
    del kept
    cuda.settle()


@pytest.mark.usefixtures("cuda")
def test_missing_gpu_ordinal_rejected(floats: Floats) -> None:
    with pytest.raises(tload.InvalidRequestError, match="there is no cuda:7: this process sees 2 GPUs") as caught:
        tload.stream(floats[0], framework="dlpack", device="cuda:7")
    assert caught.value.hint is not None
    assert "CUDA_VISIBLE_DEVICES" in caught.value.hint


@pytest.mark.parametrize("keywords", [{"device": "cuda"}, {"device_map": {"layer.3.*": "cuda:0"}}])
def test_numpy_arrays_are_on_no_gpu(keywords: dict[str, Any], cuda: gpu.Stub, floats: Floats) -> None:
    require("numpy")
    with pytest.raises(tload.InvalidRequestError, match="'cuda:0': numpy arrays live in CPU memory") as caught:
        tload.stream(floats[0], framework="numpy", **keywords)
    assert caught.value.hint is not None
    assert 'framework="dlpack"' in caught.value.hint
    assert cuda.count("cuInit") == 0, "no driver is loaded"
