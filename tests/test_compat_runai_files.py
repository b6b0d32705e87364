"""`tload.compat.runai.FileStreamer`: any ranges of files, as their bytes."""

from __future__ import annotations

import importlib
import os
import random
import weakref
from pathlib import Path
from typing import Any

import pytest

import tload
from conftest import require

KIB = 1 << 10


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
def file(tmp_path: Path) -> Path:
    path = tmp_path / "bytes"
    path.write_bytes(random.Random(1).randbytes(256 * KIB))
    return path


def taken(streamer: Any) -> list[tuple[int, int, bytes]]:
    got = []
    for id, index, tensor in streamer.get_chunks():
        assert tensor.dtype == require("torch").uint8
        assert tensor.shape == (1, tensor.numel())
        got.append((id, index, tensor.numpy().tobytes()))
    return got


@pytest.mark.parametrize("limit", [None, "-1", "0", "9000", "200000"])
@pytest.mark.parametrize("seed", range(3))
def test_ranges_are_the_bytes_of_the_files_in_order(
    seed: int, limit: str | None, runai: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if limit:
        monkeypatch.setenv("RUNAI_STREAMER_MEMORY_LIMIT", limit)
    chance = random.Random(seed)
    requests, wanted = [], []
    for id in range(5):
        content = chance.randbytes(64 * KIB)
        path = tmp_path / f"{id}.bin"
        path.write_bytes(content)
        count = chance.choice([0, 1, 7, 300])
        offsets = [chance.randrange(len(content)) for _ in range(count)]
        sizes = [min(chance.choice([0, 1, 13, 4096, 9000]), len(content) - offset) for offset in offsets]
        requests.append(runai.FileChunks(id, str(path), offsets, sizes))
        wanted += [
            (id, index, content[offset : offset + size])
            for index, (offset, size) in enumerate(zip(offsets, sizes, strict=True))
        ]
    with runai.FileStreamer() as streamer:
        streamer.stream_files(requests)
        assert streamer.outstanding == len(wanted)
        assert taken(streamer) == wanted
        assert streamer.outstanding == 0
        assert taken(streamer) == []


def test_contiguous_ranges_built_from_sizes(runai: Any, file: Path) -> None:
    chunks = runai.FileChunks.contiguous(17, str(file), 5, [3, 0, 4])
    assert (chunks.offsets, chunks.sizes) == ([5, 8, 8], [3, 0, 4])
    assert (chunks.total_size(), chunks.max_chunk_size()) == (7, 4)
    assert "17" in repr(chunks)
    with pytest.raises(ValueError, match="1 offsets and 2 sizes"):
        runai.FileChunks(0, str(file), [1], [1, 2])


@pytest.mark.parametrize("owned", [True, False])
def test_range_tensors_are_owned_by_caller(
    *, owned: bool, runai: Any, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNAI_STREAMER_MEMORY_LIMIT", "0")
    content = file.read_bytes()
    with runai.FileStreamer() as streamer:
        streamer.stream_files([runai.FileChunks.contiguous(0, str(file), 0, [KIB] * 256)], owned=owned)
        kept = {index: tensor for _, index, tensor in streamer.get_chunks()}
    for index, tensor in kept.items():
        assert tensor.numpy().tobytes() == content[index * KIB : (index + 1) * KIB]
        tensor.fill_(0)
    assert file.read_bytes() == content


def test_range_is_not_kept_while_the_next_one_is_read(runai: Any, file: Path) -> None:
    with runai.FileStreamer() as streamer:
        streamer.stream_files([runai.FileChunks.contiguous(0, str(file), 0, [KIB] * 2)])
        chunks = streamer.get_chunks()
        _, _, tensor = next(chunks)
        kept = weakref.ref(tensor)
        del tensor
        assert kept() is None
        assert len(list(chunks)) == 1


def test_read_ahead_stays_within_limit(runai: Any, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held, most = 0, 0
    reads = importlib.import_module("tload.compat.runai.range_reads")
    fill = reads.RangeReads._fill

    def watched(self: Any) -> None:
        nonlocal held, most
        fill(self)
        held = self._held_bytes
        most = max(most, held)

    monkeypatch.setattr(reads.RangeReads, "_fill", watched)
    chunks = [runai.FileChunks.contiguous(0, str(file), 0, [KIB] * 256)]
    with runai.FileStreamer() as streamer:
        for limit, wanted in ((0, KIB), (10 * KIB + 1, 10 * KIB), (-1, 128 * KIB)):
            most = 0
            streamer.stream_files(chunks, memory_limit=limit)
            assert len(taken(streamer)) == 256
            assert (most, held) == (wanted, 0)
        with pytest.raises(Exception, match=r"memory_limit=1023: .* 1024 bytes") as caught:
            streamer.stream_files(chunks, memory_limit=1023)
        assert type(caught.value).__name__ == "RunaiStreamerMemoryLimitException"


def test_unreadable_range_ends_only_its_stream(runai: Any, file: Path, tmp_path: Path) -> None:
    good = [runai.FileChunks(0, str(file), [512], [512])]
    wanted = [(0, 0, file.read_bytes()[512:1024])]
    with runai.FileStreamer() as streamer:
        for bad, message in (
            (
                runai.FileChunks(0, str(file), [256 * KIB - 10], [20]),
                r"\[262134\.\.262154\]: End of file at 262144",
            ),
            (runai.FileChunks(0, str(tmp_path / "missing"), [0], [1]), "missing.*No such file"),
            (runai.FileChunks(0, str(tmp_path), [0], [1]), "cannot be read: Is a directory"),
        ):
            streamer.stream_files([bad, runai.FileChunks(1, str(file), [0, 9], [9, 9])])
            with pytest.raises(ValueError, match=message):
                taken(streamer)
            for _ in range(2):
                streamer.stream_files(good)
                assert taken(streamer) == wanted


def test_outstanding_ranges_reject_next_stream_files(runai: Any, file: Path) -> None:
    request = [runai.FileChunks.contiguous(0, str(file), 0, [8] * 100)]
    streamer = runai.FileStreamer()
    with streamer:
        streamer.stream_files(request)
        chunks = streamer.get_chunks()
        next(chunks)
        with pytest.raises(ValueError, match=r"99 ranges .* outstanding"):
            streamer.stream_files(request)
        chunks.close()
        assert streamer.outstanding == 0
        streamer.stream_files(request)
        chunks = streamer.get_chunks()
        next(chunks)
    assert streamer.outstanding == 0, "the end of the block leaves them"
    with pytest.raises(ValueError, match="closed before the last range"):
        next(chunks)
    with streamer:
        streamer.stream_files(request)
        assert len(taken(streamer)) == 100


def test_files_closed_after_last_range(runai: Any, file: Path, tmp_path: Path) -> None:
    def is_open() -> bool:
        return any(os.path.realpath(link) == str(file.resolve()) for link in Path("/proc/self/fd").iterdir())

    other = tmp_path / "other"
    other.write_bytes(bytes(80))
    requests = [runai.FileChunks.contiguous(0, str(file), 0, [8] * 5), runai.FileChunks(1, str(other), [0], [80])]
    with runai.FileStreamer() as streamer:
        streamer.stream_files(requests)
        for id, index, _ in streamer.get_chunks():
            assert is_open() == (id == 0 and index < 4)
        streamer.stream_files(requests)
        next(streamer.get_chunks())
        assert not is_open()
        streamer.stream_files(requests)
    assert not is_open()


def test_other_devices_get_copies(runai: Any, file: Path) -> None:
    with runai.DistributedStreamer() as streamer:
        streamer.stream_files([runai.FileChunks(3, str(file), [0], [9])], None, "meta", False)  # noqa: FBT003
        ((id, index, tensor),) = streamer.get_chunks()
    assert (id, index, tensor.device.type, tensor.shape) == (3, 0, "meta", (1, 9))


def test_objects_are_not_read_in_ranges(runai: Any, file: Path) -> None:
    with runai.FileStreamer() as streamer:
        with pytest.raises(tload.UnsupportedError, match="s3://bucket/key"):
            streamer.stream_files([runai.FileChunks(0, "s3://bucket/key", [0], [1])])
        with pytest.raises(Exception, match="cannot be streamed together") as caught:
            streamer.stream_files([runai.FileChunks(0, str(file), [0], [1]), runai.FileChunks(1, "az://a/b", [0], [1])])
        assert type(caught.value).__name__ == "RunaiStreamerInvalidInputException"


def test_folders_are_listed(runai: Any, tmp_path: Path) -> None:
    for name in ("a.txt", "sub/b.txt", "sub/deep/c.bin", ".hidden"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "link").symlink_to("a.txt")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "folder").symlink_to("sub")

    def listed(**arguments: Any) -> dict[str, int]:
        found = runai.FileStreamer().list_files(str(tmp_path), **arguments)
        return {os.path.relpath(path, tmp_path): size for path, size in found}

    flat = {"a.txt": 5, "link": 5, ".hidden": 7}
    assert listed() == flat | {"sub/b.txt": 9, "sub/deep/c.bin": 14}
    assert listed(is_recursive=False) == flat
    assert listed(allow_patterns=["*.txt"], ignore_patterns=["*/sub/b*"]) == {"a.txt": 5}
    with pytest.raises(ValueError, match="missing: cannot be listed"):
        runai.FileStreamer().list_files(str(tmp_path / "missing"))
