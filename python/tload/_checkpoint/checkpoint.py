"""Open checkpoints: their tensors, files and metadata, from headers only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, TypeVar, overload

from tload import _tload
from tload._errors import InvalidRequestError, NoSuchTensorError, advise
from tload._options import store_options
from tload._sources.entries import Shard, TensorInfo
from tload._sources.keys import is_secret
from tload._sources.opened import Opened, usable

if TYPE_CHECKING:
    from typing import Any, Literal, Self

    import numpy.typing as npt
    import torch

    from tload._checkpoint.reader import Reader
    from tload._options.load_options import Options
    from tload._sources.origin import Origin
    from tload.typing import Index, Location

Default = TypeVar("Default")

ROWS_MAX = 100
"""Most tensors that the table of a checkpoint in a notebook shows."""


class Checkpoint(Opened, Mapping[str, TensorInfo]):
    """The tensors of an open checkpoint by name, in file order. Made by `tload.open`.

    The files stay open until `close` or the end of a `with` block. Header contents remain readable
    afterwards.

    A checkpoint is equal only to itself, and is hashable: two with equal headers may hold different
    values. To compare headers, compare `dict(checkpoint)`.

    It may be used by forked processes and can be pickled, for example by a `DataLoader` with
    workers. Pickled are its location and the options that were passed to `tload.open`, not the
    contents of files: the process that unpickles it opens the files again, and raises
    `ChangedError` if they are not as they were. Secrets are not pickled: with a secret in `store`
    or in a URL, pickling raises `InvalidRequestError`. `copy.copy` and `copy.deepcopy` return a
    checkpoint that shares the open files, and is closed on its own.
    """

    __slots__ = ("_infos", "is_sealed", "metadata", "shards", "total_bytes")

    location: str
    """Location that was opened, as the caller wrote it."""
    metadata: dict[str, str]
    """`__metadata__` of all files merged; for a key in several files, the first file's value."""
    shards: tuple[Shard, ...]
    """The files."""
    total_bytes: int
    """Total size of all tensors, bytes."""
    is_sealed: bool
    """`True` if files are sealed: the bytes of the files are not those of the tensors."""

    def __init__(self, raw: _tload.Checkpoint, origin: Origin) -> None:
        """Wrap the checkpoint that `tload.open` opened."""
        super().__init__(raw, origin)
        self._infos = {info[0]: TensorInfo._make(info) for info in raw.tensors()}
        self.metadata = raw.metadata()
        self.shards = tuple(Shard(*shard) for shard in raw.shards())
        self.total_bytes = raw.total_bytes
        self.is_sealed = raw.is_sealed

    # `Mapping` compares header contents, which are often equal for the files of several ranks.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __getitem__(self, name: str) -> TensorInfo:
        """Return the entry of the tensor `name`, or raise `NoSuchTensorError` (a `KeyError`)."""
        try:
            return self._infos[name]
        except KeyError:
            near = _tload.nearest_name(str(name), list(self._infos))
            hint = "list the names with list(checkpoint)" if near is None else f"did you mean {near!r}?"
            message = f"{self.location}: no tensor is named {name!r}\n  hint: {hint}"
            raise NoSuchTensorError(message, location=self.location, tensor=name, hint=hint) from None

    @overload
    def get(self, name: str, /, default: None = None) -> TensorInfo | None: ...
    @overload
    def get(self, name: str, /, default: TensorInfo | Default) -> TensorInfo | Default: ...
    def get(self, name: str, /, default: Any = None) -> Any:
        """Return the entry of the tensor `name`, or `default` if there is none."""
        # The one of `Mapping` would make the error, and search for the nearest name.
        return self._infos.get(name, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos)

    def __len__(self) -> int:
        return len(self._infos)

    def __contains__(self, name: object) -> bool:
        return name in self._infos

    @overload
    def read(
        self,
        name: str,
        index: Index = ...,
        *,
        framework: Literal["torch", "pt"] = "torch",
        device: str | int | torch.device = "cpu",
    ) -> torch.Tensor: ...
    @overload
    def read(
        self,
        name: str,
        index: Index = ...,
        *,
        framework: Literal["numpy", "np"],
        device: str | int | torch.device = "cpu",
    ) -> npt.NDArray[Any]: ...
    @overload
    def read(
        self,
        name: str,
        index: Index = ...,
        *,
        framework: Literal["dlpack"],
        device: str | int | torch.device = "cpu",
    ) -> _tload.Tensor: ...
    def read(
        self,
        name: str,
        index: Index = ...,
        *,
        framework: Literal["torch", "pt", "numpy", "np", "dlpack"] = "torch",
        device: str | int | torch.device = "cpu",
    ) -> Any:
        """Read one tensor, or a slice of it, synchronously.

        For many at once, `tload.stream` is faster.

        This method is thread-safe. Small tensors in local files (up to 4 MiB) are read by the
        calling thread, through the page cache; each other tensor is a load of its own.

        Args:
            name: The tensor's name.
            index: The slice to read, as in brackets behind a numpy array: an int, a slice with a
                positive step, `...`, or a tuple of them. Only the bytes of the slice are read, and
                gaps that are cheaper to read than to skip. Default: the whole tensor.
            framework: The type of the result: see `tload.stream`. Default: `"torch"`.
            device: The device of the result: see `tload.stream`. Default: `"cpu"`.

        Returns:
            The tensor, of the tensor's shape or the slice's.

        Raises:
            NoSuchTensorError: The checkpoint has no tensor of this name.
            InvalidRequestError: The index is out of range, or a step is not positive: then it is
                also an `IndexError`. The checkpoint is closed; or the slice splits a byte that
                holds several elements.
            TypeError: `index` is of another type.
            UnsupportedError: The framework lacks the dtype.
            IoError, ChangedError, RemoteError, LoadTimeoutError, CancelledError: While reading.
        """
        from tload._load import read_one

        return read_one.read(self, name, index, framework, device)

    def reader(self, options: Options | None = None) -> Reader:
        """Return a reader of single tensors into memory of the caller, to be used again and again.

        Args:
            options: `engine`, `cache`, `depth`, `extent_bytes`, `memory_limit` (of staging memory),
                `retries`, `hedge` and `timeout` (of opening the files) count. Default: those of the
                environment.

        Returns:
            The reader, which keeps the files open on its own.

        Raises:
            InvalidRequestError: The checkpoint is closed; `cache="map"`, `dtype` or `verify` is
                set; or `TLOAD_VERIFY` requires verification.
            IoError, ChangedError, RemoteError, LoadTimeoutError: While opening the files.
        """
        from tload._checkpoint.reader import Reader

        return Reader(self, options)

    def close(self) -> None:
        """Close the files. Running streams keep them open until they end."""
        self._raw = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __copy__(self) -> Self:
        copied = object.__new__(type(self))
        for name in (*Opened.__slots__, *Checkpoint.__slots__):
            setattr(copied, name, getattr(self, name))
        copied.metadata = dict(self.metadata)
        return copied

    def __deepcopy__(self, _memo: object) -> Self:
        return self.__copy__()

    def __reduce__(self) -> tuple[Any, ...]:
        raw = usable(self)
        origin, has_secret_url = self._origin.elsewhere(raw)
        secrets = _tload.store_secrets(origin.store)
        if has_secret_url or secrets or is_secret(origin.key):
            found = f"store= has {', '.join(secrets)}" if secrets else "a URL has a user, a password or a query"
            found = "key=" if is_secret(origin.key) else found
            message = f"{self.location}: cannot pickle a checkpoint that was opened with secrets: {found}"
            hint = (
                f"set them in the environment, where the other process finds them ({store_options.VARIABLE}, or the "
                "store's own variables or profile), or pass the location and open it there"
            )
            raise advise(InvalidRequestError, message, hint)
        return _reopen, (origin, raw.state())

    def _repr_html_(self) -> str:
        # Shown by notebooks. Names come from files, and may contain markup.
        import html

        rows = [
            f"<tr><td>{html.escape(info.name)}</td><td>{html.escape(info.dtype)}</td>"
            f"<td>{list(info.shape)}</td><td>{_tload.format_bytes(info.nbytes)}</td></tr>"
            for info in islice(self._infos.values(), ROWS_MAX)
        ]
        if len(self) > ROWS_MAX:
            rows.append(f'<tr><td colspan="4">… and {len(self) - ROWS_MAX} more</td></tr>')
        head = "<tr><th>name</th><th>dtype</th><th>shape</th><th>size</th></tr>"
        return f"<p>{html.escape(repr(self))}</p><table>{head}{''.join(rows)}</table>"

    def __repr__(self) -> str:
        shards = len(self.shards)
        files = "1 file" if shards == 1 else f"{shards} files"
        size = _tload.format_bytes(self.total_bytes)
        closed = ", closed" if self._raw is None else ""
        return f"<tload.Checkpoint {self.location!r}: {len(self)} tensors, {size} in {files}{closed}>"


def opened_with(checkpoint: Checkpoint) -> tuple[Location | list[Location], dict[str, str]]:
    """Return the source and the store options that the checkpoint was opened with, secrets included.

    Paths are absolute, and models of a Hub are of the commit that is open.
    """
    origin, _ = checkpoint._origin.elsewhere(usable(checkpoint))  # noqa: SLF001
    return origin.source, dict(origin.store)


def _reopen(origin: Origin, state: list[str]) -> Checkpoint:
    """Open a checkpoint that was pickled."""
    raw = origin.open()
    raw.require_state(state)
    return Checkpoint(raw, origin)
