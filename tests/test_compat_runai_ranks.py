"""`tload.compat.runai` with `is_distributed=True`: processes of `torch.distributed` that read once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tload
from files import Content, tile, write_file
from ranks import start_ranks
from tload.compat.runai import SafetensorsStreamer

if TYPE_CHECKING:
    from servers import Web

MIB = 1 << 20

SHARDS = [
    {f"{shard}.{index}": Content("U8", (size,), tile(10 * shard + index, size)) for index, size in enumerate(sizes)}
    for shard, sizes in enumerate([(9 * MIB, 100, 3 * MIB + 7), (6 * MIB, 5 * MIB)])
]
TENSORS = {name: content.raw for shard in SHARDS for name, content in shard.items()}


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    found = [tmp_path / f"{index}.safetensors" for index in range(len(SHARDS))]
    for path, shard in zip(found, SHARDS, strict=True):
        write_file(path, shard)
    return [str(path) for path in found]


def stream(paths: list[str], **how: Any) -> tuple[dict[str, Any], tload.Report]:
    with SafetensorsStreamer() as streamer:
        streamer.stream_files(paths, is_distributed=True, **how)
        running = streamer._stream
        assert running is not None
        return dict(streamer.get_tensors()), running.report


def check(tensors: dict[str, Any], names: set[str] | None = None) -> None:
    assert set(tensors) == (names or set(TENSORS))
    for name, tensor in tensors.items():
        assert tensor.numpy().tobytes() == TENSORS[name], name


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_read_files_once(paths: list[str], size: int) -> None:
    start_ranks(size, read_files, paths)


def read_files(rank: int, paths: list[str]) -> None:
    import torch.distributed

    size = torch.distributed.get_world_size()
    tensors, report = stream(paths)
    check(tensors)
    shared = report.group
    assert shared is not None
    assert (shared.size, shared.node_ranks, shared.reason) == (size, tuple(range(size)), None)
    read = torch.tensor(shared.read_bytes)
    torch.distributed.all_reduce(read)
    total = sum(map(len, TENSORS.values()))
    # Reads are rounded outwards to what direct I/O needs.
    assert total <= int(read) < total + len(TENSORS) * 2 * 4096
    # The memory of every rank is its own, and may be written to.
    for tensor in tensors.values():
        tensor.fill_(rank)
    torch.distributed.barrier()
    assert all(bool((tensor == rank).all()) for tensor in tensors.values())


def test_ranks_take_different_tensors_with_little_memory(paths: list[str]) -> None:
    start_ranks(2, take_different_tensors, paths)


def take_different_tensors(rank: int, paths: list[str]) -> None:
    os.environ["RUNAI_STREAMER_MEMORY_LIMIT"] = "0"
    names = {"0.1", "1.0"} if rank else {"0.0", "1.0"}
    tensors, report = stream(paths, tensor_names=names)
    check(tensors, names)
    assert report.group is not None
    assert report.group.reason is None
    os.environ["RUNAI_STREAMER_DIST"] = "0"
    tensors, report = stream(paths)
    check(tensors)
    assert report.group is None


def test_rank_that_cannot_start_is_named_and_next_load_succeeds(paths: list[str]) -> None:
    start_ranks(2, one_cannot_start, paths)


def one_cannot_start(rank: int, paths: list[str]) -> None:
    with SafetensorsStreamer() as streamer:
        if rank == 0:
            with pytest.raises(ValueError, match="nowhere"):
                streamer.stream_files(["/nowhere/a.safetensors"], is_distributed=True)
        else:
            with pytest.raises(tload.PeerError, match="rank 0 of 2 has left") as caught:
                streamer.stream_files(paths, is_distributed=True)
            assert caught.value.ranks == (0,)
    check(stream(paths)[0])
    with SafetensorsStreamer() as streamer, pytest.raises(tload.PeerError, match="disagree"):
        streamer.stream_files(paths[rank:], is_distributed=True)
    # A file of each rank that repeats a name: one load after another.
    again = Path(paths[0]).with_name("again.safetensors")
    if rank == 0:
        again.write_bytes(Path(paths[0]).read_bytes())
    import torch.distributed

    torch.distributed.barrier()
    check(stream([paths[0], str(again)])[0], set(SHARDS[0]))
    # Ranks need not want tensors of the same files.
    how = {"tensor_names": {"1.0"}} if rank else {}
    check(stream([paths[0], str(again), paths[1]], **how)[0], how.get("tensor_names"))


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_read_objects_once(web: Web, paths: list[str], size: int) -> None:
    for path in paths:
        web.files[f"bucket/{Path(path).name}"] = Path(path).read_bytes()
    start_ranks(size, read_objects, web.url, [f"s3://bucket/{Path(path).name}" for path in paths])
    # One rank opens for all.
    assert web.openings() == sorted(web.files)
    # Requests that do not begin at the first byte begin and end at multiples of 64 bytes.
    total = sum(map(len, TENSORS.values()))
    assert total <= web.bytes_requested() < 1.001 * total


def use_web(endpoint: str) -> None:
    os.environ |= {"RUNAI_STREAMER_S3_ENDPOINT": endpoint, "RUNAI_STREAMER_S3_UNSIGNED": "1", "AWS_REGION": "us-east-1"}


def read_objects(_rank: int, endpoint: str, urls: list[str]) -> None:
    use_web(endpoint)
    tensors, report = stream(urls)
    check(tensors)
    assert report.group is not None
    assert report.group.reason is None


def test_files_that_repeat_names_are_opened_once(web: Web, paths: list[str]) -> None:
    for name in ("a", "b"):
        web.files[f"bucket/{name}.safetensors"] = Path(paths[0]).read_bytes()
    start_ranks(2, read_repeated, web.url, [f"s3://bucket/{name}.safetensors" for name in "ab"])
    # Once as one checkpoint, which they are not without an index, and once as two.
    assert web.openings() == sorted([*web.files, *web.files, "bucket/model.safetensors.index.json"])


def read_repeated(_rank: int, endpoint: str, urls: list[str]) -> None:
    use_web(endpoint)
    check(stream(urls)[0], set(SHARDS[0]))


def test_object_that_is_missing_is_the_error_of_every_rank(web: Web, paths: list[str]) -> None:
    web.files["bucket/a.safetensors"] = Path(paths[0]).read_bytes()
    start_ranks(2, read_missing, web.url, ["s3://bucket/a.safetensors", "s3://bucket/b.safetensors"])


def read_missing(rank: int, endpoint: str, urls: list[str]) -> None:
    use_web(endpoint)
    with SafetensorsStreamer() as streamer:
        with pytest.raises(ValueError, match=r"b\.safetensors") as caught:
            streamer.stream_files(urls, is_distributed=True)
        assert isinstance(caught.value.__cause__, tload.NotFoundError)
        assert ("rank 0: " in str(caught.value)) == (rank == 1)
    # The next load is together again.
    tensors, report = stream(urls[:1])
    check(tensors, set(SHARDS[0]))
    assert report.group is not None
    assert report.group.reason is None
