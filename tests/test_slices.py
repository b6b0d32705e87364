"""Slices of tensors, streamed and read one by one: numpy's elements, and hardly more bytes read."""

from __future__ import annotations

import pickle
import random
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tload
from capsules import look
from conftest import require
from files import Content, tile, write_file

if TYPE_CHECKING:
    from collections.abc import Callable

    import servers

MIB = 1 << 20
SHAPES: dict[str, tuple[int, ...]] = {
    "cube": (37, 53, 11),
    "empty": (0, 4),
    "large": (2048, 4096),
    "scalar": (),
    "wide": (3, 1 << 16),
}

Shaped = tuple[Path, dict[str, Any]]


@pytest.fixture(scope="module")
def shaped(tmp_path_factory: pytest.TempPathFactory) -> Shaped:
    """Arrays of four-byte integers in two files, the second of which starts at an odd offset."""
    np = require("numpy")
    folder = tmp_path_factory.mktemp("slices")
    arrays = {name: np.arange(np.prod(shape, dtype=int), dtype="i4").reshape(shape) for name, shape in SHAPES.items()}
    contents = {name: Content("I32", array.shape, array.tobytes()) for name, array in arrays.items()}
    write_file(folder / "a.safetensors", {name: contents[name] for name in ("cube", "empty", "wide")})
    write_file(folder / "b.safetensors", {name: contents[name] for name in ("large", "scalar")})
    return folder, arrays


def index_for(shape: tuple[int, ...], draw: random.Random) -> Any:
    """Make an index for numpy, with positive steps."""

    def one(length: int) -> Any:
        if length and draw.random() < 0.2:
            return draw.randrange(-length, length)
        bound: Callable[[], int | None] = lambda: draw.choice([None, draw.randrange(-length - 3, length + 3)])  # noqa: E731
        return slice(bound(), bound(), draw.choice([None, 1, 2, 3, 7, 100, 3000]))

    front = draw.randrange(len(shape) + 1)
    items = [one(length) for length in shape[:front]]
    if draw.random() < 0.4:
        back = draw.randrange(len(shape) - front + 1)
        items += [..., *(one(length) for length in shape[len(shape) - back :])]
    return items[0] if len(items) == 1 and draw.random() < 0.5 else tuple(items)


OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"cache": "direct"},
    {"cache": "buffered", "extent_bytes": 4096},
    {"engine": "pread"},
    {"engine": "tokio-uring", "lanes": 2},
    {"memory_limit": "40 MiB", "order": "file"},
)


@pytest.mark.parametrize("seed", range(len(OPTIONS)))
def test_slices_are_numpys(shaped: Shaped, seed: int) -> None:
    np = require("numpy")
    path, arrays = shaped
    draw = random.Random(seed)
    with tload.open(path) as checkpoint:
        for _ in range(40):
            slices = {name: index_for(array.shape, draw) for name, array in arrays.items()}
            stream = tload.stream(checkpoint, slices=slices, framework="numpy", **OPTIONS[seed])
            infos = {info.name: info for info in stream.tensors}
            loaded = dict(stream)
            assert loaded.keys() == arrays.keys()
            for name, index in slices.items():
                expected = arrays[name][index]
                for found in (loaded[name], checkpoint.read(name, index, framework="numpy")):
                    assert found.shape == expected.shape, (name, index)
                    assert np.array_equal(found, expected), (name, index)
                assert infos[name].shape == expected.shape
                assert infos[name].nbytes == expected.nbytes


def test_slices_read_only_needed_bytes(shaped: Shaped) -> None:
    path, arrays = shaped
    columns = (slice(None), slice(16))

    def report(name: str, index: Any) -> tload.Report:
        stream = tload.stream(path, names=name, slices={name: index}, framework="numpy", cache="direct")
        dict(stream)
        return stream.report

    rows = report("large", slice(100, 110))
    assert rows.tensor_bytes == 10 * 4096 * 4
    assert rows.read_bytes <= rows.tensor_bytes + 2 * 4096
    # Gaps of 16 KiB are cheaper to read than to skip; those of 256 KiB are not.
    narrow = report("large", columns)
    assert narrow.tensor_bytes == 2048 * 16 * 4
    assert narrow.read_bytes >= arrays["large"].nbytes * 0.9
    wide = report("wide", columns)
    assert wide.tensor_bytes == 3 * 16 * 4
    assert wide.read_bytes <= 3 * 2 * 4096


def test_into_memory_of_the_callers(shaped: Shaped) -> None:
    np = require("numpy")
    path, arrays = shaped
    slices: dict[str, Any] = {"large": (slice(None), slice(1024, 2048)), "cube": 3}
    target = {name: np.zeros_like(arrays[name][index]) for name, index in slices.items()}
    report = tload.load_into(target, path, strict=False, slices=slices)
    assert report.tensors == 2
    for name, index in slices.items():
        assert np.array_equal(target[name], arrays[name][index])
    with pytest.raises(tload.InvalidRequestError, match=r"shape \[53, 11\] in its slice, \[54, 11\] here"):
        tload.load_into({"cube": np.zeros((54, 11), "i4")}, path, strict=False, slices={"cube": 0})


@pytest.mark.usefixtures("cuda")
def test_onto_a_gpu(shaped: Shaped) -> None:
    path, arrays = shaped
    slices: dict[str, Any] = {
        "large": (slice(None, None, 3), slice(5, 2000, 2)),
        "wide": (slice(None), slice(7)),
        "cube": (..., 2),
    }
    loaded = tload.load(path, names=slices, slices=slices, device="cuda:0", framework="dlpack")
    with tload.open(path) as checkpoint:
        one = checkpoint.read("large", slices["large"], device="cuda:0", framework="dlpack")
    for name, tensor in (*loaded.items(), ("large", one)):
        expected = arrays[name][slices[name]]
        assert tensor.device == "cuda:0"
        assert tensor.shape == expected.shape
        assert look(tensor.__dlpack__()).raw == expected.tobytes(), name


def test_a_view_of_a_file_can_be_a_slice_without_gaps(shaped: Shaped) -> None:
    np = require("numpy")
    path, arrays = shaped
    rows = {"large": slice(3, 9)}
    loaded = tload.load(path, names="large", slices=rows, framework="numpy", cache="map")
    assert np.array_equal(loaded["large"], arrays["large"][3:9])
    with pytest.raises(tload.InvalidRequestError, match="not contiguous in its file"):
        tload.load(path, names="large", slices={"large": (..., 0)}, framework="numpy", cache="map")


@pytest.mark.parametrize(
    ("name", "index", "error", "says"),
    [
        ("cube", slice(None, None, -1), IndexError, "step along dimension 0 is -1"),
        ("cube", (0, 53), IndexError, "index 53 is out of bounds for dimension 1, which has 53"),
        ("cube", (0, -(2**63) - 1), IndexError, "out of bounds for dimension 1, which has 53"),
        ("cube", 2**63, IndexError, "out of bounds for dimension 0"),
        ("cube", (0, 0, 0, 0), IndexError, "too many indices"),
        ("cube", (..., ...), IndexError, "single ellipsis"),
        ("scalar", 0, IndexError, "too many indices"),
        ("cube", "a", TypeError, "found str"),
        ("cube", True, TypeError, "found bool"),
        ("cube", None, TypeError, "found NoneType"),
        ("cube", slice(None, None, 0), ValueError, "step cannot be zero"),
        ("other", 0, tload.NoSuchTensorError, "no such tensor"),
    ],
)
def test_invalid_indices_raise_error(shaped: Shaped, name: str, index: Any, error: type[Exception], says: str) -> None:
    np = require("numpy")
    path, arrays = shaped
    good: dict[str, Any] = {"wide": slice(2), "large": 0}
    slices = {**good, name: index}
    targets = {each: np.zeros_like(array) for each, array in arrays.items() if each not in good}
    with tload.open(path) as checkpoint:
        calls: list[Callable[[], object]] = [
            lambda: checkpoint.read(name, index, framework="numpy"),
            lambda: tload.stream(checkpoint, slices=slices, framework="numpy"),
            lambda: tload.load_into(targets, checkpoint, strict=False, slices=slices),
        ]
        for call in calls:
            with pytest.raises(error, match=says) as raised:
                call()
            assert name in str(raised.value)
            if error is TypeError:
                assert str(path / "a.safetensors") in str(raised.value)
                continue
            assert isinstance(raised.value, tload.Error)
            assert raised.value.tensor == name
            if name != "other":
                file = "b" if name == "scalar" else "a"
                assert raised.value.location == str(path / f"{file}.safetensors")
                assert raised.value.hint == f"the tensor's shape is {list(SHAPES[name])}"
                assert isinstance(raised.value, tload.InvalidRequestError)
                again = pickle.loads(pickle.dumps(raised.value))
                assert (type(again), str(again)) == (type(raised.value), str(raised.value))


def test_exception_of_an_index_is_passed_on(shaped: Shaped) -> None:
    class Broken:
        def __index__(self) -> int:
            raise RuntimeError("broken")

    index: Any = Broken()
    with tload.open(shaped[0]) as checkpoint, pytest.raises(RuntimeError, match="broken"):
        checkpoint.read("cube", index, framework="dlpack")


def test_mistakes_in_the_mapping(shaped: Shaped) -> None:
    path, _ = shaped
    slices: Any = [("cube", 0)]
    with pytest.raises(TypeError, match="slices: wanted a mapping"):
        tload.stream(path, slices=slices, framework="numpy")
    with pytest.raises(TypeError, match="slices: wanted a str"):
        tload.stream(path, slices={1: 0}, framework="numpy")  # type: ignore[call-overload]
    assert tload.load(path, slices={}, names="scalar", framework="numpy")["scalar"] == 0
    with pytest.raises(tload.InvalidRequestError, match="closed"):
        closed(path).read("cube", framework="numpy")


def closed(path: Path) -> tload.Checkpoint:
    with tload.open(path) as checkpoint:
        return checkpoint


def test_packed_elements_are_cut_on_bytes(tmp_path: Path) -> None:
    path = tmp_path / "packed.safetensors"
    raw = bytes(range(32))
    write_file(path, {"t": Content("F4", (8, 8), raw)})
    with tload.open(path) as checkpoint:
        tensor = checkpoint.read("t", (slice(2, 4), slice(4, 8)), framework="dlpack")
        assert tensor.shape == (2, 4)
        assert look(tensor.flat().__dlpack__()).raw == bytes([10, 11, 14, 15])
        with pytest.raises(tload.InvalidRequestError, match=r'"t".*4 bits'):
            checkpoint.read("t", (0, 3), framework="dlpack")


def test_many_threads_read(shaped: Shaped) -> None:
    np = require("numpy")
    path, arrays = shaped
    wrong: list[object] = []
    with tload.open(path) as checkpoint:

        def work(seed: int) -> None:
            draw = random.Random(seed)
            for _ in range(50):
                name = draw.choice(list(arrays))
                index = index_for(arrays[name].shape, draw)
                if not np.array_equal(checkpoint.read(name, index, framework="numpy"), arrays[name][index]):
                    wrong.append((name, index))

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_changed_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "changing.safetensors"
    write_file(path, {"t": Content("U8", (1000,), tile(1, 1000))})
    with tload.open(path) as checkpoint:
        path.write_bytes(path.read_bytes()[:-500])
        with pytest.raises(tload.ChangedError):
            checkpoint.read("t", framework="dlpack")


def test_from_an_object_store(s3: servers.S3, shaped: Shaped) -> None:
    np = require("numpy")
    path, arrays = shaped
    url = s3.put_folder("bucket", "slices", path)
    index = (slice(None, None, 2), slice(100, 200))
    with tload.open(url, store=s3.store) as checkpoint:
        assert np.array_equal(checkpoint.read("large", index, framework="numpy"), arrays["large"][index])
        assert np.array_equal(checkpoint.read("cube", 1, framework="numpy"), arrays["cube"][1])
