"""Extension module of the package `tload`. Private: import `tload` instead."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, NoReturn, Protocol, Self, final, overload

from typing_extensions import CapsuleType

from tload._errors import Error
from tload._options.load_options import Options

__all__ = [
    "DTYPES",
    "ERROR_KINDS",
    "OPTION_VARIABLES",
    "SCHEMES",
    "STORE_KEYS",
    "Checkpoint",
    "EarlyStart",
    "FlatBytes",
    "Group",
    "Loader",
    "Reader",
    "Reading",
    "RecentSpeed",
    "Sharding",
    "Stream",
    "Tensor",
    "Writer",
    "__version__",
    "apply_into",
    "check_options",
    "check_store",
    "cli_main",
    "configured_options",
    "configured_store",
    "copy",
    "finish_caching",
    "finish_serving",
    "format_bytes",
    "format_rate",
    "forward_events",
    "has_secret",
    "list_files",
    "metrics_text",
    "nearest_name",
    "option_from_variable",
    "parked_bytes",
    "parse_bytes",
    "parse_store_option",
    "patch_files",
    "publish_fragments",
    "read_beside",
    "read_signature",
    "release_staging",
    "remove_incomplete",
    "report_fragment",
    "report_page",
    "scatter",
    "seconds",
    "show_location",
    "store_secrets",
    "unknown_variables",
    "verified_fragment",
    "verify",
    "verify_mode",
]

__version__: str
ERROR_KINDS: list[str]
DTYPES: list[str]
OPTION_VARIABLES: list[tuple[str, str]]
"""Fields of `Options` that have an environment variable, each with its name."""
SCHEMES: list[str]
"""Schemes of the URLs that are locations, in lower case."""
STORE_KEYS: list[tuple[str, str, list[str]]]
"""Keys of `store=`, each with a description of its default and the protocols that use it."""

class _Allocator(Protocol):
    """Called by `Loader.stream` and `Stream.receive`, on their thread. Exceptions end the load."""

    def allocate(self, ordinal: int, nbytes: int) -> tuple[object, int, int]:
        """Return the memory's owner, its address, and the stream to order writes to it after."""

    def free_bytes(self, ordinal: int) -> int: ...

def check_options(options: Options) -> None:
    """Fail if a load with these options would fail for every checkpoint."""

def option_from_variable(name: str, text: str) -> Any:
    """Return the value of an option that the text of its environment variable stands for."""

def parse_bytes(name: str, text: str) -> int:
    """Return the bytes that a text such as `50GiB` stands for."""

def seconds(name: str, value: object) -> float:
    """Return the seconds of a duration of any type that an option takes."""

def verify_mode(options: Options) -> str:
    """Return the mode of verification as text, without secrets: `off`, `auto`, …"""

def unknown_variables(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return the unknown ones of those `names` of environment variables that begin with `TLOAD_`,
    each with a warning."""

def copy(
    source: str | PathLike[str],
    target: str | PathLike[str],
    *,
    names: Sequence[str] | None,
    include: Sequence[str],
    exclude: Sequence[str],
    hidden: bool,
    force: bool,
    skip_unusable: bool,
    dry_run: bool,
    options: Options,
    store: Sequence[tuple[str, str]],
    target_store: Sequence[tuple[str, str]] | None,
    progress: Callable[[int, int], object] | None,
) -> str: ...
def read_beside(
    location: str | PathLike[str], name: str, *, bytes_max: int, options: Options, store: Sequence[tuple[str, str]]
) -> bytes | None:
    """Return the content of a small file in the directory of a checkpoint."""

def list_files(source: str | PathLike[str], *, store: Sequence[tuple[str, str]]) -> list[tuple[str, int | None]]: ...
def show_location(location: str | PathLike[str]) -> str: ...
def has_secret(location: str | PathLike[str]) -> bool:
    """Return whether a location has parts that are not shown."""

def patch_files(
    first: Checkpoint,
    second: Checkpoint,
    out: str | PathLike[str],
    *,
    options: Options,
    progress: Callable[[int, int], object] | None,
    differs: bool,
) -> str:
    """Write the checkpoint that the patch `second` makes of `first`; with `differs`, a patch of what differs.

    Return the summary as JSON.
    """

def apply_into(
    targets: Mapping[str, Any],
    patch: Checkpoint,
    *,
    options: Options,
    progress: Callable[[int, int], object] | None,
) -> str:
    """Apply a patch to tensors in host memory, by name. Return the summary as JSON."""

def scatter(checkpoint: Checkpoint, names: Sequence[str], memory: Sequence[tuple[int, int]], table: bytes) -> bool:
    """Read rows of a table from local files into memory, given by address and length.

    A row has the numbers of a name and of a piece of memory, and in bytes the offsets in tensor and memory and
    the length, as native integers of 8 bytes. Return false if the memory could not be filled.
    """

def verify(
    location: str | PathLike[str],
    *,
    manifest: str | PathLike[str] | None,
    write: bool | str | PathLike[str] | None,
    force: bool,
    signed: tuple[Sequence[tuple[str, str]], Sequence[str]] | None,
    options: Options,
    store: Sequence[tuple[str, str]],
    follow_symlinks: bool,
    key: tuple[str, str] | None,
    progress: Callable[[int, int], object] | None,
) -> tuple[str, str, Error | None]: ...
def read_signature(
    location: str | PathLike[str], *, store: Sequence[tuple[str, str]], follow_symlinks: bool
) -> tuple[str, bytes]:
    """Return the location of the signature beside a checkpoint, and its unchecked content."""

def check_store(store: Sequence[tuple[str, str]]) -> None:
    """Fail if a key is unknown or its value malformed."""

def store_secrets(store: Sequence[tuple[str, str]]) -> list[str]:
    """Return the keys whose values are secrets or may be."""

def configured_options() -> dict[str, str]:
    """Return the options of loads that the configuration file sets, as text like that of variables."""

def configured_store(locations: Sequence[str | PathLike[str]]) -> list[tuple[str, str]]:
    """Return the options of stores that the configuration file sets for a checkpoint at `locations`."""

def parse_store_option(text: str) -> tuple[str, str]:
    """Split `key=value` into key and value."""

def nearest_name(wanted: str, names: Sequence[str]) -> str | None:
    """Return the name in `names` that `wanted` most likely stands for, if one is near enough."""

def parked_bytes() -> int:
    """Return the bytes of orphaned memory: memory of ended loads that storage may still write to.

    A read of a dead mount cannot be cancelled: its memory stays allocated until storage responds,
    and is then freed. It does not count against the `memory_limit` of a load. 0 if there is none.
    `Report.parked_bytes` is the value for one load.
    """

def release_staging() -> int:
    """Free the staging memory that loads have left for the next one, and return its bytes.

    A load to a GPU or into the caller's memory reads into staging memory. Pinning it for the GPU
    takes longer than most reads, so up to 1 GiB of it is kept for the next load of the process. The
    exit of Python frees it too. Staging memory of a running load is not freed.
    """

def metrics_text() -> str:
    """Return the counters of this process's loads and caches, in the text format of Prometheus."""

def finish_caching(timeout: float) -> bool:
    """Wait until the cache of object stores has what this process read, for `timeout` seconds at most.

    Return whether it has.
    """

def finish_serving(timeout: float) -> bool:
    """Wait until this process reads for no other rank any more, for `timeout` seconds at most."""

def forward_events() -> None:
    """Log the events of the core that wait."""

def report_page(document: str, text: str, unix_seconds: int) -> str:
    """Return the page of a report: its JSON, its text, and the present time."""

def report_fragment(document: str, text: str) -> str:
    """Return a report, as JSON and text, for a cell of a notebook."""

def verified_fragment(document: str) -> str:
    """Return the report of a verification, as JSON with `ok`, for a cell of a notebook."""

def format_bytes(bytes: int) -> str:
    """Format a size with one decimal and a binary unit."""

def format_rate(bytes_per_second: float) -> str:
    """Format a speed in GB/s, or in MB/s if it is low."""

def cli_main(argv: Sequence[str]) -> int:
    """Run the command `tload` and return its exit status. `argv[0]` is the program's name."""

@final
class Checkpoint:
    """Headers of an open checkpoint."""

    @staticmethod
    def open(
        location: str | PathLike[str],
        *,
        store: Sequence[tuple[str, str]],
        follow_symlinks: bool,
        key: tuple[str, str] | None = None,
        single_file_first: bool = False,
        group: Group | None = None,
        join_timeout: float | None = None,
    ) -> Checkpoint: ...
    @staticmethod
    def open_all(
        locations: Sequence[str | PathLike[str]],
        *,
        store: Sequence[tuple[str, str]],
        key: tuple[str, str] | None = None,
        group: Group | None = None,
        join_timeout: float | None = None,
    ) -> Checkpoint: ...
    @property
    def location(self) -> str: ...
    @property
    def total_bytes(self) -> int: ...
    @property
    def is_sealed(self) -> bool: ...
    def tensors(self) -> list[tuple[str, str, tuple[int, ...], int, int, tuple[int, int]]]: ...
    def shards(self) -> list[tuple[str, int, int, int, dict[str, str]]]: ...
    def metadata(self) -> dict[str, str]: ...
    def is_cut_off(self) -> bool:
        """Return whether this process is a fork that cannot send its requests."""

    def state(self) -> list[str]:
        """Return the state of the index and of each shard."""

    def require_state(self, expected: Sequence[str]) -> None:
        """Fail if the files are in another state."""

    def locations_elsewhere(self, locations: Sequence[str | PathLike[str]]) -> list[str | None]:
        """Return the locations that it was opened from, as another process can open them; `None` for
        a URL that contains a secret."""

    def read(self, name: str, index: Any, options: Options) -> Tensor: ...
    def require_files(self, options: Options) -> None: ...

@final
class Reader:
    """Reads single tensors of a checkpoint into buffers."""

    def __new__(cls, checkpoint: Checkpoint, options: Options) -> Self: ...
    def submit(self, requests: Sequence[tuple[str, Any, Any]]) -> Reading:
        """Begin to read: name of a tensor, index of the part to read or `None`, and buffer."""

@final
class Reading:
    """Reads that have begun."""

    def wait(self) -> None:
        """Wait until all bytes are there."""

    def cancel(self) -> None:
        """Cancel the reads, and wait for the last one to end."""

@final
class Writer:
    """Writes a checkpoint, tensor by tensor."""

    def __new__(
        cls,
        location: str | PathLike[str],
        tensors: Sequence[tuple[str, str, Sequence[int]]] | None,
        *,
        max_shard_size: int,
        metadata: dict[str, str],
        aliases: dict[str, str],
        replace: bool,
        manifest: bool,
        plain_names: bool,
        fragment: bool,
        sealing: tuple[Sequence[str], tuple[str, str] | None] | None,
        store: Sequence[tuple[str, str]],
    ) -> Self: ...
    def order(self) -> list[str]:
        """Return the names in the order in which the tensors have to come."""

    def begin(self, name: str, dtype: str, shape: Sequence[int]) -> None:
        """Begin a tensor."""

    def write(self, buffer: Any) -> None:
        """Write the next bytes of the tensor."""

    def finish(self) -> str:
        """Complete the checkpoint. Return the report as JSON."""

    def abort(self) -> None:
        """Leave the destination as it is."""

def publish_fragments(location: str | PathLike[str], list: bytes, *, store: Sequence[tuple[str, str]]) -> None: ...
def remove_incomplete(location: str | PathLike[str], *, store: Sequence[tuple[str, str]]) -> list[tuple[str, bool]]: ...

class _Transport(Protocol):
    """Called by a load whose nodes share, on threads of its own: one that sends and one that
    receives for each other node."""

    def send(self, to: int, address: int, length: int, timeout: float) -> None:
        """Send memory to a leader, by its position."""

    def receive(self, origin: int, address: int, length: int, timeout: float) -> None:
        """Receive into memory what a leader sends, by its position."""

    def close(self) -> None: ...

class _Members(Protocol):
    """Called by `Group` and by `Loader.stream`, on any thread."""

    rank: int
    size: int

    def exchange(self, message: bytes, timeout: float) -> list[bytes]:
        """Send a message to every rank, and return those of all ranks, by rank."""

    def transport(self, ranks: Sequence[int], timeout: float) -> _Transport | None:
        """Connect this rank with the others of `ranks`, ascending leaders of nodes."""

    def interrupt(self) -> None:
        """Make a waiting `exchange` raise."""

    def close(self) -> None: ...

@final
class Group:
    """The processes that load together, seen from one of them."""

    @staticmethod
    def local(path: str | PathLike[str], rank: int, size: int, timeout: float) -> Group: ...
    @staticmethod
    def over(members: _Members) -> Group:
        """Make a group of an object that exchanges messages."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def is_closed(self) -> bool: ...
    def exchange(self, message: bytes, timeout: float) -> list[bytes]:
        """Send a message to every rank, and return those of all ranks, by rank."""

    def give_up(self, error: BaseException, options: Options) -> None:
        """Tell the other ranks that this one does not begin the load that they begin."""

    def close(self) -> None: ...

@final
class Loader:
    """A load that has not started."""

    def __new__(
        cls,
        checkpoint: Checkpoint,
        *,
        names: Sequence[str],
        found: Sequence[str],
        globs: Sequence[str],
        regexes: Sequence[str],
        device: str,
        options: Options,
        device_map: Sequence[tuple[str, str]] = ...,
        slices: Sequence[tuple[str, Any]] = ...,
        sharding: Sharding | None = None,
        targets: Mapping[str, object] | None = None,
        strict: bool = True,
        cast: bool = False,
        boxes: tuple[list[tuple[int, int, tuple[int, int] | None]], list[tuple[str, str]], int, bytes, object]
        | None = None,
    ) -> Loader: ...
    def selected(self) -> list[tuple[str, str, tuple[int, ...], int, int, tuple[int, int]]]: ...
    def copied(self) -> list[tuple[str, str, tuple[int, ...], int, int, tuple[int, int]]]:
        """Return the tensors of `selected()` that the caller has to copy to their targets.

        These are all that have bytes and that the load does not write to a target itself.
        """

    def written(self) -> list[Any]:
        """Return the caller's tensors and arrays that the load writes to itself."""

    def dtypes(self) -> list[str]:
        """Return the dtypes of `selected()`, sorted by name."""

    def devices(self) -> list[str]:
        """Return the devices of `selected()`, each once."""

    def stream(
        self,
        allocator: _Allocator | None = None,
        group: Group | None = None,
        early: EarlyStart | None = None,
        *,
        keeps_all: bool = False,
    ) -> Stream: ...

@final
class EarlyStart:
    """Preparation of a load to GPUs, by a thread, while its checkpoint is opened."""

    @staticmethod
    def begin(
        locations: Sequence[str | PathLike[str]], ordinals: Sequence[int], options: Options
    ) -> EarlyStart | None: ...
    def end(self) -> None: ...

@final
class RecentSpeed:
    """Speed of a transfer over the last few seconds."""

    def __new__(cls) -> RecentSpeed: ...
    def observe(self, done: int, total: int) -> list[str]:
        """Return the speed and the time left as text, now that `done` of `total` bytes are there.

        Empty until they mean something.
        """

@final
class Sharding:
    """One rank's share of a checkpoint."""

    @staticmethod
    def tp(rank: int, size: int, dims: Sequence[tuple[str, int]]) -> Sharding: ...
    @staticmethod
    def ep(rank: int, size: int, pattern: str) -> Sharding: ...
    @staticmethod
    def pp(rank: int, size: int, pattern: str, first: Sequence[str], last: Sequence[str]) -> Sharding: ...
    @staticmethod
    def from_slices(slices: Sequence[tuple[str, Sequence[int], tuple[slice, ...]]]) -> Sharding: ...
    def both(self, other: Sharding) -> Sharding:
        """Return the combination of both."""

    def names(self, checkpoint: Checkpoint) -> list[str]: ...
    def slices(self, checkpoint: Checkpoint) -> list[tuple[str, tuple[slice, ...]]]: ...

@final
class Stream:
    """A running load."""

    @overload
    def receive(self, timeout: None) -> Tensor: ...
    @overload
    def receive(self, timeout: float) -> Tensor | None: ...
    def receive_several(self) -> list[Tensor]:
        """Return the tensors that arrive within 50 ms, perhaps none."""

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

    Its memory is valid as long as the tensor or an object made from it lives, and may be written to
    if it is `writable`. Small tensors that are neighbours in the file share memory: keeping one
    keeps at most about 1 MiB besides it; on a GPU, at most `Options.region_bytes`. A view of a file
    (`cache="map"`) keeps the whole file mapped, which takes address space and no memory.
    """

    @property
    def name(self) -> str:
        """The tensor's name."""

    @property
    def dtype(self) -> str:
        """The element type as safetensors files write it, for example `"BF16"`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of elements along each dimension; `()` for a scalar."""

    @property
    def nbytes(self) -> int:
        """Length in bytes."""

    @property
    def device(self) -> str:
        """The device: `"cpu"`, or for example `"cuda:1"`."""

    @property
    def writable(self) -> bool:
        """`True` if the memory may be written to; `False` only for views of a file (`cache="map"`)
        and of memory that ranks share (`private=False`)."""

    def owner(self) -> tuple[Any, int] | None:
        """Return the allocation of torch's allocator that holds the tensor, and its offset in
        bytes.

        `None` for memory of the load's own, and for a tensor without bytes. Tensors that are
        yielded with `framework="dlpack"` have no owner.
        """

    def flat(self) -> FlatBytes:
        """Return the memory as one row of bytes, for libraries that cannot import the dtype."""

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType:
        """Export the memory, without a copy unless `copy=True`, which needs a tensor in CPU memory.

        `F4` is exported as pairs (4 bits, 2 lanes) with the last dimension halved, as in torch. If
        that dimension is odd, and for the 6-bit floats, the shape stays and the elements are
        packed.

        A tensor that is not `writable` is exported as read-only. Not all libraries heed that: torch
        imports it like any other tensor, and a write to it kills the process (`SIGSEGV`). A copy
        may be written to.

        Args:
            stream: The consumer's stream. On a GPU: `None`, -1, 1 (the default stream), 2 (the
                per-thread default stream), or the address of a stream; none of them has to wait,
                since all bytes have already arrived. On the CPU: `None`.
            max_version: The newest version of DLPack that the consumer knows. Default: a version
                before 1.
            dl_device: The device that the consumer wants, which must be the tensor's. Default: that
                one.
            copy: `True` for a copy; `None` and `False` for the memory itself.

        Returns:
            A capsule named `dltensor` or, from DLPack version 1 on, `dltensor_versioned`.

        Raises:
            BufferError: The consumer wants another device, passes an invalid stream, or wants a
                copy on a GPU; or the tensor is not `writable`, which DLPack before version 1 cannot
                express.
        """

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return `(1, 0)` for the CPU, `(2, N)` for `"cuda:N"`."""

    def __reduce__(self) -> NoReturn:
        """Raise `TypeError`: a tensor cannot be pickled, nor copied with `copy`."""

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
