"""`tload.Sharding` as `slices=`: each rank loads its own tensors, and its slices of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import tload
from files import Content, tile, write_checkpoint

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharding")
    shapes = {"embed": (10, 4), "layers.0.q": (8, 6), "layers.0.o": (6, 8), "norm": (6,)}
    shapes |= {f"layers.0.experts.{number}.w": (4, 4) for number in range(5)}
    contents = {name: Content("U8", shape, tile(len(name), int(np.prod(shape)))) for name, shape in shapes.items()}
    write_checkpoint(folder, [contents])
    return folder


def whole(folder: Path) -> dict[str, Any]:
    return tload.load(folder, framework="numpy")


def test_ranks_of_tensor_parallelism_hold_everything_together(folder: Path) -> None:
    dims = {"*.q": 0, "*.o": 1, "embed": 0}
    expected = whole(folder)
    shardings = [tload.Sharding.tp(rank, 4, dims) for rank in range(4)]
    ranks = [tload.load(folder, framework="numpy", slices=each) for each in shardings]
    for name, dim in {"layers.0.q": 0, "layers.0.o": 1, "embed": 0}.items():
        assert (np.concatenate([rank[name] for rank in ranks], dim) == expected[name]).all()
    assert [len(rank["embed"]) for rank in ranks] == [3, 3, 3, 1], "as torch.chunk"
    assert all((rank["norm"] == expected["norm"]).all() for rank in ranks)
    with tload.open(folder) as checkpoint:
        for sharding, rank in zip(shardings, ranks, strict=True):
            assert sharding.names(checkpoint) == list(rank) == list(expected)
            slices = sharding.slices(checkpoint)
            assert all((expected[name][index] == rank[name]).all() for name, index in slices.items())
            assert slices.keys() == {"layers.0.q", "layers.0.o", "embed"}
        assert shardings[3].slices(checkpoint)["embed"] == (slice(9, 10, 1), slice(0, 4, 1))


def test_experts_and_selection_narrow_names(folder: Path) -> None:
    experts = tload.Sharding.ep(1, 2, "*.experts.{}.*")
    both = experts & tload.Sharding.tp(0, 2, {"*.experts.*": 1})
    loaded = tload.load(folder, framework="numpy", slices=both, glob="layers.*")
    assert set(loaded) == {"layers.0.q", "layers.0.o", "layers.0.experts.3.w", "layers.0.experts.4.w"}
    assert loaded["layers.0.experts.3.w"].shape == (4, 2)
    assert tload.load(folder, framework="numpy", slices=experts, names="layers.0.experts.0.w") == {}
    target = {name: np.zeros((4, 4), np.uint8) for name in ("layers.0.experts.3.w", "layers.0.experts.4.w")}
    tload.load_into(target, folder, slices=experts, glob="*.experts.*")
    assert all((target[name] == tensor).all() for name, tensor in whole(folder).items() if name in target)


def test_ends_of_a_pipeline_have_their_own_tensors(folder: Path) -> None:
    names = [
        tload.Sharding.pp(rank, 2, "*.experts.{}.*", first="embed", last=["norm", "*.o"]).names(folder)
        for rank in range(2)
    ]
    assert ["embed" in each for each in names] == [True, False]
    assert ["norm" in each for each in names] == [False, True]
    assert ["layers.0.o" in each for each in names] == [False, True]
    assert [sum("experts" in name for name in each) for each in names] == [3, 2]


def test_invalid_shardings_are_refused(folder: Path) -> None:
    with pytest.raises(tload.InvalidRequestError, match="there is no rank 2 among 2 ranks"):
        tload.Sharding.ep(2, 2, "*.experts.{}.*")
    with pytest.raises(tload.InvalidRequestError, match="rank is -1; it must not be negative"):
        tload.Sharding.ep(-1, 2, "*.experts.{}.*")
    with pytest.raises(TypeError, match="dims: wanted a mapping of globs to dimensions, found list"):
        tload.Sharding.tp(0, 2, ["*.q"])  # type: ignore[arg-type]
    with pytest.raises(tload.InvalidRequestError, match="a dimension is -1; it must not be negative"):
        tload.Sharding.tp(0, 2, {"*.q": -1})
    with pytest.raises(TypeError):
        tload.Sharding.tp(0, 2, {}) & {}
    with pytest.raises(tload.NoSuchTensorError):
        tload.load(folder, framework="numpy", slices=tload.Sharding.tp(0, 2, {"*.query": 0}))
    with pytest.raises(tload.InvalidRequestError, match="cannot split along dimension 1") as caught:
        tload.load(folder, framework="numpy", slices=tload.Sharding.tp(0, 2, {"norm": 1}))
    assert caught.value.tensor == "norm"
