"""Loads: an iterator of tensors as they arrive, or all tensors at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

from tload._load import early, indices
from tload._load.call import Call
from tload._load.stream import TensorStream
from tload._options.keywords import LoadKeywords, OptionKeywords, lists, refuse_unknown
from tload._options.load_options import resolve
from tload._ranks.group import beginning
from tload._report.progress import Progress, watcher_for
from tload._sources.entries import TensorInfo
from tload._sources.opened import open_raw
from tload._tensors import conversion, cuda, devices, frameworks, imports, torch_tensors
from tload._tensors.imports import BackgroundImport

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Unpack

    import numpy.typing as npt
    import torch

    from tload import _tload
    from tload._checkpoint.checkpoint import Checkpoint
    from tload._options.load_options import Options
    from tload.typing import Framework, Source


@overload
def stream(
    source: Source, *, framework: Literal["torch", "pt"] = "torch", **keywords: Unpack[LoadKeywords]
) -> TensorStream[torch.Tensor]: ...
@overload
def stream(
    source: Source, *, framework: Literal["numpy", "np"], **keywords: Unpack[LoadKeywords]
) -> TensorStream[npt.NDArray[Any]]: ...
@overload
def stream(
    source: Source, *, framework: Literal["dlpack"], **keywords: Unpack[LoadKeywords]
) -> TensorStream[_tload.Tensor]: ...
@lists(LoadKeywords, device="cpu")
def stream(source: Source, *, framework: Framework = "torch", **keywords: Unpack[LoadKeywords]) -> TensorStream[Any]:
    """Start to load tensors and return an iterator of `(name, tensor)`.

    Reading starts at once and runs ahead of the caller by at most `memory_limit`. While a caller
    waits for a tensor, other Python threads run, and Ctrl-C interrupts the wait.

    If torch (or numpy) is not imported yet, a thread imports it while the load is reading, and the
    first tensor waits for it. Only loads to GPUs, whose memory torch allocates, import it before
    they read, and before this function returns.

    Args:
        source: A safetensors file, a directory, an index file, or a list of files, as paths or
            URLs; or an open `Checkpoint`.
        framework: The type of the tensors: `"torch"` or `"pt"` (`torch.Tensor`), `"numpy"` or
            `"np"` (`numpy.ndarray`; bfloat16 and 8-bit floats need `pip install 'tload[numpy]'`),
            or `"dlpack"` (`tload.Tensor`, which any library with `from_dlpack` can import). Default:
            `"torch"`. Tensors share the memory of the load without a copy, and are writable, except
            with `cache="map"` or `private=False`: see `Options.writable` and `Options.private`.
        **keywords: Further arguments:

            - `device="cpu"`: The device of the tensors: `"cpu"`; `"cuda:N"`, an NVIDIA GPU; or
              `"cuda"`, torch's current device with `framework="torch"`, else `"cuda:0"`. With
              `framework="torch"`, GPU memory comes from torch's caching allocator, on the current
              stream of the thread that calls this function and iterates, as with `torch.empty`;
              with `"dlpack"`, tload allocates it. When a tensor is yielded, all its bytes have
              arrived: no stream has to wait for them.
            - `device_map=None`: Devices by name, as in accelerate: `{"": 0, "model.layers.1":
              "cpu"}`. A key is the name of a module or tensor, which stands for all tensors below
              it, or a glob of whole names (with `*`, `?`, `[…]` or `{…}`). The first key that
              matches a tensor determines its device; of several names that match, the longest one
              does. `""` stands for all tensors that no other key matches; without it, these go to
              `device`.
            - `names=None`: Load the tensors with these names. Without `names`, `glob` and `regex`,
              all tensors are loaded; with several of them, a tensor is loaded if any of them
              matches.
            - `glob=None`: Load the tensors whose whole name matches a pattern (or one of several)
              such as `"model.layers.1?.*"`.
            - `regex=None`: Load the tensors whose name contains a match of a regular expression (or
              of one of several): text in the syntax of Rust's crate regex, or a compiled pattern
              (`re.compile`) with all that Python's syntax has.
            - `slices=None`: Load only a slice of some tensors: a mapping of names to indices, as in
              brackets behind a numpy array: an int, a slice with a positive step, `...`, or a tuple
              of them. Only the bytes of the slice are read, and gaps that are cheaper to read than
              to skip. It does not select tensors. Or a `Sharding`: of the selected tensors, load
              those of one rank, and its slices of those that are split. Default: whole tensors.
            - `group=None`: Load together with the other ranks of a `Group`, each of which starts
              the same load: they read the storage once and share what they read (`share`,
              `join_timeout`, `on_peer_loss` and `private` in `Options`). `names`, `slices` and
              devices may differ from rank to rank. Default: no group.
            - `store=None`: Options of the object stores that the source is in, such as a
              `tload.S3`, or a mapping: see `tload.open`. Invalid with an open `Checkpoint`, whose
              store is already connected. Default: `TLOAD_STORE`, and the environment of each store.
            - `follow_symlinks=None`: Allow symbolic links that lead out of the source's directory:
              see `tload.open`. No effect on an open `Checkpoint`. Default: `TLOAD_FOLLOW_SYMLINKS`,
              else `False`.
            - `key=None`: Key of a sealed checkpoint: see `tload.open`.
            - `progress=None`: `True` draws a progress bar in a notebook, and on a terminal if
              standard error is one (with tqdm, if it is installed). A callable is called with a
              `Progress` at most ten times a second, and at the end; an exception that it raises
              stops the load. Default: no progress.
            - `options=None`: Limits and preferences, reusable for several loads. The keywords below
              override them.
            - `cache_dir=None`, `cache_limit=None`, `cache_check=None`, `mirrors=None`,
              `peers=None`, `hf_cache=None`: Keys of `store`, as keywords.
            - The fields of `Options`, such as `memory_limit="4 GiB"`.

    Returns:
        The stream, an iterator that is also a context manager.

    Raises:
        Error: Any failure. Most errors are raised by this function, before a tensor is read; errors
            of reading are raised by the iterator, and so are those of a framework that is imported
            meanwhile: if its import fails, or its version lacks a dtype.
        NotFoundError, PermissionDeniedError, FormatError, TypeError: As for `tload.open`.
        NoSuchTensorError: A name or pattern selects no tensor, or a key of `device_map` matches no
            tensor of the checkpoint.
        InvalidRequestError: An argument is invalid; there is no GPU of that number; or
            `framework="numpy"` with a GPU. It is also an `IndexError` if a slice is out of range,
            or has a step that is not positive.
        UnsupportedError: The engine, the device, or the framework does not support the load, for
            example a tensor's dtype; there is no CUDA driver, or torch cannot use it.
        OutOfMemoryError: `memory_limit` or `device_memory_limit` is too small for the load, or the
            memory of the machine or a GPU is. Also raised while reading: other programs may
            allocate a GPU's memory meanwhile.
        DeviceError: A GPU or its driver failed. Also raised while reading.
        RemoteError: An object store is unreachable, or requests still failed after all retries.
        CorruptError: With `verify`, bytes do not match their digest. Also raised while reading.
        PeerError: With `group`, another rank did not join, disagrees, failed or is gone. Also
            raised while reading.
        IoError, ChangedError, LoadTimeoutError, CancelledError: While reading.

    Examples:
        >>> store = tload.S3(endpoint="http://127.0.0.1:9000", connect_timeout=2)
        >>> for name, tensor in tload.stream("s3://bucket/model", store=store):
        ...     print(name, tensor.shape)
    """
    return _start("stream", source, framework, keywords)


def _start(
    function: str, source: Source, framework: Framework, keywords: LoadKeywords, *, keeps_all: bool = False
) -> TensorStream[Any]:
    """Start a load for `function`, which errors name.

    If the caller `keeps_all` tensors, GPU memory has larger regions.
    """
    refuse_unknown(function, keywords, LoadKeywords.__optional_keys__)
    device, device_map = keywords.get("device", "cpu"), keywords.get("device_map")
    call = Call(source, keywords)
    framework = frameworks.named(framework)
    if framework == "torch":
        call.options = torch_tensors.with_writable(call.options)
    options = call.options
    known = (device, device_map) if call.group is None else (None, None)
    with early.starting(source, known, framework, options) as prepared:
        with beginning(call.group, options) as joined:
            uses_gpu, changes = devices.uses_gpu(device, device_map), None
            if uses_gpu:
                changes, call.options = conversion.by_torch(options, framework)
            make_converter = frameworks.converters(framework, options)
            importing = None
            if framework == "torch" and uses_gpu and imports.are_missing(["torch"]):
                # Beside the opening, which may wait for a store.
                importing = BackgroundImport("torch", lambda: make_converter((), tuple), options.timeout)
            checkpoint = call.open(joined)
            if importing is not None:
                importing.result()
            divided = indices.slices_of(keywords.get("slices"))
            chosen = call.rules(checkpoint)
            cpu_or_gpu = cuda.device_name(device, framework)
            mapped = devices.entries(device_map, framework)
            loader = call.loader(checkpoint, divided, **chosen, device=cpu_or_gpu, device_map=mapped)
            shares = joined is not None and joined.size > 1 and options.share != "none"
            if shares and "cpu" in loader.devices():
                make_converter = frameworks.converters(framework, options, is_shared=True)
            dtypes = conversion.needed(options, loader.dtypes(), changes, checkpoint)

            def convert_with() -> Callable[[_tload.Tensor], Any]:
                # The converter gets the tensors' descriptions from the loader, not from each
                # tensor: a load may be over by then.
                convert = make_converter(dtypes, lambda: map(TensorInfo._make, loader.selected()))
                return convert if changes is None else changes.wrap(convert)

            is_missing = frameworks.is_missing(framework, dtypes)
            # Everything that can fail is done before the first read, except what needs the import.
            convert = None if is_missing else convert_with()
            if is_missing:
                frameworks.check_dtypes(framework, dtypes, loader)
            allocator = devices.allocator(framework, loader.devices())
        raw = loader.stream(allocator, joined, prepared, keeps_all=keeps_all)
    try:
        if is_missing:
            importing = BackgroundImport(framework, convert_with, options.timeout)
        watcher = watcher_for(keywords.get("progress"), Progress(*raw.progress()).bytes_total)
    except BaseException:
        raw.close()
        raise
    return TensorStream(raw, convert, watcher, importing, changes)


@overload
def load(
    source: Source, *, framework: Literal["torch", "pt"] = "torch", **keywords: Unpack[LoadKeywords]
) -> dict[str, torch.Tensor]: ...
@overload
def load(
    source: Source, *, framework: Literal["numpy", "np"], **keywords: Unpack[LoadKeywords]
) -> dict[str, npt.NDArray[Any]]: ...
@overload
def load(
    source: Source, *, framework: Literal["dlpack"], **keywords: Unpack[LoadKeywords]
) -> dict[str, _tload.Tensor]: ...
@lists(LoadKeywords, device="cpu")
def load(source: Source, *, framework: Any = "torch", **keywords: Unpack[LoadKeywords]) -> dict[str, Any]:
    """Load tensors into a dict by name, in the order of the files.

    Takes the same arguments as `tload.stream`, with the same defaults and errors. All selected
    tensors must fit into the memory of their devices.

    Args:
        source: A safetensors file, a directory, an index file, or a list of files, as paths or
            URLs; or an open `Checkpoint`.
        framework: The type of the tensors: `"torch"` or `"pt"` (the default), `"numpy"` or `"np"`,
            or `"dlpack"`.
        **keywords: As in `tload.stream`, which describes each in detail:

            - `device="cpu"`: Device of the tensors.
            - `device_map=None`: Devices by module or glob of names.
            - `names=None`: Load only the tensors with these names.
            - `glob=None`: Load only tensors whose whole name matches one of these globs.
            - `regex=None`: Load only tensors whose name contains a match of one of these regular
              expressions.
            - `slices=None`: Load only slices of tensors, by name or by a `Sharding`.
            - `group=None`: Load together with the other ranks of a `Group`.
            - `store=None`: Options of object stores: see `tload.open`.
            - `cache_dir=None`, `cache_limit=None`, `cache_check=None`, `mirrors=None`,
              `peers=None`, `hf_cache=None`: Keys of `store`, as keywords.
            - `follow_symlinks=None`: Allow symbolic links that lead out of the source's directory:
              see `tload.open`.
            - `key=None`: Key of a sealed checkpoint: see `tload.open`.
            - `progress=None`: Show or report progress.
            - `options=None`: `Options`, reusable for several loads; the keywords below override
              them.
            - The fields of `Options`, such as `memory_limit="4 GiB"`.

    Returns:
        The tensors by name, in file order.

    Raises:
        Error: Any failure: see `tload.stream`.
    """
    with _start("load", source, framework, keywords, keeps_all=True) as tensors:
        return tensors._collect()  # noqa: SLF001


def require_files(checkpoint: Checkpoint, options: Options | None) -> None:
    """Require that a checkpoint has the index and all files of the manifest that `verify` names.

    A load of tensors that are selected by name does not require it. Integrations select the tensors
    of a whole model by name, and call this first.

    Raises:
        Error: See `tload.stream` with `verify`.
    """
    open_raw(checkpoint, None).require_files(resolve(options, OptionKeywords()))
