"""An open checkpoint: what is in it, without reading a tensor."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, Union

from tload import _tload
from tload._errors import InvalidRequestError, NoSuchTensorError, advise

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

Location: TypeAlias = str | os.PathLike[str]
Source: TypeAlias = Union[Location, Sequence[Location], "Checkpoint"]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What a checkpoint says of one tensor."""

    name: str
    """The tensor's name. It comes from a file: print it with `repr`."""
    dtype: str
    """The element type as safetensors files write it, for example `"BF16"` or `"F8_E4M3"`."""
    shape: tuple[int, ...]
    """Elements along each dimension; `()` for a scalar."""
    nbytes: int
    """Length in bytes."""
    shard: int
    """Index of the file that holds it, in `Checkpoint.shards`."""
    file_range: tuple[int, int]
    """Its bytes in that file, `(start, end)`, counted from the start of the file."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of a checkpoint."""

    location: str
    """Its path or URL."""
    file_bytes: int
    """Length of the file, bytes."""
    header_bytes: int
    """Length of everything before the first tensor, bytes."""
    tensor_count: int
    """Tensors in it that belong to the checkpoint."""
    metadata: dict[str, str]
    """The file's `__metadata__`."""


class Checkpoint(Mapping[str, TensorInfo]):
    """The tensors of an open checkpoint by name, in the order of the files. Made by `tload.open`.

    The files stay open until `close` or the end of a `with` block. What the headers say can be read after that too.
    """

    __slots__ = ("_infos", "_raw", "location", "metadata", "shards", "total_bytes")

    location: str
    """Where it was opened, as the caller wrote it."""
    metadata: dict[str, str]
    """`__metadata__` of all files; where two disagree, the first file's word stands."""
    shards: tuple[Shard, ...]
    """The files."""
    total_bytes: int
    """Bytes of all tensors."""

    def __init__(self, raw: _tload.Checkpoint) -> None:
        """Take over what `tload.open` opened."""
        self._raw: _tload.Checkpoint | None = raw
        self._infos = {info[0]: TensorInfo(*info) for info in raw.tensors()}
        self.location = raw.location
        self.metadata = raw.metadata()
        self.shards = tuple(Shard(*shard) for shard in raw.shards())
        self.total_bytes = raw.total_bytes

    def __getitem__(self, name: str) -> TensorInfo:
        """Return what the checkpoint says of the tensor `name`, or raise `NoSuchTensorError` (a `KeyError`)."""
        try:
            return self._infos[name]
        except KeyError:
            message = f"{self.location}: no tensor is named {name!r}"
            raise NoSuchTensorError(message, location=self.location, tensor=name) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos)

    def __len__(self) -> int:
        return len(self._infos)

    def __contains__(self, name: object) -> bool:
        return name in self._infos

    def close(self) -> None:
        """Close the files. Running streams keep them open for themselves."""
        self._raw = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        shards = len(self.shards)
        files = "1 file" if shards == 1 else f"{shards} files"
        size = _tload.format_bytes(self.total_bytes)
        closed = ", closed" if self._raw is None else ""
        return f"<tload.Checkpoint {self.location!r}: {len(self)} tensors, {size} in {files}{closed}>"


def open(source: Location | Sequence[Location]) -> Checkpoint:
    """Open a checkpoint and read its headers. No tensor is read.

    Args:
        source: A safetensors file, a directory (its index file decides, or else all `*.safetensors` files belong to the
            checkpoint), an index file, or a list of files. Text may be a `file://` URL.

    Raises:
        NotFoundError: A file is not there.
        PermissionDeniedError: A file may not be read.
        FormatError: A file is not a valid checkpoint.
        InvalidRequestError: The list is empty, or a path cannot be one: empty text, a NUL character, a `file://` URL of
            another host.
        UnsupportedError: A URL of a kind that this build cannot read, such as `s3://`.
        IoError: The operating system failed a read.
        TypeError: The source is neither a str, an `os.PathLike` of one, nor a list of them.
    """
    return Checkpoint(open_raw(source))


def open_raw(source: Source) -> _tload.Checkpoint:
    """Open whatever callers may pass as a source; an open `Checkpoint` is used as it is."""
    if isinstance(source, Checkpoint):
        if source._raw is None:  # noqa: SLF001
            hint = "stream inside the with block, or pass the location instead"
            raise advise(InvalidRequestError, f"{source.location}: the checkpoint is closed", hint)
        return source._raw  # noqa: SLF001
    if isinstance(source, (str, os.PathLike)):
        _check_location("source", source)
        return _tload.Checkpoint.open(source)
    if isinstance(source, (bytes, Mapping)) or not isinstance(source, Sequence):
        message = f"source: wanted a str, an os.PathLike, or a list of them, found {type(source).__qualname__}"
        raise TypeError(message)
    locations = list(source)
    for index, location in enumerate(locations):
        _check_location(f"source[{index}]", location)
    return _tload.Checkpoint.open_all(locations)


def _check_location(name: str, location: object) -> None:
    if not isinstance(location, (str, os.PathLike)):
        message = f"{name}: wanted a str or os.PathLike, found {type(location).__qualname__}"
        raise TypeError(message)
    if not isinstance(os.fspath(location), str):
        message = f"{name}: wanted a str or an os.PathLike of one, found one of bytes"
        raise TypeError(message)
