"""Random reads into memory of the caller."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import tload
from files import Content, tile, write_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

COUNT = 12
ROWS, ROW = 3, 500_001
"""Odd, so that no tensor but the first is aligned."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    files = [
        {f"t{index}": Content("U8", (ROWS, ROW), tile(index, ROWS * ROW)) for index in range(start, COUNT, 2)}
        for start in range(2)
    ]
    write_checkpoint(tmp_path, files)
    return tmp_path


def raw(index: int) -> bytes:
    return tile(index, ROWS * ROW)


@pytest.mark.parametrize("cache", ["auto", "buffered"])
@pytest.mark.parametrize("engine", ["auto", "pread"])
def test_all_kinds_of_buffers_are_filled(model: Path, engine: Any, cache: Any) -> None:
    torch = pytest.importorskip("torch")
    options = tload.Options(engine=engine, cache=cache, extent_bytes="256 KiB")
    array = np.zeros((ROWS, ROW), np.uint8)
    tensor = torch.zeros(ROWS * ROW, dtype=torch.uint8)
    plain = bytearray(ROWS * ROW)
    view = memoryview(bytearray(ROWS * ROW + 1))[1:]
    row = np.zeros(ROW, np.uint8)
    with tload.open(model) as checkpoint, checkpoint.reader(options) as reader:
        reader.read_into({"t0": array, "t1": tensor, "t2": plain, "t3": view, ("t4", 2): row})
        reader.read_into({})
        rows = bytearray(2 * ROW)
        reader.read_into([(("t5", slice(1, 3)), rows)])
    assert array.tobytes() == raw(0)
    assert tensor.numpy().tobytes() == raw(1)
    assert plain == raw(2)
    assert view == raw(3)
    assert row.tobytes() == raw(4)[2 * ROW :]
    assert rows == raw(5)[ROW:]


def test_threads_share_one_reader(model: Path) -> None:
    wrong: list[int] = []
    with tload.open(model) as checkpoint, checkpoint.reader() as reader:

        def work(first: int) -> None:
            for index in range(first, first + COUNT):
                buffer = bytearray(ROWS * ROW)
                reader.read_into({f"t{index % COUNT}": buffer})
                if buffer != raw(index % COUNT):
                    wrong.append(index)

        threads = [threading.Thread(target=work, args=(first,)) for first in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_reads_in_flight_end_before_their_buffers_return(model: Path) -> None:
    with tload.open(model) as checkpoint, checkpoint.reader() as reader:
        buffers = [bytearray(ROWS * ROW) for _ in range(COUNT)]
        begun = [reader.submit({f"t{index}": buffer}) for index, buffer in enumerate(buffers)]
        begun[0].cancel()
        del begun[1]
        # An exported buffer cannot be resized: these are no longer.
        for buffer in buffers[:2]:
            buffer.clear()
        for reading in begun[1:]:
            reading.wait()
        with pytest.raises(tload.InvalidRequestError, match="waited for already"):
            begun[1].wait()
    assert buffers[2:] == [raw(index) for index in range(2, COUNT)]


def test_impossible_requests_are_refused_before_anything_is_read(model: Path) -> None:
    good = bytearray(ROWS * ROW)
    with tload.open(model) as checkpoint, checkpoint.reader() as reader:
        for name, buffer, expected in [
            ("t0", bytearray(5), tload.InvalidRequestError),
            ("t0", bytes(ROWS * ROW), BufferError),
            ("t0", np.zeros((ROWS, 2 * ROW), np.uint8)[:, ::2], BufferError),
            ("t0", "text", TypeError),
            ("t0", object(), TypeError),
            ("nothing", good, tload.NoSuchTensorError),
            (("t0", 3), bytearray(ROW), IndexError),
            (("t0", (slice(None), 0)), bytearray(ROWS), tload.InvalidRequestError),
        ]:
            with pytest.raises(expected):
                reader.read_into([("t1", good), (name, buffer)])  # type: ignore[list-item]
    assert not any(good)
    with pytest.raises(tload.InvalidRequestError, match="the reader is closed"):
        reader.read_into({"t1": good})
    with tload.open(model) as checkpoint, pytest.raises(tload.InvalidRequestError, match="map"):
        checkpoint.reader(tload.Options(cache="map"))
    with tload.open(model) as checkpoint, pytest.raises(tload.InvalidRequestError, match="dtype= has no effect"):
        checkpoint.reader(tload.Options(dtype="bf16"))
    with tload.open(model) as checkpoint, pytest.raises(tload.InvalidRequestError, match="memory_limit"):
        checkpoint.reader(tload.Options(memory_limit="1 KiB", extent_bytes="1 MiB"))


@pytest.mark.parametrize("cache", ["auto", "buffered"])
def test_changed_files_are_errors_that_name_tensor_and_bytes(model: Path, cache: Any) -> None:
    with tload.open(model) as checkpoint, checkpoint.reader(tload.Options(cache=cache)) as reader:
        file = checkpoint.shards[0].location
        os.truncate(file, checkpoint.shards[0].file_bytes - 10)
        with pytest.raises(tload.ChangedError) as caught:
            reader.read_into({"t10": bytearray(ROWS * ROW)})
        assert caught.value.tensor == "t10"
        assert caught.value.location == file
        # Other files are as they were.
        buffer = bytearray(ROWS * ROW)
        reader.read_into({"t11": buffer})
        assert buffer == raw(11)


def test_fork_needs_its_own_reader(model: Path) -> None:
    with tload.open(model) as checkpoint, checkpoint.reader() as reader:
        reader.read_into({"t0": bytearray(ROWS * ROW)})
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            code = 1
            try:
                buffer = bytearray(ROWS * ROW)
                try:
                    reader.read_into({"t0": buffer})
                except tload.InvalidRequestError:
                    code = 2
                with checkpoint.reader() as own:
                    own.read_into({"t0": buffer})
                code = 0 if code == 2 and buffer == raw(0) else 3
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_reader_outlives_its_checkpoint(model: Path) -> None:
    with tload.open(model) as checkpoint:
        reader = checkpoint.reader()
    buffer = bytearray(ROWS * ROW)
    reader.read_into({"t5": buffer})
    assert buffer == raw(5)
    assert "closed" not in repr(reader)
    reader.close()
    assert repr(reader).endswith("closed>")
