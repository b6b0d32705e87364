"""`tload.dcp.StorageWriter`: what ranks write is read by torch's reader and by tload's, whole or not
at all. Oracles are torch's own writers."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import tload
from conftest import require
from ranks import start_ranks
from test_dcp import dcp, reader
from test_dcp_ranks import EVEN, MATRIX, WORLDS, Ranks, matrix_values

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import servers

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")


def writer(*arguments: Any, **keywords: Any) -> Any:
    require("torch")
    import tload.dcp

    return tload.dcp.StorageWriter(*arguments, **keywords)


def every_dtype() -> dict[str, Any]:
    torch = require("torch")
    maker = torch.Generator().manual_seed(3)
    names = [
        *("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"),
        *("float8_e4m3fn", "float8_e5m2", "complex64"),
    ]
    state = {
        name: torch.randint(0, 2, (7, 5), generator=maker, dtype=torch.int32).to(getattr(torch, name)) for name in names
    }
    state["scalar"] = torch.tensor(5.0)
    state["empty"] = torch.zeros(0, 3)
    state["turned"] = torch.rand(9, 4, generator=maker).T
    state["tied"] = state["turned"]
    state["parameter"] = torch.nn.Parameter(torch.rand(3, generator=maker))
    return state


def zeros_like(state: dict[str, Any]) -> dict[str, Any]:
    torch = require("torch")
    return {name: torch.zeros(tensor.shape, dtype=tensor.dtype) for name, tensor in state.items()}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    torch = require("torch")
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_saved_values_equal_those_of_torch_writers(tmp_path: Path) -> None:
    state = every_dtype()
    dcp().save(state, storage_writer=writer(tmp_path / "a/ours"))
    dcp().save(state, storage_writer=dcp().FileSystemWriter(tmp_path / "theirs"))
    theirs, ours, by_torch = zeros_like(state), zeros_like(state), zeros_like(state)
    dcp().load(theirs, storage_reader=dcp().FileSystemReader(tmp_path / "theirs"))
    dcp().load(ours, storage_reader=reader(tmp_path / "a/ours"))
    dcp().load(by_torch, storage_reader=dcp().HuggingFaceStorageReader(str(tmp_path / "a/ours")))
    assert same(theirs, state)
    assert same(ours, theirs)
    assert same(by_torch, theirs)
    files = sorted(path.name for path in (tmp_path / "a/ours").iterdir())
    assert files == ["shard-00001-model-00001-of-00001.safetensors", "tload-dcp.json"]
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["ours"], "nothing is left beside it"
    assert tload.load(tmp_path / "a/ours").keys() == state.keys()


def test_destination_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    state = {"a": require("torch").ones(3)}
    (tmp_path / "empty").mkdir()
    dcp().save(state, storage_writer=writer(tmp_path / "empty"))
    for place in ("empty", "empty/tload-dcp.json"):
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(dcp().CheckpointException, match="the directory is not empty"):
            dcp().save(state, storage_writer=writer(tmp_path / place))
        assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("place", "saved"), [(".", "here"), ("link", "empty"), ("dangling", "b/c"), ("new", "here/new")]
)
def test_destination_is_resolved_once(place: str, saved: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = require("torch")
    for name in ("here", "empty"):
        (tmp_path / name).mkdir()
    if place in {"link", "dangling"}:
        (tmp_path / "here" / place).symlink_to(tmp_path / saved)
    monkeypatch.chdir(tmp_path / "here")
    its = writer(place)
    finish = its.finish

    def finish_elsewhere(*given: Any, **keywords: Any) -> None:
        monkeypatch.chdir(tmp_path)
        finish(*given, **keywords)

    its.finish = finish_elsewhere
    dcp().save({"a": torch.ones(3)}, storage_writer=its)
    state = {"a": torch.zeros(3)}
    dcp().load(state, storage_reader=reader(tmp_path / saved))
    assert state["a"].tolist() == [1.0] * 3
    assert not list(tmp_path.rglob(".*tload*"))


def test_values_that_are_no_tensors_are_refused(tmp_path: Path) -> None:
    with pytest.raises(dcp().CheckpointException, match="'step' is no tensor"):
        dcp().save({"a": require("torch").ones(3), "step": 7}, storage_writer=writer(tmp_path / "a"))
    assert not list(tmp_path.iterdir())


def test_second_of_two_saves_fails_and_names_the_first(tmp_path: Path) -> None:
    torch = require("torch")
    module: Any = tload.dcp
    first, second = writer(tmp_path / "a"), writer(tmp_path / "a")
    saved = {}
    for its, value in ((first, 1.0), (second, 2.0)):
        from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

        planner = DefaultSavePlanner()
        planner.set_up_planner({"w": torch.full((4,), value)}, None, is_coordinator=True)
        its.set_up_storage_writer(is_coordinator=True)
        plans, metadata = planner.create_global_plan([its.prepare_local_plan(planner.create_local_plan())])
        (plan,) = its.prepare_global_plan(plans)
        saved[its] = (metadata, [its.write_data(planner.finish_plan(plan), planner).wait()])
    assert not (tmp_path / "a").exists(), "nothing is there before the end"
    assert all(not row.removed for row in tload.remove_incomplete(tmp_path / "a")), "both still run"
    first.finish(*saved[first])
    with pytest.raises(tload.ChangedError, match=json.loads((tmp_path / "a/tload-dcp.json").read_text())["write"]):
        second.finish(*saved[second])
    state = {"w": torch.zeros(4)}
    dcp().load(state, storage_reader=module.StorageReader(tmp_path / "a"))
    assert state["w"].tolist() == [1.0] * 4
    second.reset()
    assert [row.removed for row in tload.remove_incomplete(tmp_path / "a")] == [True]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


class OurRanks(Ranks):
    """Four processes that write with tload."""

    def save(self, to: str, world: int, sign: int = 1, names: Iterable[str] = MATRIX) -> None:
        if self.rank < world:
            shares = self.shares(world, "same", sign)
            group = self.meshes[world].get_group()
            its = writer(self.folder / to)
            dcp().save({name: shares[name] for name in names}, storage_writer=its, process_group=group)

    def save_grid(self, to: str) -> None:
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.tensor import Shard, distribute_tensor

        mesh = DeviceMesh("cpu", [[0, 1], [2, 3]])
        values = matrix_values()
        placements = [Shard(0), Shard(1)]
        state = {name: distribute_tensor(values[name], mesh, placements, src_data_rank=None) for name in EVEN}
        dcp().save(state, storage_writer=writer(self.folder / to))

    def compare_all(self, world: int, layout: str) -> None:
        import torch

        expected = {name: share.to_local() for name, share in self.shares(world, layout).items()}
        saves = [(f"of_{written}", MATRIX) for written in WORLDS] + [(f"even_of_{written}", EVEN) for written in WORLDS]
        for save, names in (*saves, ("grid", EVEN)):
            group = self.meshes[world].get_group()
            ours = self.load(world, layout, reader(self.folder / save, process_group=group), names)
            theirs = self.load(world, layout, dcp().HuggingFaceStorageReader(str(self.folder / save)), names)
            for name in names:
                assert torch.equal(theirs[name], expected[name]), (save, world, layout, name)
                assert torch.equal(ours[name], expected[name]), (save, world, layout, name)


@pytest.mark.timeout(600)
def test_every_layout_of_ranks_is_read_in_every_other(tmp_path: Path) -> None:
    """The matrix of the reader's tests: written by 1, 2 and 4 ranks, read by 1, 2 and 4."""
    torch = require("torch")
    start_ranks(max(WORLDS), write_and_read, tmp_path)
    assert len(list(tmp_path.glob("*.done"))) == max(WORLDS)
    for world in WORLDS:
        state = {name: torch.zeros(shape) for name, (shape, _) in MATRIX.items()}
        dcp().load(state, storage_reader=reader(tmp_path / f"of_{world}"))
        assert same(state, matrix_values())
    (tmp_path / "of_4" / "shard-00002-model-00001-of-00001.safetensors").unlink()
    with pytest.raises(tload.FormatError, match="lacks"):
        reader(tmp_path / "of_4").read_metadata()


def write_and_read(rank: int, folder: Path) -> None:
    """Run on each of four ranks."""
    import torch.distributed

    ranks = OurRanks(rank, folder)
    for world in WORLDS:
        ranks.save(f"of_{world}", world)
        ranks.save(f"even_of_{world}", world, names=EVEN)
    ranks.save_grid("grid")
    torch.distributed.barrier()
    for world in (world for world in WORLDS if rank < world):
        for layout in ("same", "turned", "replicated"):
            ranks.compare_all(world, layout)
    (folder / f"{rank}.done").touch()


@pytest.mark.timeout(600)
def test_rank_that_fails_or_is_killed_leaves_nothing(tmp_path: Path) -> None:
    start_ranks(2, failing_rank, tmp_path)
    assert not (tmp_path / "failed").exists()
    assert [row.removed for row in tload.remove_incomplete(tmp_path / "failed")] == [True]
    child = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "killed"], check=False)
    assert child.returncode == -signal.SIGKILL
    assert not (tmp_path / "killed").exists()
    assert [row.removed for row in tload.remove_incomplete(tmp_path / "killed")] == [True]


KILLED = """
import os, signal, sys
import torch
import torch.distributed.checkpoint as dcp
import tload.dcp
from tload._dcp import writer

writer._publish = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
dcp.save({"a": torch.ones(3)}, storage_writer=tload.dcp.StorageWriter(sys.argv[1]))
"""
"""A save that is killed when all files are written."""


def failing_rank(rank: int, folder: Path) -> None:
    """Run on each of two ranks: the second one's tensor cannot be read."""
    import torch
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

    class Failing(DefaultSavePlanner):
        def resolve_data(self, write_item: Any) -> Any:
            if rank == 1:
                message = "no such memory"
                raise RuntimeError(message)
            return super().resolve_data(write_item)

    state = {f"of_{rank}": torch.ones(5)}
    with pytest.raises(dcp().CheckpointException, match="no such memory"):
        dcp().save(state, storage_writer=writer(folder / "failed"), planner=Failing())


@pytest.mark.timeout(600)
def test_ranks_save_to_a_store(s3: servers.S3, tmp_path: Path) -> None:
    torch = require("torch")
    s3.put("models", "other", b"x")
    start_ranks(4, save_to_store, tmp_path, s3.store)
    assert len(list(tmp_path.glob("*.done"))) == 4
    url = "s3://models/ranks"
    state = {name: torch.zeros(shape) for name, (shape, _) in MATRIX.items()}
    dcp().load(state, storage_reader=reader(url, store=s3.store))
    assert same(state, matrix_values())
    # torch's reader reads a copy on a disk.
    tload.copy(url, tmp_path / "copy", store=s3.store)
    state = {name: torch.zeros(shape) for name, (shape, _) in MATRIX.items()}
    dcp().load(state, storage_reader=dcp().HuggingFaceStorageReader(str(tmp_path / "copy")))
    assert same(state, matrix_values())
    with pytest.raises(dcp().CheckpointException, match="a save is for an empty prefix"):
        dcp().save({"a": torch.ones(3)}, storage_writer=writer(url, store=s3.store))
    # A place that a copy or another writer has claimed is not empty.
    s3.put("models", "claimed/.tload-write", b"0123456789ab")
    with pytest.raises(dcp().CheckpointException, match=r"\.tload-write' is there"):
        dcp().save({"a": torch.ones(3)}, storage_writer=writer("s3://models/claimed", store=s3.store))
    # Files that a list names are no leftovers.
    assert tload.remove_incomplete(url, store=s3.store) == []


def save_to_store(rank: int, folder: Path, store: dict[str, str]) -> None:
    """Run on each of four ranks."""
    ranks = OurRanks(rank, folder)
    dcp().save(ranks.shares(4, "same"), storage_writer=writer("s3://models/ranks", store=store))
    state = ranks.load(4, "turned", reader("s3://models/ranks", store=store))
    expected = {name: share.to_local() for name, share in ranks.shares(4, "turned").items()}
    assert same(state, expected)
    (folder / f"{rank}.done").touch()


def test_save_to_a_store_appears_when_it_is_complete(s3: servers.S3) -> None:
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

    torch = require("torch")
    s3.put("models", "other", b"x")
    url = "s3://models/two"
    saved: list[Any] = []
    for value in (1.0, 2.0):
        its, planner = writer(url, store=s3.store), DefaultSavePlanner()
        planner.set_up_planner({"w": torch.full((4,), value)}, None, is_coordinator=True)
        plans, metadata = planner.create_global_plan([its.prepare_local_plan(planner.create_local_plan())])
        if not saved:
            (plan,) = its.prepare_global_plan(plans)
        else:
            # As if both had looked at the prefix at the same time.
            place = saved[0][1].storage_data
            plan = dataclasses.replace(plans[0], storage_data=dataclasses.replace(place, id="0123456789ab"))
        saved.append((its, plan, planner, metadata))

    def write(number: int) -> list[Any]:
        its, plan, planner, _ = saved[number]
        return [its.write_data(planner.finish_plan(plan), planner).wait()]

    second = write(1)
    with pytest.raises(tload.FormatError, match="has not been completed"):
        reader(url, store=s3.store).read_metadata()
    first = write(0)
    assert len(tload.list_files(url, store=s3.store)) == 2
    saved[0][0].finish(saved[0][3], first)
    with pytest.raises(tload.ChangedError, match=saved[0][1].storage_data.id):
        saved[1][0].finish(saved[1][3], second)
    state = {"w": torch.zeros(4)}
    dcp().load(state, storage_reader=reader(url, store=s3.store))
    assert state["w"].tolist() == [1.0] * 4
    assert len(tload.list_files(url, store=s3.store)) == 2, "those of the other save are removed"


def test_list_of_files_is_read_with_the_options_of_the_reader(web: servers.Web) -> None:
    require("torch")
    from tload._dcp.opening import Origin

    web.files["model/tload-dcp.json"] = b"{}"

    def listed(**options: Any) -> Any:
        return Origin(f"{web.url}/model", None, tload.Options(**options), None)._listed(is_complete=True)

    web.refuses = lambda: True
    with pytest.raises(tload.RemoteError) as caught:
        listed(retries=0)
    assert caught.value.attempts == 1
    web.refuses, web.stall_from = bool, 0
    # The server never answers: any stage may be the one that it ends.
    with pytest.raises(tload.LoadTimeoutError):
        listed(timeout=0.5)


def test_save_to_a_prefix_that_is_claimed_meanwhile_leaves_nothing(s3: servers.S3) -> None:
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

    torch = require("torch")
    s3.put("models", "other", b"x")

    class Claimed(DefaultSavePlanner):
        def resolve_data(self, write_item: Any) -> Any:
            s3.put("models", "late/.tload-write", b"0123456789ab")
            return super().resolve_data(write_item)

    url = "s3://models/late"
    with pytest.raises(dcp().CheckpointException, match="0123456789ab"):
        dcp().save({"w": torch.ones(4)}, storage_writer=writer(url, store=s3.store), planner=Claimed())
    assert [name for name, _ in tload.list_files(url, store=s3.store)] == [".tload-write"]
