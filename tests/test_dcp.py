"""`tload.dcp.StorageReader`: reads what PyTorch's own reader of Hugging Face checkpoints reads, on
one rank and on two."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

import tload
from conftest import require
from files import Content, tile, write_checkpoint, write_file
from ranks import start_ranks
from test_load_into import raw, save
from tload._tensors import torch_tensors

if TYPE_CHECKING:
    from pathlib import Path

    import servers

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")

TENSORS = {
    "embed.weight": Content.random("F32", (31, 8), seed=1),
    "norm.weight": Content.random("F32", (8,), seed=2),
    "up.weight": Content.random("BF16", (10, 7), seed=3),
    "down.weight": Content.random("BF16", (6, 9), seed=4),
    "experts": Content.random("F16", (5, 4, 3), seed=5),
    "scale": Content.random("F32", (), seed=6),
    "nothing": Content.random("F32", (0, 4), seed=7),
    "steps": Content.random("I64", (1,), seed=8),
    "wide.weight": Content("I32", (1000, 1024), tile(9, 1000 * 1024 * 4)),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint of three files and an index."""
    names = list(TENSORS)
    write_checkpoint(tmp_path, [{name: TENSORS[name] for name in part} for part in (names[:2], names[2:5], names[5:])])
    return tmp_path


def dcp() -> Any:
    require("torch")
    import torch.distributed.checkpoint

    return torch.distributed.checkpoint


def reader(*arguments: Any, **keywords: Any) -> Any:
    require("torch")
    import tload.dcp

    return tload.dcp.StorageReader(*arguments, **keywords)


def empty(contents: dict[str, Content]) -> dict[str, Any]:
    torch = require("torch")
    return {
        name: torch.zeros(content.shape, dtype=getattr(torch, torch_tensors.DTYPES[content.dtype]))
        for name, content in contents.items()
    }


def failure(state: dict[str, Any], storage_reader: Any) -> str:
    """Load a state that cannot be loaded, and return the error of the only rank."""
    with pytest.raises(dcp().CheckpointException) as caught:
        dcp().load(state, storage_reader=storage_reader)
    (error,) = caught.value.failures.values()
    return f"{type(error[0]).__name__}: {error[0]}"


def test_links_out_of_the_directory_need_permission(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    torch = require("torch")
    shard = next(folder.glob("*.safetensors"))
    elsewhere = shard.rename(tmp_path_factory.mktemp("elsewhere") / "shard.safetensors")
    shard.symlink_to(elsewhere)
    assert "follow_symlinks=True" in failure({"scale": torch.zeros(())}, reader(folder))
    state = empty(TENSORS)
    dcp().load(state, storage_reader=reader(folder, follow_symlinks=True))
    assert {name: raw(tensor) for name, tensor in state.items()} == {
        name: content.raw for name, content in TENSORS.items()
    }


def test_files_of_a_named_manifest_are_required(tmp_path: Path) -> None:
    for name in ("scale", "norm.weight"):
        write_file(tmp_path / f"{name}.safetensors", {name: TENSORS[name]})
    manifest = tload.verify(tmp_path, write=True).written
    options = tload.Options(verify=manifest)
    state = empty({"scale": TENSORS["scale"]})
    dcp().load(state, storage_reader=reader(tmp_path, options=options))
    (tmp_path / "norm.weight.safetensors").unlink()
    assert "norm.weight.safetensors" in failure(state, reader(tmp_path, options=options))


def test_metadata_equal_those_of_torch_reader(folder: Path) -> None:
    ours, theirs = reader(folder).read_metadata(), dcp().HuggingFaceStorageReader(str(folder)).read_metadata()
    assert ours.state_dict_metadata == theirs.state_dict_metadata
    assert list(ours.state_dict_metadata) == list(TENSORS)
    assert ours.storage_meta.load_id


@pytest.mark.parametrize("of", ["folder", "index", "files", "checkpoint"])
def test_values_match_torch_reader(of: str, folder: Path) -> None:
    expected = empty(TENSORS)
    dcp().load(expected, storage_reader=dcp().HuggingFaceStorageReader(str(folder)))
    with tload.open(folder) as checkpoint:
        source = {
            "folder": folder,
            "index": str(folder / "model.safetensors.index.json"),
            "files": sorted(folder.glob("*.safetensors")),
            "checkpoint": checkpoint,
        }[of]
        state = empty(TENSORS)
        addresses = {name: tensor.data_ptr() for name, tensor in state.items()}
        storage_reader = reader(source)
        dcp().load(state, storage_reader=storage_reader)
        # A second time from the same reader; the caller's checkpoint is still open.
        dcp().load(empty(TENSORS), storage_reader=storage_reader)
        assert tload.load(checkpoint, names="scale")
    for name, tensor in state.items():
        assert raw(tensor) == raw(expected[name]) == TENSORS[name].raw, name
        assert tensor.data_ptr() == addresses[name]


def test_every_dtype(every_dtype: tuple[Path, dict[str, Content]]) -> None:
    path, contents = every_dtype
    known = {name: content for name, content in contents.items() if content.dtype in torch_tensors.DTYPES}
    state = tload.load(path, names=list(known))
    for tensor in state.values():
        tensor.view(require("torch").uint8).zero_() if tensor.dim() else tensor.zero_()
    with tload.open(path) as checkpoint:
        wanted = [name for name in checkpoint if name not in known]
        assert failure(dict(state), reader(checkpoint)).startswith("AssertionError: metadata is None")
        assert {checkpoint[name].dtype for name in wanted} == {"F6_E2M3", "F6_E3M2"}
    only = path.with_name("known.safetensors")
    write_file(only, known)
    dcp().load(state, storage_reader=reader(only))
    for name, tensor in state.items():
        assert raw(tensor) == known[name].raw, name


def test_a_module(folder: Path) -> None:
    torch = require("torch")
    module = torch.nn.Sequential(torch.nn.Linear(17, 5), torch.nn.BatchNorm1d(5))
    saved = {name: torch.rand(tensor.shape).to(tensor.dtype) for name, tensor in module.state_dict().items()}
    path = save(folder / "module.safetensors", saved)
    dcp().load(module.state_dict(), storage_reader=reader(path))
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, saved[name]), name


def test_a_plan_with_several_parts_of_a_tensor(folder: Path) -> None:
    torch = require("torch")
    from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem

    target = torch.zeros(31, 8)
    committed = []

    class Planner:
        def resolve_tensor(self, item: Any) -> Any:
            return target[item.dest_offsets[0] : item.dest_offsets[0] + item.lengths[0]]

        def commit_tensor(self, item: Any, tensor: Any) -> None:
            committed.append((item.lengths, tuple(tensor.shape)))

    storage_reader = reader(folder)
    storage_reader.read_metadata()
    where = dcp().metadata.MetadataIndex("embed.weight", [0, 0])
    parts = [(0, 4), (4, 20), (20, 31)]
    items = [
        ReadItem(
            type=LoadItemType.TENSOR,
            dest_index=where,
            dest_offsets=torch.Size([start, 0]),
            storage_index=where,
            storage_offsets=torch.Size([start, 0]),
            lengths=torch.Size([end - start, 8]),
        )
        for start, end in parts
    ]
    storage_reader.read_data(LoadPlan(items), Planner()).wait()
    assert raw(target) == TENSORS["embed.weight"].raw
    assert committed == [((end - start, 8), (end - start, 8)) for start, end in parts]
    storage_reader.read_metadata()
    with pytest.raises(tload.InvalidRequestError, match="but not for the load's planner"):
        storage_reader.read_data(LoadPlan([dataclasses.replace(items[0], type=LoadItemType.BYTE_IO)]), Planner())


def test_non_contiguous_tensors(folder: Path) -> None:
    torch = require("torch")
    state = {"embed.weight": torch.zeros(8, 31).t(), "up.weight": torch.zeros(20, 14, dtype=torch.bfloat16)[::2, ::2]}
    dcp().load(state, storage_reader=reader(folder))
    assert all(raw(tensor) == TENSORS[name].raw for name, tensor in state.items())
    assert state["embed.weight"].stride() == (1, 31)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int32"])
def test_other_dtypes_are_converted_like_torch_reader(dtype: str, folder: Path) -> None:
    torch = require("torch")
    names = ("embed.weight", "up.weight", "experts", "steps")
    ours, theirs = (
        {name: torch.zeros(TENSORS[name].shape, dtype=getattr(torch, dtype)) for name in names} for _ in range(2)
    )
    dcp().load(theirs, storage_reader=dcp().HuggingFaceStorageReader(str(folder)))
    dcp().load(ours, storage_reader=reader(folder))
    assert all(raw(ours[name]) == raw(theirs[name]) for name in names)


def test_float32_checkpoint_loads_into_bfloat16_model(folder: Path) -> None:
    torch = require("torch")
    values = torch.randn(33, 7)
    path = save(folder / "other.safetensors", {"weight": values})
    state = {"weight": torch.zeros(33, 7, dtype=torch.bfloat16)}
    dcp().load(state, storage_reader=reader(path))
    assert torch.equal(state["weight"], values.bfloat16())


def test_without_cast_other_dtypes_are_rejected(folder: Path) -> None:
    torch = require("torch")
    state = {"up.weight": torch.zeros(10, 7), "steps": torch.zeros(1, dtype=torch.int64)}
    assert failure(state, reader(folder, cast=False)) == (
        f"InvalidRequestError: {folder}: 'up.weight' is torch.float32, but torch.bfloat16 in the checkpoint\n"
        "  hint: leave out cast=False to convert dtypes, or make the tensors match the checkpoint"
    )
    assert not state["steps"].any()


def test_torch_reader_keywords_are_accepted(folder: Path) -> None:
    module = dcp()
    for storage_reader in (reader(path=str(folder), thread_count=4), reader(str(folder), 4)):
        state = empty({"scale": TENSORS["scale"]})
        module.load(state, storage_reader=storage_reader)
        assert raw(state["scale"]) == TENSORS["scale"].raw


def test_quantized_weights_without_scales_rejected(tmp_path: Path) -> None:
    torch = require("torch")
    weight = torch.ones(4, 4).to(torch.float8_e4m3fn)
    path = save(tmp_path / "a.safetensors", {"up.weight": weight, "up.weight_scale_inv": torch.full((1, 1), 0.5)})
    state = {"up.weight": torch.zeros(4, 4, dtype=torch.bfloat16)}
    error = failure(state, reader(path))
    assert "'up.weight' is quantized: its values are those in the checkpoint times 'up.weight_scale_inv'" in error
    assert "hint: use torch's QuantizedHuggingFaceStorageReader" in error
    assert not state["up.weight"].any()
    path = save(tmp_path / "b.safetensors", {"up.weight": weight, "up.weight_scale": torch.full((1,), 0.5)})
    assert "times 'up.weight_scale'" in failure(state, reader(path))
    path = tmp_path / "a.safetensors"
    # A caller who knows can load it with its scales, or as it is.
    both = {"up.weight": torch.zeros(4, 4), "up.weight_scale_inv": torch.zeros(1, 1)}
    dcp().load(both, storage_reader=reader(path))
    assert both["up.weight"].sum() == 16
    as_it_is = {"up.weight": torch.zeros(4, 4, dtype=torch.float8_e4m3fn)}
    dcp().load(as_it_is, storage_reader=reader(path))
    assert raw(as_it_is["up.weight"]) == raw(weight)


def test_other_shapes_and_names_are_rejected(folder: Path) -> None:
    torch = require("torch")
    assert "Size mismatch between saved" in failure({"norm.weight": torch.zeros(9)}, reader(folder))
    assert "Missing key in checkpoint" in failure({"norm.bias": torch.zeros(8)}, reader(folder))


def test_unopenable_checkpoint(folder: Path, tmp_path: Path) -> None:
    assert "no_such_folder" in failure({}, reader(tmp_path / "no_such_folder"))
    (folder / "model-00002-of-00003.safetensors").unlink()
    assert "model-00002-of-00003.safetensors" in failure({}, reader(folder))


def test_file_shrinking_mid_load(folder: Path) -> None:
    storage_reader = reader(folder)
    read = storage_reader.read_metadata

    def shrinks() -> Any:
        metadata = read()
        (folder / "model-00001-of-00003.safetensors").write_bytes(b"")
        return metadata

    storage_reader.read_metadata = shrinks
    assert "model-00001-of-00003.safetensors" in failure(empty(TENSORS), storage_reader)


def test_another_source_for_one_load(folder: Path) -> None:
    state = empty({"scale": TENSORS["scale"]})
    storage_reader = reader("no_such_folder")
    assert storage_reader.validate_checkpoint_id(folder)
    assert not storage_reader.validate_checkpoint_id(3)
    dcp().load(state, checkpoint_id=folder, storage_reader=storage_reader)
    assert raw(state["scale"]) == TENSORS["scale"].raw


def test_a_server(folder: Path, web: servers.Web) -> None:
    for path in folder.iterdir():
        web.files[f"model/{path.name}"] = path.read_bytes()
    state = empty(TENSORS)
    dcp().load(state, storage_reader=reader(f"{web.url}/model"))
    assert all(raw(tensor) == TENSORS[name].raw for name, tensor in state.items())


@pytest.mark.parametrize("said", ["[]", "[" * 100_000, '{"a": {}}', "{", '{"a": {"saved_offsets": [1, 2]}}'])
def test_tensor_missing_from_rank_files_rejected(said: str, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_file(path, {"a": Content.random("F32", (4,), seed=1)}, metadata={"DCP_SHARDING_INFO": said})
    with pytest.raises(tload.FormatError, match="DCP_SHARDING_INFO"):
        reader(path).read_metadata()


def test_duplicate_tensor_names_are_rejected_unless_written_by_ranks(tmp_path: Path) -> None:
    for name in "ab":
        write_file(tmp_path / f"{name}.safetensors", {"x": Content.random("F32", (4,), seed=1)})
    with pytest.raises(tload.FormatError, match=r"a\.safetensors"):
        reader(tmp_path).read_metadata()


@pytest.mark.timeout(240)
def test_two_ranks_read_their_parts(folder: Path, tmp_path: Path) -> None:
    """Uneven parts of rows, of columns, and of neither; and files saved by two ranks, in another
    layout."""
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    start_ranks(2, two_ranks, folder, ranks)
    assert len(list(ranks.glob("*.safetensors"))) == 2
    # One rank assembles the parts of both.
    state = empty({name: TENSORS[name] for name in PLACES})
    dcp().load(state, storage_reader=reader(ranks))
    assert all(raw(tensor) == TENSORS[name].raw for name, tensor in state.items())


PLACES = {"embed.weight": 0, "up.weight": 1, "down.weight": 0, "experts": 2, "norm.weight": None, "wide.weight": 0}
"""Dimension that two ranks share."""


def two_ranks(rank: int, folder: Path, ranks: Path) -> None:
    """Run on each rank."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, zeros

    import tload.dcp

    mesh = init_device_mesh("cpu", (2,))

    def shared(shift: int) -> dict[str, Any]:
        state = {}
        for name, place in PLACES.items():
            content = TENSORS[name]
            placement = Replicate() if place is None else Shard((place + shift) % len(content.shape))
            dtype = getattr(torch, torch_tensors.DTYPES[content.dtype])
            state[name] = zeros(content.shape, dtype=dtype, device_mesh=mesh, placements=[placement])
        return state

    asked: dict[str, Any] = {}
    module: Any = tload.dcp
    load_into = module.load_into
    reports: list[tload.Report] = []

    def spy(*arguments: Any, slices: dict[str, Any], **keywords: Any) -> None:
        asked.update(slices)
        reports.append(load_into(*arguments, slices=slices, **keywords))

    module.load_into = spy
    whole = tload.load(folder)
    state, expected = shared(0), shared(0)
    plain = {"scale": torch.zeros(()), "steps": torch.zeros(1, dtype=torch.int64)}
    dcp().load({**state, **plain}, storage_reader=reader(folder))
    dcp().load(expected, storage_reader=dcp().HuggingFaceStorageReader(str(folder)))
    for name, tensor in state.items():
        assert raw(tensor.to_local()) == raw(expected[name].to_local()), name
        assert raw(tensor.full_tensor()) == raw(whole[name]), name
    assert all(raw(tensor) == raw(whole[name]) for name, tensor in plain.items())
    # Each rank reads its part of a shared tensor, and little more.
    own = sum(tensor.nbytes for tensor in (*plain.values(), *(tensor.to_local() for tensor in state.values())))
    assert sum(report.tensor_bytes for report in reports) == own < 2_100_000
    assert sum(report.read_bytes for report in reports) < own + 100_000
    assert asked["embed.weight"] == ((slice(0, 16), slice(16, 31))[rank], slice(0, 8))
    assert asked["up.weight"] == (slice(0, 10), (slice(0, 4), slice(4, 7))[rank])
    assert set(asked) == {name for name, place in PLACES.items() if place is not None}

    dcp().save(state, storage_writer=dcp().HuggingFaceStorageWriter(str(ranks), save_distributed=True))
    for shift in (0, 1):
        again = shared(shift)
        dcp().load(again, storage_reader=reader(ranks))
        for name, tensor in again.items():
            assert raw(tensor.full_tensor()) == raw(whole[name]), name
