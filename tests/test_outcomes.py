"""Outcomes of loads in metrics, logs and spans: a load that handed out all its tensors is complete,
in whatever way its stream ends."""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
from collections import Counter
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

import models
import tload
import tload.metrics
from conftest import require
from files import Content, write_checkpoint
from tload.vllm import _settings, _weights

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

TENSORS = {f"t{index}": Content.random("F32", (16, 64), index) for index in range(6)}
PREFIX = 'tload_loads_total{outcome="'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint of two files."""
    names = list(TENSORS)
    folder = tmp_path / "model"
    folder.mkdir()
    write_checkpoint(folder, [{name: TENSORS[name] for name in part} for part in (names[:2], names[2:])])
    return folder


class Outcomes:
    """The loads that end while a test runs, by outcome."""

    def __init__(self) -> None:
        self._before = self._all()

    @staticmethod
    def _all() -> Counter[str]:
        lines = (line for line in tload.metrics.text().splitlines() if line.startswith(PREFIX))
        found: Counter[str] = Counter()
        for line in lines:
            outcome, count = line.removeprefix(PREFIX).split('"} ')
            found[outcome] = int(count)
        return found

    def __call__(self) -> dict[str, int]:
        gc.collect()
        return dict(self._all() - self._before)


@pytest.fixture
def outcomes() -> Outcomes:
    gc.collect()
    return Outcomes()


def received(folder: Path, count: int = len(TENSORS)) -> tload.TensorStream[Any]:
    """Return a stream of which `count` tensors have been received."""
    stream = tload.stream(folder, framework="numpy")
    for _ in range(count):
        next(stream)
    return stream


def close(folder: Path) -> None:
    received(folder).close()


def close_twice(folder: Path) -> None:
    stream = received(folder)
    stream.close()
    stream.close()


def cancel_then_close(folder: Path) -> None:
    stream = received(folder)
    stream.cancel()
    stream.close()
    assert stream.report.outcome == "complete"


def leave_block(folder: Path) -> None:
    with received(folder) as stream:
        pass
    assert stream.report.outcome == "complete"


def leave_block_by_error(folder: Path) -> None:
    with pytest.raises(ZeroDivisionError), received(folder):
        raise ZeroDivisionError


def delete(folder: Path) -> None:
    stream = received(folder)
    del stream


def collect_garbage(folder: Path) -> None:
    cycle: list[Any] = [received(folder)]
    cycle.append(cycle)


def break_after_last(folder: Path) -> None:
    for count, _ in enumerate(tload.stream(folder, framework="numpy"), start=1):
        if count == len(TENSORS):
            break


def close_generator(folder: Path) -> None:
    def tensors() -> Iterator[Any]:
        with tload.stream(folder, framework="numpy") as stream:
            yield from stream

    generator = tensors()
    for _ in TENSORS:
        next(generator)
    generator.close()  # type: ignore[attr-defined]  # a generator


def asynchronous(folder: Path) -> None:
    async def receive() -> None:
        async with tload.stream(folder, framework="numpy") as stream:
            for _ in TENSORS:
                await anext(stream)

    asyncio.run(receive())


def iterate_to_the_end(folder: Path) -> None:
    assert len(list(tload.stream(folder, framework="numpy"))) == len(TENSORS)


ENDS = [
    asynchronous,
    break_after_last,
    cancel_then_close,
    close,
    close_generator,
    close_twice,
    collect_garbage,
    delete,
    iterate_to_the_end,
    leave_block,
    leave_block_by_error,
]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_stream_that_delivered_everything_is_complete(
    end: Callable[[Path], None], folder: Path, outcomes: Outcomes
) -> None:
    end(folder)
    assert outcomes() == {"complete": 1}


@pytest.mark.parametrize("count", [0, len(TENSORS) - 1])
def test_stream_closed_before_its_last_tensor_is_cancelled(count: int, folder: Path, outcomes: Outcomes) -> None:
    received(folder, count).close()
    assert outcomes() == {"cancelled": 1}


def test_closed_stream_is_logged_as_complete(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tload"):
        received(folder).close()
    (line,) = [record.getMessage() for record in caplog.records if record.name == "tload"]
    assert "complete" in line


def load(folder: Path) -> int:
    tload.load(folder, framework="numpy")
    return 1


def read(folder: Path) -> None:
    with tload.open(folder) as checkpoint:
        checkpoint.read("t0", framework="numpy")


def load_into(folder: Path) -> int:
    torch = require("torch")
    tload.load_into({name: torch.empty(content.shape) for name, content in TENSORS.items()}, folder)
    return 1


def safe_open(folder: Path) -> None:
    require("torch")
    from tload.safetensors import safe_open

    file = next(folder.glob("*.safetensors"))
    with safe_open(file, "pt", backend="pread") as handle:
        for name in handle.keys():  # noqa: SIM118  # it is not a mapping
            handle.get_tensor(name)


def load_file(folder: Path) -> int:
    require("torch")
    from tload.safetensors.torch import load_file

    files = list(folder.glob("*.safetensors"))
    for file in files:
        load_file(file, backend="pread")
    return len(files)


def prefetch(folder: Path) -> int:
    require("torch")
    from tload.safetensors import safe_open

    file = next(folder.glob("*.safetensors"))
    with safe_open(file, "pt") as handle, handle.prefetch() as loader:
        for name in reversed(loader.names()):
            loader.take(name)
    return 1


def runai(folder: Path) -> int:
    require("torch")
    from tload.compat.runai import SafetensorsStreamer

    files = sorted(map(str, folder.glob("*.safetensors")))
    with SafetensorsStreamer() as streamer:
        streamer.stream_files(files)
        assert len(list(streamer.get_tensors())) == len(TENSORS)
        streamer.stream_files(files)
        tensors = streamer.get_tensors()
        for _ in TENSORS:
            next(tensors)
        tensors.close()  # type: ignore[attr-defined]  # a generator
    return 2


def dcp(folder: Path) -> int:
    torch = require("torch")
    checkpoint = importlib.import_module("torch.distributed.checkpoint")
    import tload.dcp

    state = {name: torch.empty(content.shape) for name, content in TENSORS.items()}
    checkpoint.load(state, storage_reader=tload.dcp.StorageReader(folder))
    return 1


def engines(folder: Path) -> int:
    """Stream as the plugins for vLLM and SGLang do; the second model takes no more than it needs."""
    require("torch")

    def stream() -> Iterator[Any]:
        logger = logging.getLogger("tests")
        bar = nullcontext(Bar())
        return _weights.stream(str(folder), _settings.read({}), shown="m", open_bar=lambda _: bar, logger=logger)

    assert len(list(stream())) == len(TENSORS)
    tensors = stream()
    for _ in TENSORS:
        next(tensors)
    tensors.close()  # type: ignore[attr-defined]  # a generator
    return 2


class Bar:
    """Progress bar without output."""

    def update(self, n: float) -> None:
        """Ignore the bytes."""


INTEGRATIONS = [dcp, engines, load, load_file, load_into, prefetch, read, runai, safe_open]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
@pytest.mark.parametrize("integration", INTEGRATIONS, ids=lambda integration: integration.__name__)
def test_every_load_of_an_integration_is_complete(
    integration: Callable[[Path], int | None], folder: Path, outcomes: Outcomes
) -> None:
    loads = integration(folder)
    if loads is None:
        # A small tensor that is read by itself is no load.
        assert outcomes().keys() <= {"complete"}
    else:
        assert outcomes() == {"complete": loads}


def test_every_load_of_a_model_is_complete(
    tmp_path: Path, outcomes: Outcomes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers = require("transformers")
    require("accelerate")
    from tload.transformers import from_pretrained

    for model in (models.dense(), models.experts()):
        folder = tmp_path / type(model).__name__
        folder.mkdir()
        models.save(model, folder)
        with caplog.at_level(logging.INFO, "tload"):
            from_pretrained(transformers.AutoModelForCausalLM, folder)
    assert set(outcomes()) == {"complete"}
    assert not [record for record in caplog.records if "cancelled" in record.getMessage()]
