"""Load plans of parameters in GPU memory, simulated by CPU tensors that the driver treats as such."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import plan_models
import tload
from test_load_into import save
from test_plans import RUNS, digest, normally, recorded
from tload import plans
from tload.plans import boxes, places
from tload.plans import patch as patches

if TYPE_CHECKING:
    from pathlib import Path

    import gpu


def one(self: Any, name: str, tensor: torch.Tensor) -> str:
    kind = name.rstrip("0123456789")
    if kind == "expert":
        self.experts.data[int(name.removeprefix(kind))].copy_(tensor)
        return "experts"
    data = self.get_parameter(name).data
    if kind == "between":
        data.narrow(1, 100, 200).copy_(tensor)
    elif kind == "sliced":
        data.copy_(tensor.narrow(1, 64, 128))
    elif kind == "turned":
        data.copy_(tensor.t())
    else:
        data.copy_(tensor)
    return name


def make() -> Any:
    shapes = {"experts": (4, 8, 64), "between": (50, 400), "sliced": (30, 128), "turned": (40, 30), "norm": (7,)}
    parameters = {name: plan_models.empty(*shape) for name, shape in shapes.items()}
    parameters["wide"] = plan_models.empty(5, dtype=torch.float32)
    return plan_models.Model(parameters, one)


def test_boxes_of_parameters_on_gpus_are_copied_by_the_core(torch_cuda: gpu.TorchCuda, tmp_path: Path) -> None:
    torch.manual_seed(0)
    tensors = {f"expert{index}": plan_models.rand(8, 64) for index in range(4)}
    tensors |= {"between": plan_models.rand(50, 200), "sliced": plan_models.rand(30, 256)}
    tensors |= {"turned": plan_models.rand(30, 40), "norm": plan_models.rand(7), "wide": plan_models.rand(5)}
    with tload.open(save(tmp_path / "model.safetensors", tensors)) as checkpoint:
        wanted = normally(make, checkpoint)
        plan = recorded(make(), checkpoint)
        module = make()
        places = [torch_cuda.on_gpu(it.data, 1) for it in map(module.get_parameter, (it.name for it in plan.places))]
        chosen = boxes.tensors_in(plan, places)
        left = {source.name for source, is_chosen in zip(plan.sources, chosen.tolist(), strict=True) if not is_chosen}
        # Casts, and short rows.
        assert left == {"turned", "wide"}
        torch_cuda.stub.set("copy_delay_us", 100)
        (report,) = boxes.load(plan, chosen, places, checkpoint, options=None, group=None)
        found = digest(module)
        assert {name for name, value in found.items() if value != wanted[name]} == left
        assert report.tensor_bytes == (4 * 8 * 64 + 50 * 200 + 30 * 128 + 7) * 2
        assert torch_cuda.stub.count("cuMemcpy2DAsync_v2") > 0
        assert set(torch_cuda.streams_asked) == {1}
        # The rest is torch's, whose memory of a GPU is the CPU's here.
        RUNS.write(plan, places, checkpoint)
        assert digest(module) == wanted


def test_patches_are_applied_to_parameters_on_gpus(
    torch_cuda: gpu.TorchCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = {f"expert{index}": plan_models.rand(8, 64) for index in range(4)}
    others = {name: it + 1 for name, it in tensors.items()}
    base, new = save(tmp_path / "base.safetensors", tensors), save(tmp_path / "new.safetensors", others)
    tload.diff(base, new, tmp_path / "patch.safetensors")
    module = make()
    with tload.open(base) as checkpoint:
        plan = recorded(module, checkpoint)
    monkeypatch.setattr(patches, "bind", lambda *given: [torch_cuda.on_gpu(it, 1) for it in places.bind(*given)])
    plans.apply_into(plan, module, tmp_path / "patch.safetensors")
    with tload.open(new) as checkpoint:
        assert digest(module) == normally(make, checkpoint)


def test_tensors_of_several_devices_are_not_for_one_load(torch_cuda: gpu.TorchCuda, tmp_path: Path) -> None:
    def both(self: Any, name: str, tensor: torch.Tensor) -> str:
        self.a.data.copy_(tensor[:4])
        self.b.data.copy_(tensor[4:])
        return name

    def halves() -> Any:
        return plan_models.Model({"a": plan_models.empty(4, 8), "b": plan_models.empty(4, 8)}, both)

    with tload.open(save(tmp_path / "model.safetensors", {"x": plan_models.rand(8, 8)})) as checkpoint:
        wanted = normally(halves, checkpoint)
        plan = recorded(halves(), checkpoint)
        module = halves()
        places = [module.a.data, module.b.data]
        assert boxes.tensors_in(plan, places).tolist() == [True]
        torch_cuda.on_gpu(module.b.data, 0)
        assert boxes.tensors_in(plan, places).tolist() == [False]
        RUNS.write(plan, places, checkpoint)
        assert digest(module) == wanted


def test_failed_copy_to_a_parameter_is_an_error(torch_cuda: gpu.TorchCuda, tmp_path: Path) -> None:
    with tload.open(save(tmp_path / "model.safetensors", {"between": plan_models.rand(50, 200)})) as checkpoint:
        plan = recorded(make(), checkpoint)
        module = make()
        torch_cuda.on_gpu(module.between.data, 0)
        torch_cuda.stub.set("fail", "cuMemcpy2DAsync_v2:1:1:1")
        with pytest.raises(tload.DeviceError, match=r"cannot copy 50 rows of 400 bytes to the GPU"):
            plans.run(plan, module, checkpoint)
