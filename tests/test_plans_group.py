"""Load plans of ranks that load together: each its own boxes, and no rank waits for another."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
import torch

import plan_models
import tload
from ranks import start_ranks
from test_load_into import save
from test_plans import digest, normally
from tload import plans

if TYPE_CHECKING:
    from pathlib import Path

OPTIONS = tload.Options(join_timeout=120)

TENSORS = ("rows", "columns", "first", "counts", "log")


def model(rank: int) -> Any:
    """Return a module of a rank. The last one has nothing, the first one alone a few tensors."""

    def one(self: Any, name: str, tensor: torch.Tensor) -> str:
        if name not in self.shapes:
            return ""
        data = self.get_parameter(name).data
        if name == "rows":
            data.copy_(tensor.narrow(0, rank * 4, 4))
        elif name == "columns":
            data.copy_(tensor.narrow(1, rank * 4, 4))
        elif name == "log":
            data.copy_(tensor.exp())
        else:
            data.copy_(tensor)
        return name

    shapes: dict[str, torch.Tensor] = {}
    if rank < 2:
        shapes = {"rows": plan_models.empty(4, 8), "columns": plan_models.empty(8, 4)}
    if rank == 0:
        shapes |= {"first": plan_models.empty(5), "counts": torch.zeros(6, dtype=torch.int64)}
    if rank == 1:
        shapes |= {"log": torch.zeros(3)}
    made: Any = plan_models.Model(shapes, one)
    made.shapes = shapes
    return made


def write(path: Path) -> Path:
    torch.manual_seed(0)
    tensors = {
        "rows": plan_models.rand(8, 8),
        "columns": plan_models.rand(8, 8),
        "first": plan_models.rand(5),
        "counts": torch.arange(6, dtype=torch.int32),
        "log": torch.rand(3),
    }
    return save(path / "model.safetensors", tensors)


def load_by_plan(rank: int, path: Path) -> None:
    with tload.Group.torch() as group, tload.open(path) as checkpoint:
        module = model(rank)
        plan = plans.record(module, checkpoint, module.load_weights, key="k", options=OPTIONS, group=group)
        wanted = normally(lambda: model(rank), checkpoint)
        assert digest(module) == wanted
        assert plan.normal == (("log",) if rank == 1 else ())
        for _ in range(2):
            module = model(rank)
            reports = plans.run(plan, module, checkpoint, module.load_weights, options=OPTIONS, group=group).reports
            assert digest(module) == wanted
            assert [report.group is not None for report in reports] == [True] * 3
            # Halves of two tensors, and what only this rank has.
            own = {0: 64 + 64 + 10 + 24, 1: 64 + 64 + 12, 2: 0}[rank]
            assert sum(report.tensor_bytes for report in reports) == own


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_load_their_boxes_together(size: int, tmp_path: Path) -> None:
    start_ranks(size, load_by_plan, write(tmp_path))


def refuse_on_one_rank(rank: int, path: Path) -> None:
    with tload.open(path) as checkpoint:
        with tload.Group.torch() as group:
            module = model(rank)
            plan = plans.record(module, checkpoint, module.load_weights, key="k", options=OPTIONS, group=group)
        module = model(0 if rank == 1 else rank)
        start = time.monotonic()
        with tload.Group.torch() as group:
            if rank == 1:
                with pytest.raises(plans.RefusedError, match="is not as it was recorded"):
                    plans.run(plan, module, checkpoint, module.load_weights, options=OPTIONS, group=group)
            else:
                with pytest.raises(tload.PeerError, match="rank 1") as caught:
                    plans.run(plan, module, checkpoint, module.load_weights, options=OPTIONS, group=group)
                assert caught.value.ranks == (1,)
        assert time.monotonic() - start < 60
        # The normal way, with a new group.
        with tload.Group.torch() as group, tload.stream(checkpoint, options=OPTIONS, group=group) as weights:
            assert len(dict(weights)) == len(TENSORS)


@pytest.mark.parametrize("size", [2, 3])
def test_refusal_on_one_rank_is_an_error_of_the_others(size: int, tmp_path: Path) -> None:
    start_ranks(size, refuse_on_one_rank, write(tmp_path))


def refuse_to_record_on_one_rank(rank: int, path: Path) -> None:
    module = model(rank)

    def adds(weights: Any) -> None:
        for name, tensor in weights:
            if name in module.shapes:
                module.get_parameter(name).data.add_(tensor)

    start = time.monotonic()
    with tload.open(path) as checkpoint, tload.Group.torch() as group:
        if rank == 0:
            with pytest.raises(plans.RefusedError, match="reads or changes parameter"):
                plans.record(module, checkpoint, adds, options=OPTIONS, group=group)
        else:
            # Its reason, and not only that it has left.
            with pytest.raises(tload.PeerError, match="reads or changes parameter"):
                plans.record(module, checkpoint, module.load_weights, options=OPTIONS, group=group)
    assert time.monotonic() - start < 60


def test_refusal_to_record_on_one_rank_is_an_error_of_the_others(tmp_path: Path) -> None:
    start_ranks(3, refuse_to_record_on_one_rank, write(tmp_path))


def fail_on_one_rank(rank: int, path: Path) -> None:
    with tload.open(path) as checkpoint:
        with tload.Group.torch() as group:
            module = model(rank)
            plan = plans.record(module, checkpoint, module.load_weights, key="k", options=OPTIONS, group=group)

        def failing(_: object) -> None:
            raise ZeroDivisionError

        start = time.monotonic()
        if rank == 1:
            with pytest.raises(ZeroDivisionError), tload.Group.torch() as group:
                plans.run(plan, module, checkpoint, failing, options=OPTIONS, group=group)
        else:
            # Nothing follows the loader's load, so the other ranks are done.
            with tload.Group.torch() as group:
                plans.run(plan, module, checkpoint, module.load_weights, options=OPTIONS, group=group)
        assert time.monotonic() - start < 60


def test_failing_loader_of_one_rank_does_not_stop_the_others(tmp_path: Path) -> None:
    start_ranks(3, fail_on_one_rank, write(tmp_path))
