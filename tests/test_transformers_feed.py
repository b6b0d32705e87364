"""Tensors by name while they are streamed: in any order, from any thread, in bounded memory."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

import tload
from conftest import require
from files import Content, tile, write_checkpoint, write_file
from tload.transformers import _feed, _placement
from tload.transformers._lazy import LazyTensor, in_order_of_use

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import servers

NAMES = [f"layer.{index}.weight" for index in range(60)]
KIB = 1 << 10


@pytest.fixture
def checkpoint(tmp_path: Path) -> Iterator[tload.Checkpoint]:
    """A checkpoint of 60 tensors, sorted by name in two files."""
    tensors = {name: Content.random("U8", (3 * KIB,), seed=index) for index, name in enumerate(sorted(NAMES))}
    first, second = sorted(NAMES)[:30], sorted(NAMES)[30:]
    write_checkpoint(tmp_path, [{name: tensors[name] for name in names} for names in (first, second)])
    with tload.open(tmp_path) as opened:
        yield opened


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_feed, "WINDOW_BYTES", 10 * KIB)
    monkeypatch.setattr(_feed, "WAITING_BYTES_MAX", 20 * KIB)


def feed_of(checkpoint: tload.Checkpoint, read: Any = None, names: list[str] = NAMES) -> _feed.Feed:
    require("torch")
    return _feed.Feed(checkpoint, names, read or checkpoint.read, device="cpu", device_map={}, options=None)


def expected(checkpoint: tload.Checkpoint) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in tload.load(checkpoint, framework="numpy").items()}


def raw(tensor: Any) -> bytes:
    return bytes(tensor.numpy())


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("step", [1, 7, -1])
def test_any_order(step: int, checkpoint: tload.Checkpoint) -> None:
    contents = expected(checkpoint)
    feed = feed_of(checkpoint)
    order = [NAMES[index * step % len(NAMES)] for index in range(len(NAMES))]
    for name in order:
        assert raw(feed.take(name)) == contents[name], name
        assert feed._waiting_bytes == sum(tensor.nbytes for tensor in feed._waiting.values()) <= 20 * KIB
    # Returned tensors are not kept: a second request reads them again.
    assert raw(feed.take(order[0])) == contents[order[0]]
    feed.close()


@pytest.mark.usefixtures("small_windows")
def test_many_threads(checkpoint: tload.Checkpoint) -> None:
    contents = expected(checkpoint)
    feed = feed_of(checkpoint)
    order = [NAMES[index * 7 % len(NAMES)] for index in range(len(NAMES))]
    with ThreadPoolExecutor(8) as threads:
        for name, tensor in zip(order, threads.map(feed.take, order), strict=True):
            assert raw(tensor) == contents[name], name
    feed.close()


@pytest.mark.usefixtures("small_windows")
def test_unrequested_windows_are_skipped(checkpoint: tload.Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    streamed: set[str] = set()
    stream = tload.stream

    def spy(*arguments: Any, names: Any, **keywords: Any) -> Any:
        streamed.update(names)
        return stream(*arguments, names=names, **keywords)

    monkeypatch.setattr(_feed, "stream", spy)
    feed = feed_of(checkpoint)
    contents = expected(checkpoint)
    for name in (NAMES[0], NAMES[50], NAMES[59], NAMES[30]):
        assert raw(feed.take(name)) == contents[name]
    feed.close()
    # Two windows of three at the start and two at the end.
    assert streamed == {*NAMES[:6], *NAMES[48:54], *NAMES[57:]}


def test_a_tensor_larger_than_all_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_feed, "WINDOW_BYTES", KIB)
    monkeypatch.setattr(_feed, "WAITING_BYTES_MAX", 2 * KIB)
    tensors = {name: Content("U8", (100 * KIB,), tile(index, 100 * KIB)) for index, name in enumerate("abc")}
    write_file(tmp_path / "large.safetensors", tensors)
    with tload.open(tmp_path / "large.safetensors") as checkpoint:
        feed = feed_of(checkpoint, names=["c", "a", "b"])
        for name in "abc":
            assert raw(feed.take(name)) == tensors[name].raw
        feed.close()


def test_failure_raised_in_all_threads(checkpoint: tload.Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_arguments: Any, **_keywords: Any) -> Any:
        raise tload.IoError("the disk is gone")

    monkeypatch.setattr(_feed, "stream", fails)
    feed = feed_of(checkpoint)
    for name in NAMES[:2]:
        with pytest.raises(tload.IoError, match="the disk is gone"):
            feed.take(name)
    feed.close()


def test_close_wakes_waiting_threads(web: servers.Web, tmp_path: Path) -> None:
    size = 1 << 20
    tensors = {name: Content("U8", (size,), tile(index, size)) for index, name in enumerate("ab")}
    write_file(tmp_path / "a.safetensors", tensors)
    web.files["a.safetensors"] = (tmp_path / "a.safetensors").read_bytes()
    with tload.open(f"{web.url}/a.safetensors") as checkpoint:
        web.stall_from = size
        feed = feed_of(checkpoint, names=["a", "b"])
        caught: list[BaseException] = []

        def wait() -> None:
            try:
                feed.take("b")
            except tload.CancelledError as error:
                caught.append(error)

        waits = threading.Thread(target=wait)
        waits.start()
        web.wait_until_stalled("/a.safetensors")
        feed.close()
        waits.join(60)
        assert not waits.is_alive()
        assert len(caught) == 1
        with pytest.raises(tload.CancelledError, match="the load has ended"):
            feed.take("a")


def test_close_cancels_stream_that_starts_meanwhile(
    web: servers.Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 1 << 20
    write_file(tmp_path / "a.safetensors", {"a": Content("U8", (size,), tile(0, size))})
    web.files["a.safetensors"] = (tmp_path / "a.safetensors").read_bytes()
    with tload.open(f"{web.url}/a.safetensors") as checkpoint:
        web.stall_from = size // 2
        feed = feed_of(checkpoint, names=["a"])
        closes = threading.Thread(target=feed.close)

        def closed_meanwhile(*arguments: Any, **keywords: Any) -> Any:
            running = tload.stream(*arguments, **keywords)
            closes.start()
            while not feed._closed:  # `close` then waits for the lock that `take` holds.
                closes.join(0.001)
            return running

        monkeypatch.setattr(_feed, "stream", closed_meanwhile)
        with pytest.raises(tload.CancelledError):
            feed.take("a")
        closes.join(60)
        assert not closes.is_alive()


def test_part_of_a_tensor_that_is_dropped_meanwhile(checkpoint: tload.Checkpoint) -> None:
    feed = feed_of(checkpoint)

    class Name(str):
        """Compared when the feed has found a kept tensor, and before it is used."""

        __slots__ = ()

        def __ne__(self, other: object) -> bool:
            feed.close()
            return not self == other

        __hash__ = str.__hash__

    whole = raw(feed.take_part(NAMES[0], slice(None)))
    assert raw(feed.take_part(Name(NAMES[0]), slice(2, 9))) == whole[2:9]


def test_the_order_of_use() -> None:
    names = [
        "model.layers.10.mlp.gate.weight",
        "model.layers.2.mlp.experts.10.up_proj.weight",
        "model.layers.2.mlp.experts.2.up_proj.weight",
        "model.layers.2.mlp.experts.10.down_proj.weight",
        "model.layers.2.mlp.experts.2.down_proj.weight",
        "model.norm2.weight",
        "model.norm10.weight",
        "model.norm.weight",
        "lm_head.weight",
    ]
    assert in_order_of_use(names) == [names[index] for index in (8, 4, 3, 2, 1, 0, 7, 5, 6)]


def test_lazy_tensor_has_repr_without_read() -> None:
    torch = require("torch")
    asked: list[Any] = []

    def read(name: str, index: Any = ...) -> Any:
        asked.append((name, index))
        return torch.zeros(2, 3)[index]

    lazy = LazyTensor(tload.TensorInfo("x", "BF16", (2, 3), 12, 0, (0, 12)), read, read)
    assert (lazy.get_shape(), lazy.get_dtype()) == ([2, 3], "BF16")
    assert repr(lazy) == "<tensor 'x': BF16 [2, 3], not read>"
    assert asked == []
    assert lazy[...].shape == (2, 3)
    assert lazy[:, 1:].shape == (2, 2)
    assert asked == [("x", ...), ("x", (slice(None), slice(1, None)))]


def test_placement_maps_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = require("torch")
    names = ["lm_head.weight", "model.layers.1.weight", "model.layers.10.weight", "model.norm"]
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("LOCAL_RANK", "3")
    for device_map, device in (
        (None, "cpu"),
        ("auto", "cpu"),
        ("cpu", "cpu"),
        ("mps", "cpu"),
        ("cuda", "cuda:3"),
        ("cuda:1", "cuda:1"),
        (2, "cuda:2"),
        (torch.device("cuda", 1), "cuda:1"),
        ({"": 0}, "cuda:0"),
        ({"": "disk"}, "cpu"),
    ):
        assert _placement.placement(device_map, names) == (device, {})
    device_map = {"model": 0, "model.layers.1": "cuda:1", "model.norm": "cpu", "lm_head": "disk", "no_such": 0, "": 2}
    assert _placement.placement(device_map, names) == (
        "cuda:2",
        {"model": "cuda:0", "model.layers.1": "cuda:1", "model.norm": "cpu", "lm_head": "cpu"},
    )
    # Modules on the CPU and "on disk" alone need no map: their weights may be views of files.
    assert _placement.placement({"model": "cpu", "lm_head": "disk"}, names) == ("cpu", {})
    # A GPU of another vendor, and an unknown device.
    monkeypatch.setattr(torch.version, "cuda", None)
    assert _placement.placement("cuda:1", names) == ("cpu", {})
