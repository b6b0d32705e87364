"""GPU memory from PyTorch's caching allocator, for a load to fill. Imports torch when used.

All uses of torch's GPU interface are here: its memory, its current device and stream, and the
memory that it could provide.
"""

from __future__ import annotations

import atexit
import sys
from typing import TYPE_CHECKING, Any

from tload import _tload
from tload._errors import UnsupportedError, advise

if TYPE_CHECKING:
    import torch

HINT = 'load to device="cpu"; tload.load also takes framework="dlpack", which needs the NVIDIA driver and no torch'

PER_THREAD = 2
"""The default stream of each thread, `cudaStreamPerThread`."""


def check() -> None:
    """Raise `UnsupportedError` if torch cannot use an NVIDIA GPU."""
    import torch

    version = torch.__version__
    if torch.version.hip is not None:
        raise advise(UnsupportedError, f"torch {version} is built for ROCm; tload loads to CUDA GPUs", HINT)
    if not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call, unused-ignore]
        message = f"torch {version} is built without CUDA, so its tensors cannot be on a GPU"
        raise advise(UnsupportedError, message, f"install torch with CUDA, {HINT}")
    if not torch.cuda.is_available():
        message = f"torch {version} finds no CUDA GPU (torch.cuda.is_available() is False)"
        raise advise(UnsupportedError, message, f"check whether nvidia-smi works, {HINT}")


def device_of(tensor: torch.Tensor) -> str:
    """Return the device of a tensor, in the core's notation."""
    # Most tensors are on the CPU, and the text of a device takes five times as long.
    return "cpu" if tensor.is_cpu else str(tensor.device)


def current_device() -> int:
    """Return the index of the GPU that torch calls "cuda" on this thread."""
    import torch

    return torch.cuda.current_device()


def current_stream(ordinal: int) -> int:
    """Return the address of torch's current stream on a GPU for this thread; 0 is the default."""
    import torch

    stream = torch.cuda.current_stream(ordinal)  # type: ignore[no-untyped-call, unused-ignore]
    if stream.cuda_stream == PER_THREAD:
        # The thread that starts the load would wait for a new stream.
        stream.synchronize()
    return stream.cuda_stream  # type: ignore[no-any-return, unused-ignore]


def free_bytes(ordinal: int) -> int:
    """Return the bytes that torch could allocate: free memory, and unused memory of its cache."""
    import torch

    free, _total = torch.cuda.mem_get_info(ordinal)
    return int(free) + torch.cuda.memory_reserved(ordinal) - torch.cuda.memory_allocated(ordinal)


def empty(ordinal: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return an uninitialized tensor on a GPU."""
    import torch

    return torch.empty(shape, dtype=dtype, device=torch.device("cuda", ordinal))


def imported_bytes(tensor: _tload.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor in GPU memory of the load, or in memory that the GPU shares with the host."""
    from torch.utils.dlpack import from_dlpack

    # torch takes the device from the export, and does not ask the driver for the memory's origin.
    imported: torch.Tensor = from_dlpack(tensor.flat())
    return imported


def unowned(tensor: _tload.Tensor, ordinal: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor on a GPU whose memory is not torch's: as bytes, or without any."""
    return imported_bytes(tensor) if tensor.nbytes else empty(ordinal, shape, dtype)


class Allocator:
    """Provides GPU memory to the core, on the thread that waits for tensors."""

    __slots__ = ()

    def allocate(self, ordinal: int, nbytes: int) -> tuple[torch.Tensor, int, int]:
        """Return a tensor of bytes, its address, and the stream to order writes to it after."""
        import torch

        try:
            owner = empty(ordinal, (nbytes,), torch.uint8)
        except torch.cuda.OutOfMemoryError as error:
            raise MemoryError(str(error)) from error
        return owner, owner.data_ptr(), current_stream(ordinal)

    def free_bytes(self, ordinal: int) -> int:
        """Return the number of bytes that `allocate` could provide."""
        return free_bytes(ordinal)


def ordinal_of(device: str) -> int | None:
    """Return the index of the GPU that `device` names, or `None` for the CPU."""
    kind, _, ordinal = device.partition(":")
    return int(ordinal or 0) if kind == "cuda" else None


def device_name(device: object, framework: object) -> str:
    """Return a device in the core's notation. With torch, "cuda" is torch's current device."""
    if isinstance(device, int) and not isinstance(device, bool):
        # Integers are GPUs, as in torch, safetensors and the device maps of Hugging Face.
        return f"cuda:{device}"
    name = str(device)
    if name == "cuda" and framework == "torch" and is_torch_installed():
        check()
        return f"cuda:{current_device()}"
    return name


def is_torch_installed() -> bool:
    """Return whether torch can be imported. If it cannot, another error says so."""
    try:
        import torch  # noqa: F401
    except ImportError:
        return False
    return True


def imported(module: str) -> Any:
    """Return a module if it is already imported.

    If it is not, no object of it can have been passed in.
    """
    return sys.modules.get(module)


# Run while the driver is still loaded: at its own exit it would find pinned memory that can no
# longer be unpinned.
atexit.register(_tload.release_staging)
