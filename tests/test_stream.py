"""`tload.stream` and `tload.load`: which tensors are yielded, in which order, and how a load
ends."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import Any

import pytest

import tload
import tload._load.stream
from conftest import require
from files import Content, tile, write_checkpoint, write_file
from in_use import assert_nothing_new, in_use

Floats = tuple[Path, dict[str, Content]]
MIB = 1 << 20


def names_of(path: Path, **keywords: Any) -> list[str]:
    return [name for name, _ in tload.stream(path, framework="dlpack", **keywords)]


def test_everything_comes_once(floats: Floats) -> None:
    path, tensors = floats
    assert sorted(names_of(path)) == sorted(tensors)
    assert names_of(path, order="file") == list(tensors)


def test_load_is_a_dict_in_the_order_of_the_files(tmp_path: Path) -> None:
    np = require("numpy")
    shards = [
        {f"s{shard}.{index}": Content.random("F32", (50, shard + 1), index) for index in range(20)}
        for shard in range(4)
    ]
    write_checkpoint(tmp_path, shards)
    wanted = {name: content for shard in shards for name, content in shard.items()}
    loaded = tload.load(tmp_path, framework="numpy")
    assert type(loaded) is dict
    assert list(loaded) == list(wanted)
    for name, array in loaded.items():
        assert array.dtype == np.float32
        assert array.tobytes() == wanted[name].raw


@pytest.mark.parametrize(
    ("rules", "wanted"),
    [
        ({"names": "layer.3.weight"}, {3}),
        ({"names": ["layer.3.weight", "layer.5.weight"]}, {3, 5}),
        ({"names": (f"layer.{index}.weight" for index in (1, 2))}, {1, 2}),
        ({"glob": "layer.1*"}, {1, 10, 11}),
        ({"glob": ["*.2.*", "*.[34].weight"]}, {2, 3, 4}),
        ({"regex": r"^layer\.[0-2]\."}, {0, 1, 2}),
        ({"regex": [r"\.0\.", r"1\d"]}, {0, 10, 11}),
        ({"names": "layer.3.weight", "glob": "*.4.*", "regex": r"\.5\."}, {3, 4, 5}),
    ],
)
def test_names_globs_and_expressions_add_up(rules: dict[str, Any], wanted: set[int], floats: Floats) -> None:
    got = names_of(floats[0], order="file", **rules)
    assert got == [f"layer.{index}.weight" for index in sorted(wanted)]


@pytest.mark.parametrize(
    ("rules", "error", "message"),
    [
        ({"names": "layer.99.weight"}, tload.NoSuchTensorError, "layer.99.weight"),
        ({"names": ["layer.1.weight", "nope"]}, tload.NoSuchTensorError, "nope"),
        ({"glob": "nothing*"}, tload.NoSuchTensorError, r"nothing\*"),
        ({"regex": "^nothing$"}, tload.NoSuchTensorError, "nothing"),
        ({"regex": "(["}, tload.InvalidRequestError, "malformed"),
        ({"glob": "[z-"}, tload.InvalidRequestError, "malformed"),
        ({"names": []}, tload.InvalidRequestError, "names is empty, so nothing is selected"),
        ({"glob": ()}, tload.InvalidRequestError, "glob is empty"),
        ({"device": "tpu"}, tload.InvalidRequestError, "tpu"),
        ({"device": "mps"}, tload.UnsupportedError, "mps"),
        ({"device": "cuda:x"}, tload.InvalidRequestError, "cuda:x"),
        ({"device_map": {"layer.1.*": "tpu"}}, tload.InvalidRequestError, "tpu"),
        ({"device_map": {"nothing*": "cpu"}}, tload.NoSuchTensorError, r"nothing\*"),
        ({"device_map": {"[z-": "cpu"}}, tload.InvalidRequestError, "malformed"),
        (
            {"device_map": [("*", "cpu")]},
            TypeError,
            "device_map: wanted a mapping of modules or globs to devices, found list",
        ),
        ({"device_map": "auto"}, TypeError, "found 'auto'; pass one device for all tensors as device="),
        ({"device_map": {"layer": "disk"}}, tload.UnsupportedError, 'device "disk" is not supported'),
        ({"device": "auto"}, tload.UnsupportedError, "does not plan which device"),
        ({"device_map": {"layers.1": "cpu"}}, tload.NoSuchTensorError, 'device_map: "layers.1" matches none of'),
        ({"device_map": {3: "cpu"}}, TypeError, r"device_map: wanted modules or globs \(str\) as keys, found int"),
        ({"names": [3]}, TypeError, "names: wanted a str or several, found int"),
        ({"device": -1}, tload.InvalidRequestError, 'device "cuda:-1" is unknown'),
    ],
)
def test_invalid_selection_rejected_before_reading(
    rules: dict[str, Any], error: type[Exception], message: str, floats: Floats
) -> None:
    with pytest.raises(error, match=message):
        tload.stream(floats[0], framework="dlpack", **rules)


def test_torch_device_is_accepted(floats: Floats) -> None:
    torch = require("torch")
    assert len(tload.load(floats[0], device=torch.device("cpu"))) == 12
    assert len(tload.load(floats[0], device_map={"*": torch.device("cpu")})) == 12
    assert len(tload.load(floats[0], device_map={"": "cpu", "layer.1": "cpu"})) == 12
    with pytest.raises(tload.UnsupportedError, match="meta"):
        tload.load(floats[0], device=torch.device("meta"))


def test_open_checkpoint_loads_repeatedly(floats: Floats) -> None:
    with tload.open(floats[0]) as checkpoint:
        for _ in range(3):
            assert len(tload.load(checkpoint, framework="dlpack")) == 12
        stream = tload.stream(checkpoint, framework="dlpack")
    # The stream itself keeps the files open.
    assert len(list(stream)) == 12


def test_stream_reports_tensors_and_progress(floats: Floats) -> None:
    path, tensors = floats
    with tload.stream(path, framework="dlpack", order="file") as stream:
        assert [info.name for info in stream.tensors] == list(tensors)
        assert len(stream) == 12
        next(stream)
        next(stream)
        assert len(stream) == 12, "the total of a progress bar"
        progress = stream.progress
        assert (progress.tensors_received, progress.tensors_total) == (2, 12)
        assert progress.bytes_received == 33 * 4 * 3
        assert repr(stream).startswith("<tload.TensorStream running: 2 of 12 tensors, 396 B of ")
        assert stream.report.outcome == "running"
        list(stream)
        assert stream.progress.fraction == 1.0
        assert repr(stream).startswith("<tload.TensorStream ended: 12 of 12 tensors")
    assert stream.report.outcome == "complete"
    assert next(stream, None) is None, "an ended stream stays ended"


def test_stream_closed_early_raises_closed_error(floats: Floats) -> None:
    with tload.stream(floats[0], framework="dlpack") as stream:
        next(stream)
    with pytest.raises(tload.InvalidRequestError, match="the stream is closed"):
        next(stream)
    assert stream.progress.tensors_received == 1
    assert stream.report.tensors == 1
    stream.close()


def test_cancel_ends_the_stream_with_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_file(path, {f"t{index}": Content("U8", (MIB,), tile(index, MIB)) for index in range(64)})
    stream = tload.stream(path, framework="dlpack", memory_limit="4 MiB")
    next(stream)
    stream.cancel()
    with pytest.raises(tload.CancelledError):
        for _ in stream:
            pass
    assert stream.report.outcome == "cancelled"
    assert next(stream, None) is None


def test_dropped_stream_frees_files_and_threads(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_file(path, {f"t{index}": Content("U8", (MIB,), tile(index, MIB)) for index in range(32)})

    tload.load(path, framework="dlpack")
    before = in_use()
    for taken in (0, 1, 10):
        stream = tload.stream(path, framework="dlpack", memory_limit="8 MiB", lanes=2)
        for _ in range(taken):
            next(stream)
        del stream
        assert_nothing_new(before)


def test_two_streams_run_side_by_side(tmp_path: Path) -> None:
    tensors = {f"t{index}": Content("U8", (MIB + index,), tile(index, MIB + index)) for index in range(24)}
    path = tmp_path / "a.safetensors"
    write_file(path, tensors)
    require("numpy")
    pairs = zip(
        tload.stream(path, framework="numpy", order="file"),
        tload.stream(path, framework="numpy", order="file", engine="pread"),
        strict=True,
    )
    for (name, one), (other_name, other) in pairs:
        assert name == other_name
        assert one.tobytes() == other.tobytes() == tensors[name].raw


def test_threads_share_a_stream(tmp_path: Path) -> None:
    tensors = {f"t{index}": Content("U8", (50_000,), tile(index, 50_000)) for index in range(200)}
    path = tmp_path / "a.safetensors"
    write_file(path, tensors)
    require("numpy")
    stream = tload.stream(path, framework="numpy")
    got: list[tuple[str, bytes]] = []

    def take() -> None:
        for name, array in stream:
            got.append((name, array.tobytes()))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == sorted((name, content.raw) for name, content in tensors.items())


def test_mid_stream_error_keeps_yielded_tensors(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    contents = {f"t{index}": Content("U8", (4 * MIB,), tile(index, 4 * MIB)) for index in range(16)}
    write_file(path, contents)
    require("numpy")
    stream = tload.stream(
        path, framework="numpy", order="file", memory_limit="8 MiB", depth=1, extent_bytes="1 MiB", cache="buffered"
    )
    kept = dict([next(stream)])
    os.truncate(path, 20 * MIB)
    with pytest.raises(tload.ChangedError) as caught:
        kept.update(stream)
    assert str(path) in str(caught.value)
    assert stream.report.outcome == "changed"
    for name, array in kept.items():
        assert array.tobytes() == contents[name].raw
    assert next(stream, None) is None


def test_notes_are_logged_once(floats: Floats, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="tload")
    with tload.stream(floats[0], framework="dlpack") as stream:
        list(stream)
    report = stream.report
    caplog.clear()
    tload._load.stream._noted.clear()
    noted = tload.Report(**{**{field: getattr(report, field) for field in report.__slots__}, "notes": ("one", "two")})
    tload._load.stream.log_notes(noted)
    tload._load.stream.log_notes(noted)
    assert [(record.name, record.message) for record in caplog.records] == [("tload", "one"), ("tload", "two")]


def test_an_empty_checkpoint_is_an_empty_stream(tmp_path: Path) -> None:
    write_file(tmp_path / "a.safetensors", {})
    assert tload.load(tmp_path / "a.safetensors", framework="dlpack") == {}


def test_clean_load_reports_no_retries(floats: Floats) -> None:
    with tload.stream(floats[0], framework="dlpack", retries=1, hedge=False) as tensors:
        assert len(list(tensors)) == len(floats[1])
    report = tensors.report
    assert (report.read_retries, report.request_retries, report.last_retry) == (0, 0, None)
    assert report.opening_retries == 0
    assert (report.stalls, report.hedges, report.hedges_won) == (0, 0, 0)
    assert (report.parked_bytes, report.parked_reads) == (0, 0)
    assert isinstance(tload.parked_bytes(), int)
