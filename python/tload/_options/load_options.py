"""Limits and preferences of a load, from keyword arguments and `TLOAD_*` variables."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tload import _tload
from tload._errors import InvalidRequestError, advise
from tload._options.docs import documents_fields
from tload._options.dtypes import named
from tload._options.keywords import OptionKeywords, suggests_keywords

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy as np
    import torch

    from tload.typing import Cache, Duration, Engine, OnPeerLoss, Order, Share, Size


@documents_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Limits and preferences of a load.

    Every field is also a keyword of `stream`, `load` and `load_into`, which overrides `options=`.

    Sizes are bytes as a whole number (`4096`, `1e9`), or text with a unit: `"4 MiB"` (powers of
    1024), `"4 MB"` (powers of 1000). Variables take the same text. `None` means the value of the
    environment variable, or else a value that suits the storage.

    Options can be pickled, unless `verify` is a URL that contains a secret.

    Raises:
        InvalidRequestError: A value is invalid for every load.
        TypeError: A value is of the wrong type.
    """

    engine: Engine | None = None
    """The engine that reads: `"uring"` (io_uring), `"pread"` (threads), `"tokio-uring"` (io_uring
    through the crate of that name, for comparison), or `"auto"`: `uring` where the system allows
    it, else `pread`. Default: `TLOAD_ENGINE`, else `"auto"`."""
    cache: Cache | None = None
    """Use of the page cache for reading files. Default: `TLOAD_CACHE`, else `"auto"`.

    - `"auto"`: Copy bytes that are in the page cache; read others with direct I/O where the file
      system supports it.
    - `"direct"`: Read with direct I/O, or fail.
    - `"buffered"`: Read through the page cache.
    - `"drop"`: As `"auto"`, and drop the files from the page cache, except pages that have yet to
      be written to storage.
    - `"map"`: Copy nothing: tensors are views of the files, and their memory is the page cache's,
      which `memory_limit` does not count. (Tensors at offsets that are not a multiple of their
      dtype's alignment are still copied.) While such a tensor lives, its file must not be truncated
      or overwritten in place: touching bytes that are gone kills the process (`SIGBUS`), and
      overwritten bytes may change in the tensor. Files may be deleted, and replaced by renaming
      another file. Not for GPUs, `load_into`, and object stores.
    """
    writable: bool | None = None
    """With `cache="map"`: whether tensors may be written to. Each page that is written to becomes
    private to the process; files, and other loads of them, are unaffected. If `False`, numpy arrays
    are read-only; other libraries learn it from DLPack, and in libraries that ignore it, such as
    torch, a write kills the process (`SIGSEGV`). Tensors that are not views of a file are
    writable, unless `private=False` makes them views of memory that ranks share. Default: `True`
    with `framework="torch"`, which has no read-only tensors, else `False`."""
    order: Order | None = None
    """Order in which tensors arrive: `"ready"` (as they become complete) or `"file"` (by file, then
    by offset). Default: `TLOAD_ORDER`, else `"ready"`."""
    depth: int | None = None
    """Maximum reads in flight for each file system, over all lanes, and maximum requests in flight
    for each object store. Default: `TLOAD_DEPTH`, else tuned during the load."""
    in_flight_bytes: Size | None = None
    """Maximum bytes in flight for each file system and each object store, over all lanes. Default:
    `TLOAD_IN_FLIGHT`, else tuned during the load, or as many as `depth` reads need."""
    extent_bytes: Size | None = None
    """Maximum bytes of one read. Default: `TLOAD_EXTENT`, else a size that suits the storage."""
    align: Size | None = None
    """Alignment of tensors in host memory, bytes, rounded up to a power of two; at most 64. A tensor
    that cannot be read to such an address is moved there, which takes a copy, and with many small
    ones more reads. Tensors of 1 MiB and more that come from object stores or through the page
    cache begin on a page in any case. With other addresses, some CPU kernels are slower or round
    differently. Default: `TLOAD_ALIGN`, else the size of the dtype's elements."""
    dtype: str | torch.dtype | np.dtype[Any] | type[np.generic] | None = None
    """Dtype that floating-point tensors (F64, F32, BF16, F16 and 8-bit floats) are converted to:
    `"float16"`, `"bfloat16"`, `"float32"` or `"float64"`, a short name such as `"bf16"`, or that
    dtype of torch or numpy. Integers stay as they are, and so do quantised tensors: packed floats,
    scales (F8_E8M0), and 8-bit floats with a tensor beside them whose name says that it is a scale.
    Values are rounded to nearest, ties to even; out of range, they become infinite. In host memory
    a tensor is converted when its bytes have arrived, in memory of its own that has room for its
    bytes before and after, whichever are more; `memory_limit` counts it. A view (`cache="map"`, or
    of memory that ranks share) that is converted is a copy. In a load with a GPU, torch converts
    every tensor when it is yielded, on its device: on a GPU on torch's current stream, for which
    other streams have to wait, and beside the memory of the load. That needs `framework="torch"`.
    Not for tensors that `load_into` fills. Default: as in the file."""
    lanes: int | None = None
    """Threads that read the files of each file system, each with its own engine. Default:
    `TLOAD_LANES`, else one per core, up to 8, for files in the page cache, unless they are loaded
    to a GPU without verification; else 1, growing while it is saturated."""
    memory_limit: Size | None = None
    """Bytes of host memory that the load may hold before the caller receives them. Received tensors
    do not count; staging memory for GPUs or for the caller's memory does. Default:
    `TLOAD_MEMORY_LIMIT`, else the larger of 512 MiB and the largest tensor plus the larger of a
    quarter of it and the most bytes in flight: for object stores 1.25 GiB, unless `depth` or
    `in_flight_bytes` is given. In a cgroup (a container) with little memory it is less: half of
    what the group leaves, or the minimum that the load needs."""
    device_memory_limit: Size | None = None
    """Bytes of each GPU's memory that the load may hold before the caller receives them. Received
    tensors do not count, nor does the caller's memory that `load_into` fills. Default:
    `TLOAD_DEVICE_MEMORY_LIMIT`, else as for `memory_limit`, at least eight regions (see
    `region_bytes`), but no more than is free."""
    region_bytes: Size | None = None
    """Largest region of GPU memory that several tensors share, bytes, and so the most that a tensor
    retains besides its own bytes while it is kept. Larger regions take less time to allocate. A
    tensor of this size or more has memory of its own; with 1, every tensor has. A region is never
    more than an eighth of `device_memory_limit` or a tenth of the free memory, and smaller if more
    than four files are read at once. Default: `TLOAD_REGION_BYTES`, else 64 MiB; 256 MiB for
    `load`, which keeps all tensors."""
    verify: bool | str | os.PathLike[str] | None = None
    """Comparison of the bytes with existing digests of them, while they are read. A mismatch raises
    a `CorruptError` that names the file, the tensor and the bytes: before the tensor is yielded if
    it has a digest of its own, before the load ends if only the whole file has one. Default:
    `TLOAD_VERIFY`, else `"off"`.

    - `"off"`, `False`: Compare nothing.
    - `"auto"`, `True`: Compare with the digests that exist: a tload manifest beside the checkpoint, the
      store's own checksum of the whole object, the digest of a Hub or an OCI registry, or a signed
      manifest. `report.verification` lists what was not compared.
    - `"require"`: As `"auto"`, but raise `InvalidRequestError` before the first tensor if something
      cannot be compared: a file without a digest, or a file that is read in part and only has a
      digest of the whole.
    - `"sha256"`: As `"require"`, and only SHA-256 and BLAKE3 count. The other modes compare CRCs
      where there are any, which detect damage but not deliberate changes. Without BLAKE3, which
      manifests of tload have, all tensors of a file have to be read, whole. `"sha256:"` followed by
      the path or URL of a manifest compares with that manifest: keep it where others cannot write.
    - Any other text is the path or URL of a tload manifest, which has to cover everything that is
      read.

    A manifest that is named, here or after `"sha256:"`, must also list the index with its current
    bytes, and every file with weights that it lists must be part of the checkpoint, unless files
    were listed explicitly or tensors were selected by exact names.
    """
    retries: int | None = None
    """Number of times that a failed request to an object store, or a failed read of a file, is
    retried before the load fails; 0 for no retries. Only missing bytes are requested again.
    Default: `TLOAD_RETRIES`, else the key `retries` of `store=`, else 8 for requests and for files
    on network file systems, where failures may be transient, and 0 for other files."""
    hedge: bool | None = None
    """Hedging: a request to an object store that takes much longer than others is sent a second
    time, for its missing bytes; the first response wins. At most one request in 20 is hedged.
    Default: `TLOAD_HEDGE` (`true` or `false`), else `True`."""
    timeout: Duration | None = None
    """Time that opening may take, and again the whole load after it: seconds, text with units
    (`"500ms"`, `"10m"`, `"1h30m"`), or a `datetime.timedelta`. The import of torch or numpy counts
    if the load needs it: for a GPU towards the opening, else towards the load. Storage that does not
    respond delays the error by at most half a second. Default: `TLOAD_TIMEOUT` (the same text, or
    seconds), else no limit."""
    share: Share | None = None
    """Ranks that share what is read, in a load with a `group`. No effect without one. Default:
    `TLOAD_SHARE`, else `"node"`.

    - `"node"`: The ranks of one node: its storage is read once per node.
    - `"cluster"`: All ranks: storage is read once, and nodes send each other the rest.
    - `"none"`: Every rank reads for itself, as without a group.
    """
    join_timeout: Duration | None = None
    """Time that the ranks of a group have to begin the load together: seconds, text with units, or
    a `datetime.timedelta`. When exceeded, every rank raises a `PeerError` that names the missing
    ones. No effect without a `group`. Default: `TLOAD_JOIN_TIMEOUT`, else 30 seconds."""
    on_peer_loss: OnPeerLoss | None = None
    """Reaction to the loss of the rank that reads for this one: `"error"` raises a `PeerError`;
    `"read"` makes this rank read the missing bytes itself. No effect without a `group`. Default:
    `TLOAD_ON_PEER_LOSS`, else `"error"`."""
    private: bool | None = None
    """With a `group`: whether tensors in host memory are writable. Those that several ranks of a
    node load are views of memory that the ranks share, one copy for the node, of which each rank
    gets a copy of the pages that it writes to. If `False`, they are read-only as with
    `writable=False`, and in libraries that ignore it, such as torch, a write kills the process
    (`SIGSEGV`). No effect without a `group`, nor on tensors on GPUs and in targets of `load_into`.
    Default: `True`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", named(self.dtype))
        _tload.check_options(self)

    def __copy__(self) -> Options:
        return self

    def __deepcopy__(self, _memo: object) -> Options:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        manifest = str(self.verify).removeprefix("sha256:")
        if _tload.has_secret(manifest):
            message = "cannot pickle options whose verify= is a URL with a user, a password or a query"
            raise advise(InvalidRequestError, message, "pass verify= in the process that loads")
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return _restore, ({name: value for name, value in fields.items() if value is not None},)

    def __repr__(self) -> str:
        fields = ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))
        return f"tload.Options({', '.join(f'{name}={_shown(value)}' for name, value in fields if value is not None)})"


def _restore(fields: dict[str, Any]) -> Options:
    return Options(**fields)


def _shown(value: object) -> str:
    # A manifest's URL may contain a secret.
    text = str(value)
    return "<a URL>" if "://" in text or _tload.has_secret(text.removeprefix("sha256:")) else repr(value)


VARIABLES = dict(_tload.OPTION_VARIABLES)
"""Environment variables of the fields that have one. The command reads them too."""


Options.__init__ = suggests_keywords(Options.__init__)  # type: ignore[method-assign]


def resolve(options: Options | None, keywords: OptionKeywords, variables: Iterable[str] = tuple(VARIABLES)) -> Options:
    """Merge the options of a call: keywords override `options`, which override the environment.

    The environment overrides the configuration file. Of both, only the fields in `variables` count.
    """
    if options is not None and not isinstance(options, Options):
        message = f"options: wanted tload.Options, found {type(options).__qualname__}"
        raise TypeError(message)
    resolved = options or Options()
    # `__post_init__` checks the types.
    found = ((name, keywords.get(name)) for name in OptionKeywords.__annotations__)
    given: dict[str, Any] = {name: value for name, value in found if value is not None}
    resolved = dataclasses.replace(resolved, **given)
    return _with_environment(resolved, os.environ, variables)


def verifies() -> bool:
    """Return whether the environment turns on verification for loads without an option."""
    return _tload.verify_mode(resolve(None, OptionKeywords(), variables=("verify",))) != "off"


def is_chosen(name: str) -> bool:
    """Return whether the environment or the configuration file sets an option."""
    return getattr(resolve(None, OptionKeywords(), variables=(name,)), name) is not None


def is_strict(options: Options) -> bool:
    """Return whether bytes that cannot be verified are an error, by the core's rule."""
    return _tload.verify_mode(options) not in {"off", "auto"}


def _with_environment(options: Options, environment: Mapping[str, str], variables: Iterable[str]) -> Options:
    given: dict[str, Any] = {}
    configured = _tload.configured_options()
    for name in variables:
        text = environment.get(VARIABLES[name], "").strip() or configured.get(name)
        if text and getattr(options, name) is None:
            given[name] = _tload.option_from_variable(name, text)
    return dataclasses.replace(options, **given)
