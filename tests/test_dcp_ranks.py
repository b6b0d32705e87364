"""`tload.dcp.StorageReader` on files that ranks wrote: even and uneven, missing, duplicated, and
from two saves."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import tload
from conftest import require
from files import Content, write_checkpoint, write_file
from ranks import start_ranks
from test_dcp import dcp, failure, reader
from test_load_into import raw

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")


def write_rank(folder: Path, rank: int, boxes: Mapping[str, tuple[list[int], Any]], of: int = 1) -> Path:
    """Write a file as `HuggingFaceStorageWriter` does: with the start of each part, and its
    values."""
    torch = require("torch")
    names = {torch.float32: "F32", torch.bfloat16: "BF16"}
    path = folder / f"shard-{rank:05}-model-00001-of-{of:05}.safetensors"
    contents = {n: Content(names[t.dtype], tuple(t.shape), raw(t)) for n, (_, t) in boxes.items()}
    info = {name: {"saved_offsets": start} for name, (start, _) in boxes.items()}
    write_file(path, contents, metadata={"DCP_SHARDING_INFO": json.dumps(info), "DCP_VERSION": "1.0"})
    return path


def matrix() -> Any:
    torch = require("torch")
    return torch.arange(4096 * 8, dtype=torch.float32).reshape(4096, 8)


def write_rows(folder: Path, whole: Any, ranks: int) -> list[Path]:
    """Write a matrix as `ranks` ranks with equal shares of its rows do."""
    share = len(whole) // ranks
    return [
        write_rank(folder, rank + 1, {"w": ([rank * share, 0], whole[rank * share : (rank + 1) * share])})
        for rank in range(ranks)
    ]


def test_even_shares_of_ranks_are_told_apart(tmp_path: Path) -> None:
    torch = require("torch")
    whole = matrix()
    write_rows(tmp_path, whole, 4)
    ours, theirs = {"w": torch.zeros(4096, 8)}, {"w": torch.zeros(4096, 8)}
    dcp().load(theirs, storage_reader=dcp().HuggingFaceStorageReader(str(tmp_path)))
    dcp().load(ours, storage_reader=reader(tmp_path))
    assert torch.equal(theirs["w"], whole)
    assert torch.equal(ours["w"], whole)
    expected = dcp().HuggingFaceStorageReader(str(tmp_path)).read_metadata().state_dict_metadata["w"]
    metadata = reader(tmp_path).read_metadata().state_dict_metadata["w"]
    assert (metadata.size, metadata.properties) == (expected.size, expected.properties)
    assert sorted(chunk.offsets for chunk in metadata.chunks) == sorted(chunk.offsets for chunk in expected.chunks)


@pytest.mark.parametrize(
    ("missing", "gaps"),
    [
        ([1], "[1024:2048, 0:8]"),
        ([0], "[0:1024, 0:8]"),
        ([0, 2], "[0:1024, 0:8] and [2048:3072, 0:8]"),
        ([0, 1, 2], "[0:3072, 0:8]"),
    ],
)
def test_rows_of_a_missing_rank_are_named(missing: list[int], gaps: str, tmp_path: Path) -> None:
    torch = require("torch")
    paths = write_rows(tmp_path, matrix(), 4)
    for rank in missing:
        paths[rank].unlink()
    left = ", ".join(path.name for path in paths if path.exists())
    error = failure({"w": torch.zeros(4096, 8)}, reader(tmp_path))
    assert f"{tmp_path}: 'w', of shape (4096, 8), lacks {gaps}; found {left}\n" in error
    assert "hint: the files of all ranks of one save, and no others, have to be there" in error
    with pytest.raises(tload.FormatError) as caught:
        reader(tmp_path).read_metadata()
    assert caught.value.tensor == "w"


def test_columns_of_a_missing_rank_are_named(tmp_path: Path) -> None:
    whole = matrix()
    write_rank(tmp_path, 1, {"w": ([0, 0], whole[:, :3].contiguous()), "v": ([0], whole[0])})
    write_rank(tmp_path, 3, {"w": ([0, 6], whole[:, 6:].contiguous())})
    with pytest.raises(tload.FormatError, match=r"'w', of shape \(4096, 8\), lacks \[0:4096, 3:6\]; found shard-00001"):
        reader(tmp_path).read_metadata()


def test_missing_last_rank_is_rejected_as_smaller_tensor(tmp_path: Path) -> None:
    torch = require("torch")
    write_rows(tmp_path, matrix(), 4)[3].unlink()
    error = failure({"w": torch.zeros(4096, 8)}, reader(tmp_path))
    assert "Size mismatch between saved torch.Size([3072, 8]) and current: torch.Size([4096, 8]) for w" in error


def test_tensor_without_offset_in_rank_file_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "shard-00001-model-00001-of-00001.safetensors"
    content = Content("F32", (2,), bytes(8))
    write_file(path, {"w": content}, metadata={"DCP_SHARDING_INFO": '{"v": {"saved_offsets": [0]}}'})
    with pytest.raises(tload.FormatError, match="DCP_SHARDING_INFO says that 'w' begins at"):
        reader(tmp_path).read_metadata()


@pytest.mark.parametrize("start", ["[-1]", "[1.5]", "[9223372036854775807]", '["0"]', "[null]"])
def test_invalid_part_start_rejected(start: str, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    said = f'{{"w": {{"saved_offsets": {start}}}}}'
    write_file(path, {"w": Content("F32", (2,), bytes(8))}, metadata={"DCP_SHARDING_INFO": said})
    with pytest.raises(tload.FormatError, match="DCP_SHARDING_INFO"):
        reader(path).read_metadata()


def test_equal_copies_of_several_ranks_are_one_tensor(tmp_path: Path) -> None:
    torch = require("torch")
    whole = matrix()
    for rank, rows in ((1, slice(2048)), (2, slice(2048, 4096))):
        write_rank(tmp_path, rank, {"norm": ([0], whole[7]), "w": ([rows.start or 0, 0], whole[rows])})
    state = {"norm": torch.zeros(8), "w": torch.zeros(4096, 8)}
    dcp().load(state, storage_reader=reader(tmp_path))
    assert torch.equal(state["norm"], whole[7])
    assert torch.equal(state["w"], whole)


def test_differing_copies_are_rejected(tmp_path: Path) -> None:
    torch = require("torch")
    whole = matrix()
    write_rank(tmp_path, 1, {"norm": ([0], whole[7])})
    write_rank(tmp_path, 2, {"norm": ([0], whole[8])})
    state = {"norm": torch.zeros(8)}
    error = failure(state, reader(tmp_path))
    first, second = (f"shard-0000{rank}-model-00001-of-00001.safetensors" for rank in (1, 2))
    assert error == (
        f"FormatError: {tmp_path}: {first} and {second} have different values for 'norm'[0:8]\n"
        "  hint: remove the files of the earlier save, or save into an empty directory"
    )
    assert not state["norm"].any(), "nothing was written"


def test_files_of_an_earlier_save_of_more_ranks_are_seen(tmp_path: Path) -> None:
    torch = require("torch")
    whole = matrix()
    write_rows(tmp_path, -whole - 1, 4)
    write_rows(tmp_path, whole, 2)
    state = {"w": torch.zeros(4096, 8)}
    error = failure(state, reader(tmp_path))
    assert "shard-00002-model-00001-of-00001.safetensors and shard-00003-" in error
    assert "have different values for 'w'[2048:3072, 0:8]" in error
    assert not state["w"].any()
    # Tensors that both saves agree on can be loaded.
    write_rows(tmp_path, whole, 4)
    write_rows(tmp_path, whole, 2)
    dcp().load(state, storage_reader=reader(tmp_path))
    assert torch.equal(state["w"], whole)


def test_difference_in_last_slab_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = require("torch")
    import tload.dcp

    module: Any = tload.dcp
    monkeypatch.setattr(module, "COMPARED_BYTES", 4096)
    other = matrix()
    other[4095, 7] += 1
    write_rank(tmp_path, 1, {"w": ([0, 0], matrix())})
    write_rank(tmp_path, 2, {"w": ([0, 0], other)})
    assert "have different values for 'w'[3968:4096, 0:8]" in failure({"w": torch.zeros(4096, 8)}, reader(tmp_path))


def test_files_of_two_saves_in_two_dtypes_are_rejected(tmp_path: Path) -> None:
    torch = require("torch")
    write_rank(tmp_path, 1, {"w": ([0], torch.ones(4))})
    write_rank(tmp_path, 2, {"w": ([4], torch.ones(4, dtype=torch.bfloat16))})
    with pytest.raises(tload.FormatError, match=r"'w' is F32 with 1 dimensions in shard-00001.* and BF16 with 1"):
        reader(tmp_path).read_metadata()


def test_non_files_beside_index_ignored(tmp_path: Path) -> None:
    torch = require("torch")
    write_checkpoint(tmp_path, [{"w": Content.random("F32", (8,), seed=1)}, {"v": Content.random("F32", (8,), seed=2)}])
    (tmp_path / "folder.safetensors").mkdir()
    (tmp_path / "gone.safetensors").symlink_to(tmp_path / "nowhere")
    state = {"w": torch.zeros(8), "v": torch.zeros(8)}
    dcp().load(state, storage_reader=reader(tmp_path))
    assert state["w"].any()
    assert state["v"].any()


def test_rank_files_beside_index_of_another_save_are_rejected(tmp_path: Path) -> None:
    torch = require("torch")
    write_checkpoint(tmp_path, [{"w": Content("F32", (4096, 8), bytes(4096 * 8 * 4))}])
    (tmp_path / "broken.safetensors").write_bytes(b"version https://git-lfs")
    state = {"w": torch.ones(4096, 8)}
    dcp().load(state, storage_reader=reader(tmp_path))
    assert not state["w"].any(), "files that neither the index lists nor a rank wrote are ignored"
    write_rows(tmp_path, matrix(), 2)
    error = failure(state, reader(tmp_path))
    assert "the index does not list shard-00001-model-00001-of-00001.safetensors, shard-00002-" in error
    dcp().load(state, storage_reader=reader(tmp_path / "model.safetensors.index.json"))


WORLDS = (1, 2, 4)

MATRIX = {
    "rows": ((4096, 8), 0),
    "columns": ((8, 32), 1),
    "odd.rows": ((11, 3), 0),
    "odd.columns": ((3, 7), 1),
    "few.rows": ((2, 3), 0),
    "cube": ((4, 6, 8), 2),
    "replicated": ((9,), None),
}
"""Shape, and the dimension that ranks share when they write."""

EVEN = ("rows", "columns", "cube")
"""Saved alone, these give every rank a file with the same header."""


@pytest.mark.timeout(600)
def test_ranks_read_layouts_of_other_ranks(tmp_path: Path) -> None:
    """Written by 1, 2 and 4 ranks, read by 1, 2 and 4, in three layouts that torch's own reader
    reads."""
    torch = require("torch")
    start_ranks(max(WORLDS), reshard, tmp_path)
    done = sorted(path.name for path in tmp_path.glob("*.done"))
    assert done == [f"{rank}.done" for rank in range(max(WORLDS))]
    # The whole state in one process without ranks.
    for world in WORLDS:
        state = {name: torch.zeros(shape) for name, (shape, _) in MATRIX.items()}
        dcp().load(state, storage_reader=reader(tmp_path / f"of_{world}"))
        for name, values in matrix_values().items():
            assert torch.equal(state[name], values), (world, name)


def matrix_values(sign: int = 1) -> dict[str, Any]:
    torch = require("torch")
    maker = torch.Generator().manual_seed(5)
    return {name: sign * (torch.rand(shape, generator=maker) + 1) for name, (shape, _) in MATRIX.items()}


class Ranks:
    """Four processes, of which the first one, two or four write and read."""

    def __init__(self, rank: int, folder: Path) -> None:
        from torch.distributed.device_mesh import DeviceMesh

        self.rank, self.folder = rank, folder
        self.meshes = {world: DeviceMesh("cpu", list(range(world))) for world in WORLDS}

    def shares(self, world: int, layout: str, sign: int = 1) -> dict[str, Any]:
        from torch.distributed.tensor import distribute_tensor

        return {
            name: distribute_tensor(value, self.meshes[world], placement(name, layout), src_data_rank=None)
            for name, value in matrix_values(sign).items()
        }

    def save(self, to: str, world: int, sign: int = 1, names: Iterable[str] = MATRIX) -> None:
        if self.rank < world:
            shares = self.shares(world, "same", sign)
            writer = dcp().HuggingFaceStorageWriter(str(self.folder / to), save_distributed=True)
            group = self.meshes[world].get_group()
            dcp().save({name: shares[name] for name in names}, storage_writer=writer, process_group=group)

    def save_grid(self, to: str) -> None:
        """Save boxes that are cut along two dimensions."""
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.tensor import Shard, distribute_tensor

        mesh = DeviceMesh("cpu", [[0, 1], [2, 3]])
        values = matrix_values()
        placements = [Shard(0), Shard(1)]
        state = {name: distribute_tensor(values[name], mesh, placements, src_data_rank=None) for name in EVEN}
        writer = dcp().HuggingFaceStorageWriter(str(self.folder / to), save_distributed=True)
        dcp().save(state, storage_writer=writer)

    def load(self, world: int, layout: str, storage_reader: Any, names: Iterable[str] = MATRIX) -> dict[str, Any]:
        from torch.distributed.tensor import zeros

        mesh = self.meshes[world]
        state = {name: zeros(*MATRIX[name][0], device_mesh=mesh, placements=placement(name, layout)) for name in names}
        dcp().load(state, storage_reader=storage_reader, process_group=mesh.get_group())
        return {name: tensor.to_local() for name, tensor in state.items()}

    def compare(self, world: int, layout: str) -> None:
        """Load the files of any number of ranks."""
        import torch

        expected = {name: share.to_local() for name, share in self.shares(world, layout).items()}
        saves = [(f"of_{written}", MATRIX) for written in WORLDS] + [(f"even_of_{written}", EVEN) for written in WORLDS]
        for save, names in (*saves, ("grid", EVEN)):
            pg = self.meshes[world].get_group()
            ours = self.load(world, layout, reader(self.folder / save, process_group=pg), names)
            theirs = self.load(world, layout, dcp().HuggingFaceStorageReader(str(self.folder / save)), names)
            for name in names:
                assert torch.equal(theirs[name], expected[name]), (save, world, layout, name)
                assert torch.equal(ours[name], expected[name]), (save, world, layout, name)
        again = self.load(world, layout, reader(self.folder / "again"))
        assert all(torch.equal(again[name], value) for name, value in expected.items()), (world, layout)
        with pytest.raises(dcp().CheckpointException, match="have different values for"):
            self.load(world, layout, reader(self.folder / "stale"))


def placement(name: str, layout: str) -> Any:
    from torch.distributed.tensor import Replicate, Shard

    shape, shared = MATRIX[name]
    if shared is None or layout == "replicated":
        return [Replicate()]
    return [Shard(shared if layout == "same" else (shared + 1) % len(shape))]


def reshard(rank: int, folder: Path) -> None:
    """Run on each of four ranks."""
    import torch.distributed

    ranks = Ranks(rank, folder)
    for world in WORLDS:
        ranks.save(f"of_{world}", world)
        ranks.save(f"even_of_{world}", world, names=EVEN)
    ranks.save_grid("grid")
    # Two saves in one directory: first of the same values, then of others.
    for to, sign in (("again", 1), ("stale", -1)):
        ranks.save(to, 4, sign)
        ranks.save(to, 2)
    torch.distributed.barrier()
    for world in (world for world in WORLDS if rank < world):
        for layout in ("same", "turned", "replicated"):
            ranks.compare(world, layout)
    (folder / f"{rank}.done").touch()
