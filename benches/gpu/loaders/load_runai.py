"""Run:ai Model Streamer: all files, each tensor copied with `.to` as its documentation does
(https://github.com/run-ai/runai-model-streamer). RUNAI_STREAMER_CONCURRENCY sets its threads. Its library contains
copies to CUDA devices; the Python package does not use them (0.17.1)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import timed
from runai_model_streamer import SafetensorsStreamer


def load(files: list[Path], device: str, _: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    with SafetensorsStreamer() as streamer:
        streamer.stream_files([str(file) for file in files])
        # On the CPU `.to` would keep a view of reused memory.
        to = (lambda tensor: tensor.clone()) if device == "cpu" else (lambda tensor: tensor.to(device))
        return {name: to(tensor) for name, tensor in streamer.get_tensors()}, {}


timed.run(load)
