"""The extension module. Private: use the package `tload`."""

from collections.abc import Sequence
from os import PathLike
from typing import Protocol, final

from typing_extensions import CapsuleType

__all__ = [
    "DTYPES",
    "ERROR_KINDS",
    "STORE_KEYS",
    "Checkpoint",
    "FlatBytes",
    "Loader",
    "Stream",
    "Tensor",
    "__version__",
    "check_options",
    "check_store",
    "cli_main",
    "format_bytes",
    "parse_store_option",
]

__version__: str
ERROR_KINDS: list[str]
DTYPES: list[str]
STORE_KEYS: list[tuple[str, str]]
"""The keys of `store=`, each with its default in words."""

class _Options(Protocol):
    @property
    def engine(self) -> str | None: ...
    @property
    def cache(self) -> str | None: ...
    @property
    def order(self) -> str | None: ...
    @property
    def depth(self) -> int | None: ...
    @property
    def in_flight_bytes(self) -> int | str | None: ...
    @property
    def extent_bytes(self) -> int | str | None: ...
    @property
    def lanes(self) -> int | None: ...
    @property
    def memory_limit(self) -> int | str | None: ...
    @property
    def retries(self) -> int | None: ...
    @property
    def timeout(self) -> float | None: ...

def check_options(options: _Options) -> None:
    """Fail as a load with these options would that fails whatever the checkpoint is."""

def check_store(store: Sequence[tuple[str, str]]) -> None:
    """Fail if a key is unknown or a value has not the form that its key wants."""

def parse_store_option(text: str) -> tuple[str, str]:
    """Key and value of `key=value`."""

def format_bytes(bytes: int) -> str:
    """Show a size with one decimal and a binary unit."""

def cli_main(argv: Sequence[str]) -> int:
    """Run the command `tload` and return its exit status. `argv[0]` is the program's name."""

@final
class Checkpoint:
    """The headers of a checkpoint."""

    @staticmethod
    def open(location: str | PathLike[str], *, store: Sequence[tuple[str, str]]) -> Checkpoint: ...
    @staticmethod
    def open_all(locations: Sequence[str | PathLike[str]], *, store: Sequence[tuple[str, str]]) -> Checkpoint: ...
    @property
    def location(self) -> str: ...
    @property
    def total_bytes(self) -> int: ...
    def tensors(self) -> list[tuple[str, str, tuple[int, ...], int, int, tuple[int, int]]]: ...
    def shards(self) -> list[tuple[str, int, int, int, dict[str, str]]]: ...
    def metadata(self) -> dict[str, str]: ...

@final
class Loader:
    """A load that has not started."""

    def __new__(
        cls,
        checkpoint: Checkpoint,
        *,
        names: Sequence[str],
        globs: Sequence[str],
        regexes: Sequence[str],
        device: str,
        options: _Options,
    ) -> Loader: ...
    def selected(self) -> list[tuple[str, str, tuple[int, ...], int, int, tuple[int, int]]]: ...
    def stream(self) -> Stream: ...

@final
class Stream:
    """A running load."""

    def receive(self, timeout: float | None) -> Tensor | None: ...
    def cancel(self) -> None: ...
    def close(self) -> None: ...
    def progress(self) -> tuple[int, int, int, int, int]: ...
    def report(self) -> tuple[str, str]: ...

@final
class Tensor:
    """A loaded tensor, for any library that imports DLPack: `library.from_dlpack(tensor)`.

    Its memory is valid as long as this or anything made of it lives, and may be written to. Small tensors that are
    neighbours in the file share memory: keeping one keeps at most about 1 MiB beside it.
    """

    @property
    def name(self) -> str:
        """The tensor's name."""

    @property
    def dtype(self) -> str:
        """The element type as safetensors files write it, for example `"BF16"`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each dimension; `()` for a scalar."""

    @property
    def nbytes(self) -> int:
        """Length in bytes."""

    def flat(self) -> FlatBytes:
        """The same memory as one row of bytes, for libraries whose DLPack lacks the dtype."""

    def __dlpack__(
        self,
        *,
        stream: None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType:
        """Export the memory, without a copy unless `copy=True`.

        `F4` is exported as pairs (4 bits, 2 lanes) with the last dimension halved, as in torch; when that dimension is
        odd, and for the 6-bit floats, the shape stays and the elements are packed.

        Raises:
            BufferError: The consumer wants another device than the CPU, or names a stream of a device.
        """

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return `(1, 0)`: the CPU."""

@final
class FlatBytes:
    """A tensor's bytes as a one-dimensional array of `uint8`, for `from_dlpack`."""

    def __dlpack__(
        self,
        *,
        stream: None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
