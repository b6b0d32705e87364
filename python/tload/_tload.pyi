"""The extension module. Private: use the package `tload`."""

from collections.abc import Sequence
from os import PathLike
from typing import Any, Protocol, TypeAlias, final, overload

from typing_extensions import CapsuleType

from tload._errors import Error

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
    "copy",
    "format_bytes",
    "list_files",
    "parked_bytes",
    "parse_store_option",
    "read_signature",
    "release_staging",
    "show_location",
    "verify",
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
    def writable(self) -> bool | None: ...
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
    def device_memory_limit(self) -> int | str | None: ...
    @property
    def verify(self) -> str | PathLike[str] | None: ...
    @property
    def retries(self) -> int | None: ...
    @property
    def hedge(self) -> bool | None: ...
    @property
    def timeout(self) -> float | None: ...

class _Allocator(Protocol):
    """Asked on the thread that calls `Loader.stream` and `Stream.receive`. What it raises ends the load."""

    def allocate(self, ordinal: int, nbytes: int) -> tuple[object, int, int]:
        """Return what keeps the memory, its address, and the stream behind whose work it may be written to."""

    def free_bytes(self, ordinal: int) -> int: ...

_Memory: TypeAlias = tuple[int, int, int, object]
"""Address, bytes, the stream that it is ordered with (0 on the CPU), and what keeps it."""

_Layout: TypeAlias = tuple[int, int, Sequence[tuple[int, int]], str]
"""Address, bytes of an element, length and stride in bytes of each dimension, and the element type in words."""

_Receiver: TypeAlias = tuple[str, str | None, tuple[int, ...], str, _Memory | None, _Layout | None]
"""Name, dtype as safetensors files write it, shape, device, memory if it is contiguous, and where its elements lie."""

def check_options(options: _Options) -> None:
    """Fail as a load with these options would that fails whatever the checkpoint is."""

def copy(
    source: str | PathLike[str],
    target: str | PathLike[str],
    *,
    names: Sequence[str] | None,
    include: Sequence[str],
    exclude: Sequence[str],
    hidden: bool,
    force: bool,
    depth: int | None,
    store: Sequence[tuple[str, str]],
) -> str: ...
def list_files(source: str | PathLike[str], *, store: Sequence[tuple[str, str]]) -> list[tuple[str, int | None]]: ...
def show_location(location: str | PathLike[str]) -> str: ...
def verify(
    location: str | PathLike[str],
    *,
    manifest: str | PathLike[str] | None,
    write: bool | str | PathLike[str] | None,
    force: bool,
    signed: tuple[Sequence[tuple[str, str]], Sequence[str]] | None,
    store: Sequence[tuple[str, str]],
    follow_symlinks: bool,
) -> tuple[str, Error | None]: ...
def read_signature(
    location: str | PathLike[str], *, store: Sequence[tuple[str, str]], follow_symlinks: bool
) -> tuple[str, bytes]:
    """Return where the signature beside a checkpoint is, and all of it, which nobody has checked."""

def check_store(store: Sequence[tuple[str, str]]) -> None:
    """Fail if a key is unknown or a value has not the form that its key wants."""

def parse_store_option(text: str) -> tuple[str, str]:
    """Key and value of `key=value`."""

def parked_bytes() -> int:
    """Bytes of memory that loads which are over have left to storage that does not answer.

    A read of a dead mount cannot be taken back: its memory stays until storage answers, and is freed then. It is in no
    load's `memory_limit`. 0 when nothing is left. `Report.parked_bytes` is the same for one load.
    """

def release_staging() -> int:
    """Free the staging memory that loads have left for the next one, and return its bytes.

    A load to a GPU or into memory of the caller's reads into staging memory. Pinning that for the GPU takes longer than
    most reads, so up to 1 GiB of it is kept for the process's next load. Python's end frees it too. Memory of a load
    that is running is left alone.
    """

def format_bytes(bytes: int) -> str:
    """Show a size with one decimal and a binary unit."""

def cli_main(argv: Sequence[str]) -> int:
    """Run the command `tload` and return its exit status. `argv[0]` is the program's name."""

@final
class Checkpoint:
    """The headers of a checkpoint."""

    @staticmethod
    def open(
        location: str | PathLike[str], *, store: Sequence[tuple[str, str]], follow_symlinks: bool
    ) -> Checkpoint: ...
    @staticmethod
    def open_all(locations: Sequence[str | PathLike[str]], *, store: Sequence[tuple[str, str]]) -> Checkpoint: ...
    @property
    def location(self) -> str: ...
    @property
    def total_bytes(self) -> int: ...
    def tensors(self) -> list[tuple[str, str, tuple[int, ...], int, int, tuple[int, int]]]: ...
    def shards(self) -> list[tuple[str, int, int, int, dict[str, str]]]: ...
    def metadata(self) -> dict[str, str]: ...
    def read(self, name: str, index: Any, options: _Options) -> Tensor: ...
    def require_files(self, options: _Options) -> None: ...

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
        device_map: Sequence[tuple[str, str]] = ...,
        slices: Sequence[tuple[str, Any]] = ...,
        receivers: Sequence[_Receiver] | None = None,
        strict: bool = True,
        cast: bool = False,
    ) -> Loader: ...
    def selected(self) -> list[tuple[str, str, tuple[int, ...], int, int, tuple[int, int]]]: ...
    def dtypes(self) -> list[str]:
        """Return the dtypes that occur among `selected()`, by name."""

    def devices(self) -> list[str]:
        """Return the devices that `selected()` are to go to, each once."""

    def stream(self, allocator: _Allocator | None = None) -> Stream: ...

@final
class Stream:
    """A running load."""

    @overload
    def receive(self, timeout: None) -> Tensor: ...
    @overload
    def receive(self, timeout: float) -> Tensor | None: ...
    def tensors(self) -> list[tuple[str, str, tuple[int, ...], int, int, tuple[int, int]]]: ...
    def names(self) -> list[str]: ...
    def poll(self) -> Tensor | None: ...
    def fileno(self) -> int: ...
    def cancel(self) -> None: ...
    def close(self) -> None: ...
    def progress(self) -> tuple[int, int, int, int, int]: ...
    def report(self) -> tuple[str, str]: ...

@final
class Tensor:
    """A loaded tensor, for any library that imports DLPack: `library.from_dlpack(tensor)`.

    Its memory is valid as long as this or anything made of it lives, and may be written to if it is `writable`. Small
    tensors that are neighbours in the file share memory: keeping one keeps at most about 1 MiB beside it. A view of a
    file (`cache="map"`) keeps the whole file mapped, which takes address space and no memory.
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

    @property
    def device(self) -> str:
        """Where it is: `"cpu"`, or for example `"cuda:1"`."""

    @property
    def writable(self) -> bool:
        """Whether its memory may be written to: `False` only for views of files, which `cache="map"` makes."""

    def owner(self) -> tuple[Any, int] | None:
        """Return what torch's allocator gave for its memory, and where in that it begins, in bytes.

        `None` for memory of the load's own, and for a tensor without bytes. Of the tensors that are handed out with
        `framework="dlpack"`, none has an owner.
        """

    def flat(self) -> FlatBytes:
        """The same memory as one row of bytes, for libraries whose DLPack lacks the dtype."""

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType:
        """Export the memory, without a copy unless `copy=True`, which only tensors in CPU memory can be asked for.

        `F4` is exported as pairs (4 bits, 2 lanes) with the last dimension halved, as in torch; when that dimension is
        odd, and for the 6-bit floats, the shape stays and the elements are packed.

        What is not `writable` is exported as read-only. Not all libraries heed that: torch imports it as any tensor,
        and a write to that kills the process (`SIGSEGV`). A copy may be written to.

        Args:
            stream: The consumer's stream. On a GPU: `None`, -1, 1 (the default stream), 2 (the thread's own), or the
                address of one; none of them has to wait, since all bytes are there already. For the CPU: `None`.
            max_version: The newest version of DLPack that the consumer knows. Default: one from before version 1.
            dl_device: Where the consumer wants the memory: only where it is. Default: there.
            copy: `True` for a copy; `None` and `False` for the memory itself.

        Raises:
            BufferError: The consumer wants another device, names a stream that is none, or wants a copy on a GPU; or
                the tensor is not `writable`, which no DLPack from before version 1 can say.
        """

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return `(1, 0)` for the CPU, `(2, N)` for `"cuda:N"`."""

@final
class FlatBytes:
    """A tensor's bytes as a one-dimensional array of `uint8`, for `from_dlpack`."""

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
