"""DTensors: each rank's part by `load_into` and `Sharding.of`, with torch's own division as oracle."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

import tload
from conftest import require
from ranks import start_ranks
from test_load_into import save

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SHAPES = {"even": (8, 256, 128), "uneven": (251, 333), "short": (3, 5), "row": (1, 8), "none": (0, 4)}

PAGES_BYTES = 64 << 10
"""Most bytes that reads of whole pages add."""


def whole() -> dict[str, Any]:
    torch = require("torch")
    return {name: torch.arange(1.0, math.prod(shape) + 1).reshape(shape) for name, shape in SHAPES.items()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return save(tmp_path / "a.safetensors", whole())


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_load_their_parts(size: int, path: Path) -> None:
    start_ranks(size, run, size, path)


def run(rank: int, size: int, path: Path) -> None:
    """Run on each rank all that is tested."""
    every_placement_is_filled(size, path)
    bytes_are_read_once(path)
    fully_sharded_module_is_filled(size, path)
    shapes_and_placements_that_do_not_fit_are_refused(rank, size, path)


def layouts(size: int) -> Iterator[tuple[Any, list[Any]]]:
    """Yield meshes with placements for two dimensions or more."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    line = init_device_mesh("cpu", (size,))
    yield from ((line, [place]) for place in (Replicate(), Shard(0), Shard(1)))
    grid = init_device_mesh("cpu", (2, size // 2))
    yield grid, [Shard(0), Shard(0)]
    yield grid, [Shard(0), Shard(1)]
    yield grid, [Replicate(), Shard(1)]
    yield grid, [Shard(1), Replicate()]
    yield grid, [_StridedShard(0, split_factor=size // 2), Shard(0)]


def every_placement_is_filled(size: int, path: Path) -> None:
    import torch
    from torch.distributed.tensor import DTensor, distribute_tensor

    tensors = whole()
    with tload.Group.torch() as group:
        for mesh, places in layouts(size):
            # Every rank has the whole tensors. (torch 2.15 cannot scatter uneven strided shards.)
            expected = {
                name: distribute_tensor(tensor, mesh, places, src_data_rank=None) for name, tensor in tensors.items()
            }
            alone, together = (
                {
                    name: distribute_tensor(torch.zeros(shape), mesh, places, src_data_rank=None)
                    for name, shape in SHAPES.items()
                }
                for _ in range(2)
            )
            tload.load_into(alone, path)
            tload.load_into(together, path, group=group)
            empty = {
                name: DTensor.from_local(
                    each.to_local().to("meta"), mesh, places, shape=each.shape, stride=each.stride()
                )
                for name, each in expected.items()
            }
            loaded = tload.load(path, slices=tload.Sharding.of(empty), group=group)
            for name, tensor in expected.items():
                mine = tensor.to_local()
                for found in (alone[name].to_local(), together[name].to_local(), loaded[name]):
                    assert torch.equal(found, mine), (places, name, found, mine)
            # The union of the ranks' parts, in torch's terms.
            assert torch.equal(together["even"].full_tensor(), tensors["even"]), places


def bytes_are_read_once(path: Path) -> None:
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    file_bytes = 4 * sum(map(math.prod, SHAPES.values()))
    with tload.Group.torch() as group:
        for place in (Replicate(), Shard(0), Shard(1)):
            target = {name: distribute_tensor(torch.zeros(shape), mesh, [place]) for name, shape in SHAPES.items()}
            shared = tload.load_into(target, path, group=group).group
            assert shared is not None
            assert shared.reason is None
            assert shared.unique_bytes == file_bytes
            read = torch.tensor(shared.read_bytes)
            torch.distributed.all_reduce(read)
            # Ranks may read interleaved slices themselves, with the gaps that they do not skip.
            more = 0.25 * file_bytes if place == Shard(1) else PAGES_BYTES
            assert 0 <= read.item() - file_bytes <= more, (place, read.item(), shared)


def fully_sharded_module_is_filled(size: int, path: Path) -> None:
    """Tensor parallel columns within fully sharded rows: a placement of torch of its own."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("dp", "tp"))
    shapes = {"0.weight": (10, 6), "0.bias": (10,), "1.weight": (3, 10)}
    values = {name: torch.arange(1.0, math.prod(shape) + 1).reshape(shape) for name, shape in shapes.items()}
    rank = torch.distributed.get_rank()
    file = path.with_name("module.safetensors")
    if rank == 0:
        save(file, values)
    torch.distributed.barrier()
    with torch.device("meta"):
        module = torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.Linear(10, 3, bias=False))
    if size > 2:
        parallelize_module(module, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    fully_shard(module, mesh=mesh["dp"])
    with pytest.raises(tload.InvalidRequestError, match=r"'0\.weight' is on the meta device"):
        tload.load_into(module, file)
    module.to_empty(device="cpu")
    with tload.Group.torch() as group:
        tload.load_into(module, file, group=group)
    parameter: Any
    for name, parameter in module.named_parameters():
        assert torch.equal(parameter.full_tensor(), values[name]), name


def shapes_and_placements_that_do_not_fit_are_refused(rank: int, size: int, path: Path) -> None:
    import torch
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor
    from torch.distributed.tensor.placement_types import _StridedShard

    mesh = init_device_mesh("cpu", (size,))

    def rows(length: int, place: Any = None) -> Any:
        return distribute_tensor(torch.zeros(length, 256, 128), mesh, [place or Shard(0)])

    # Their first rows would fit.
    with pytest.raises(tload.InvalidRequestError) as caught:
        tload.load_into({"even": rows(4)}, path, strict=False)
    message = (
        '1 divided tensor with another shape: "even" has shape [8, 256, 128] in the checkpoint, [4, 256, 128] here'
    )
    assert message in str(caught.value), str(caught.value)
    with pytest.raises(tload.InvalidRequestError, match="1 divided tensor with another shape"):
        tload.load(path, slices=tload.Sharding.of({"even": rows(4)}))
    # A target that is not selected is left alone.
    tload.load_into({"even": rows(4), "row": torch.zeros(1, 8)}, path, names="row", strict=False)
    with pytest.raises(tload.InvalidRequestError, match='1 missing in the checkpoint: "odd"'):
        tload.load_into({"odd": rows(8)}, path)
    partial = DTensor.from_local(torch.zeros(8, 256, 128), mesh, [Partial()])
    with pytest.raises(tload.InvalidRequestError, match="'even' is a DTensor with the placement Partial") as caught:
        tload.load_into({"even": partial}, path, strict=False)
    assert caught.value.tensor == "even"
    if size == 2:
        # Rows 0, 1, 4 and 5 on the first rank.
        with pytest.raises(tload.InvalidRequestError, match="this rank's indices along dimension 0 are no slice"):
            tload.load_into({"even": rows(8, _StridedShard(0, split_factor=2))}, path, strict=False)
        # Rows 0, 2, 4 and 6.
        strided = rows(8, _StridedShard(0, split_factor=4))
        tload.load_into({"even": strided}, path, strict=False)
        assert torch.equal(strided.to_local(), whole()["even"][rank::2])
    first = DeviceMesh("cpu", [0])
    alone = distribute_tensor(torch.zeros(8, 256, 128), first, [Shard(0)])
    if rank == 0:
        tload.load_into({"even": alone}, path, strict=False)
        assert torch.equal(alone.to_local(), whole()["even"])
    else:
        with pytest.raises(tload.InvalidRequestError, match="which this rank is not part of"):
            tload.load_into({"even": alone}, path, strict=False)
    with pytest.raises(tload.InvalidRequestError, match="slices: 'even' is a DTensor, of which this rank's part"):
        tload.load_into({"even": rows(8)}, path, strict=False, slices={"even": slice(4)})
    # A sharding comes first, and DTensors divide what it leaves.
    half = rows(4)
    tload.load_into({"even": half}, path, strict=False, slices=tload.Sharding.tp(1, 2, {"even": 0}))
    assert torch.equal(half.full_tensor(), whole()["even"][4:])
    # Values that autograd has kept have changed.
    kept = rows(8).requires_grad_()
    loss = (kept * kept).sum()
    tload.load_into({"even": kept}, path, strict=False)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
