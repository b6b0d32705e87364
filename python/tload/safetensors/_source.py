"""One open source, and the ways to make tensors from it."""

from __future__ import annotations

import copy
import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tload._checkpoint.checkpoint import Checkpoint
from tload._checkpoint.opening import open as open_checkpoint
from tload._errors import NoSuchTensorError, NotFoundError
from tload._load import read_one
from tload._options.keywords import OptionKeywords
from tload._options.load_options import Options, resolve, verifies
from tload._report.readers import readers
from tload._sources.locations import SCHEMES
from tload._sources.opened import open_raw
from tload.safetensors._errors import SafetensorError, as_safetensors, no_such_tensor
from tload.safetensors._frameworks import (
    check_torch_dtype,
    device_of,
    framework_of,
    numpy_dtype,
    numpy_view,
    torch_shape,
    torch_view,
)
from tload.safetensors._index import clamped, packed, strict
from tload.safetensors._map import look, may_be_mapped
from tload.safetensors._stream import PartStream

if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterable, Mapping

    from tload._sources.entries import TensorInfo
    from tload.safetensors._frameworks import Framework
    from tload.safetensors._index import Basic
    from tload.typing import Cache, Source, Store

BACKENDS = ("mmap", "pread")


class Opened:
    """An open source with the requested framework and device.

    Slices keep it open after its handle is closed.
    """

    __slots__ = ("backend", "cache", "checkpoint", "device", "framework", "is_verified", "memory")

    checkpoint: Checkpoint
    framework: Framework
    device: str
    """Device of the tensors, in torch's notation."""
    backend: str
    cache: Cache | None
    """Cache for tensors in memory of their own. `None`: that of the environment."""
    is_verified: bool
    """`True` if bytes are verified before tensors are returned: then whole tensors are read."""
    memory: mmap.mmap | None
    """The mapped file, if tensors are views of it: not for GPUs, with verification, or if the file
    system has no mappings."""

    def __init__(
        self,
        filename: Source,
        framework: object,
        device: object,
        backend: object,
        store: Store | None,
        *,
        follow_symlinks: bool | None = None,
        cache: Cache | None = None,
    ) -> None:
        """Open the source and read its header.

        It is mapped if `backend` is "mmap" and it is one local file. `cache` overrides that of the
        environment.
        """
        self.framework = framework_of(framework, device)
        self.device = device_of(device, self.framework)
        if not isinstance(backend, str):
            raise TypeError(f"backend: wanted a str, found {type(backend).__qualname__}")
        if backend not in BACKENDS:
            raise SafetensorError(f'backend "{backend}" is invalid (expected one of: "mmap", "pread")')
        self.backend = backend
        if cache is None and resolve(None, OptionKeywords(), variables=("cache",)).cache == "map":
            cache = "auto"
        self.cache = cache
        self.is_verified = verifies()
        path = _path(filename)
        is_mapped = backend == "mmap" and not self.is_on_gpu and not self.is_verified
        seen = look(path) if is_mapped else None
        with as_safetensors():
            self.checkpoint = _open(filename, path, store, follow_symlinks=follow_symlinks)
        # An index is a file too, but not the one to map.
        is_one = [shard.location for shard in self.checkpoint.shards] == [path]
        self.memory = seen.map() if seen is not None and is_one and not self.checkpoint.is_sealed else None
        readers.opened(self.checkpoint.location, is_mapped=self.memory is not None)

    def info(self, name: str) -> TensorInfo:
        """Return the header entry of a tensor."""
        if not isinstance(name, str):
            raise TypeError(f"name: wanted a str, found {type(name).__qualname__}")
        try:
            return self.checkpoint[name]
        except NoSuchTensorError as error:
            # The message is the package's; its cause suggests a name.
            raise no_such_tensor(name) from error

    def tensor(self, info: TensorInfo) -> Any:
        """Return a whole tensor."""
        return self.finish(self._counted(self._whole(info)))

    def part(self, info: TensorInfo, index: Any) -> Any:
        """Return the part of a tensor that an index selects."""
        if self.framework.is_torch:
            return self.finish(self._counted(self._torch_part(info, index)))
        basic = strict(index, info.shape)
        if self.memory is None:
            return self.finish(self._counted(self._read(info, basic)))
        # With the ellipsis, numpy does not make a scalar of a single element.
        return self.finish(self._counted(numpy_view(self.memory, info)[(*basic, ...)]))

    def tensors(self) -> dict[str, Any]:
        """Return all tensors, in file order."""
        self.check_dtypes(self.checkpoint.values())
        if not self.checkpoint:
            return {}
        with self.stream(dict.fromkeys(self.checkpoint)) as stream:
            arrived = dict(stream)
        return {name: arrived[name] for name in self.checkpoint}

    def stream(self, indices: Mapping[str, Basic | None]) -> PartStream:
        """Start to load tensors, or parts of them, whose dtypes have been checked."""
        return PartStream(self, indices)

    def moved_to(self, device: str) -> Opened:
        """Return the same source for another device."""
        moved = copy.copy(self)
        moved.device = device
        if moved.is_on_gpu:
            moved.memory = None
        return moved

    @property
    def is_local(self) -> bool:
        """`True` if all files are local, so that they can be mapped."""
        return all(_is_local(shard.location) for shard in self.checkpoint.shards)

    @property
    def is_on_gpu(self) -> bool:
        """`True` if tload itself reads to the device.

        Torch moves tensors to all others but the CPU.
        """
        return self.device.startswith("cuda:")

    @property
    def is_mapped(self) -> bool:
        """`True` if tensors that are loaded together are views of the files."""
        is_wanted = self.backend == "mmap" and self.is_local and not self.is_on_gpu and not self.is_verified
        return (
            is_wanted
            and not self.checkpoint.is_sealed
            and (self.memory is not None or may_be_mapped(shard.location for shard in self.checkpoint.shards))
        )

    def cut(self, tensor: Any, info: TensorInfo, index: Basic) -> Any:
        """Return the part of a whole tensor that an index selects, in memory of its own."""
        if not self.framework.is_torch:
            # With the ellipsis, numpy does not make a scalar of a single element.
            return tensor[(*index, ...)].copy()
        # Torch counts pairs, the file their halves.
        return tensor[packed(index, info.shape) if info.dtype == "F4" else index].clone()

    def check_dtypes(self, infos: Iterable[TensorInfo]) -> None:
        """Raise `SafetensorError` for the first tensor whose dtype the framework lacks."""
        for info in infos:
            if self.framework.is_torch:
                check_torch_dtype(info.dtype)
                torch_shape(info)
            else:
                numpy_dtype(info.dtype)

    def finish(self, tensor: Any) -> Any:
        """Convert a torch tensor or numpy array to the requested framework and device."""
        if self.framework.convert is not None:
            return self.framework.convert(tensor)
        if self.device == "cpu" or self.is_on_gpu:
            return tensor
        return tensor.to(self.device)

    def _counted(self, tensor: Any) -> Any:
        return readers.handed_out(tensor, is_view=self.memory is not None)

    def _torch_part(self, info: TensorInfo, index: Any) -> Any:
        if info.dtype == "F4":
            # Torch counts pairs, the file their halves.
            halves = strict(index, info.shape)
            pairs = packed(halves, info.shape)
            return self._read(info, halves) if self.memory is None else torch_view(self.memory, info)[pairs]
        if self.memory is not None:
            return torch_view(self.memory, info)[index]
        if self.backend == "pread":
            return self._read(info, strict(index, info.shape))
        import torch

        # A tensor without memory reproduces torch's errors for invalid indices.
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
        # A part has no digest.
        part = None if self.is_verified else index
        wanted = ... if part is None else part
        with as_safetensors():
            read = read_one.read(
                self.checkpoint, info.name, wanted, framework, device, options=Options(cache=self.cache)
            )
        return read if index is None or part is not None else self.cut(read, info, index)


def _path(filename: Source) -> str | None:
    """Return a local path as text, or `None` for a list or an open checkpoint."""
    if isinstance(filename, os.PathLike):
        filename = os.fspath(filename)
    return filename if isinstance(filename, str) else None


def _open(filename: Source, path: str | None, store: Store | None, *, follow_symlinks: bool | None) -> Checkpoint:
    if isinstance(filename, Checkpoint):
        # Fails if it is closed, or if `store` is passed too late.
        open_raw(filename, store, follow_symlinks=follow_symlinks)
        return filename
    if path is not None and (not path or "\0" in path):
        raise _not_found(path, None)
    try:
        return open_checkpoint(filename, store=store, follow_symlinks=follow_symlinks)
    except NotFoundError as error:
        if path is None or not _is_local(path) or Path(path).exists():
            raise
        raise _not_found(path, error.hint) from error


def _not_found(path: str, hint: str | None) -> NotFoundError:
    # The package's message.
    return NotFoundError(f"No such file or directory: {path}", location=path, errno=errno.ENOENT, hint=hint)


def _is_local(location: str) -> bool:
    return location.partition("://")[0].lower() not in SCHEMES
