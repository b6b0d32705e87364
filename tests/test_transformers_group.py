"""`tload.transformers.from_pretrained` with a group: the ranks of a node read the weights once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import models
import tload
from conftest import require
from ranks import start_ranks
from test_transformers_ranks import local

if TYPE_CHECKING:
    from pathlib import Path

    from servers import Web

PAGES_BYTES = 64 << 10
"""Most bytes that reads of whole pages, and of gaps between tensors, add."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("size", [2, 4])
def test_ranks_load_model_together(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("torch", "transformers", "accelerate"):
        require(name)
    folder = models.save(models.experts(num_key_value_heads=4), tmp_path, "10MB")
    start_ranks(size, run, size, folder)


def run(rank: int, size: int, folder: Path) -> None:
    for kind in ("tp_size", "fsdp_size", None):
        weights_are_read_once(size, folder, kind)
    windows_are_started_by_all(size, folder)
    for options in (None, tload.Options(cache="map")):
        rank_that_requests_less_stays_in_step(rank, folder, options)
    failure_of_one_rank_ends_all(rank, size, folder)


def divided(kind: str | None, size: int) -> dict[str, Any]:
    from transformers.distributed.configuration_utils import DistributedConfig

    return {} if kind is None else {"distributed_config": DistributedConfig(**{kind: size})}


def load(source: Any, **keywords: Any) -> tuple[Any, list[Any]]:
    """Load a model, and return it with the streams of the load."""
    from transformers import AutoModelForCausalLM

    import tload.transformers

    module: Any = tload.transformers._feed
    stream, streams = module.stream, []

    def spy(*arguments: Any, **keywords: Any) -> Any:
        streams.append(stream(*arguments, **keywords))
        return streams[-1]

    module.stream = spy
    try:
        return tload.transformers.from_pretrained(AutoModelForCausalLM, source, **keywords), streams
    finally:
        module.stream = stream


def assert_equal(model: Any, folder: Path, keywords: dict[str, Any]) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    stock = AutoModelForCausalLM.from_pretrained(folder, **keywords)
    state = {name: local(tensor) for name, tensor in model.state_dict().items()}
    assert state
    for name, tensor in stock.state_dict().items():
        assert torch.equal(state[name], local(tensor)), name


def weights_are_read_once(size: int, folder: Path, kind: str | None) -> None:
    import torch

    with tload.Group.torch() as group:
        model, streams = load(folder, group=group, **divided(kind, size))
    assert_equal(model, folder, divided(kind, size))
    (shared,) = (stream.report.group for stream in streams)
    assert shared.reason is None
    with tload.open(folder) as checkpoint:
        assert shared.unique_bytes == checkpoint.total_bytes
    read = torch.tensor(shared.read_bytes)
    torch.distributed.all_reduce(read)
    assert 0 <= read.item() - shared.unique_bytes <= PAGES_BYTES, (kind, read.item(), shared)
    # Parameters can be written to.
    with torch.no_grad():
        for tensor in model.state_dict().values():
            local(tensor).mul_(2)


def windows_are_started_by_all(size: int, folder: Path) -> None:
    """Ranks that request different experts start the same loads."""
    import tload.transformers

    module: Any = tload.transformers._feed
    window_bytes, waiting_bytes = module.WINDOW_BYTES, module.WAITING_BYTES_MAX
    module.WINDOW_BYTES, module.WAITING_BYTES_MAX = 20_000, 40_000
    try:
        with tload.Group.torch() as group:
            model, streams = load(folder, group=group, **divided("fsdp_size", size))
            assert len(streams) > 1
            # The ranks are still in step.
            tload.load(folder, group=group)
    finally:
        module.WINDOW_BYTES, module.WAITING_BYTES_MAX = window_bytes, waiting_bytes
    assert_equal(model, folder, divided("fsdp_size", size))


def rank_that_requests_less_stays_in_step(rank: int, folder: Path, options: tload.Options | None) -> None:
    import tload.transformers

    module: Any = tload.transformers._feed
    window_bytes = module.WINDOW_BYTES
    module.WINDOW_BYTES = 20_000
    try:
        with tload.open(folder) as checkpoint, tload.Group.torch() as group:
            names = list(checkpoint)
            feed = module.Feed(
                checkpoint, names, checkpoint.read, device="cpu", device_map={}, options=options, group=group
            )
            for name in names[:1] if rank == 0 else names:
                assert feed.take_copy(name).shape == checkpoint[name].shape
            feed.finish()
            feed.close()
            assert list(tload.load(checkpoint, group=group, names=names[rank])) == [names[rank]]
    finally:
        module.WINDOW_BYTES = window_bytes


def failure_of_one_rank_ends_all(rank: int, size: int, folder: Path) -> None:
    """A rank that fails between two loads leaves the group, so that the others do not wait."""
    import tload.transformers

    module: Any = tload.transformers._feed
    window_bytes = module.WINDOW_BYTES
    module.WINDOW_BYTES = 20_000
    keywords: dict[str, Any] = {"options": tload.Options(join_timeout=240)}
    if rank == size - 1:
        keywords["attn_implementation"] = "unknown"
    try:
        with (
            tload.Group.torch() as group,
            pytest.raises((tload.PeerError, ValueError)) as caught,
        ):
            load(folder, group=group, **keywords)
    finally:
        module.WINDOW_BYTES = window_bytes
    if rank != size - 1:
        assert f"rank {size - 1} of {size} has left the group" in str(caught.value)


@pytest.mark.timeout(600)
def test_objects_are_opened_once(tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("torch", "transformers", "accelerate"):
        require(name)
    folder = models.save(models.dense(), tmp_path)
    web.files |= {f"bucket/{path.name}": path.read_bytes() for path in folder.iterdir()}
    start_ranks(2, open_together, web.url, folder)
    weights = [name for name in web.files if ".safetensors" in name]
    assert len(weights) > 2
    opened = [name for name in web.openings() if name in weights]
    assert opened == sorted(weights)


def open_together(_rank: int, endpoint: str, folder: Path) -> None:
    store = {"endpoint": endpoint, "anonymous": True, "region": "us-east-1"}
    with tload.Group.torch() as group:
        model, _ = load("s3://bucket/model.safetensors.index.json", store=store, group=group)
    assert_equal(model, folder, {})


@pytest.mark.timeout(600)
def test_rank_that_cannot_open_ends_all(tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("torch", "transformers", "accelerate"):
        require(name)
    folder = models.save(models.dense(), tmp_path)
    web.files |= {f"bucket/{path.name}": path.read_bytes() for path in folder.iterdir()}
    start_ranks(2, one_cannot_open, web.url)


def one_cannot_open(rank: int, endpoint: str) -> None:
    """A rank that fails before it opens leaves the group, so that the other one does not wait."""
    import torch.distributed

    store = {"endpoint": endpoint, "anonymous": True, "region": "us-east-1"}
    keywords = {"store": store, "options": tload.Options(join_timeout=240)}
    url = "s3://bucket/model.safetensors.index.json"
    with tload.Group.torch() as group:
        with pytest.raises(tload.Error) as caught:
            # Beside a list of files, there is no configuration.
            load([url] if rank else url, group=group, **keywords)
        torch.distributed.barrier()
    if rank == 0:
        assert isinstance(caught.value, tload.PeerError)
        assert "rank 1 of 2 has left the group" in str(caught.value)
    else:
        assert isinstance(caught.value, tload.InvalidRequestError)
