"""`tload.compat.runai`: the tensors of `SafetensorsStreamer` are those of the files, its errors
those that callers expect."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

import pytest

import tload
from conftest import require
from files import Content, header, tile, write_file
from test_frameworks import only, shape_in_pairs
from tload._tensors import torch_tensors
from tload.compat.runai import environment
from tload.compat.runai.stores import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import gpu

Every = tuple["Path", dict[str, Content]]
MIB = 1 << 20


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("RUNAI_STREAMER_"):
            monkeypatch.delenv(name)


@pytest.fixture
def runai() -> Any:
    require("torch")
    return importlib.import_module("tload.compat.runai")


@pytest.fixture
def megabytes(tmp_path: Path) -> tuple[Path, dict[str, Content]]:
    path = tmp_path / "large.safetensors"
    tensors = {f"t{index:02}": Content("U8", (2 * MIB,), tile(index, 2 * MIB)) for index in range(32)}
    write_file(path, tensors)
    return path, tensors


def raw(tensor: Any) -> bytes:
    torch = require("torch")
    return bytes(tensor.reshape(-1).view(torch.uint8).numpy()) if tensor.numel() else b""


def stream(runai: Any, paths: list[Any], **arguments: Any) -> list[tuple[str, Any]]:
    with runai.SafetensorsStreamer() as streamer:
        streamer.stream_files([str(path) for path in paths], **arguments)
        return list(streamer.get_tensors())


def refused(runai: Any, path: Path, **arguments: Any) -> ValueError:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # each test says what it wants of it
        stream(runai, [path], **arguments)
    return caught.value


def test_tensors_equal_those_of_safetensors(runai: Any, every_dtype: Every) -> None:
    safetensors, torch = require("safetensors"), require("torch")
    path, tensors = every_dtype
    names = only(tensors, set(torch_tensors.DTYPES))
    ours = dict(stream(runai, [path], tensor_names=names))
    assert sorted(ours) == sorted(names)
    for name, tensor in ours.items():
        content = tensors[name]
        assert (tuple(tensor.shape), raw(tensor)) == (shape_in_pairs(content), content.raw), name
        assert tensor.is_contiguous()
        assert tensor.data_ptr() % tensor.element_size() == 0
    common = [
        name for name in names if tensors[name].dtype in {"F64", "F32", "F16", "BF16", "I64", "I8", "BOOL", "U32"}
    ]
    with safetensors.safe_open(path, framework="pt") as file:
        for name in common:
            theirs = file.get_tensor(name)
            assert (ours[name].dtype, ours[name].shape) == (theirs.dtype, theirs.shape)
            if theirs.numel():
                assert torch.equal(ours[name].reshape(-1).view(torch.uint8), theirs.reshape(-1).view(torch.uint8))


def test_stream_files_publishes_metadata_before_tensors(runai: Any, tmp_path: Path, floats: Every) -> None:
    path, tensors = floats
    other = tmp_path / "other.safetensors"
    more = {
        "b": Content.random("BF16", (3, 5), 1),
        "empty": Content("F32", (0, 4), b""),
        "a": Content.random("I8", (7,), 2),
    }
    write_file(other, more)
    with runai.SafetensorsStreamer() as streamer:
        streamer.stream_files([str(path), str(other)])
        metadata = streamer.files_to_tensors_metadata
        assert [tensor.name for tensor in metadata[0]] == list(tensors)
        assert [(tensor.name, tensor.dtype, tensor.shape) for tensor in metadata[1]] == [
            ("b", "BF16", [3, 5]),
            ("empty", "F32", [0, 4]),
            ("a", "I8", [7]),
        ]
        assert [(tensor.offsets.start, tensor.offsets.end) for tensor in metadata[1]] == [(0, 30), (30, 30), (30, 37)]
        assert [tensor.get_bytesize() for tensor in metadata[1]] == [30, 0, 7]
        assert [tensor.get_item_count() for tensor in metadata[1]] == [15, 0, 7]
        assert metadata[1][0].get_torch_dtype() == require("torch").bfloat16
        assert metadata[1][0].get_element_size() == 2
        assert streamer.total_size == sum(len(content.raw) for content in (tensors | more).values())
        streamed = dict(streamer.get_tensors())
        assert {name: raw(tensor) for name, tensor in streamed.items()} == {
            name: content.raw for name, content in (tensors | more).items()
        }
        assert list(streamer.get_tensors()) == [], "all have been taken"


@pytest.mark.parametrize("owned", [True, False])
def test_tensors_stay_valid_after_stream_ends(
    *, owned: bool, runai: Any, megabytes: Every, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, tensors = megabytes
    monkeypatch.setenv("RUNAI_STREAMER_MEMORY_LIMIT", "0")
    kept = stream(runai, [path], owned=owned)
    assert {name: raw(tensor) for name, tensor in kept} == {name: content.raw for name, content in tensors.items()}
    assert len({tensor.data_ptr() for _, tensor in kept}) == len(tensors)


@pytest.mark.parametrize(
    ("limit", "wanted"), [("0", 4 * MIB), ("2097152", 4 * MIB), ("16777216", 16 * MIB), ("-1", 64 * MIB), (None, None)]
)
def test_memory_limit_matches_runai(
    limit: str | None, wanted: int | None, runai: Any, megabytes: Every, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, tensors = megabytes
    if limit is not None:
        monkeypatch.setenv("RUNAI_STREAMER_MEMORY_LIMIT", limit)
    with runai.SafetensorsStreamer() as streamer:
        streamer.stream_file(str(path))
        running = streamer._stream
        assert {name: raw(tensor) for name, tensor in streamer.get_tensors()} == {
            name: content.raw for name, content in tensors.items()
        }
        assert running.report.memory_limit == (wanted or tload.stream(path).report.memory_limit)
        assert running.report.memory_peak <= running.report.memory_limit


def test_unusable_memory_limit_is_rejected_first(runai: Any, megabytes: Every, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = megabytes
    monkeypatch.setenv("RUNAI_STREAMER_MEMORY_LIMIT", str(2 * MIB - 1))
    with pytest.raises(Exception, match=r"RUNAI_STREAMER_MEMORY_LIMIT=2097151.* 2097152 bytes") as caught:
        stream(runai, [path])
    assert type(caught.value).__name__ == "RunaiStreamerMemoryLimitException"
    monkeypatch.setenv("RUNAI_STREAMER_MEMORY_LIMIT", "much")
    assert "RUNAI_STREAMER_MEMORY_LIMIT='much'" in str(refused(runai, path))


def test_environment_sets_depth_and_extent(runai: Any, megabytes: Every, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = megabytes

    def report() -> tload.Report:
        with runai.SafetensorsStreamer() as streamer:
            streamer.stream_file(str(path))
            running = streamer._stream
            list(streamer.get_tensors())
            return running.report  # type: ignore[no-any-return]

    monkeypatch.setenv("RUNAI_STREAMER_CONCURRENCY", "3")
    monkeypatch.setenv("RUNAI_STREAMER_CHUNK_BYTESIZE", "1000")
    asked = report()
    assert (asked.depth, asked.extent_bytes // MIB) == (3, 2), "minimum read size, as in runai_model_streamer"
    monkeypatch.setenv("RUNAI_STREAMER_FS_QUEUE_DEPTH", "5,nfs=64")
    assert report().depth == 5
    monkeypatch.setenv("RUNAI_STREAMER_FS_CHUNK_BYTESIZE", str(4 * MIB))
    assert environment.options(Kind.FILE) == {"depth": 5, "extent_bytes": 4 * MIB}
    assert environment.options(Kind.S3) == {"extent_bytes": 5 * MIB}
    for name, text in (("RUNAI_STREAMER_FS_QUEUE_DEPTH", "0"), ("RUNAI_STREAMER_FS_CHUNK_BYTESIZE", "-4")):
        with monkeypatch.context() as patched:
            patched.setenv(name, text)
            assert name in str(refused(runai, path))


def test_duplicate_name_is_yielded_from_each_file(runai: Any, tmp_path: Path) -> None:
    paths = [tmp_path / "one.safetensors", tmp_path / "two.safetensors"]
    contents = [Content.random("U8", (10,), index) for index in range(2)]
    for path, content in zip(paths, contents, strict=True):
        write_file(path, {"a": content, path.stem: content})
    streamed = stream(runai, paths)
    assert [name for name, _ in streamed].count("a") == 2
    assert {raw(tensor) for name, tensor in streamed if name == "a"} == {content.raw for content in contents}
    with pytest.raises(ValueError, match=r"\['a'\] are in several files"):
        stream(runai, paths, tensor_names={"a"})
    assert [name for name, _ in stream(runai, paths, tensor_names={"one"})] == ["one"]
    assert len(stream(runai, [paths[0], paths[0]])) == 4, "a file may come twice"


def test_invalid_tensor_names_rejected(runai: Any, floats: Every) -> None:
    path, _ = floats
    assert "'layer.0.weight'" in str(refused(runai, path, tensor_names="layer.0.weight"))
    assert "empty" in str(refused(runai, path, tensor_names=set()))
    assert "no file has ['x']" in str(refused(runai, path, tensor_names=["layer.0.weight", "x"]))


def test_empty_file_list_yields_no_tensors(runai: Any, tmp_path: Path) -> None:
    assert stream(runai, []) == []
    nothing = tmp_path / "nothing.safetensors"
    write_file(nothing, {})
    assert stream(runai, [nothing]) == []
    with runai.SafetensorsStreamer() as streamer:
        assert list(streamer.get_tensors()) == []


def test_invalid_files_raise_value_error(runai: Any, tmp_path: Path, floats: Every) -> None:
    path, tensors = floats
    missing = refused(runai, tmp_path / "missing.safetensors")
    assert "missing.safetensors" in str(missing)
    assert isinstance(missing.__cause__, tload.NotFoundError)
    short = tmp_path / "short.safetensors"
    short.write_bytes(path.read_bytes()[:-1])
    assert "short.safetensors" in str(refused(runai, short))
    text = header(tensors)
    overlap = tmp_path / "overlap.safetensors"
    overlap.write_bytes(path.read_bytes().replace(text, text.replace(b"[0,132]", b"[0,131]")))
    assert isinstance(refused(runai, overlap, tensor_names=["layer.5.weight"]), tload.FormatError)
    unknown = tmp_path / "unknown.safetensors"
    write_file(unknown, {"a": Content.random("F6_E2M3", (4,), 0)})
    error = refused(runai, unknown)
    assert "'a'" in str(error)
    assert isinstance(error.__cause__, tload.UnsupportedError)


def test_read_failure_ends_stream_and_next_succeeds(
    runai: Any, megabytes: Every, floats: Every, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = megabytes
    monkeypatch.setenv("RUNAI_STREAMER_MEMORY_LIMIT", "0")
    with runai.SafetensorsStreamer() as streamer:
        streamer.stream_file(str(path))
        os.truncate(path, path.stat().st_size // 2)
        with pytest.raises(ValueError, match=r"large\.safetensors") as caught:
            list(streamer.get_tensors())
        assert isinstance(caught.value.__cause__, tload.Error)
        streamer.stream_file(str(floats[0]))
        assert {name: raw(tensor) for name, tensor in streamer.get_tensors()} == {
            name: content.raw for name, content in floats[1].items()
        }


def test_second_stream_rejected_while_first_is_outstanding(runai: Any, megabytes: Every, floats: Every) -> None:
    path, _ = megabytes
    with runai.SafetensorsStreamer() as streamer:
        streamer.stream_file(str(path))
        taken = streamer.get_tensors()
        next(taken)
        with pytest.raises(ValueError, match="outstanding"):
            streamer.stream_file(str(floats[0]))
        taken.close()
        streamer.stream_file(str(path))
        for _ in streamer.get_tensors():
            break
        streamer.stream_file(str(path))
        taken = streamer.get_tensors()
        next(taken)
    with streamer:
        streamer.stream_file(str(floats[0]))
        taken.close()
        assert len(list(streamer.get_tensors())) == len(floats[1]), "the generator of another stream has no effect"
        streamer.stream_file(str(path))
        taken = streamer.get_tensors()
        next(taken)
    with pytest.raises(ValueError, match="closed"):
        list(taken)


def test_torch_devices_are_accepted(runai: Any, floats: Every) -> None:
    torch = require("torch")
    path, tensors = floats
    for device in (None, "cpu", "cpu:0", torch.device("cpu")):
        assert {name: raw(tensor) for name, tensor in stream(runai, [path], device=device)} == {
            name: content.raw for name, content in tensors.items()
        }
    assert {tensor.device.type for _, tensor in stream(runai, [path], device="meta")} == {"meta"}
    with pytest.raises(Exception, match="'banana'") as caught:
        stream(runai, [path], device="banana")
    assert type(caught.value).__name__ == "RunaiStreamerInvalidInputException"


def test_gpus_are_read_to_directly(
    runai: Any, torch_cuda: gpu.TorchCuda, floats: Every, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = require("torch")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    path, tensors = floats
    for limit in (None, "0", "-1"):
        if limit:
            monkeypatch.setenv("RUNAI_STREAMER_MEMORY_LIMIT", limit)
        streamed = stream(runai, [path], device="cuda:1")
        assert {torch_cuda.device_of(tensor) for _, tensor in streamed} == {"cuda:1"}
        assert {name: raw(tensor) for name, tensor in streamed} == {
            name: content.raw for name, content in tensors.items()
        }
        del streamed


@pytest.fixture
def group() -> Iterator[Any]:
    """A real group of one process."""
    distributed = require("torch.distributed")
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield distributed
    distributed.destroy_process_group()


def test_single_process_ignores_is_distributed(runai: Any, group: Any, floats: Every) -> None:
    path, tensors = floats
    assert group.get_world_size() == 1
    assert len(stream(runai, [path], is_distributed=True)) == len(tensors)


def test_variable_decides_whether_processes_share(
    runai: Any, group: Any, floats: Every, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, tensors = floats
    monkeypatch.setattr(group, "get_world_size", lambda: 2)
    shared: list[bool] = []
    monkeypatch.setattr(tload.Group, "torch", lambda: shared.append(True))
    for value in (None, "auto", "1", "0"):
        if value is not None:
            monkeypatch.setenv("RUNAI_STREAMER_DIST", value)
        for asked in (True, False):
            shared.clear()
            assert len(stream(runai, [path], is_distributed=asked)) == len(tensors)
            assert bool(shared) == (asked and value != "0"), value
    monkeypatch.setenv("RUNAI_STREAMER_DIST", "yes")
    assert "RUNAI_STREAMER_DIST='yes'" in str(refused(runai, path, is_distributed=True))
    assert len(stream(runai, [path])) == len(tensors)
    monkeypatch.undo()
    with runai.DistributedStreamer() as streamer:
        streamer.stream_files([runai.FileChunks(7, str(path), [0], [8])], None, "cpu", is_distributed=True)
        ((id_, index, chunk),) = streamer.get_chunks()
        assert (id_, index, raw(chunk)) == (7, 0, path.read_bytes()[:8])


def test_variables_are_options_of_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = importlib.import_module("tload.compat.runai.environment")
    assert environment.group_options() == {"join_timeout": 600}
    monkeypatch.setenv("TLOAD_JOIN_TIMEOUT", "5s")
    assert environment.group_options() == {}
    monkeypatch.setenv("RUNAI_STREAMER_DIST_TIMEOUT", "7")
    monkeypatch.setenv("RUNAI_STREAMER_DIST_GLOBAL", "1")
    assert environment.group_options() == {"join_timeout": 7, "share": "cluster"}
    monkeypatch.setenv("RUNAI_STREAMER_DIST_GLOBAL", "0")
    assert "share" not in environment.group_options()
