"""Implementation of `safe_open`: the tensors of a file one by one."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tload._options.store_options import take, takes_keywords
from tload.safetensors._errors import SafetensorError
from tload.safetensors._prefetch import PrefetchLoader
from tload.safetensors._slice import PySafeSlice
from tload.safetensors._source import Opened

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self, Unpack

    from tload._options.keywords import StoreKeywords
    from tload.typing import Source, Store


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """Header entry of a tensor."""

    dtype: str
    """Element type as safetensors files write it, for example `"F32"`."""
    shape: list[int]
    """Elements along each dimension."""
    data_offsets: tuple[int, int]
    """Byte range, `(start, end)`, counted from the end of the header."""


class HandlePath(str):  # noqa: SLOT000  # its attribute is set once it exists
    """Path of a file that is open already: `safe_open` returns its handle.

    Libraries pass paths on and open them themselves.
    """

    handle: Any


class safe_open:  # noqa: N801  # the package's name
    """Opens a safetensors file and reads tensors on request: `safetensors.safe_open` with tload.

    It takes the same arguments as in the package, returns the same results, and raises the same
    exceptions. In addition, it opens everything that `tload.open` does, such as
    `s3://bucket/model.safetensors`, a directory, or a list of files.

    Deliberate differences from the package (0.8):

    - With numpy, `backend="mmap"` returns views, as with torch, where the package copies. They may
      be written to; neither the file nor other readers of it are affected.
    - Numpy arrays may have the dtypes of the package `ml_dtypes`, such as bfloat16, whether or not
      it has been imported.
    - `F4` can be read with any backend, and sliced by pairs along the last dimension; the package
      fails there.
    - Slices with `framework="np"` or `backend="pread"` may have negative bounds, may end before
      they start, and may select all of a dimension without elements.
    - A tensor whose offset in the file is not a multiple of its dtype's alignment is copied, not
      returned as a misaligned view.
    - `device` may be a `torch.device`.
    - A framework that is not installed, or a file that may not be read, raises a specific error
      immediately: `ModuleNotFoundError`, `PermissionError`. `"tf"`, `"mlx"` and `"paddle"` are
      refused.
    - Errors about damaged files have tload's messages, with the position; a name that is repeated
      in a header is an error. CUDA errors that the package leaves to torch are a `SafetensorError`.
    - `metadata()` is `None` for `"__metadata__": {}` too.

    Args:
        filename: A path, a URL, a directory, an index file, a list of these, or an open
            `tload.Checkpoint`.
        framework: `"pt"` (or `"torch"`), `"np"` (or `"numpy"`), or `"flax"` (or `"jax"`).
        device: Device of the tensors: `"cpu"`, `"cuda:0"`, a number, or any other device of torch.
            `"cuda"` is GPU 0. Devices other than the CPU need torch. Default: `"cpu"`.
        backend: `"mmap"`: tensors on the CPU are views of the file, without a copy, if it is a
            single local file. While such a tensor lives, the file must not be truncated or
            overwritten in place. `"pread"`, and in all other cases: tensors are read into memory of
            their own. So are several tensors at once if `TLOAD_ENGINE` sets an engine. If
            `TLOAD_VERIFY` turns on verification, they always are: each tensor is then compared
            before it is returned, even if only a part of it is requested. Default: `"mmap"`.
        store: Options of object stores: see `tload.open`.
        follow_symlinks: Allow symbolic links that lead out of the source's directory: see
            `tload.open`.
        **keywords: Keys of `store`: see `tload.open`.

    Raises:
        FileNotFoundError: The file does not exist.
        CorruptError, InvalidRequestError: Raised with `TLOAD_VERIFY` when a tensor is read: see
            `tload.Options.verify`.
        SafetensorError: The file is damaged, or a framework, device or backend is unknown. It is
            the package's own class if the package is installed.
        tload.Error: The file, store or GPU failed: see `tload.open` and `tload.stream`.

    Examples:
        >>> with safe_open("model.safetensors", framework="pt") as f:
        ...     rows = f.get_slice("lm_head.weight")[:1024]
    """

    __slots__ = ("__weakref__", "_opened")

    def __new__(cls, filename: Source, *_: Any, **__: Any) -> Any:
        """Return a new handle, or the one that the path has already."""
        return filename.handle if isinstance(filename, HandlePath) else super().__new__(cls)

    @takes_keywords
    def __init__(
        self,
        filename: Source,
        framework: str,
        device: Any = "cpu",
        *,
        backend: str = "mmap",
        store: Store | None = None,
        follow_symlinks: bool | None = None,
        **keywords: Unpack[StoreKeywords],
    ) -> None:
        """Open the file and read its header."""
        store = take(store, keywords)
        self._opened: Opened | None = Opened(
            filename, framework, device, backend, store, follow_symlinks=follow_symlinks
        )

    # Otherwise the class shows that of `__new__`.
    __signature__ = inspect.signature(__init__.__get__(object()))

    def _open(self) -> Opened:
        if self._opened is None:
            raise SafetensorError("File is closed")
        return self._opened

    def keys(self) -> list[str]:
        """Return the names of the tensors, sorted."""
        return sorted(self._open().checkpoint)

    def offset_keys(self) -> list[str]:
        """Return the names of the tensors in file order."""
        return [*self._open().checkpoint]

    def metadata(self) -> dict[str, str] | None:
        """Return the file's `__metadata__`, or `None` if it has none."""
        return dict(self._open().checkpoint.metadata) or None

    def get_tensor(self, name: str) -> Any:
        """Return a tensor, of the shape in the header.

        Raises:
            SafetensorError: The file has no tensor of this name, or the framework lacks its dtype.
        """
        opened = self._open()
        return opened.tensor(opened.info(name))

    def get_tensors(self) -> dict[str, Any]:
        """Return all tensors, in file order. They are loaded as fast as by `tload.load`."""
        return self._open().tensors()

    def get_slice(self, name: str) -> PySafeSlice:
        """Return a handle of a tensor from which slices are read, without reading it.

        Raises:
            SafetensorError: The file has no tensor of this name.
        """
        opened = self._open()
        return PySafeSlice(opened, opened.info(name))

    def get_tensor_meta(self, name: str) -> TensorMeta:
        """Return the header entry of a tensor, as in version 0.9 of the package."""
        opened = self._open()
        info = opened.info(name)
        header = opened.checkpoint.shards[info.shard].header_bytes
        start, end = info.file_range
        return TensorMeta(info.dtype, [*info.shape], (start - header, end - header))

    def prefetch(
        self, plan: Mapping[str, Any] | None = None, *, device: Any = None, threads: int = 8
    ) -> PrefetchLoader:
        """Start to load tensors in the background. Extends the method of the package's version 0.9.

        Works for any framework and device. Reading runs ahead of the caller within
        `tload.Options.memory_limit` and `device_memory_limit`; the package loads everything. With
        `backend="mmap"`, tensors on the CPU are views of the file, except those that are planned in
        part: only the bytes of the part are read.

        Args:
            plan: Tensors to load: names with `None`, for the whole tensor, or with the index of a
                part, along any dimension and with any positive step. Default: all tensors.
            device: Device of the tensors. Default: the handle's device.
            threads: Ignored: the number of reads in flight is tuned during the load. Default: 8.

        Returns:
            A loader that yields each tensor once.

        Raises:
            SafetensorError: The plan is empty, names a tensor that is not in the file, or has an
                invalid index.
            TypeError: The plan is not a mapping, or `threads` is not an int.
        """
        return PrefetchLoader(self._open(), plan, device, threads)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened = None

    def __repr__(self) -> str:
        if self._opened is None:
            return "<tload.safetensors.safe_open: closed>"
        return f"<tload.safetensors.safe_open {self._opened.checkpoint.location!r}: {self._opened.framework.name}>"
