"""`safe_open`: the tensors of a file one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tload.safetensors._errors import SafetensorError
from tload.safetensors._prefetch import PrefetchLoader
from tload.safetensors._slice import PySafeSlice
from tload.safetensors._source import Opened

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self

    from tload._checkpoint import Source
    from tload._store import Store


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """What a file's header says of a tensor."""

    dtype: str
    """As files write it, for example `"F32"`."""
    shape: list[int]
    """Elements along each dimension."""
    data_offsets: tuple[int, int]
    """Its bytes, `(start, end)`, counted from the first byte behind the header."""


class safe_open:  # noqa: N801  # the package's name
    """Opens a safetensors file and reads tensors as they are asked for: `safetensors.safe_open` over tload.

    Takes what the package takes, gives what it gives, and raises what it raises; and opens whatever `tload.open` does,
    such as `s3://bucket/model.safetensors`, a folder, or a list of files.

    Where it differs from the package (0.8), on purpose:

    - With numpy, `backend="mmap"` hands out views, as with torch, where the package copies. They may be written to,
      which changes neither the file nor what others see.
    - Numpy arrays may have the dtypes that the package `ml_dtypes` has, such as bfloat16, whether or not it has been
      imported.
    - `F4` can be read with any backend, and sliced, along the last dimension by pairs; the package fails there.
    - Slices with `framework="np"` or `backend="pread"` may have negative bounds, may end before they begin, and may
      take all of a dimension without elements.
    - A tensor whose offset in the file is no multiple of its dtype's alignment is copied, not handed out as it lies.
    - `device` may be a `torch.device`.
    - A framework that is not installed, or a file that may not be read, is an error of its own kind, and at once:
      `ModuleNotFoundError`, `PermissionError`. `"tf"`, `"mlx"` and `"paddle"` are refused.
    - Damaged files are described in tload's words, with the place; a name that stands twice in a header is refused.
      Errors of CUDA that the package leaves to torch are a `SafetensorError`.
    - `metadata()` is `None` for `"__metadata__": {}` too.

    Args:
        filename: A path, a URL, a folder, an index file, a list of these, or an open `tload.Checkpoint`.
        framework: `"pt"` (or `"torch"`), `"np"` (or `"numpy"`), or `"flax"` (or `"jax"`).
        device: Where tensors go: `"cpu"`, `"cuda:0"`, a number, or what else torch has. `"cuda"` is GPU 0. Other than
            the CPU only with torch. Default: `"cpu"`.
        backend: `"mmap"`: tensors on the CPU are views of the file, without a copy, if it is a single local one. While
            one of them lives, nobody may truncate the file or overwrite it in place. `"pread"`, and all else: they are
            read into memory of their own. So they are whatever this says if `TLOAD_VERIFY` asks for verification: then
            each tensor is compared before it is handed out, also for a part of it. Default: `"mmap"`.
        store: How to reach object stores: see `tload.open`.

    Raises:
        FileNotFoundError: There is no such file.
        CorruptError, InvalidRequestError: With `TLOAD_VERIFY`, when a tensor is taken: see `tload.Options.verify`.
        SafetensorError: The file is damaged, or a framework, device or backend is unknown. If the package is installed,
            this is its own class.
        tload.Error: The file, store or GPU failed: see `tload.open` and `tload.stream`.

    Example:
        >>> with safe_open("model.safetensors", framework="pt") as f:  # doctest: +SKIP
        ...     rows = f.get_slice("lm_head.weight")[:1024]
    """

    __slots__ = ("__weakref__", "_opened")

    def __init__(
        self,
        filename: Source,
        framework: str,
        device: Any = "cpu",
        *,
        backend: str = "mmap",
        store: Store | None = None,
    ) -> None:
        """Open the file and read its header."""
        self._opened: Opened | None = Opened(filename, framework, device, backend, store)

    def _open(self) -> Opened:
        if self._opened is None:
            raise SafetensorError("File is closed")
        return self._opened

    def keys(self) -> list[str]:
        """Return the names of the tensors, sorted."""
        return sorted(self._open().checkpoint)

    def offset_keys(self) -> list[str]:
        """Return the names of the tensors in the order in which they lie in the file."""
        return [*self._open().checkpoint]

    def metadata(self) -> dict[str, str] | None:
        """Return the file's `__metadata__`, or `None` if it has none."""
        return dict(self._open().checkpoint.metadata) or None

    def get_tensor(self, name: str) -> Any:
        """Return a tensor.

        Raises:
            SafetensorError: The file has none of that name, or the framework lacks its dtype.
        """
        opened = self._open()
        return opened.tensor(opened.info(name))

    def get_tensors(self) -> dict[str, Any]:
        """Return all tensors, in the order of the file. They are loaded as fast as `tload.load` does it."""
        return self._open().tensors()

    def get_slice(self, name: str) -> PySafeSlice:
        """Return a tensor to take parts of, without reading it.

        Raises:
            SafetensorError: The file has none of that name.
        """
        opened = self._open()
        return PySafeSlice(opened, opened.info(name))

    def get_tensor_meta(self, name: str) -> TensorMeta:
        """Return what the header says of a tensor. As in version 0.9 of the package."""
        opened = self._open()
        info = opened.info(name)
        header = opened.checkpoint.shards[info.shard].header_bytes
        start, end = info.file_range
        return TensorMeta(info.dtype, [*info.shape], (start - header, end - header))

    def prefetch(
        self, plan: Mapping[str, Any] | None = None, *, device: Any = None, threads: int = 8
    ) -> PrefetchLoader:
        """Start to load tensors in the background. As in version 0.9 of the package, and beyond it.

        Works for any framework and device. Reading runs ahead of whoever takes the tensors by what
        `tload.Options.memory_limit` and `device_memory_limit` allow; the package loads everything. With
        `backend="mmap"`, tensors on the CPU are views of the file, unless the plan names parts: of those, only their
        bytes are read.

        Args:
            plan: What to load: names with `None`, for the whole tensor, or with the index of a part, along any
                dimension and with any positive step. Default: everything.
            device: Where to. Default: the handle's device.
            threads: Means nothing: how many reads are in flight is found while they run. Default: 8.

        Returns:
            What hands out each tensor once.

        Raises:
            SafetensorError: The plan is empty, names a tensor that the file lacks, or has an index that does not fit.
            TypeError: The plan is no mapping, or `threads` no int.
        """
        return PrefetchLoader(self._open(), plan, device, threads)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._opened = None

    def __repr__(self) -> str:
        if self._opened is None:
            return "<tload.safetensors.safe_open: closed>"
        return f"<tload.safetensors.safe_open {self._opened.checkpoint.location!r}: {self._opened.framework.name}>"
