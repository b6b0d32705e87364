"""One opened file, or whatever else `tload.open` takes, and how tensors come out of it."""

from __future__ import annotations

import copy
import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tload._checkpoint import SCHEMES, Checkpoint, open_raw
from tload._checkpoint import open as open_checkpoint
from tload._errors import NotFoundError
from tload._options import verifies
from tload.safetensors._errors import SafetensorError, as_safetensors, no_such_tensor
from tload.safetensors._frameworks import (
    device_of,
    framework_of,
    numpy_dtype,
    numpy_view,
    torch_dtype,
    torch_shape,
    torch_view,
)
from tload.safetensors._index import clamped, packed, strict
from tload.safetensors._map import look
from tload.safetensors._stream import PartStream

if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterable, Mapping

    from tload._checkpoint import Source, TensorInfo
    from tload._store import Store
    from tload.safetensors._frameworks import Framework
    from tload.safetensors._index import Basic

BACKENDS = ("mmap", "pread")


class Opened:
    """An open source with what its tensors are wanted for. Slices keep it open when its handle is closed."""

    __slots__ = ("backend", "checkpoint", "device", "framework", "is_verified", "memory")

    checkpoint: Checkpoint
    framework: Framework
    device: str
    """Where tensors go, as torch writes it."""
    backend: str
    is_verified: bool
    """Whether bytes are compared before they are handed out: then all is read, and whole."""
    memory: mmap.mmap | None
    """The file, if tensors are made of it: not for GPUs, nor if they are compared."""

    def __init__(
        self, filename: Source, framework: object, device: object, backend: object, store: Store | None
    ) -> None:
        """Open it, read its header, and map it if the backend says so and it is one local file."""
        self.framework = framework_of(framework)
        self.device = device_of(device, self.framework)
        if not isinstance(backend, str):
            raise TypeError(f"backend: wanted a str, found {type(backend).__qualname__}")
        if backend not in BACKENDS:
            raise SafetensorError(f'backend "{backend}" is invalid (expected one of: "mmap", "pread")')
        self.backend = backend
        self.is_verified = verifies()
        path = _path(filename)
        is_mapped = backend == "mmap" and not self.is_on_gpu and not self.is_verified
        seen = look(path) if is_mapped else None
        with as_safetensors():
            self.checkpoint = _open(filename, path, store)
        # An index is a file too, and not the one to map.
        is_one = [shard.location for shard in self.checkpoint.shards] == [path]
        self.memory = seen.map() if seen is not None and is_one else None

    def info(self, name: str) -> TensorInfo:
        """Return what the header says of a tensor."""
        if not isinstance(name, str):
            raise TypeError(f"name: wanted a str, found {type(name).__qualname__}")
        info = self.checkpoint.get(name)
        if info is None:
            raise no_such_tensor(name)
        return info

    def tensor(self, info: TensorInfo) -> Any:
        """Return a whole tensor."""
        return self.finish(self._whole(info))

    def part(self, info: TensorInfo, index: Any) -> Any:
        """Return what an index takes of a tensor."""
        if self.framework.is_torch:
            return self.finish(self._torch_part(info, index))
        basic = strict(index, info.shape)
        if self.memory is None:
            return self.finish(self._read(info, basic))
        # The ellipsis: without it, numpy makes a scalar of a single element.
        return self.finish(numpy_view(self.memory, info)[(*basic, ...)])

    def tensors(self) -> dict[str, Any]:
        """Return all tensors, in the order of the file."""
        self.check_dtypes(self.checkpoint.values())
        if not self.checkpoint:
            return {}
        with self.stream(dict.fromkeys(self.checkpoint)) as stream:
            arrived = dict(stream)
        return {name: arrived[name] for name in self.checkpoint}

    def stream(self, indices: Mapping[str, Basic | None]) -> PartStream:
        """Start to load tensors, or parts of them. Their dtypes have been checked."""
        return PartStream(self, indices)

    def moved_to(self, device: str) -> Opened:
        """Return the same source with its tensors wanted elsewhere."""
        moved = copy.copy(self)
        moved.device = device
        if moved.is_on_gpu:
            moved.memory = None
        return moved

    @property
    def is_local(self) -> bool:
        """Whether all its files are local, so that they can be mapped."""
        return all(_is_local(shard.location) for shard in self.checkpoint.shards)

    @property
    def is_on_gpu(self) -> bool:
        """Whether tload itself brings tensors to the device; to others but the CPU, torch does."""
        return self.device.startswith("cuda:")

    @property
    def is_mapped(self) -> bool:
        """Whether tensors that are loaded together are views of the files."""
        return self.backend == "mmap" and self.is_local and not self.is_on_gpu and not self.is_verified

    def cut(self, tensor: Any, info: TensorInfo, index: Basic) -> Any:
        """Return what an index takes of a whole tensor, in memory of its own."""
        if not self.framework.is_torch:
            # The ellipsis: without it, numpy makes a scalar of a single element.
            return tensor[(*index, ...)].copy()
        # Torch counts pairs, and the file what is in them.
        return tensor[packed(index, info.shape) if info.dtype == "F4" else index].clone()

    def check_dtypes(self, infos: Iterable[TensorInfo]) -> None:
        """Raise `SafetensorError` for the first of these whose dtype the framework lacks."""
        for info in infos:
            if self.framework.is_torch:
                torch_dtype(info.dtype)
                torch_shape(info)
            else:
                numpy_dtype(info.dtype)

    def finish(self, tensor: Any) -> Any:
        """Make of a torch tensor or numpy array in place what the caller wants, where it is wanted."""
        if self.framework.convert is not None:
            return self.framework.convert(tensor)
        if self.device == "cpu" or self.is_on_gpu:
            return tensor
        return tensor.to(self.device)

    def _torch_part(self, info: TensorInfo, index: Any) -> Any:
        if info.dtype == "F4":
            # Torch counts pairs, and the file what is in them.
            halves = strict(index, info.shape)
            pairs = packed(halves, info.shape)
            return self._read(info, halves) if self.memory is None else torch_view(self.memory, info)[pairs]
        if self.memory is not None:
            return torch_view(self.memory, info)[index]
        if self.backend == "pread":
            return self._read(info, strict(index, info.shape))
        import torch

        # Without memory, for its errors: torch knows best what it takes.
        torch.empty(info.shape, device="meta")[index]
        basic = clamped(index, info.shape)
        return self._read(info, None)[index] if basic is None else self._read(info, basic)

    def _whole(self, info: TensorInfo) -> Any:
        if self.memory is None:
            return self._read(info, None)
        return torch_view(self.memory, info) if self.framework.is_torch else numpy_view(self.memory, info)

    def _read(self, info: TensorInfo, index: Basic | None) -> Any:
        self.check_dtypes([info])
        framework: Literal["torch", "numpy"] = "torch" if self.framework.is_torch else "numpy"
        device = self.device if self.is_on_gpu else "cpu"
        # There is no digest of a part.
        part = None if self.is_verified else index
        with as_safetensors():
            read = self.checkpoint.read(info.name, ... if part is None else part, framework=framework, device=device)
        return read if index is None or part is not None else self.cut(read, info, index)


def _path(filename: Source) -> str | None:
    """Return a local path as text; `None` for a list or a checkpoint, which has been opened by whoever passes it."""
    if isinstance(filename, os.PathLike):
        filename = os.fspath(filename)
    return filename if isinstance(filename, str) else None


def _open(filename: Source, path: str | None, store: Store | None) -> Checkpoint:
    if isinstance(filename, Checkpoint):
        open_raw(filename, store)  # Fails if it is closed, or if `store` comes too late.
        return filename
    if path is not None and (not path or "\0" in path):
        raise _not_found(path, None)
    try:
        return open_checkpoint(filename, store=store)
    except NotFoundError as error:
        if path is None or not _is_local(path) or Path(path).exists():
            raise
        raise _not_found(path, error.hint) from error


def _not_found(path: str, hint: str | None) -> NotFoundError:
    # In the package's words.
    return NotFoundError(f"No such file or directory: {path}", location=path, errno=errno.ENOENT, hint=hint)


def _is_local(location: str) -> bool:
    return location.partition("://")[0].lower() not in SCHEMES
