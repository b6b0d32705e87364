"""Loads a checkpoint with another loader, for `tload bench --against`.

tload sends this text to Python, and one line of JSON, which names the task. Answers are lines of
JSON too, on a copy of standard output; whatever loaders print goes to standard error.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import queue
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Job = dict[str, Any]
Load = Callable[[Job], Iterator[tuple[str, Any]]]

ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def answer(**found: Any) -> None:
    """Print one answer."""
    print(json.dumps(found), file=ANSWERS, flush=True)


LINES: queue.SimpleQueue[str] = queue.SimpleQueue()


def read_lines() -> None:
    """Read the lines of tload. When there are no more, it is gone, and this process ends."""
    for line in sys.stdin:
        LINES.put(line)
    os._exit(1)


# Each of these imports a loader, and returns a function of the job that yields names and tensors of
# their own memory. With `keep`, the caller keeps all tensors; otherwise each is dropped before the
# next one is taken. Imports are not timed.


def safetensors() -> Load:
    from safetensors import safe_open

    def load(job: Job) -> Iterator[tuple[str, Any]]:
        for file in job["files"]:
            with safe_open(file, framework="pt") as opened:
                for name in getattr(opened, "offset_keys", opened.keys)():
                    # A view of the mapped file, which is read when it is copied.
                    yield name, opened.get_tensor(name).clone()

    return load


def runai() -> Load:
    from runai_model_streamer import SafetensorsStreamer

    can_own = "owned" in inspect.signature(SafetensorsStreamer.stream_files).parameters
    owned = {"owned": True} if can_own else {}

    def load(job: Job) -> Iterator[tuple[str, Any]]:
        with SafetensorsStreamer() as streamer:
            streamer.stream_files(job["files"], **owned)
            for name, tensor in streamer.get_tensors():
                yield name, tensor if can_own else tensor.clone()

    return load


def fastsafetensors() -> Load:
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    kept = []

    def load(job: Job) -> Iterator[tuple[str, Any]]:
        files = job["files"]
        for group in [files] if job["keep"] else [[file] for file in files]:
            loader = SafeTensorsFileLoader(SingleGroup(), "cpu", nogds=True)
            loader.add_filenames({0: group})
            buffers = loader.copy_files_to_device()
            yield from ((name, buffers.get_tensor(name)) for name in loader.get_keys())
            # Before version 0.4, tensors do not outlive the buffers.
            if job["keep"]:
                kept.append((loader, buffers))
            else:
                buffers.close()
                loader.close()

    return load


def tensorizer() -> Load:
    from tensorizer import TensorDeserializer

    def load(job: Job) -> Iterator[tuple[str, Any]]:
        # It reads everything here.
        yield from TensorDeserializer(job["files"][0], device="cpu").items()

    return load


def instanttensor() -> Load:
    from instanttensor import safe_open

    copies = "copy" in inspect.signature(safe_open).parameters

    def load(job: Job) -> Iterator[tuple[str, Any]]:
        with safe_open(job["files"], framework="pt", device="cpu") as opened:
            for name, tensor in opened.tensors():
                yield name, tensor if copies else tensor.clone()

    return load


def tload_python() -> Load:
    import tload

    def load(job: Job) -> Iterator[tuple[str, Any]]:
        if job["keep"]:
            yield from tload.load(job["location"]).items()
        else:
            yield from tload.stream(job["location"])

    return load


LOADERS = {
    "safetensors": safetensors,
    "runai": runai,
    "fastsafetensors": fastsafetensors,
    "tensorizer": tensorizer,
    "instanttensor": instanttensor,
    "tload-python": tload_python,
}


def find(job: Job) -> None:
    """Answer with the versions of packages, `null` for one that is not installed, and whether torch is."""
    from importlib import metadata, util

    found = {}
    for package in job["packages"]:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    has_torch = util.find_spec("torch") is not None
    answer(python=sys.version.split()[0], has_torch=has_torch, versions=found)


def convert(job: Job) -> None:
    """Write a checkpoint in the format of tensorizer."""
    from safetensors.torch import load_file
    from tensorizer import TensorSerializer

    tensors = {}
    for file in job["files"]:
        tensors.update(load_file(file))
    serializer = TensorSerializer(job["target"])
    serializer.write_state_dict(tensors)
    serializer.close()
    answer(converted=True)


def cpu_seconds() -> float:
    """Return user and system time of all threads, and of children that have ended."""
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def peak_bytes() -> int:
    """Return the highest resident set since the last reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


def measure(job: Job) -> None:
    """Load once between the line that starts it and the last tensor."""
    # Some loaders import it when they are first used.
    import torch  # noqa: F401

    load = LOADERS[job["loader"]]()
    if job["again"]:
        for _ in load(job):
            pass
    answer(ready=True)
    LINES.get()
    peak = None
    with contextlib.suppress(OSError):
        # Resets the peak to the present size.
        Path("/proc/self/clear_refs").write_text("5")
        peak = peak_bytes
    kept, nbytes, first = [], 0, None
    cpu, began = cpu_seconds(), time.perf_counter()
    for _, tensor in load(job):
        first = first or time.perf_counter() - began
        nbytes += tensor.nbytes
        if job["keep"]:
            kept.append(tensor)
        del tensor
    seconds, cpu = time.perf_counter() - began, cpu_seconds() - cpu
    answer(
        seconds=seconds,
        cpu_seconds=cpu,
        bytes=nbytes,
        first_tensor_seconds=first,
        peak_rss_bytes=peak and peak(),
    )


threading.Thread(target=read_lines, daemon=True).start()
job = json.loads(LINES.get())
{"find": find, "convert": convert, "measure": measure}[job["task"]](job)
# Some loaders hang or crash at the interpreter's end, and the answer is given.
os._exit(0)
