"""Tensors that a plan reads from the page cache straight into parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import plan_models
import tload
from test_load_into import save
from test_plans import digest, normally, recorded
from tload import plans
from tload._engines import views
from tload.plans import straight
from tload.plans.places import bind

if TYPE_CHECKING:
    from pathlib import Path

ROWS = 64
STRAIGHT = ("q", "k", "norm", "counts", "twice")
"""Whole tensors that keep dtype and order. The others are divided, cut, converted, transposed or short."""


def make() -> Any:
    def one(self: Any, name: str, tensor: torch.Tensor) -> str:
        parameters = dict(self.named_parameters())
        if name in ("q", "k"):
            parameters["qk"].data.narrow(0, 0 if name == "q" else ROWS, ROWS).copy_(tensor)
            return "qk"
        if name == "twice":
            parameters["again"].data.copy_(tensor)
        parameter = parameters[name].data
        if name == "fused":
            parameter.narrow(0, 0, 16).copy_(tensor.narrow(0, 16, 16))
            parameter.narrow(0, 16, 16).copy_(tensor.narrow(0, 0, 16))
        elif name == "cut":
            parameter.copy_(tensor.narrow(0, 0, ROWS // 2))
        elif name == "turned":
            parameter.copy_(tensor.t())
        else:
            parameter.copy_(tensor)
        return name

    parameters = {
        "qk": plan_models.empty(2 * ROWS, ROWS),
        "norm": plan_models.empty(ROWS * ROWS),
        "counts": plan_models.empty(ROWS, ROWS, dtype=torch.int32),
        "twice": plan_models.empty(ROWS, ROWS),
        "again": plan_models.empty(ROWS, ROWS),
        "fused": plan_models.empty(32, ROWS),
        "cut": plan_models.empty(ROWS // 2, ROWS),
        "turned": plan_models.empty(ROWS, ROWS),
        "converted": plan_models.empty(ROWS, ROWS, dtype=torch.float32),
        "short": plan_models.empty(8),
    }
    return plan_models.Model(parameters, one)


def tensors() -> dict[str, torch.Tensor]:
    square = {name: plan_models.rand(ROWS, ROWS) for name in ("q", "k", "twice", "cut", "turned", "converted")}
    counts = torch.arange(ROWS * ROWS, dtype=torch.int32).reshape(ROWS, ROWS)
    others = {"norm": plan_models.rand(ROWS * ROWS), "fused": plan_models.rand(32, ROWS), "short": plan_models.rand(8)}
    return {**square, **others, "counts": counts}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    torch.manual_seed(0)
    monkeypatch.setattr(straight, "TENSOR_BYTES_MIN", 64)
    monkeypatch.setattr(straight, "BYTES_MIN", 1)
    # Not all temporary directories are on file systems that are known to be local.
    monkeypatch.setattr(views, "are_best", lambda options, _: options.cache is None)
    return save(tmp_path / "model.safetensors", tensors())


def test_whole_tensors_are_read_straight_into_parameters(path: Path) -> None:
    with tload.open(path) as checkpoint:
        wanted = normally(make, checkpoint)
        plan = recorded(module := make(), checkpoint)
        assert digest(module) == wanted
        loaded = plans.run(plan, module := make(), checkpoint)
        assert digest(module) == wanted
        assert loaded.straight_bytes == sum(checkpoint[name].nbytes for name in (*STRAIGHT, "twice"))
        others = [name for name in checkpoint if name not in STRAIGHT]
        assert sum(report.tensors for report in loaded.reports) == len(others)
        # As an option forbids, and as one rank of several.
        loaded = plans.run(plan, module := make(), checkpoint, options=tload.Options(cache="auto"))
        assert (digest(module), loaded.straight_bytes) == (wanted, 0)
        assert sum(report.tensors for report in loaded.reports) == len(checkpoint)


@pytest.mark.parametrize(("name", "value"), [("TENSOR_BYTES_MIN", 1 << 19), ("BYTES_MIN", 16 << 20)])
def test_short_tensors_and_few_bytes_are_left_to_loads(
    name: str, value: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert getattr(straight, name) < value
    monkeypatch.setattr(straight, name, value)
    with tload.open(path) as checkpoint:
        plan = recorded(make(), checkpoint)
        loaded = plans.run(plan, module := make(), checkpoint)
        assert (digest(module), loaded.straight_bytes) == (normally(make, checkpoint), 0)


def test_parameters_made_in_inference_mode_and_their_versions(path: Path) -> None:
    with tload.open(path) as checkpoint:
        wanted = normally(make, checkpoint)
        with torch.inference_mode():
            plan = recorded(make(), checkpoint)
            assert plans.run(plan, module := make(), checkpoint).straight_bytes > 0
            assert digest(module) == wanted
        module = make()
        before, places = module.qk._version, bind(module, plan.places)
        straight.load(plan, straight.tensors_in(plan, places, checkpoint, None), places, checkpoint, None)
        assert module.qk._version > before  # autograd has to see the change


def test_files_that_shrank_are_an_error(path: Path) -> None:
    with tload.open(path) as checkpoint:
        plan = recorded(make(), checkpoint)
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size // 2)
        with pytest.raises(tload.Error):
            plans.run(plan, make(), checkpoint)
