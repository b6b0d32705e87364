"""`tload.dcp.StorageReader` on several ranks of a node: what several of them need is read once."""

from __future__ import annotations

import datetime as dt
import logging
import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

import tload
from conftest import require
from files import Content, write_checkpoint
from ranks import start_ranks
from test_dcp import dcp, reader
from test_load_into import raw, save

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from servers import Web

LONG = 240.0
"""Seconds after which a test hangs."""

SHAPES = {"even": (256, 1024), "uneven": (251, 333), "few": (1, 100_000), "pair": (2, 50_000), "norm": (64,)}

PAGES_BYTES = 64 << 10
"""Most bytes that reads of whole pages add."""


def values() -> dict[str, Any]:
    torch = require("torch")
    return {name: torch.arange(1.0, math.prod(shape) + 1).reshape(shape) for name, shape in SHAPES.items()}


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_of_torch_read_once(size: int, tmp_path: Path) -> None:
    names = list(SHAPES)
    save(tmp_path / "model-00001-of-00002.safetensors", {name: values()[name] for name in names[:2]})
    save(tmp_path / "model-00002-of-00002.safetensors", {name: values()[name] for name in names[2:]})
    start_ranks(size, run, size, tmp_path, fresh=size == 2)


def run(rank: int, size: int, folder: Path) -> None:
    every_layout_is_read_once(rank, size, folder)
    failure_of_one_rank_ends_all(rank, size, folder)
    other_process_group_reads_alone(rank, size, folder)


@contextmanager
def reports() -> Iterator[list[tload.Report]]:
    """Collect the reports of the reader's loads."""
    import tload.dcp

    module: Any = tload.dcp
    found: list[tload.Report] = []
    load_into = module.load_into

    def spy(*arguments: Any, **keywords: Any) -> tload.Report:
        found.append(load_into(*arguments, **keywords))
        return found[-1]

    module.load_into = spy
    try:
        yield found
    finally:
        module.load_into = load_into


def every_layout_is_read_once(rank: int, size: int, folder: Path) -> None:
    import torch.distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (size,))
    for place in (Replicate(), Shard(0), Shard(1)):
        # Only the first rank has elements of "few" in rows, and only the first two of "pair".
        for names in (["even", "uneven", "norm"], ["few"], ["pair"]):
            states = []
            for storage_reader in (
                reader(folder),
                reader(folder, options=tload.Options(share="none")),
                dcp().HuggingFaceStorageReader(str(folder)),
            ):
                state = {
                    name: distribute_tensor(
                        torch.zeros(SHAPES[name]), mesh, [place if len(SHAPES[name]) > 1 else Replicate()]
                    )
                    for name in names
                }
                with reports() as loads:
                    dcp().load(state, storage_reader=storage_reader)
                states.append((state, loads))
            (ours, together), (own, alone), (theirs, _) = states
            for name, tensor in theirs.items():
                assert torch.equal(ours[name].to_local(), tensor.to_local()), (place, name)
                assert torch.equal(own[name].to_local(), tensor.to_local()), (place, name)
            assert all(report.group is None for report in alone)
            if (names, place) == (["few"], Shard(0)):
                assert [report.group for report in together] == ([None] if rank == 0 else [])
                continue
            (shared,) = (report.group for report in together)
            assert shared is not None
            assert shared.reason is None
            assert shared.unique_bytes == sum(4 * math.prod(SHAPES[name]) for name in names)
            read = torch.tensor(shared.read_bytes)
            torch.distributed.all_reduce(read)
            assert 0 <= read.item() - shared.unique_bytes <= PAGES_BYTES, (place, names, read.item(), shared)


def failure_of_one_rank_ends_all(rank: int, size: int, folder: Path) -> None:
    import torch

    class Planner(dcp().DefaultLoadPlanner):  # type: ignore[misc]
        def resolve_tensor(self, read_item: Any) -> Any:
            if rank == size - 1:
                message = "no memory"
                raise MemoryError(message)
            return super().resolve_tensor(read_item)

    options = tload.Options(join_timeout=LONG)
    state = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    with pytest.raises(dcp().CheckpointException) as caught:
        dcp().load(state, storage_reader=reader(folder, options=options), planner=Planner())
    failures = caught.value.failures
    assert failures.keys() == set(range(size))
    for at, (error, _) in failures.items():
        if at == size - 1:
            assert isinstance(error, MemoryError)
        else:
            assert f"rank {size - 1} of {size} has left the group" in str(error)
    # The reader, and the process group, can be used again.
    dcp().load(state, storage_reader=reader(folder, options=options))
    assert torch.equal(state["even"], values()["even"])


def other_process_group_reads_alone(rank: int, size: int, folder: Path) -> None:
    """A reader that does not know the process group of the load must not wait for other ranks."""
    import torch.distributed

    members = list(range(size // 2))
    pg = torch.distributed.new_group(members)
    if rank not in members:
        return
    state = {"norm": torch.zeros(64)}
    with reports() as loads:
        dcp().load(state, storage_reader=reader(folder), process_group=pg)
        dcp().load(state, storage_reader=reader(folder, process_group=pg), process_group=pg)
    alone, together = (report.group for report in loads)
    assert alone is None
    assert (together is None) == (len(members) == 1)
    assert torch.equal(state["norm"], values()["norm"])


@pytest.mark.parametrize("size", [2, 4])
def test_objects_are_opened_once(size: int, tmp_path: Path, web: Web) -> None:
    tensors = {name: Content("F32", tuple(tensor.shape), raw(tensor)) for name, tensor in values().items()}
    names = list(tensors)
    write_checkpoint(tmp_path, [{name: tensors[name] for name in part} for part in (names[:2], names[2:])])
    for path in tmp_path.iterdir():
        web.files[f"bucket/{path.name}"] = path.read_bytes()
    start_ranks(size, open_together, web.url)
    assert web.openings() == sorted(web.files)


def open_together(_rank: int, endpoint: str) -> None:
    import torch

    state = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    dcp().load(state, storage_reader=remote_reader(endpoint))
    assert all(torch.equal(state[name], value) for name, value in values().items())


def remote_reader(endpoint: str, **keywords: Any) -> Any:
    store = {"endpoint": endpoint, "anonymous": True, "region": "us-east-1"}
    keywords = {"options": tload.Options(join_timeout=LONG), **keywords}
    return reader("s3://bucket/model.safetensors.index.json", store=store, **keywords)


def test_rank_without_others_opens_alone(tmp_path: Path, web: Web) -> None:
    write_checkpoint(tmp_path, [{"norm": Content("F32", (64,), raw(values()["norm"]))}])
    for path in tmp_path.iterdir():
        web.files[f"bucket/{path.name}"] = path.read_bytes()
    start_ranks(2, open_alone, web.url)
    # Metadata, without other ranks, and in a process group of one rank; then together.
    assert web.openings() == sorted([*web.files] * 4)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def open_alone(rank: int, endpoint: str) -> None:
    """On one rank only: it would wait for the other one in vain."""
    import torch.distributed

    pg = torch.distributed.new_group([0])
    state = {"norm": torch.zeros(64)}
    if rank == 0:
        assert set(remote_reader(endpoint).read_metadata().state_dict_metadata) == {"norm"}
        dcp().load(state, storage_reader=remote_reader(endpoint), no_dist=True)
        # The reader does not know the process group.
        dcp().load(state, storage_reader=remote_reader(endpoint), process_group=pg)
    torch.distributed.barrier()
    dcp().load(state, storage_reader=remote_reader(endpoint))
    assert torch.equal(state["norm"], values()["norm"])


def test_ranks_do_without_a_late_one(tmp_path: Path, web: Web) -> None:
    write_checkpoint(tmp_path, [{name: Content("F32", (64,), raw(values()["norm"])) for name in ("0", "1")}])
    for path in tmp_path.iterdir():
        web.files[f"bucket/{path.name}"] = path.read_bytes()
    start_ranks(2, open_late, web.url)
    assert web.openings() == sorted([*web.files] * 2)


def open_late(rank: int, endpoint: str) -> None:
    import torch.distributed

    store = torch.distributed.distributed_c10d._get_default_store()

    class Teller(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            store.set("warning", record.getMessage())

    if rank == 0:
        logging.getLogger("tload.dcp").addHandler(Teller())
    else:
        store.wait(["warning"], dt.timedelta(seconds=LONG))
        assert b"opens s3://bucket/model.safetensors.index.json on every rank: rank 1 of 2" in store.get("warning")
    # The late rank does not come before the other one has given it up: a busy machine only takes
    # longer. Nothing is read together, for which the ranks would have no more time.
    state = {str(rank): torch.zeros(64)}
    dcp().load(state, storage_reader=remote_reader(endpoint, options=tload.Options(join_timeout=0.2)))
    assert torch.equal(state[str(rank)], values()["norm"])


def test_object_that_is_missing_is_an_error_of_every_rank(tmp_path: Path, web: Web) -> None:
    write_checkpoint(tmp_path, [{"norm": Content("F32", (64,), raw(values()["norm"]))}])
    web.files["bucket/model.safetensors.index.json"] = (tmp_path / "model.safetensors.index.json").read_bytes()
    start_ranks(2, open_missing, web.url)


def open_missing(_rank: int, endpoint: str) -> None:
    import torch

    with pytest.raises(dcp().CheckpointException) as caught:
        dcp().load({"norm": torch.zeros(64)}, storage_reader=remote_reader(endpoint))
    errors = {rank: str(error) for rank, (error, _) in caught.value.failures.items()}
    assert errors.keys() == {0, 1}
    assert all("which does not exist" in error for error in errors.values()), errors
