"""Harness of the loaders: loads several times with an existing CUDA context, and prints one line of JSON.

    load_x.py FOLDER --device cuda:0 --state warm --again 2 --options '{"lanes": 4}'

A loader is a function of the files, the device and the options. It returns tensors by name,
completely loaded, and further details. The first load of the process pays for resources that the
loader creates once (pinned memory, threads, GPU memory that torch then keeps); the later ones do
not. With `--memory`, one more load, outside every clock, watches the GPU's free memory.
`--patience` is the time after which no further load is started, except the second, which every
figure needs. With `--also`, each later load is followed by one of another folder, so that both
lengths are measured by turns. `--rehearsal` is for a driver that torch cannot use: nothing is asked
of torch's CUDA.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import page_cache
import torch

Load = Callable[[list[Path], str, dict[str, Any]], tuple[Mapping[str, Any], dict[str, Any]]]

#: Interval at which the GPU's free memory is polled, seconds.
LOOK = 0.002


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--state", choices=["warm", "cold"], default="warm")
    parser.add_argument("--again", type=int, default=2)
    parser.add_argument("--options", type=json.loads, default={})
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--also", type=Path, help="another folder to load after each later load")
    parser.add_argument("--no-checksum", action="store_true", help="do not read all bytes back")
    parser.add_argument("--rehearsal", action="store_true", help="the device is not torch's")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds (default: 60)")
    args = parser.parse_args()
    # Loaders are given `device`; torch is asked about `torch_device`.
    args.torch_device = "cpu" if args.rehearsal else args.device
    return args


def files_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def warm_context(device: str) -> None:
    """Create the context, and everything else that comes with the first work of a process."""
    torch.ones(1, device=device).sum().item()
    wait(device)


def wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)


def cpu_seconds() -> float:
    """Return the CPU time of all threads of this process, including the kernel's workers for it."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def peak_rss_bytes() -> int:
    """Return the peak memory; where `/proc` lacks it, as in some containers, that of the whole process lifetime."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        status = ""
    for line in status.splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def reset_peak_rss() -> bool:
    """Reset the peak and return whether that worked. Some containers forbid it; the peak then includes imports."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


class GpuMemory:
    """Peak growth of a GPU's used memory during the `with` block, in bytes."""

    def __init__(self, device: str) -> None:
        self.device, self.peak = device, 0
        self._before = self._lowest = self._free()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _free(self) -> int:
        return torch.cuda.mem_get_info(self.device)[0]

    def _watch(self) -> None:
        while not self._done.wait(LOOK):
            self._lowest = min(self._lowest, self._free())

    def __enter__(self) -> GpuMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self.peak = self._before - min(self._lowest, self._free())


def checksum(tensors: Mapping[str, Any]) -> int | None:
    """Return the sum of all bytes, equal for all loaders of the same files; None for tensors that are not torch's."""
    total = 0
    for tensor in tensors.values():
        if not isinstance(tensor, torch.Tensor):
            return None
        total += int(tensor.reshape(-1).view(torch.uint8).sum(dtype=torch.int64))
    return total


def once(load: Load, files: list[Path], args: argparse.Namespace) -> tuple[dict[str, Any], Mapping[str, Any]]:
    residency = page_cache.prepare(files, args.state)
    wait(args.torch_device)
    cpu, start = cpu_seconds(), time.perf_counter()
    tensors, details = load(files, args.device, dict(args.options))
    wait(args.torch_device)
    seconds, cpu = time.perf_counter() - start, cpu_seconds() - cpu
    nbytes = sum(tensor.nbytes for tensor in tensors.values())
    sample = {"seconds": seconds, "cpu_seconds": cpu, "bytes": nbytes, "residency": residency, "details": details}
    return sample, tensors


def run(load: Load) -> None:
    """Call `load` with the arguments of the command line, and print the measurements. Imports come before."""
    args = arguments()
    files = files_of(args.folder)
    warm_context(args.torch_device)
    on_gpu = args.torch_device != "cpu"
    rss_was_reset = reset_peak_rss()
    rss_before = peak_rss_bytes()
    samples, result = [], {}
    began = time.monotonic()
    for index in range(1 + args.again):
        if index > 1 and time.monotonic() - began > args.patience:
            break
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(args.device)
        sample, tensors = once(load, files, args)
        sample["kind"] = "again" if index else "first"
        if on_gpu:
            sample["torch_peak_bytes"] = torch.cuda.max_memory_allocated(args.device)
        if not index:
            result = {
                "tensors": len(tensors),
                "bytes": sample["bytes"],
                "peak_rss_bytes": peak_rss_bytes(),
                "rss_before_bytes": rss_before,
                "rss_was_reset": rss_was_reset,
                "checksum": None if args.no_checksum else checksum(tensors),
            }
        samples.append(sample)
        del tensors
        gc.collect()
        if args.also and index:
            sample, tensors = once(load, files_of(args.also), args)
            samples.append(sample | {"kind": "also"})
            del tensors
            gc.collect()
    result["samples"] = samples
    if on_gpu and args.memory and time.monotonic() - began <= args.patience:
        torch.cuda.empty_cache()
        with GpuMemory(args.device) as watched:
            _, tensors = once(load, files, args)
        result["gpu_peak_bytes"] = watched.peak
        del tensors
    print(json.dumps(result), flush=True)
