"""Measures vLLM's `load_weights` on a CPU, with its own loader and with tload, from the page cache.

    python benches/engines/load_weights.py [--rounds 7] [--model dense] [--layers 20] [--folder FOLDER]

Needs vLLM for CPUs, in an environment as `make test-engines` makes it. The model has random
numbers: a Llama of 1.1 GiB, or with `--model experts` a Qwen3-MoE of 21,633 tensors (14 layers). It
is written to FOLDER if it is not there. One process makes the model's parameters once, and fills
them with each loader in turn, in rotating order; the first round warms up, and is not counted. The
times are those of `load_weights`, without the making of the model and without the packing of
weights after it.
"""

from __future__ import annotations

import argparse
import logging
import os
import resource
import shutil
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RECORDS = "tload, records a plan"
LOADERS: dict[str, tuple[str, dict[str, Any]]] = {
    "auto": ("auto", {}),
    "tload": ("tload", {"plan": "off"}),
    "tload, `cache` is `auto`": ("tload", {"plan": "off", "cache": "auto"}),
    RECORDS: ("tload", {"plan": "on"}),
    "tload, by the plan": ("tload", {"plan": "on"}),
}
SHAPES: dict[str, tuple[int, str, dict[str, Any]]] = {
    "dense": (
        20,
        "LlamaConfig",
        {
            "vocab_size": 32_000,
            "hidden_size": 1536,
            "intermediate_size": 4096,
            "num_attention_heads": 12,
            "num_key_value_heads": 4,
            "max_position_embeddings": 2048,
            "tie_word_embeddings": False,
        },
    ),
    "experts": (
        14,
        "Qwen3MoeConfig",
        {
            "vocab_size": 8_000,
            "hidden_size": 256,
            "intermediate_size": 512,
            "moe_intermediate_size": 32,
            "num_experts": 512,
            "num_experts_per_tok": 4,
            "decoder_sparse_step": 1,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "max_position_embeddings": 2048,
            "tie_word_embeddings": False,
        },
    ),
}
"""By name: layers, and the class and fields of the configuration in transformers."""


def write_model(folder: Path, name: str, layers: int) -> None:
    """Write a model in several files."""
    import torch
    import transformers

    _, kind, fields = SHAPES[name]
    config = getattr(transformers, kind)(num_hidden_layers=layers, **fields)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder, max_shard_size="100MB")


class Loads:
    """One model, filled again and again."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        self.folder = folder
        self.plans = scratch / "tload" / "plans"
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

    def seconds(self, name: str) -> tuple[float, float]:
        """Load once, and return the wall time and the CPU time."""
        from vllm.model_executor.model_loader import get_model_loader

        if name == RECORDS and self.plans.exists():
            shutil.rmtree(self.plans)
        load_format, extra = LOADERS[name]
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
    parser.add_argument("--model", choices=SHAPES, default="dense")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.folder or Path(scratch) / "model"
        os.environ["XDG_CACHE_HOME"] = scratch
        if not (folder / "config.json").exists():
            write_model(folder, arguments.model, arguments.layers or SHAPES[arguments.model][0])
        files = list(folder.glob("*.safetensors"))
        for file in files:
            file.read_bytes()
        print(f"{sum(file.stat().st_size for file in files) / 2**20:.0f} MiB in {len(files)} files")
        measure(folder, Path(scratch), arguments.rounds)


def measure(folder: Path, scratch: Path, rounds: int) -> None:
    from vllm.config import set_current_vllm_config
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    logging.disable(logging.WARNING)
    loads = Loads(folder, scratch)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in LOADERS}
    order = list(LOADERS)
    with set_current_vllm_config(loads.config):
        loads.start()
        for number in range(rounds + 1):
            order = order[1:] + order[:1]
            for name in order:
                seconds = loads.seconds(name)
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
