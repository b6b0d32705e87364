"""Measures how long it takes to hand the boxes of a load plan to the core, as targets of a load.

    python benches/engines/targets.py [--rounds 7] [--experts 512] [--layers 14]

Makes a checkpoint of the form of a mixture of experts, in which each tensor is a part of a stacked
parameter, records its plan, and prepares the load again and again without starting it: the choice of
what the core writes itself, the table of boxes, and the core's targets. Nothing is read.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import safetensors.torch
import torch

import tload
from tload import plans
from tload._load.call import Call
from tload._load.collections import no_collections
from tload.plans import boxes, places
from tload.plans.plan import TENSOR

if TYPE_CHECKING:
    from collections.abc import Iterable

ROWS, COLUMNS = 8, 32
SHARDS = {"gate_proj": 0, "up_proj": 1, "down_proj": 2}


class Experts(torch.nn.Module):
    """Parameters of all experts of a layer in one, and those around them."""

    def __init__(self, layers: int, experts: int) -> None:
        super().__init__()
        for layer in range(layers):
            self.register_parameter(f"w{layer}", torch.nn.Parameter(torch.zeros(experts, 3, ROWS, COLUMNS)))
            self.register_parameter(f"n{layer}", torch.nn.Parameter(torch.zeros(9, COLUMNS)))

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, tensor in weights:
            _, layer, kind, number, *rest = name.split(".")
            parameter = self.get_parameter(f"{'w' if kind == 'experts' else 'n'}{layer}").data
            place = parameter.select(0, int(number))
            place = place.select(0, SHARDS[rest[0]]) if kind == "experts" else place
            place.copy_(tensor)


def write(path: Path, layers: int, experts: int) -> None:
    """Write the checkpoint."""
    tensors = {}
    for layer in range(layers):
        for expert in range(experts):
            for shard in SHARDS:
                tensors[f"layers.{layer}.experts.{expert}.{shard}.weight"] = torch.rand(ROWS, COLUMNS)
        for number in range(9):
            tensors[f"layers.{layer}.others.{number}"] = torch.rand(COLUMNS)
    safetensors.torch.save_file(tensors, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--experts", type=int, default=512)
    parser.add_argument("--layers", type=int, default=14)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        write(path, arguments.layers, arguments.experts)
        with tload.open(path) as checkpoint:
            measure(checkpoint, Experts(arguments.layers, arguments.experts), arguments.rounds)


def measure(checkpoint: tload.Checkpoint, module: Experts, rounds: int) -> None:
    plan = plans.record(module, checkpoint, module.load_weights)
    found: dict[str, list[float]] = {}
    for _ in range(rounds + 1):
        with no_collections():
            began = time.perf_counter()
            tensors = places.bind(module, plan.places)
            chosen = boxes.tensors_in(plan, tensors)
            call = Call(checkpoint, {"options": None})
            [rows] = boxes.rounds(plan, plan.rows[chosen[plan.rows[:, TENSOR]]])
            names, table = boxes.described(plan, rows, tensors)
            described = time.perf_counter()
            boxes.loader(call, None, names, table)
            made = time.perf_counter()
        steps = {"table of boxes": described - began, "targets of the core": made - described, "both": made - began}
        for step, seconds in steps.items():
            found.setdefault(step, []).append(seconds * 1e3)
    print(f"{len(plan.rows)} boxes of {len(plan.sources)} tensors in {len(plan.places)} parameters")
    print("| step | median, ms | fastest | slowest |")
    print("|:--|--:|--:|--:|")
    for step, times in found.items():
        counted = times[1:]  # the first round warms up
        columns = (statistics.median(counted), min(counted), max(counted))
        print(f"| {step} | {' | '.join(f'{each:.1f}' for each in columns)} |")


if __name__ == "__main__":
    main()
