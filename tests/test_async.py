"""`async for` over a load: all tensors arrive, the loop keeps running, and the load can end at any
moment."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tload
from capsules import look
from conftest import require
from files import Content, tile, write_file
from in_use import assert_nothing_new, in_use

if TYPE_CHECKING:
    import servers

MIB = 1 << 20

Large = tuple[Path, dict[str, Content]]


@pytest.fixture
def large(tmp_path: Path) -> Large:
    tensors = {f"t{index:02}": Content("U8", (MIB,), tile(index, MIB)) for index in range(32)}
    write_file(tmp_path / "large.safetensors", tensors)
    return tmp_path / "large.safetensors", tensors


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Any:
    if request.param == "asyncio":
        return asyncio.run
    return require("uvloop").run


def raw(tensor: tload.Tensor) -> bytes:
    return look(tensor.__dlpack__()).raw


def test_async_iteration_yields_all_tensors(run: Any, large: Large) -> None:
    path, tensors = large

    async def main() -> None:
        loaded = {}
        async with tload.stream(path, framework="dlpack", memory_limit="8 MiB") as stream:
            async for name, tensor in stream:
                loaded[name] = raw(tensor)
        assert loaded == {name: content.raw for name, content in tensors.items()}
        assert stream.report.outcome == "complete"
        with pytest.raises(StopAsyncIteration):
            await anext(stream)

    run(main())


def test_event_loop_runs_while_a_server_stalls(run: Any, web: servers.Web, large: Large) -> None:
    path, _ = large
    web.files["model.safetensors"] = path.read_bytes()
    web.stall_from = 8 * MIB

    async def main() -> None:
        stream = tload.stream(f"{web.url}/model.safetensors", framework="dlpack")
        async with stream:
            waiting = asyncio.ensure_future(collect(stream))
            await asyncio.get_running_loop().run_in_executor(None, web.wait_until_stalled, "/model.safetensors")
            for _ in range(1000):
                await asyncio.sleep(0)
            assert not waiting.done()
            with pytest.raises(tload.InvalidRequestError, match="two tasks"):
                await anext(stream)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

    run(main())


async def collect(stream: Any) -> None:
    async for _ in stream:
        pass


def test_cancelled_task_loses_no_tensor(run: Any, large: Large) -> None:
    path, tensors = large

    async def main() -> None:
        names: list[str] = []
        async with tload.stream(path, framework="dlpack", memory_limit="2 MiB") as stream:
            while True:
                # Cancelled before it has started, while it waits, or not at all.
                task = asyncio.ensure_future(anext(stream))
                for _ in range(len(names) % 3):
                    await asyncio.sleep(0)
                task.cancel()
                try:
                    name, tensor = await task
                except asyncio.CancelledError:
                    try:
                        name, tensor = await anext(stream)
                    except StopAsyncIteration:
                        break
                except StopAsyncIteration:
                    break
                assert raw(tensor) == tensors[name].raw
                names.append(name)
        assert sorted(names) == sorted(tensors)

    run(main())


def test_errors_are_those_of_the_load(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "short.safetensors"
    write_file(path, {f"t{index}": Content("U8", (MIB,), tile(index, MIB)) for index in range(4)})

    async def main() -> None:
        with tload.open(path) as checkpoint:
            path.write_bytes(path.read_bytes()[: 2 * MIB])
            with pytest.raises(tload.ChangedError):
                async for _ in tload.stream(checkpoint, framework="dlpack"):
                    pass

    run(main())


def test_cancel_ends_wait(run: Any, large: Large) -> None:
    path, _ = large

    async def main() -> None:
        async with tload.stream(path, framework="dlpack") as stream:
            await anext(stream)
            stream.cancel()
            with pytest.raises(tload.CancelledError):
                await collect(stream)
            with pytest.raises(StopAsyncIteration):
                await anext(stream)

    run(main())


def test_nothing_is_left_behind(run: Any, large: Large) -> None:
    path, _ = large

    async def early() -> None:
        async for _ in tload.stream(path, framework="dlpack"):
            break

    run(early())
    before = in_use()
    for _ in range(20):
        run(early())
    assert_nothing_new(before)


def test_async_load_calls_progress(run: Any, large: Large) -> None:
    path, tensors = large
    told: list[tload.Progress] = []

    async def main() -> None:
        async for _ in tload.stream(path, framework="dlpack", progress=told.append):
            pass

    run(main())
    assert told[-1].tensors_received == len(tensors)


def test_opening_lets_the_event_loop_run(run: Any, web: servers.Web, large: Large) -> None:
    path, tensors = large
    web.files["model.safetensors"] = path.read_bytes()
    location = f"{web.url}/model.safetensors"

    async def main() -> None:
        with await tload.open_async(str(path)) as checkpoint:
            assert checkpoint.keys() == tensors.keys()
        with pytest.raises(tload.NotFoundError):
            await tload.open_async("/nonexistent", store={"retries": 0})
        with pytest.raises(TypeError, match=r"did you mean 'cache_dir'\?"):
            await tload.open_async(str(path), cache_dri="/c")  # type: ignore[call-arg]
        web.stall_from = 0
        waiting = asyncio.ensure_future(tload.open_async(location))
        await asyncio.get_running_loop().run_in_executor(None, web.wait_until_stalled, "/model.safetensors")
        for _ in range(1000):
            await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        # The end of the loop does not wait for the opening, which the server holds up.

    run(main())


def test_cancelled_opening_closes_what_it_opened(run: Any) -> None:
    from tload._load import in_thread

    begun, may_end, discarded = threading.Event(), threading.Event(), threading.Event()

    def call() -> str:
        begun.set()
        assert may_end.wait(60)
        return "opened"

    def discard(result: str) -> None:
        assert result == "opened"
        discarded.set()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(in_thread.run(call, discard))
        await loop.run_in_executor(None, begun.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        may_end.set()
        assert await loop.run_in_executor(None, discarded.wait, 60)
        assert await in_thread.run(lambda: 3, lambda _: None) == 3

    run(main())
    # A loop that has ended takes no result.
    begun.clear()
    may_end.clear()
    discarded.clear()

    async def leave() -> None:
        task = asyncio.ensure_future(in_thread.run(call, discard))
        await asyncio.get_running_loop().run_in_executor(None, begun.wait, 60)
        task.cancel()

    run(leave())
    may_end.set()
    assert discarded.wait(60)
