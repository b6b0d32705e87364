"""Checks loads to a GPU: bytes, dtypes, devices, the order of streams, and other libraries' imports.

    python benches/gpu/check.py OUT [--device cuda:0]

Prints a line per check and writes `check.json` into OUT. A check that the machine does not support
is SKIPPED with a message; the exit status is 1 when anything FAILED. With `--device cpu` it runs
the checks that do not need a GPU.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
from check_bytes import (
    devices_by_name,
    dlpack_into_torch,
    eight_bit_floats,
    every_dtype_as_torch,
    every_dtype_by_hand,
    imported_by,
    safetensors_agrees,
)
from check_plans import by_a_plan
from safetensors.torch import save_file
from shared import MIB, Bench, Skipped, bytes_of, equal, read_file, tile, write

import tload

#: Timeout of each check, seconds: all stacks are printed, and the results so far are in
#: `check.json`.
CHECK_SECONDS_MAX = 60


def network(device: str) -> torch.nn.Module:
    torch.manual_seed(1)
    layers = [torch.nn.Linear(256, 512), torch.nn.LayerNorm(512), torch.nn.Linear(512, 384, bias=False)]
    return torch.nn.Sequential(*layers).to(device)


def into_a_module(bench: Bench) -> str:
    load_into = bench.need("load_into")
    saved = network("cpu").state_dict()
    path = bench.folder / "module.safetensors"
    save_file(saved, path)
    module = network(bench.device)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    addresses = {name: parameter.data_ptr() for name, parameter in module.named_parameters()}
    load_into(module, path)
    for name, parameter in module.named_parameters():
        equal(parameter.data_ptr(), addresses[name], f"address of {name}")
        equal(torch.equal(parameter.detach().cpu(), saved[name]), True, f"values of {name}")
    # A target that is not contiguous needs a copy.
    wide = torch.zeros(512, 512, device=bench.device)
    load_into({"0.weight": wide[:, ::2]}, path, names=["0.weight"])
    equal(torch.equal(wide[:, ::2].cpu(), saved["0.weight"]), True, "a strided target")
    equal(int(wide[:, 1::2].count_nonzero()), 0, "the gaps between")
    return f"{len(addresses)} parameters, and a strided one"


def into_tied_and_cast(bench: Bench) -> str:
    load_into = bench.need("load_into")
    torch.manual_seed(2)
    saved = {"a.weight": torch.randn(384, 256), "b.weight": torch.randn(256, 384)}
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        path = bench.folder / "cast.safetensors"
        save_file({name: tensor.to(dtype) for name, tensor in saved.items()}, path)
        for wanted in (torch.float32, torch.float16, torch.bfloat16):
            targets = {
                name: torch.zeros_like(tensor, dtype=wanted, device=bench.device) for name, tensor in saved.items()
            }
            load_into(targets, path, cast=True)
            for name, target in targets.items():
                equal(torch.equal(target.cpu(), saved[name].to(dtype).to(wanted)), True, f"{dtype} to {wanted}: {name}")
    try:
        load_into({"a.weight": torch.zeros(384, 256, device=bench.device)}, path, names=["a.weight"])
    except tload.InvalidRequestError:
        pass
    else:
        raise AssertionError("another dtype without cast was no error")
    module = torch.nn.Sequential(torch.nn.Embedding(384, 256), torch.nn.Linear(256, 384, bias=False)).to(bench.device)
    module[1].weight = module[0].weight
    path = bench.folder / "tied.safetensors"
    for names in (["0.weight"], ["1.weight"], ["0.weight", "1.weight"]):
        with torch.no_grad():
            module[0].weight.zero_()
        save_file({name: saved["a.weight"].clone() for name in names}, path)
        load_into(module, path)
        equal(torch.equal(module[1].weight.detach().cpu(), saved["a.weight"]), True, f"tied, from {names}")
        equal(module[0].weight is module[1].weight, True, "still tied")
    return "9 pairs of dtypes; tied, from one name, the other, and both"


def neighbours_are_apart(bench: Bench) -> str:
    """Small tensors may share an allocation; autograd must not treat them as views of each other."""
    path = bench.folder / "neighbours.safetensors"
    norms = torch.nn.Sequential(torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64))
    save_file(norms.state_dict(), path)
    tensors = tload.load(path, device=bench.device)
    first, *others = tensors.values()
    before = {name: bytes_of(tensor) for name, tensor in tensors.items()}
    versions = [tensor._version for tensor in others]  # noqa: SLF001
    first.add_(1)
    equal([tensor._version for tensor in others], versions, "versions of the others")  # noqa: SLF001
    for name, tensor in list(tensors.items())[1:]:
        equal(bytes_of(tensor) == before[name], True, f"{name} after its neighbour was changed")
    norms.to(bench.device).load_state_dict(tload.load(path, device=bench.device), assign=True)
    norms.train()
    norms(torch.randn(16, 64, device=bench.device)).square().sum().backward()
    grads = [parameter.grad is not None for parameter in norms.parameters()]
    equal(all(grads), True, "gradients")
    return f"{len(tensors)} neighbours, and a backward pass through them"


def behind_the_callers_stream(bench: Bench) -> str:
    """Earlier work of the caller's stream must see the old bytes, also in memory that torch reuses."""
    load_into = bench.need("load_into")
    bench.need_gpu()
    path = bench.folder / "module.safetensors"
    saved = network("cpu").state_dict()
    save_file(saved, path)
    target = torch.zeros(512, 256, device=bench.device)
    load_into({"0.weight": target}, path, names=["0.weight"])
    began = time.perf_counter()
    load_into({"0.weight": target}, path, names=["0.weight"])
    idle = time.perf_counter() - began
    cycles, slept = 500_000_000, 0.0
    while slept < max(0.1, 4 * idle):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        torch.cuda._sleep(cycles)  # noqa: SLF001 - work that takes a while
        end.record()
        end.synchronize()
        slept = begin.elapsed_time(end) / 1e3
        if slept < max(0.1, 4 * idle):
            cycles *= 2
        if cycles > 16_000_000_000:
            raise AssertionError(f"a load takes {idle:.2f} s: too long to tell")
    stream = torch.cuda.Stream(bench.device)
    for turn in range(5):
        with torch.cuda.stream(stream):
            target = torch.full((512, 256), 7.0, device=bench.device)
            torch.cuda._sleep(cycles)  # noqa: SLF001
            before = target.clone()
            event = stream.record_event()
            equal(event.query(), False, f"turn {turn}: the stream is done before the load begins")
            load_into({"0.weight": target}, path, names=["0.weight"])
            equal(event.query(), True, f"turn {turn}: the load waited")
            after = target.clone()
        stream.synchronize()
        equal(bool((before == 7.0).all()), True, f"turn {turn}: old values")
        equal(torch.equal(after.cpu(), saved["0.weight"]), True, f"turn {turn}: new values")
    # The only free memory that torch has on this stream is still written to by the stream.
    path = bench.folder / "again.safetensors"
    contents = {"w": ("U8", [32 * MIB], tile(77, 32 * MIB))}
    write(path, contents)
    reused = 0
    for turn in range(5):
        torch.cuda.synchronize()
        tensors = {}
        gc.collect()
        torch.cuda.empty_cache()
        with torch.cuda.stream(stream):
            old = torch.zeros(64 * MIB, dtype=torch.uint8, device=bench.device)
            addresses = range(old.data_ptr(), old.data_ptr() + old.nbytes)
            torch.cuda._sleep(cycles)  # noqa: SLF001
            old.fill_(3)
            old = None
            equal(stream.query(), False, f"turn {turn}: the stream is done before the load begins")
            tensors = tload.load(path, device=bench.device)
        stream.synchronize()
        reused += any(tensor.data_ptr() in addresses for tensor in tensors.values())
        equal(bytes_of(tensors["w"]) == contents["w"][2], True, f"turn {turn}: reused memory")
    if not reused:
        raise AssertionError("torch never gave the load reused memory, so nothing was tested")
    return f"5 turns each of load_into and of load, {reused} of these in memory in use; a sleep of {slept:.2f} s, a load of {idle:.3f} s"


def on_any_stream(bench: Bench) -> str:
    """Another stream may use a tensor at once. Memory holds other bytes before, which shows one handed out early."""
    bench.need_gpu()
    streams = [torch.cuda.Stream(bench.device) for _ in range(4)]
    truth = {**bench.truth, **read_file(bench.long)}
    wanted = {name: sum(raw) for name, (_, _, raw) in truth.items()}
    turns = 10
    for turn in range(turns):
        spoilt = torch.full((128 * MIB,), 0xA5, dtype=torch.uint8, device=bench.device)
        torch.cuda.synchronize()
        del spoilt
        sums = {}
        for source in (bench.model, bench.long):
            for index, (name, tensor) in enumerate(tload.stream(source, device=bench.device)):
                with torch.cuda.stream(streams[index % 4]):
                    tensor.record_stream(streams[index % 4])
                    sums[name] = tensor.reshape(-1).view(torch.uint8).sum(dtype=torch.int64)
        torch.cuda.synchronize()
        equal(sorted(sums), sorted(wanted), f"turn {turn}: names")
        for name, total in wanted.items():
            equal(int(sums[name]), total, f"turn {turn}: sum of {name}")
    return f"{turns} turns of {len(wanted)} tensors on 4 streams (a race that was not lost is no proof)"


def freed_while_in_use(bench: Bench) -> str:
    """A DLPack consumer drops a tensor that its stream has yet to read; the next load must not reuse its memory."""
    bench.need_gpu()
    other = bench.folder / "other.safetensors"
    write(other, {name: ("U8", shape, bytes(len(raw))) for name, (_, shape, raw) in read_file(bench.long).items()})
    wanted = {name: sum(raw) for name, (_, _, raw) in read_file(bench.long).items()}
    stream = torch.cuda.Stream(bench.device)
    for turn in range(3):
        with torch.cuda.stream(stream):
            loaded = tload.load(bench.long, framework="dlpack", device=bench.device)
            tensors = {name: torch.from_dlpack(tensor) for name, tensor in loaded.items()}
            torch.cuda._sleep(500_000_000)  # noqa: SLF001 - work that takes a while
            sums = {name: tensor.sum(dtype=torch.int64) for name, tensor in tensors.items()}
            equal(stream.query(), False, f"turn {turn}: the stream is done before the tensors are dropped")
            del loaded, tensors
        gc.collect()
        following = tload.load(other, framework="dlpack", device=bench.device)
        stream.synchronize()
        for name, total in wanted.items():
            equal(int(sums[name]), total, f"turn {turn}: sum of {name}")
        del following
    return "3 turns"


def ended_in_the_middle(bench: Bench) -> str:
    """After cancel, close, drop or an error in the loop, received tensors and the next load are right."""
    truth = read_file(bench.long)
    for framework in ("torch", "dlpack"):
        for way in ("cancel", "close", "drop", "raise"):
            stream = tload.stream(bench.long, framework=framework, device=bench.device, **bench.limit)
            name, tensor = next(stream)
            if way == "cancel":
                stream.cancel()
                try:
                    for _ in stream:
                        pass
                except tload.CancelledError:
                    pass
                else:
                    raise AssertionError(f"{framework}: a cancelled load ran to its end")
            elif way == "close":
                stream.close()
            elif way == "raise":
                try:
                    with stream:
                        raise KeyError(name)
                except KeyError:
                    pass
            del stream
            gc.collect()
            kept = tensor if framework == "torch" else torch.from_dlpack(tensor.flat())
            equal(bytes_of(kept) == truth[name][2], True, f"{framework}, {way}: bytes of the received tensor")
            del kept, tensor
            bench.loads_well(framework)
    return "4 ways, as torch tensors and by DLPack"


def after_memory_ran_out(bench: Bench) -> str:
    """With hardly any GPU memory left, a load fails with a clear error, and succeeds once there is some."""
    bench.need_gpu()
    path = bench.folder / "large.safetensors"
    write(path, {f"t{index}": ("U8", [96 * MIB], tile(index, 96 * MIB)) for index in range(8)})
    told = ""
    for framework in ("torch", "dlpack"):
        gc.collect()
        torch.cuda.empty_cache()
        left, filling = 256 * MIB, []
        while (free := torch.cuda.mem_get_info(bench.device)[0]) > left:
            size = min(free - left // 2, 8 << 30)
            try:
                filling.append(torch.empty(size, dtype=torch.uint8, device=bench.device))
            except torch.OutOfMemoryError:
                break
        try:
            tload.load(path, framework=framework, device=bench.device)
        except tload.OutOfMemoryError as error:
            told = str(error).splitlines()[0]
        else:
            raise AssertionError(f"{framework}: 768 MiB went into {free >> 20} MiB")
        finally:
            filling.clear()
            gc.collect()
            torch.cuda.empty_cache()
        bench.loads_well(framework)
    return told


def a_process_ends_with_a_load(bench: Bench) -> str:
    """A process that ends while a stream runs exits with status 0 and prints nothing."""
    program = (
        "import sys, json, tload\n"
        "path, framework, device, limit, way = sys.argv[1:]\n"
        "if framework == 'torch': import torch\n"
        "stream = tload.stream(path, framework=framework, device=device, **json.loads(limit))\n"
        "kept = next(stream)\n"
        "if way == 'exit': sys.exit(0)\n"
    )
    ways = [(framework, way) for framework in ("torch", "dlpack") for way in ("end", "exit")]
    children = []
    for framework, way in ways:
        command = [sys.executable, "-W", "ignore", "-c", program, str(bench.long), framework, bench.device]
        command += [json.dumps(bench.limit), way]
        children.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    ended = []
    for way, child in zip(ways, children, strict=True):
        try:
            said, _ = child.communicate(timeout=40)
        except subprocess.TimeoutExpired:
            child.kill()
            said, _ = child.communicate()
            said = f"timed out\n{said}"
        # The warning about variants that are being measured is expected, if they are.
        said = "".join(line for line in said.splitlines(keepends=True) if not line.startswith("TLOAD_TRY "))
        ended.append((way, child.returncode, said))
    for way, status, said in ended:
        equal((status, said), (0, ""), f"end of {' '.join(way)}")
    return f"{len(ways)} processes"


def memory_comes_back(bench: Bench) -> str:
    release = bench.need("release_staging")
    bench.need_gpu()
    # Memory of earlier checks must not be freed meanwhile.
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(bench.device)
    for framework in ("torch", "dlpack"):
        tensors = tload.load(bench.model, framework=framework, device=bench.device)
        del tensors
    gc.collect()
    equal(torch.cuda.memory_allocated(bench.device), before, "torch's memory")
    kept = release()
    equal(kept > 0, True, "staging memory was kept for the next load")
    equal(release(), 0, "staging memory after its release")
    return f"{kept >> 20} MiB of staging memory"


def the_report_tells(bench: Bench) -> str:
    bench.need_gpu()
    stream = tload.stream(bench.model, device=bench.device)
    count = len(list(stream))
    report = stream.report
    (device,) = report.devices
    equal((report.outcome, report.tensors, device.device), ("complete", count, bench.device), "report")
    equal(device.copied_bytes, report.tensor_bytes, "bytes copied")
    equal(report.staging.refusal, None, "refusal to pin")
    equal(report.staging.pinned_bytes, report.staging.bytes, "pinned bytes")
    return f"{report.staging.pinned_bytes >> 20} MiB pinned, engine {report.engine.name}"


def errors_say_what(bench: Bench) -> str:
    bench.need_gpu()
    for device, kind in (("cuda:99", tload.InvalidRequestError), ("mps", tload.UnsupportedError)):
        try:
            tload.load(bench.model, framework="dlpack", device=device)
        except kind:
            continue
        raise AssertionError(f"device {device}: no {kind.__name__}")
    try:
        tload.load(bench.model, device=bench.device, device_memory_limit=16)
    except tload.OutOfMemoryError as error:
        return str(error).splitlines()[0]
    raise AssertionError("a limit of 16 bytes was no error")


def the_command_works(bench: Bench) -> str:
    bench.need_gpu()
    tool = [sys.executable, "-m", "tload"]
    options = {"capture_output": True, "text": True, "timeout": 120, "check": True}
    done = subprocess.run([*tool, "load", str(bench.model), "--device", bench.device, "--json"], **options)
    equal(json.loads(done.stdout)["report"]["devices"][0]["device"], bench.device, "device")
    done = subprocess.run([*tool, "doctor", "--json"], **options)
    findings = {finding["id"]: finding for finding in json.loads(done.stdout)["findings"]}
    return "; ".join(findings[name]["value"] for name in ("cuda", "cuda_devices", "pinning"))


CHECKS: list[tuple[str, Callable[[Bench], str]]] = [
    ("every dtype, as torch tensors", every_dtype_as_torch),
    ("the same as safetensors loads", safetensors_agrees),
    ("every dtype, written by hand", every_dtype_by_hand),
    ("8-bit floats", eight_bit_floats),
    ("DLPack into torch", dlpack_into_torch),
    ("DLPack into CuPy", imported_by("cupy")),
    ("DLPack into JAX", imported_by("jax")),
    ("devices by name", devices_by_name),
    ("into a module", into_a_module),
    ("into tied parameters, and with a cast", into_tied_and_cast),
    ("by a plan", by_a_plan),
    ("neighbours are apart", neighbours_are_apart),
    ("behind the caller's stream", behind_the_callers_stream),
    ("on any stream", on_any_stream),
    ("freed while in use", freed_while_in_use),
    ("memory comes back", memory_comes_back),
    ("the report tells", the_report_tells),
    ("errors say what", errors_say_what),
    ("the command works", the_command_works),
    ("ended in the middle", ended_in_the_middle),
    ("a process ends with a load", a_process_ends_with_a_load),
    ("after memory ran out", after_memory_ran_out),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="directory for check.json")
    parser.add_argument("--device", default="cuda:0")
    args = parser.parse_args()
    # Otherwise JAX takes most of the GPU, and the other checks fail.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    args.out.mkdir(parents=True, exist_ok=True)
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="tload-gpu-check-") as folder:
        bench = Bench(args.device, Path(folder))
        for name, check in CHECKS:
            began = time.perf_counter()
            faulthandler.dump_traceback_later(CHECK_SECONDS_MAX, exit=True)
            try:
                outcome, told = "ok", check(bench)
            except Skipped as reason:
                outcome, told = "SKIPPED", str(reason)
            except Exception as error:  # noqa: BLE001 - one failure must not hide the others
                outcome, told = "FAILED", f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
            faulthandler.cancel_dump_traceback_later()
            outcomes.append({"check": name, "outcome": outcome, "told": told, "seconds": time.perf_counter() - began})
            print(f"{outcome:<8} {name}: {told}", flush=True)
            (args.out / "check.json").write_text(json.dumps(outcomes, indent=1) + "\n")
    return int(any(outcome["outcome"] == "FAILED" for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
