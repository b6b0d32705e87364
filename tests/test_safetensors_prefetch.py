"""`safe_open(...).prefetch`: tensors that are loaded in the background, each once."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

import tload
from conftest import require
from files import Content, tile, write_file
from servers import PATIENCE
from test_safetensors_oracle import fingerprint, raw
from tload.safetensors import SafetensorError, safe_open

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from servers import Web

MIB = 1 << 20
TENSORS = {f"t{index}": Content.random("F32", (index + 2, 3, 4), seed=index) for index in range(9)}
TENSORS |= {"one": Content.random("F64", (), 0), "none": Content("F32", (0, 4), b"")}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    require("torch")
    path = tmp_path / "model.safetensors"
    write_file(path, TENSORS)
    return path


@pytest.fixture(params=[("pt", "mmap"), ("pt", "pread"), ("np", "mmap"), ("np", "pread")], ids="-".join)
def handle(request: pytest.FixtureRequest, path: Path) -> Iterator[safe_open]:
    framework, backend = request.param
    with safe_open(path, framework, backend=backend) as handle:
        yield handle


def test_everything_comes_once(handle: safe_open) -> None:
    with handle.prefetch() as loader:
        assert loader.names() == [*TENSORS]
        assert len(loader) == len(TENSORS)
        loaded = dict(loader)
        assert [*loader] == []
    assert fingerprint(loaded) == fingerprint(handle.get_tensors())


def test_tensors_are_taken_by_name_in_any_order(handle: safe_open) -> None:
    with handle.prefetch() as loader:
        for name in reversed(TENSORS):
            assert raw(loader.take(name)) == TENSORS[name].raw
        with pytest.raises(SafetensorError, match="t3: tensor already delivered"):
            loader.take("t3")
        with pytest.raises(SafetensorError, match="t99 is not in the prefetch plan"):
            loader.take("t99")


def test_iteration_skips_taken_tensors(handle: safe_open) -> None:
    loader = handle.prefetch()
    assert raw(loader.take("t8")) == TENSORS["t8"].raw
    first, _ = next(iter(loader))
    rest = [name for name, _ in loader]
    assert sorted(["t8", first, *rest]) == sorted(TENSORS)
    assert repr(loader) == f"<tload.safetensors.PrefetchLoader: 0 of {len(TENSORS)} tensors to take>"
    loader.close()


def test_a_plan_names_tensors_and_their_parts(handle: safe_open) -> None:
    plan: dict[str, Any] = {
        "t7": slice(2, 5),
        "t1": None,
        "t2": slice(-2, None),
        "t3": (slice(None), 1),
        "t4": (..., slice(None, None, 2)),
        "t5": slice(1, None, 3),
        "t6": 0,
        "none": slice(None),
        "one": ...,
    }
    with handle.prefetch(plan) as loader:
        assert loader.names() == [name for name in TENSORS if name in plan]
        found = dict(loader)
    for name, index in plan.items():
        whole = handle.get_tensor(name)
        assert fingerprint(found[name]) == fingerprint(whole if index is None else whole[index]), name


def test_floats_of_4_bits_are_cut_too(tmp_path: Path) -> None:
    require("torch")
    path = tmp_path / "f4.safetensors"
    write_file(path, {"pairs": Content.random("F4", (4, 6), seed=0)})
    with safe_open(path, "pt") as handle, handle.prefetch({"pairs": (slice(1, 3), slice(2, 6))}) as loader:
        assert fingerprint(loader.take("pairs")) == fingerprint(handle.get_tensor("pairs")[1:3, 1:3])
        with pytest.raises(SafetensorError, match="does not end up at a byte boundary"):
            handle.prefetch({"pairs": (..., slice(1, 3))})


# The package refuses all of these too, with similar messages.
REFUSED: list[tuple[Any, str]] = [
    ({}, "prefetch plan selects no tensors"),
    ({"missing": None}, "File does not contain tensor missing"),
    ({3: None}, "prefetch plan keys must be tensor names"),
    ({"t1": slice(0, 400)}, r"prefetch plan for t1: .*\[0:400\] with shape \[3, 3, 4\]: index 399 out of bounds"),
    ({"t1": slice(20, 22)}, "prefetch plan for t1: .*index 20 out of bounds"),
    ({"t1": slice(0, 2, -1)}, "prefetch plan for t1: Slice step must be a positive integer, got -1"),
    ({"one": slice(0, 1)}, "prefetch plan for one: .*more slicing indexes than dimensions"),
    ({"t1": "rows"}, "prefetch plan for t1: Unsupported slice index"),
]


@pytest.mark.parametrize(("plan", "message"), REFUSED)
def test_invalid_plans_are_rejected(plan: Any, message: str, handle: safe_open) -> None:
    with pytest.raises(SafetensorError, match=message):
        handle.prefetch(plan)


def test_wrong_arguments(handle: safe_open) -> None:
    with pytest.raises(TypeError, match="plan: wanted a mapping of names to None or an index, found list"):
        handle.prefetch(["t1"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="threads: wanted an int, found str"):
        handle.prefetch(threads="8")  # type: ignore[arg-type]
    with pytest.raises(SafetensorError, match="device tpu is invalid"):
        handle.prefetch(device="tpu")
    handle.prefetch(threads=1).close()
    handle.__exit__(None, None, None)
    with pytest.raises(SafetensorError, match="File is closed"):
        handle.prefetch()


def test_unsupported_dtype_is_rejected_before_first_read(
    every_dtype: tuple[Path, dict[str, Content]],
) -> None:
    require("torch")
    with (
        safe_open(every_dtype[0], "pt") as handle,
        pytest.raises(SafetensorError, match="Dtype not understood: F6_E2M3"),
    ):
        handle.prefetch()


def test_closed_loader_raises_error(handle: safe_open) -> None:
    loader = handle.prefetch()
    kept = loader.take("t4")
    loader.close()
    loader.close()
    for call in (lambda: loader.take("t5"), lambda: loader.take("t4"), lambda: next(iter(loader))):
        with pytest.raises(SafetensorError, match="prefetch loader closed"):
            call()
    assert raw(kept) == TENSORS["t4"].raw
    assert "closed" in repr(loader)


def test_loader_outlives_its_handle(handle: safe_open) -> None:
    first, second = handle.prefetch(), handle.prefetch({"t1": None})
    handle.__exit__(None, None, None)
    assert {name: raw(tensor) for name, tensor in first} == {name: content.raw for name, content in TENSORS.items()}
    assert raw(second.take("t1")) == TENSORS["t1"].raw


def test_threads_take_chosen_tensors(handle: safe_open) -> None:
    names = [*TENSORS]
    with handle.prefetch() as loader, ThreadPoolExecutor(len(names)) as pool:
        start = threading.Barrier(len(names))

        def take(name: str) -> bytes:
            start.wait()
            return raw(loader.take(name))

        taken = pool.map(take, reversed(names))
        assert [*taken] == [TENSORS[name].raw for name in reversed(names)]
        assert [*loader] == []


def test_threads_share_one_iteration(handle: safe_open) -> None:
    with handle.prefetch() as loader, ThreadPoolExecutor(4) as pool:
        lists = [pool.submit(lambda: [*loader]) for _ in range(4)]
        found = [pair for done in lists for pair in done.result()]
    assert len(found) == len(TENSORS)
    assert {name: raw(tensor) for name, tensor in found} == {name: content.raw for name, content in TENSORS.items()}


@pytest.fixture
def stalling(web: Web, tmp_path: Path) -> str:
    """URL of a file that stalls after its first tensors."""
    path = tmp_path / "stalls.safetensors"
    write_file(path, {f"t{index}": Content("U8", (4 * MIB,), tile(index, 4 * MIB)) for index in range(16)})
    web.files["stalls.safetensors"] = path.read_bytes()
    web.stall_from = 32 * MIB
    return f"{web.url}/stalls.safetensors"


def test_signal_handler_may_close_during_wait(web: Web, stalling: str) -> None:
    require("numpy")
    with safe_open(stalling, "np", store={"read_timeout": 3600}) as handle:
        loader = handle.prefetch()
        previous = signal.signal(signal.SIGUSR1, lambda *_: loader.close())

        def interrupt() -> None:
            web.wait_until_stalled("/stalls.safetensors")
            os.kill(os.getpid(), signal.SIGUSR1)

        thread = threading.Thread(target=interrupt)
        thread.start()
        try:
            with pytest.raises(SafetensorError, match="prefetch loader closed"):
                loader.take("t15")
        finally:
            thread.join()
            signal.signal(signal.SIGUSR1, previous)


def test_closing_ends_stalled_load(web: Web, stalling: str) -> None:
    require("numpy")
    # Without the close, the wait would not end.
    store = {"read_timeout": 3600}
    with safe_open(stalling, "np", store=store) as handle, ThreadPoolExecutor(2) as pool:
        loader = handle.prefetch()
        waiting = [pool.submit(loader.take, name) for name in ("t14", "t15")]
        web.wait_until_stalled("/stalls.safetensors")
        loader.close()
        for done in waiting:
            with pytest.raises(SafetensorError, match="prefetch loader closed"):
                done.result()


class Stalled:
    """A stream that yields nothing until it is cancelled."""

    def __init__(self) -> None:
        self.waited_for = threading.Event()
        self.cancelled = threading.Event()
        self.closed = threading.Event()
        self.closed_too_early = False

    def __next__(self) -> tuple[str, Any]:
        self.waited_for.set()
        self.cancelled.wait()
        # Long enough to expose a mistake; correct code does not depend on it.
        self.closed_too_early = self.closed.wait(0.1)
        message = "the load was cancelled"
        raise tload.CancelledError(message)

    def cancel(self) -> None:
        self.cancelled.set()

    def close(self) -> None:
        self.closed.set()


def test_close_wakes_waiting_takers(handle: safe_open) -> None:
    loader, stalled = handle.prefetch(), Stalled()
    loader._stream.close()
    loader._stream = stalled  # type: ignore[assignment]
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(loader.take, name) for name in ("t4", "t5")]
        assert stalled.waited_for.wait(PATIENCE)
        loader.close()
        for done in waiting:
            with pytest.raises(SafetensorError, match="prefetch loader closed"):
                done.result()
    assert stalled.closed.is_set()
    assert not stalled.closed_too_early


def test_failure_raised_in_all_takers(web: Web, tmp_path: Path) -> None:
    require("numpy")
    path = tmp_path / "gone.safetensors"
    write_file(path, {f"t{index}": Content("U8", (MIB,), tile(index, MIB)) for index in range(4)})
    web.files["gone.safetensors"] = path.read_bytes()
    with safe_open(f"{web.url}/gone.safetensors", "np", store={"retries": 0}) as handle:
        del web.files["gone.safetensors"]
        loader = handle.prefetch()
        for name in ("t0", "t1"):
            with pytest.raises(tload.Error):
                loader.take(name)
        with pytest.raises(tload.Error):
            next(iter(loader))
        loader.close()


def test_prefetch_to_a_gpu(torch_cuda: Any, path: Path) -> None:
    with safe_open(path, "pt") as handle, handle.prefetch({"t1": None, "t7": slice(2, 4)}, device="cuda:1") as loader:
        whole, part = loader.take("t1"), loader.take("t7")
        assert torch_cuda.device_of(whole) == torch_cuda.device_of(part) == "cuda:1"
        assert raw(whole) == TENSORS["t1"].raw
        assert raw(part) == TENSORS["t7"].raw[2 * 48 : 4 * 48]
        del whole, part
