"""GPUs for machines without one: a driver over host memory, and a replacement of torch's CUDA
functions.

The driver is `crates/cuda-stub`. Its library has the soname libcuda.so, so later opens of that name
get it.
"""

from __future__ import annotations

import ctypes
import gc
import os
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tload

if TYPE_CHECKING:
    import torch

FILE = "libtload_cuda_stub.so"
LEFT = ("allocations", "allocated_bytes", "registrations", "host_allocations", "streams", "events", "contexts")
DLPACK_CPU, DLPACK_CUDA = 1, 2
PATIENCE = 60.0
"""Seconds: abandoned loads end when their copies do."""


def library() -> Path | None:
    """Return the path of the built driver; the newest, if there are several."""
    target = Path(os.environ.get("CARGO_TARGET_DIR") or Path(__file__).parent.parent / "target")
    places = [target / profile / folder / FILE for profile in ("debug", "release") for folder in ("", "deps")]
    found = [place for place in places if place.is_file()]
    return max(found, key=lambda place: place.stat().st_mtime, default=None)


class Stub:
    """The driver that this process has opened: live objects, calls, and failures to inject."""

    _loaded: Stub | None = None

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        for name, arguments, result in (
            ("set", (ctypes.c_char_p, ctypes.c_char_p), ctypes.c_int),
            ("live", (ctypes.c_char_p,), ctypes.c_int64),
            ("count", (ctypes.c_char_p,), ctypes.c_int64),
            ("violation", (ctypes.c_char_p, ctypes.c_size_t), ctypes.c_int64),
            ("reset", (), ctypes.c_int),
            ("adopt", (ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int), ctypes.c_int),
            ("disown", (ctypes.c_size_t,), ctypes.c_int),
        ):
            function = self._function(name)
            function.argtypes, function.restype = arguments, result

    @classmethod
    def load(cls, path: Path) -> Stub:
        if cls._loaded is None:
            cls._loaded = cls(path)
        return cls._loaded

    def _function(self, name: str) -> Any:
        return getattr(self._library, f"tload_cuda_stub_{name}")

    def set(self, key: str, value: object) -> None:
        assert self._function("set")(key.encode(), str(value).encode()) == 0, (key, value)

    def live(self, kind: str) -> int:
        count: int = self._function("live")(kind.encode())
        assert count >= 0, kind
        return count

    def count(self, name: str) -> int:
        return int(self._function("count")(name.encode()))

    def violation(self) -> str:
        text = ctypes.create_string_buffer(4096)
        self._function("violation")(text, len(text))
        return text.value.decode()

    def reset(self) -> None:
        self._function("reset")()

    def adopt(self, address: int, nbytes: int, ordinal: int) -> None:
        assert self._function("adopt")(address, nbytes, ordinal) == 0, "cannot be adopted"

    def disown(self, address: int) -> None:
        assert self._function("disown")(address) == 0, "was not adopted"

    def left(self) -> dict[str, int]:
        return {kind: count for kind in LEFT if (count := self.live(kind))}

    def settle(self) -> None:
        """Wait until nothing is left of any load."""
        deadline = time.monotonic() + PATIENCE
        tload.release_staging()
        while self.left() and time.monotonic() < deadline:
            time.sleep(0.005)
            tload.release_staging()
        assert self.left() == {}, "left behind"


class TorchCuda:
    """Functions of torch that `tload._tensors.cuda` calls, with CPU tensors that the driver treats as GPU
    memory."""

    def __init__(self, stub: Stub) -> None:
        self.stub = stub
        self.device = 0
        self.free = 1 << 30
        self.stream = 0
        self.streams_asked: list[int] = []
        self.allocated: list[tuple[int, int]] = []
        """GPU and bytes of each allocation."""
        self.fails_at: dict[int, BaseException] = {}
        """Exceptions that allocation raises, by the number of allocations before."""
        self._storages: list[Any] = []
        self._devices: dict[int, int] = {}

    def check(self) -> None:
        """Torch can use CUDA."""

    def current_device(self) -> int:
        return self.device

    def current_stream(self, ordinal: int) -> int:
        self.streams_asked.append(ordinal)
        return self.stream

    def free_bytes(self, ordinal: int) -> int:  # noqa: ARG002
        return self.free

    def empty(self, ordinal: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        import torch

        if len(self.allocated) in self.fails_at:
            raise self.fails_at.pop(len(self.allocated))
        tensor = torch.empty(shape, dtype=dtype)
        if tensor.numel():
            tensor.view(torch.uint8).fill_(0xEE)
        self.allocated.append((ordinal, tensor.nbytes))
        return self.on_gpu(tensor, ordinal)

    def imported_bytes(self, exported: Any) -> torch.Tensor:
        """Import the memory of a GPU as that of the CPU, which this torch can use."""
        from torch.utils.dlpack import from_dlpack

        flat = exported.flat()
        kind, ordinal = flat.__dlpack_device__()
        assert kind == DLPACK_CUDA
        capsule = flat.__dlpack__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        view = pointer(capsule, b"dltensor")
        # After the address, the device's kind and number.
        ctypes.c_int32.from_address(view + 8).value = DLPACK_CPU
        ctypes.c_int32.from_address(view + 12).value = 0
        tensor: torch.Tensor = from_dlpack(capsule)
        self._devices[tensor.untyped_storage().data_ptr()] = ordinal
        return tensor

    def on_gpu(self, tensor: torch.Tensor, ordinal: int) -> torch.Tensor:
        """Treat the tensor as GPU memory from now on, as long as it lives."""
        from torch.multiprocessing.reductions import StorageWeakRef

        storage = tensor.untyped_storage()
        if storage.nbytes():
            address = storage.data_ptr()
            self.stub.adopt(address, storage.nbytes(), ordinal)
            self._devices[address] = ordinal
            # Not at the exit of Python, which leaves the memory in place.
            weakref.finalize(tensor, self.stub.disown, address).atexit = False
            self._storages.append(StorageWeakRef(storage))  # type: ignore[no-untyped-call, unused-ignore]
        return tensor

    def device_of(self, tensor: torch.Tensor) -> str:
        ordinal = self._devices.get(tensor.untyped_storage().data_ptr())
        return str(tensor.device) if ordinal is None else f"cuda:{ordinal}"

    def live(self) -> int:
        """Return the number of live allocations."""
        return sum(not storage.expired() for storage in self._storages)

    def settle(self) -> None:
        """Wait until nothing is allocated: threads of a closed stream may still end."""
        deadline = time.monotonic() + PATIENCE
        gc.collect()
        while self.live() and time.monotonic() < deadline:
            time.sleep(0.005)
            gc.collect()
        assert self.live() == 0, "memory left behind"
