"""Measures vLLM's `load_weights` on a CPU, with its own loader and with tload, from the page cache.

    python benches/engines/load_weights.py [--rounds 7] [--layers 20] [--folder FOLDER]

Needs vLLM for CPUs, in an environment as `make test-engines` makes it. The model is a Llama of
random numbers, of 1.1 GiB by default, which is written to FOLDER if it is not there. One process
makes the model's parameters once, and fills them with each loader in turn, in rotating order; the
first round warms up, and is not counted. The times are those of `load_weights`, without the making
of the model and without the packing of weights after it.
"""

from __future__ import annotations

import argparse
import logging
import os
import resource
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

LOADERS: dict[str, tuple[str, dict[str, Any]]] = {
    "auto": ("auto", {}),
    "tload": ("tload", {}),
    "tload, `cache` is `auto`": ("tload", {"cache": "auto"}),
}


def write_model(folder: Path, layers: int) -> None:
    """Write a model in several files."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = LlamaConfig(
        vocab_size=32_000,
        hidden_size=1536,
        intermediate_size=4096,
        num_hidden_layers=layers,
        num_attention_heads=12,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(shape).to(torch.bfloat16)
    model.save_pretrained(folder, max_shard_size="200MB")


class Loads:
    """One model, filled again and again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = self._config("auto", {})

    def _config(self, load_format: str, extra: dict[str, Any]) -> Any:
        from vllm.engine.arg_utils import EngineArgs

        return EngineArgs(
            model=str(self.folder),
            load_format=load_format,
            model_loader_extra_config=extra,
            dtype="bfloat16",
            skip_tokenizer_init=True,
            enforce_eager=True,
            max_model_len=128,
        ).create_engine_config()

    def start(self) -> None:
        """Make the model."""
        import torch
        from vllm.distributed import parallel_state
        from vllm.model_executor.model_loader.utils import initialize_model

        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        parallel_state.init_distributed_environment(1, 0, f"tcp://127.0.0.1:{port}", 0, "gloo")
        parallel_state.initialize_model_parallel(1, 1, backend="gloo")
        torch.set_default_dtype(torch.bfloat16)
        self.model = initialize_model(vllm_config=self.config)

    def seconds(self, load_format: str, extra: dict[str, Any]) -> tuple[float, float]:
        """Load once, and return the wall time and the CPU time."""
        from vllm.model_executor.model_loader import get_model_loader

        loader = get_model_loader(self._config(load_format, extra).load_config)
        cpu, began = _cpu_seconds(), time.perf_counter()
        loader.load_weights(self.model, self.config.model_config)
        return time.perf_counter() - began, _cpu_seconds() - cpu


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.folder or Path(scratch) / "model"
        if not (folder / "config.json").exists():
            write_model(folder, arguments.layers)
        files = list(folder.glob("*.safetensors"))
        for file in files:
            file.read_bytes()
        print(f"{sum(file.stat().st_size for file in files) / 2**20:.0f} MiB in {len(files)} files")
        measure(folder, arguments.rounds)


def measure(folder: Path, rounds: int) -> None:
    from vllm.config import set_current_vllm_config
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    logging.disable(logging.WARNING)
    loads = Loads(folder)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in LOADERS}
    order = list(LOADERS)
    with set_current_vllm_config(loads.config):
        loads.start()
        for number in range(rounds + 1):
            order = order[1:] + order[:1]
            for name in order:
                seconds = loads.seconds(*LOADERS[name])
                if number > 0:
                    found[name].append(seconds)
    reference = statistics.median(wall for wall, _ in found["auto"])
    print("| loader | median, s | fastest | slowest | CPU, median, s | median / that of `auto` |")
    print("|:--|--:|--:|--:|--:|--:|")
    for name, times in found.items():
        walls, cpus = zip(*times, strict=True)
        middle = statistics.median(walls)
        columns = (middle, min(walls), max(walls), statistics.median(cpus))
        print(f"| {name} | {' | '.join(f'{each:.3f}' for each in columns)} | {middle / reference:.2f} |")


if __name__ == "__main__":
    sys.exit(main())
