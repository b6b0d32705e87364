"""Compares `load_into` with `load` and a copy of each tensor: `load_into.py [TENSORS] [ROUNDS]`.

Many small tensors, as of a mixture of experts, show what a tensor costs, whatever its bytes.
Contenders take turns in one process. Prints medians as JSON: seconds of CPU time, which other
processes disturb little, and of wall-clock time.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file

import tload

ELEMENTS = 16


def main(count: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "small.safetensors"
        names = (f"model.layers.{index // 512}.experts.{index % 512}.weight" for index in range(count))
        save_file({name: torch.rand(ELEMENTS) for name in names}, path)
        target = {name: torch.empty_like(tensor) for name, tensor in tload.load(path).items()}

        def copied() -> None:
            loaded = tload.load(path)
            for name, tensor in target.items():
                tensor.copy_(loaded[name])

        contenders: dict[str, Callable[[], object]] = {
            "load_into": lambda: tload.load_into(target, path),
            "load + copy_": copied,
            "load": lambda: tload.load(path),
        }
        samples: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
        for _ in range(rounds):
            for name, contender in contenders.items():
                wall, cpu = time.perf_counter(), time.process_time()
                contender()
                samples[name].append((time.process_time() - cpu, time.perf_counter() - wall))
    medians = {
        name: [statistics.median(values) for values in zip(*taken, strict=True)] for name, taken in samples.items()
    }
    results: dict[str, object] = {name: {"cpu": cpu, "wall": wall} for name, (cpu, wall) in medians.items()}
    results["load_into / load + copy_ (cpu)"] = medians["load_into"][0] / medians["load + copy_"][0]
    print(json.dumps({"tensors": count, "rounds": rounds, **results}, indent=2))


if __name__ == "__main__":
    arguments = [int(argument) for argument in sys.argv[1:3]]
    main(*arguments, *(50_000, 9)[len(arguments) :])
