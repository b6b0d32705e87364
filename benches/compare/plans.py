"""Compares a load by a plan with the loader that it was recorded from: `plans.py [EXPERTS] [LAYERS] [ROUNDS]`.

A mixture of experts of many small tensors, with a loader that does what engines' do for each
tensor: it looks for its parameter and its expert, and copies. Contenders take turns in one process,
from the page cache, into parameters whose pages have been touched. Prints medians as JSON: seconds
of CPU time, which other processes disturb little, and of wall-clock time. `targets` is the part of
a run from the rows of the plan to the core's loader, before the first read.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

import tload
from tload import plans
from tload._load.call import Call
from tload.plans import boxes
from tload.plans.plan import TENSOR

ROWS, COLUMNS = 32, 256
EXPERT = "model.layers.{}.mlp.experts.{}.{}.weight"


class Experts(nn.Module):
    """Parameters of all layers, and their loader."""

    def __init__(self, experts: int, layers: int) -> None:
        super().__init__()
        for layer in range(layers):
            for name, shape in (("w13", (experts, 2 * ROWS, COLUMNS)), ("w2", (experts, COLUMNS, ROWS))):
                values = torch.zeros(shape, dtype=torch.bfloat16)
                self.register_parameter(f"{name}_{layer}", nn.Parameter(values, requires_grad=False))
        self.shards = {"gate_proj": ("w13", 0), "up_proj": ("w13", ROWS), "down_proj": ("w2", 0)}

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        parameters = dict(self.named_parameters())
        for name, tensor in weights:
            _, _, layer, _, _, expert, kind, _ = name.split(".")
            parameter, start = self.shards[kind]
            matrix = parameters[f"{parameter}_{layer}"].data[int(expert)]
            matrix.narrow(0, start, tensor.shape[0]).copy_(tensor)


def main(experts: int, layers: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "experts.safetensors"
        shapes = {"gate_proj": (ROWS, COLUMNS), "up_proj": (ROWS, COLUMNS), "down_proj": (COLUMNS, ROWS)}
        save_file(
            {
                EXPERT.format(layer, expert, kind): torch.rand(shape).bfloat16()
                for layer in range(layers)
                for expert in range(experts)
                for kind, shape in shapes.items()
            },
            path,
        )
        with tload.open(path) as checkpoint:
            module = Experts(experts, layers)
            plan = plans.record(module, checkpoint, module.load_weights, key="k")
            tensors = [parameter.data for parameter in map(module.get_parameter, (it.name for it in plan.places))]

            def normally() -> None:
                with tload.stream(checkpoint) as weights:
                    module.load_weights(weights)

            def targets() -> None:
                rows = plan.rows[boxes.tensors_in(plan, tensors)[plan.rows[:, TENSOR]]]
                for each in boxes.rounds(plan, rows):
                    call = Call(checkpoint, {"options": boxes.host_options(tload.Options())})
                    boxes.loader(call, None, *boxes.described(plan, each, tensors))

            contenders: dict[str, Callable[[], object]] = {
                "normal": normally,
                "plan": lambda: plans.run(plan, module, checkpoint),
                "targets": targets,
            }
            samples: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
            for _ in range(rounds):
                for name, contender in contenders.items():
                    wall, cpu = time.perf_counter(), time.process_time()
                    contender()
                    samples[name].append((time.process_time() - cpu, time.perf_counter() - wall))
            count = len(checkpoint)
    medians = {
        name: [statistics.median(values) for values in zip(*taken, strict=True)] for name, taken in samples.items()
    }
    results: dict[str, object] = {name: {"cpu": cpu, "wall": wall} for name, (cpu, wall) in medians.items()}
    for index, clock in enumerate(("cpu", "wall")):
        results[f"plan / normal ({clock})"] = medians["plan"][index] / medians["normal"][index]
    print(json.dumps({"tensors": count, "rounds": rounds, **results}, indent=2))


if __name__ == "__main__":
    arguments = [int(argument) for argument in sys.argv[1:4]]
    main(*arguments, *(515, 14, 9)[len(arguments) :])
