"""Compares loads of several ranks: `ranks.py LOCATION… [--ranks N] [--rounds N] [--contenders A,B]`.

Each contender starts its ranks as processes that have joined a gloo process group, and all of them
load everything at once, dropping each tensor before the next one, or keeping them (`--keep`). The
clock runs from the first rank's start to the last rank's last tensor; imports and the group come
before it. Memory is the largest sum of the ranks' proportional set sizes (PSS) that was seen, less
that before the start. Contenders take turns. Local files are dropped from the page cache before
each load unless `--warm` is given. Prints a row for each contender: medians, and the range of the
seconds.
"""

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

Tensors = Iterator[tuple[str, Any]]
SAMPLE_SECONDS = 0.1
# Names of types in safetensors, and in torch.
DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "I64": "int64", "U8": "uint8"}


def tload_group(names: list[str], share: str = "node", *, private: bool = True) -> Tensors:
    import tload

    with tload.stream(names, group=tload.Group.torch(), share=share, private=private) as tensors:
        yield from tensors


def runai(names: list[str], distributed: str) -> Tensors:
    from runai_model_streamer import SafetensorsStreamer

    os.environ["RUNAI_STREAMER_DIST"] = distributed
    with SafetensorsStreamer() as streamer:
        streamer.stream_files(names, device="cpu", is_distributed=True)
        yield from streamer.get_tensors()


def threads(names: list[str]) -> Tensors:
    """Every rank reads all files with eight threads, as vLLM's `enable_multithread_load` does."""
    from concurrent.futures import ThreadPoolExecutor, as_completed

    from safetensors.torch import load_file

    with ThreadPoolExecutor(8) as pool:
        for file in as_completed([pool.submit(load_file, name, device="cpu") for name in names]):
            # Its tensors are mapped: nothing is read before they are copied.
            yield from ((key, tensor.clone()) for key, tensor in file.result().items())


def dcp(names: list[str]) -> Tensors:
    """PyTorch's distributed checkpoints, whose reader fills tensors that exist."""
    import torch
    import torch.distributed.checkpoint as dcp
    from safetensors import safe_open

    tensors = {}
    for name in names:
        with safe_open(name, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118
                piece = file.get_slice(key)
                dtype = getattr(torch, DTYPES[piece.get_dtype()])
                tensors[key] = torch.empty(piece.get_shape(), dtype=dtype)
    reader = dcp.HuggingFaceStorageReader(str(Path(names[0]).parent))
    dcp.load(tensors, storage_reader=reader)
    yield from tensors.items()


CONTENDERS: dict[str, Callable[[list[str]], Tensors]] = {
    "tload": tload_group,
    "tload views": lambda names: tload_group(names, private=False),
    "tload alone": lambda names: tload_group(names, "none"),
    "runai": lambda names: runai(names, "1"),
    "runai alone": lambda names: runai(names, "0"),
    "threads": threads,
    "dcp": dcp,
}


@dataclass(frozen=True)
class Task:
    """Load of several ranks."""

    contender: str
    size: int
    names: list[str]
    keep: bool


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def rank_process(rank: int, task: Task, store: str, parent: Connection) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", rank=rank, world_size=task.size, store=dist.FileStore(store, task.size))
    if task.contender.startswith("runai"):
        import runai_model_streamer  # noqa: F401
    elif task.contender == "dcp":
        import torch.distributed.checkpoint  # noqa: F401
    elif task.contender == "threads":
        import safetensors.torch  # noqa: F401
    else:
        import tload  # noqa: F401
    dist.barrier()
    parent.send("ready")
    parent.recv()
    cpu, started, count, kept = cpu_seconds(), time.monotonic(), 0, []
    for _, tensor in CONTENDERS[task.contender](task.names):
        count += tensor.nbytes
        if task.keep:
            kept.append(tensor)
        del tensor
    ended = time.monotonic()
    parent.send((started, ended, cpu_seconds() - cpu, count))
    parent.recv()
    # Peers hang or crash in the interpreter's shutdown.
    os._exit(0)


def pss_bytes(processes: list[int]) -> int:
    total = 0
    for process in processes:
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) << 10
    return total


@dataclass
class Load:
    seconds: float
    cpu_seconds: float
    nbytes: int
    pss_bytes: int


def load(task: Task) -> Load:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        pipes = [context.Pipe() for _ in range(task.size)]
        arguments = [(rank, task, f"{folder}/store", pipe) for rank, (_, pipe) in enumerate(pipes)]
        ranks = [context.Process(target=rank_process, args=each) for each in arguments]
        for rank in ranks:
            rank.start()
        for _, theirs in pipes:
            # So that the end of a rank is seen here.
            theirs.close()
        for pipe, _ in pipes:
            pipe.recv()
        identities = [rank.pid for rank in ranks if rank.pid]
        before = most = pss_bytes(identities)
        is_done = threading.Event()

        def watch() -> None:
            nonlocal most
            while not is_done.wait(SAMPLE_SECONDS):
                most = max(most, pss_bytes(identities))

        watcher = threading.Thread(target=watch)
        watcher.start()
        for pipe, _ in pipes:
            pipe.send("go")
        results = [pipe.recv() for pipe, _ in pipes]
        is_done.set()
        watcher.join()
        for pipe, _ in pipes:
            pipe.send("end")
        for rank in ranks:
            rank.join()
    starts, ends, cpu, counts = zip(*results, strict=True)
    return Load(max(ends) - min(starts), sum(cpu), sum(counts), most - before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("locations", nargs="+")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--contenders", default="tload,runai", help=", ".join(CONTENDERS))
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--warm", action="store_true", help="leave the page cache as it is")
    args = parser.parse_args()
    names: list[str] = []
    for location in args.locations:
        names += [str(file) for file in sorted(Path(location).glob("*.safetensors"))] or [location]
    contenders = args.contenders.split(",")
    loads: dict[str, list[Load]] = {contender: [] for contender in contenders}
    for turn in range(args.rounds):
        shift = turn % len(contenders)
        for contender in contenders[shift:] + contenders[:shift]:
            for name in names if not args.warm else []:
                if Path(name).exists():
                    with Path(name).open("rb") as file:
                        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            loads[contender].append(load(Task(contender, args.ranks, names, args.keep)))
            print(json.dumps({"contender": contender, **vars(loads[contender][-1])}), flush=True)
    for contender, taken in loads.items():
        seconds = [each.seconds for each in taken]
        cpu = statistics.median(each.cpu_seconds for each in taken)
        pss = statistics.median(each.pss_bytes for each in taken) / 2**20
        print(
            f"{contender}: {statistics.median(seconds):.2f} s ({min(seconds):.2f}–{max(seconds):.2f}), "
            f"{cpu:.2f} CPU s, {pss:.0f} MiB"
        )


if __name__ == "__main__":
    main()
