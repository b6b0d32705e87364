"""Checks of every dtype and byte, for every library and device."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable

import torch
from safetensors import safe_open
from shared import BITS, Bench, Content, Skipped, bytes_of, equal, same_bytes, tile, write

import tload


def every_dtype_as_torch(bench: Bench) -> str:
    tensors = tload.load(bench.model, device=bench.device)
    same_bytes(bench, tensors, "torch")
    for name, tensor in tensors.items():
        equal(tensor.device, torch.device(bench.device), f"device of {name}")
    return f"{len(tensors)} tensors, {len({dtype for dtype, _, _ in bench.truth.values()})} dtypes"


def safetensors_agrees(bench: Bench) -> str:
    tensors, compared = tload.load(bench.model, device=bench.device), 0
    for path in sorted(bench.model.glob("*.safetensors")):
        with safe_open(path, framework="pt", device=bench.device) as file:
            for name in file.keys():  # noqa: SIM118 - no mapping
                try:
                    theirs = file.get_tensor(name)
                except Exception:  # noqa: BLE001, S112 - a dtype that safetensors lacks
                    continue
                ours = tensors[name]
                equal((ours.dtype, ours.shape, ours.device), (theirs.dtype, theirs.shape, theirs.device), name)
                equal(bytes_of(ours) == bytes_of(theirs), True, f"{name}: same bytes")
                compared += 1
    if compared < len(tensors) // 2:
        raise AssertionError(f"safetensors opened {compared} of {len(tensors)} tensors only")
    return f"{compared} of {len(tensors)} tensors"


def every_dtype_by_hand(bench: Bench) -> str:
    """Checks all dtypes, also those that `synth` or torch lack: by DLPack, and as torch tensors if torch has them."""
    contents: dict[str, Content] = {}
    for dtype, bits in BITS.items():
        for index, shape in enumerate(([4], [3, 4], [0, 4], [5, 3, 8], [8188])):
            raw = tile(8 * bits + index, math.prod(shape) * bits // 8)
            contents[f"{dtype}.{index}"] = (dtype, shape, bytes(it & 1 for it in raw) if dtype == "BOOL" else raw)
    path = bench.folder / "dtypes.safetensors"
    write(path, contents)
    refused = []
    for dtype in BITS:
        names = [name for name in contents if name.startswith(f"{dtype}.")]
        try:
            tensors = tload.load(path, names=names, device=bench.device)
        except tload.UnsupportedError:
            if dtype not in ("F4", "F6_E2M3", "F6_E3M2", "F8_E8M0"):
                raise
            if dtype == "F4" and hasattr(torch, "float4_e2m1fn_x2"):
                raise
            refused.append(dtype)
            continue
        for name in names:
            _, shape, raw = contents[name]
            if dtype == "F4":
                equal(tensors[name].dtype, torch.float4_e2m1fn_x2, name)
                shape = [*shape[:-1], shape[-1] // 2]
            equal(list(tensors[name].shape), shape, f"shape of {name}")
            equal(tensors[name].device, torch.device(bench.device), f"device of {name}")
            equal(bytes_of(tensors[name]) == raw, True, f"bytes of {name}")
    tensors = tload.load(path, framework="dlpack", device=bench.device)
    for name, (dtype, shape, raw) in contents.items():
        equal((tensors[name].dtype, list(tensors[name].shape)), (dtype, shape), name)
        if raw:
            equal(bytes_of(torch.from_dlpack(tensors[name].flat())) == raw, True, f"bytes of {name} by DLPack")
    return f"{len(contents)} tensors, {len(BITS)} dtypes; torch has none of {', '.join(refused) or 'nothing'}"


def eight_bit_floats(bench: Bench) -> str:
    wanted = {"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}
    tensors, seen = tload.load(bench.model, device=bench.device), set()
    for name, (dtype, _, raw) in bench.truth.items():
        if dtype in wanted and raw:
            equal(tensors[name].dtype, wanted[dtype], name)
            # Arithmetic on the device, and on the CPU from the file's own bytes.
            values = torch.frombuffer(bytearray(raw), dtype=wanted[dtype]).to(torch.float32)
            there = tensors[name].reshape(-1).to(torch.float32).cpu()
            equal(torch.equal(values.nan_to_num(), there.nan_to_num()), True, f"values of {name}")
            seen.add(dtype)
    equal(seen, set(wanted), "dtypes in the checkpoint")
    return "values, not only bytes"


def dlpack_into_torch(bench: Bench) -> str:
    tensors = tload.load(bench.model, framework="dlpack", device=bench.device)
    flat = {}
    for name, tensor in tensors.items():
        if not tensor.nbytes:
            flat[name] = b""
            continue
        raw = torch.from_dlpack(tensor.flat())
        equal(raw.device, torch.device(bench.device), f"device of {name}")
        flat[name] = bytes_of(raw)
    for name, (_, _, wanted) in bench.truth.items():
        equal(flat[name] == wanted, True, f"bytes of {name}")
    whole = next(name for name, (dtype, shape, raw) in bench.truth.items() if dtype == "F32" and raw and len(shape) > 1)
    shaped = torch.from_dlpack(tensors[whole])
    del tensors, tensor
    equal((shaped.dtype, list(shaped.shape)), (torch.float32, bench.truth[whole][1]), whole)
    equal(bytes_of(shaped) == bench.truth[whole][2], True, f"{whole} after tload has released it")
    return f"{len(flat)} tensors"


def imported_by(library: str) -> Callable[[Bench], str]:
    def check(bench: Bench) -> str:
        try:
            module = importlib.import_module(library)
        except ImportError as error:
            raise Skipped(f"{library} is not installed: {error}") from error
        if library == "cupy":
            bench.need_gpu()
        if library == "jax" and bench.on_gpu and not any(it.platform == "gpu" for it in module.devices()):
            raise Skipped("jax finds no GPU")
        tensors, count = tload.load(bench.model, framework="dlpack", device=bench.device), 0
        for name, (dtype, shape, raw) in bench.truth.items():
            if dtype not in ("F32", "I32", "U8", "F16") or 0 in shape or not shape:
                continue
            if library == "cupy":
                there = module.from_dlpack(tensors[name])
                found = module.asnumpy(there).tobytes()
            else:
                found = bytes(module.device_get(module.dlpack.from_dlpack(tensors[name])).tobytes())
            equal(found == raw, True, f"bytes of {name} in {library}")
            count += 1
        if not count:
            raise AssertionError("nothing was imported")
        return f"{count} tensors"

    return check


def devices_by_name(bench: Bench) -> str:
    bench.need("load_into")
    names = sorted(bench.truth)
    prefix = names[len(names) // 2].split(".")[0]
    tensors = tload.load(bench.model, device=bench.device, device_map={f"{prefix}.*": "cpu"})
    same_bytes(bench, tensors, "device_map")
    on_cpu = 0
    for name, tensor in tensors.items():
        wanted = torch.device("cpu" if name.startswith(f"{prefix}.") else bench.device)
        equal(tensor.device, wanted, f"device of {name}")
        on_cpu += tensor.device.type == "cpu"
    return f"{on_cpu} of {len(tensors)} tensors on the CPU"
