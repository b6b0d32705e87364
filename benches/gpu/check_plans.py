"""Checks loads by a plan into parameters in memory of a GPU: rows at even distances on both sides."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file
from shared import equal

import tload
from tload import plans
from tload.plans import boxes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shared import Bench


class Rank(torch.nn.Module):
    """The first of two ranks: parameters of half the columns or rows, or between others, and their loader."""

    def __init__(self, device: str) -> None:
        super().__init__()
        shapes = {"columns": (600, 1024), "rows": (300, 2048), "between": (500, 4096), "turned": (512, 64)}
        for name, shape in shapes.items():
            values = torch.zeros(shape, dtype=torch.bfloat16, device=device)
            self.register_parameter(name, torch.nn.Parameter(values, requires_grad=False))

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, tensor in weights:
            data = self.get_parameter(name).data
            if name == "between":
                data = data.narrow(1, 1000, 2048)
            data.copy_({"columns": tensor[:, :1024], "rows": tensor[:300], "turned": tensor.t()}.get(name, tensor))


def by_a_plan(bench: Bench) -> str:
    torch.manual_seed(3)
    shapes = {"columns": (600, 2048), "rows": (600, 2048), "between": (500, 2048), "turned": (64, 512)}
    path = bench.folder / "plan.safetensors"
    save_file({name: torch.randn(shape).bfloat16() for name, shape in shapes.items()}, path)
    wanted = Rank("cpu")
    wanted.load_weights(tload.load(path).items())
    with tload.open(path) as checkpoint:
        module = Rank(bench.device)
        plan = plans.record(module, checkpoint, module.load_weights, key="k", device=bench.device)
        chosen = boxes.tensors_in(plan, [module.get_parameter(place.name) for place in plan.places])
        equal(int(chosen.sum()), 4 if bench.device == "cpu" else 3, "tensors that the core writes")
        for options in (tload.Options(), tload.Options(extent_bytes=100_000)):
            module = Rank(bench.device)
            plans.run(plan, module, checkpoint, options=options)
            for name, parameter in module.named_parameters():
                equal(torch.equal(parameter.cpu(), wanted.get_parameter(name)), True, f"values of {name}")
    return "half the columns, half the rows, between other columns, and turned around"
