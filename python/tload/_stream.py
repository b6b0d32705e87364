"""Loading: an iterator of tensors as they arrive, or all tensors at once."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypedDict, TypeVar, cast, overload

from tload import _cuda, _imports, _indices, _logging, _numpy, _spans, _store, _tload, _torch
from tload._checkpoint import TensorInfo, open_raw
from tload._errors import InvalidRequestError, LoadTimeoutError, advise
from tload._group import beginning
from tload._imports import BackgroundImport
from tload._options import FIELDS, OptionKeywords, Options, lists, refuse_unknown, resolve, suggestion
from tload._progress import INTERVAL, Progress, Watcher, watcher_for
from tload._report import Report, read_report
from tload._selection import Names, Patterns, rules, texts
from tload._sharding import Sharding
from tload._store import Keywords

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Self, Unpack

    import numpy.typing as npt
    import torch

    from tload._async import Waiter
    from tload._checkpoint import Checkpoint, Index, Source
    from tload._group import Group
    from tload._progress import Callback
    from tload._store import Store

T = TypeVar("T")

Framework: TypeAlias = Literal["torch", "pt", "numpy", "np", "dlpack"]
"""The type of the tensors that a load returns."""

ALIASES: dict[object, Framework] = {"pt": "torch", "np": "numpy"}
"""Names of frameworks as in the package safetensors."""

_logger = logging.getLogger("tload")
_noted: set[str] = set()


class TensorStream(Generic[T]):
    """Iterator of `(name, tensor)` that reads ahead of the caller. Made by `tload.stream`.

    The caller owns a tensor once it is yielded: its memory is valid as long as it is referenced,
    whatever the stream does next. Leaving a `with` block, `close`, or dropping the stream stops the
    reading.

    An error ends the stream. Tensors that were yielded before it stay valid.

    In an event loop, `async for name, tensor in stream` waits without blocking the loop, and
    without a thread. Cancelling a task that waits loses no tensor: the stream continues until it is
    closed or dropped.
    """

    def __init__(
        self,
        raw: _tload.Stream,
        convert: Callable[[_tload.Tensor], T] | None,
        watcher: Watcher | None,
        importing: BackgroundImport | None = None,
    ) -> None:
        """Wrap the stream that `tload.stream` started.

        `convert` makes the framework's tensors; if it is `None`, it is the result of `importing`.
        """
        self._raw = raw
        self._convert = convert
        self._watcher = watcher
        self._importing = importing
        self._watched = time.monotonic()
        self._ended = False
        self._waiter: Waiter | None = None
        self._closed = False

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        """Tensors of the load, by file, then by offset.

        With `order="file"` they arrive in this order.
        """
        return tuple(map(TensorInfo._make, self._raw.tensors()))

    @property
    def progress(self) -> Progress:
        """Current progress of the load."""
        return Progress(*self._raw.progress())

    @property
    def report(self) -> Report:
        """Report of the load so far; final once the stream has ended."""
        return read_report(*self._raw.report(), self._importing)

    def cancel(self) -> None:
        """Stop reading. May be called from any thread.

        A thread or task that waits for the next tensor promptly gets a `CancelledError`.
        """
        self._raw.cancel()
        if self._importing is not None:
            self._importing.cancel()

    def close(self) -> None:
        """Stop reading and free tensors that were not yielded.

        `report` and `progress` remain available.
        """
        self._raw.close()
        if self._importing is not None:
            self._importing.cancel()
        if self._closed:
            return
        self._closed = True
        try:
            if self._watcher is not None:
                watcher, self._watcher = self._watcher, None
                watcher.close()
        finally:
            # Log lines appear below the bar, not in it. A forked process has no report.
            with contextlib.suppress(InvalidRequestError):
                report = self.report
                log_notes(report)
                _logging.log_end(report)
                _spans.emit(report, _tload.__version__)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[str, T]:
        if self._ended:
            raise StopIteration
        try:
            convert = self._convert or self._await_converter()
            tensor = self._raw.receive(None) if self._watcher is None else self._receive(self._watcher)
            converted = convert(tensor)
        except StopIteration:
            self._end()
            raise
        except BaseException:
            self._fail()
            raise
        return tensor.name, converted

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[str, T]:
        from tload import _async

        if self._ended:
            raise StopAsyncIteration
        if self._waiter is None:
            self._waiter = _async.Waiter(self._raw)
        self._waiter.refuse_a_second()
        try:
            if self._convert is None and self._importing is not None:
                await self._waiter.ready(self._importing)
                self._convert = self._importing.result()
            tensor = await self._waiter.receive()
        except StopAsyncIteration:
            self._end()
            raise
        except _async.GIVES_UP:
            raise
        except BaseException:
            self._fail()
            raise
        try:
            if self._watcher is not None:
                self._look(self._watcher)
            convert = self._convert or self._await_converter()
            return tensor.name, convert(tensor)
        except BaseException:
            self._fail()
            raise

    def __len__(self) -> int:
        """Return the number of tensors of the load, however many have been received."""
        return self.progress.tensors_total

    def __reduce__(self) -> tuple[Any, ...]:
        message = (
            "cannot pickle or copy a tload.TensorStream, which belongs to its process: pass the location or an open "
            "Checkpoint, and call tload.stream in the other process"
        )
        raise TypeError(message)

    def __repr__(self) -> str:
        try:
            progress = self.progress
        except InvalidRequestError:
            return "<tload.TensorStream of another process>"
        received = _tload.format_bytes(progress.bytes_received)
        total = _tload.format_bytes(progress.bytes_total)
        state = "ended" if self._ended else "closed" if self._closed else "running"
        return (
            f"<tload.TensorStream {state}: {progress.tensors_received} of {progress.tensors_total} tensors, "
            f"{received} of {total} received>"
        )

    def _receive(self, watcher: Watcher) -> _tload.Tensor:
        while True:
            due = self._watched + INTERVAL - time.monotonic()
            tensor = self._raw.receive(max(due, 0.0))
            self._look(watcher)
            if tensor is not None:
                return tensor

    def _await_converter(self) -> Callable[[_tload.Tensor], T]:
        if self._closed:
            self._raw.receive(0.0)  # raises
        # Without an import, the converter is there from the start.
        importing = cast("BackgroundImport", self._importing)
        while self._watcher is not None and not importing.wait(INTERVAL):
            self._look(self._watcher)
        convert: Callable[[_tload.Tensor], T] = importing.result()
        self._convert = convert
        return convert

    def _collect(self) -> dict[str, T]:
        """Receive all tensors; those that arrive before the framework is imported, as they are."""
        received: list[_tload.Tensor] = []
        if self._convert is None and self._importing is not None:
            try:
                while not self._importing.is_done:
                    received += self._raw.receive_several()
                    if self._watcher is not None:
                        self._look(self._watcher)
            except StopIteration:
                pass
            except LoadTimeoutError as error:
                # Reads are late too.
                error.add_note(self._importing.state())
                raise
        convert = self._convert or self._await_converter()
        converted = {tensor.name: convert(tensor) for tensor in received}
        converted.update(self)
        return converted

    def _look(self, watcher: Watcher) -> None:
        if time.monotonic() - self._watched >= INTERVAL:
            self._watched = time.monotonic()
            watcher.update(self.progress)

    def _end(self) -> None:
        self._ended = True
        try:
            if self._watcher is not None:
                self._watcher.update(self.progress)
        finally:
            self.close()

    def _fail(self) -> None:
        # A failed iterator is finished: no reads continue behind the traceback.
        self._ended = True
        self.close()


def log_notes(report: Report) -> None:
    """Log the notes of a report, each once per process."""
    for note in report.notes:
        if note not in _noted:
            _noted.add(note)
            _logger.warning("%s", note)


class LoadKeywords(Keywords, total=False):
    """Keyword arguments of `stream` and `load`, except `framework`."""

    device: str | int | torch.device
    device_map: Mapping[str, str | int | torch.device] | None
    names: Names | None
    glob: Names | None
    regex: Patterns | None
    slices: Mapping[str, Index] | Sharding | None
    group: Group | None
    store: Store | None
    follow_symlinks: bool | None
    progress: bool | Callback | None
    options: Options | None


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
@lists((*_store.FIELDS, *FIELDS))
def stream(
    source: Source,
    *,
    framework: Framework = "torch",
    device: str | int | torch.device = "cpu",
    device_map: Mapping[str, str | int | torch.device] | None = None,
    names: Names | None = None,
    glob: Names | None = None,
    regex: Patterns | None = None,
    slices: Mapping[str, Index] | Sharding | None = None,
    group: Group | None = None,
    store: Store | None = None,
    follow_symlinks: bool | None = None,
    progress: bool | Callback | None = None,
    options: Options | None = None,
    **keywords: Unpack[Keywords],
) -> TensorStream[Any]:
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
            with `cache="map"`: see `Options.writable`.
        device: The device of the tensors: `"cpu"`; `"cuda:N"`, an NVIDIA GPU; or `"cuda"`, torch's
            current device with `framework="torch"`, else `"cuda:0"`. With `framework="torch"`, GPU
            memory comes from torch's caching allocator, on the current stream of the thread that
            calls this function and iterates, as with `torch.empty`; with `"dlpack"`, tload
            allocates it. When a tensor is yielded, all its bytes have arrived: no stream has to
            wait for them. Default: `"cpu"`.
        device_map: Devices by name, as in accelerate: `{"": 0, "model.layers.1": "cpu"}`. A key is
            the name of a module or tensor, which stands for all tensors below it, or a glob of
            whole names (with `*`, `?`, `[…]` or `{…}`). The first key that matches a tensor
            determines its device; of several names that match, the longest one does. `""` stands
            for all tensors that no other key matches; without it, these go to `device`. Default:
            none.
        names: Load the tensors with these names. Without `names`, `glob` and `regex`, all tensors
            are loaded; with several of them, a tensor is loaded if any of them matches. Default:
            `None`.
        glob: Load the tensors whose whole name matches a pattern (or one of several) such as
            `"model.layers.1?.*"`. Default: `None`.
        regex: Load the tensors whose name contains a match of a regular expression (or of one of
            several): text in the syntax of Rust's crate regex, or a compiled pattern (`re.compile`)
            with all that Python's syntax has. Default: `None`.
        slices: Load only a slice of some tensors: a mapping of names to indices, as in brackets
            behind a numpy array: an int, a slice with a positive step, `...`, or a tuple of them.
            Only the bytes of the slice are read, and gaps that are cheaper to read than to skip. It
            does not select tensors. Or a `Sharding`: of the selected tensors, load those of one
            rank, and its slices of those that are split. Default: whole tensors.
        group: Load together with the other ranks of a `Group`, each of which starts the same load:
            they read the storage once and share what they read (`share`, `join_timeout`,
            `on_peer_loss` and `private` in `Options`). `names`, `slices` and devices may differ
            from rank to rank. Default: no group.
        store: Options of the object stores that the source is in; `tload.open` lists the keys.
            Invalid with an open `Checkpoint`, whose store is already connected. Default:
            `TLOAD_STORE`, and the environment of each store.
        follow_symlinks: Allow symbolic links that lead out of the source's directory: see
            `tload.open`. No effect on an open `Checkpoint`. Default: `TLOAD_FOLLOW_SYMLINKS`, else
            `False`.
        progress: `True` draws a progress bar in a notebook, and on a terminal if standard error is
            one (with tqdm, if it is installed). A callable is called with a `Progress` at most ten
            times a second, and at the end; an exception that it raises stops the load. Default: no
            progress.
        options: Limits and preferences, reusable for several loads. The keywords below override
            them.
        **keywords: The fields of `Options`, such as `memory_limit="4 GiB"`, and the keys
            `cache_dir`, `cache_limit`, `cache_check`, `mirrors` and `peers` of `store`.

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
        >>> store = {"endpoint": "http://127.0.0.1:9000", "connect_timeout": 2}
        >>> for name, tensor in tload.stream("s3://bucket/model", store=store):
        ...     print(name, tensor.shape)
    """
    refuse_unknown("stream", keywords, Keywords.__optional_keys__)
    store = _store.take(store, keywords)
    framework = named(framework)
    resolved = resolve(options, keywords)
    if framework == "torch":
        resolved = _torch.with_writable(resolved)
    with beginning(group, resolved) as joined:
        make_converter = _converters(framework, resolved)
        importing = None
        if framework == "torch" and _uses_gpu(device, device_map) and _imports.are_missing(["torch"]):
            # Beside the opening, which may wait for a store.
            importing = BackgroundImport("torch", lambda: make_converter((), tuple), resolved.timeout)
        checkpoint = open_raw(source, store, resolved.timeout, follow_symlinks=follow_symlinks)
        if importing is not None:
            importing.result()
        divided = slices_of(slices)
        chosen = rules(checkpoint, names, glob, regex)
        cpu_or_gpu = _cuda.device_name(device, framework)
        mapped = _device_map(device_map, framework)
        try:
            loader = _tload.Loader(
                checkpoint, **chosen, device=cpu_or_gpu, device_map=mapped, **divided, options=resolved
            )
        except (IndexError, TypeError, ValueError) as error:
            _indices.raise_named(error, checkpoint, divided.get("slices", ()))
            raise
        dtypes = loader.dtypes()

        def convert_with() -> Callable[[_tload.Tensor], Any]:
            # The converter gets the tensors' descriptions from the loader, not from each tensor: a
            # load may be over by then.
            return make_converter(dtypes, lambda: map(TensorInfo._make, loader.selected()))

        is_missing = _is_missing(framework, dtypes)
        # Everything that can fail is done before the first read, except what needs the import.
        convert = None if is_missing else convert_with()
        if is_missing:
            _check(framework, dtypes, loader)
        allocator = _allocator(framework, loader.devices())
    raw = loader.stream(allocator, joined)
    try:
        if is_missing:
            importing = BackgroundImport(framework, convert_with, resolved.timeout)
        watcher = watcher_for(progress, Progress(*raw.progress()).bytes_total)
    except BaseException:
        raw.close()
        raise
    return TensorStream(raw, convert, watcher, importing)


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
@lists(inspect.signature(stream).parameters.values())
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
              `peers=None`: Keys of `store`, as keywords.
            - `follow_symlinks=None`: Allow symbolic links that lead out of the source's directory:
              see `tload.open`.
            - `progress=None`: Show or report progress.
            - `options=None`: `Options`, reusable for several loads; the keywords below override
              them.
            - The fields of `Options`, such as `memory_limit="4 GiB"`.

    Returns:
        The tensors by name, in file order.

    Raises:
        Error: Any failure: see `tload.stream`.
    """
    # `stream` would name itself in the message.
    refuse_unknown("load", keywords, LoadKeywords.__optional_keys__)
    with stream(source, framework=framework, **keywords) as tensors:
        arrived = tensors._collect()  # noqa: SLF001
        return {name: arrived[name] for name in tensors._raw.names()}  # noqa: SLF001


def read(
    checkpoint: Checkpoint,
    name: str,
    index: Index,
    framework: Framework,
    device: Any,
    *,
    options: Options | None = None,
) -> Any:
    """Read one tensor, as `Checkpoint.read` does; `options` override the environment."""
    framework = named(framework)
    if _uses_gpu(device, None):
        slices = {name: index}
        loaded = load(checkpoint, framework=framework, names=name, slices=slices, device=device, options=options)
        return loaded[name]
    resolved = resolve(options, OptionKeywords())
    if framework == "torch":
        resolved = _torch.with_writable(resolved)
    make_converter = _converters(framework, resolved)
    importing = None
    if _is_missing(framework, ()):
        importing = BackgroundImport(framework, lambda: make_converter((), tuple), resolved.timeout)
    raw = open_raw(checkpoint, None)
    try:
        tensor = raw.read(name, index, resolved)
    except (IndexError, TypeError, ValueError) as error:
        _indices.raise_named(error, raw, [(name, index)])
        raise
    if importing is not None:
        importing.result()
    return make_converter([tensor.dtype], lambda: [checkpoint[name]])(tensor)


def require_files(checkpoint: Checkpoint, options: Options | None) -> None:
    """Require that a checkpoint has the index and all files of the manifest that `verify` names.

    A load of tensors that are selected by name does not require it. Integrations select the tensors
    of a whole model by name, and call this first.

    Raises:
        Error: See `tload.stream` with `verify`.
    """
    open_raw(checkpoint, None).require_files(resolve(options, OptionKeywords()))


def named(framework: Framework) -> Framework:
    """Return the name of a framework that other names stand for."""
    return ALIASES.get(framework, framework) if isinstance(framework, str) else framework


Converter: TypeAlias = "Callable[[_tload.Tensor], Any]"


def _converters(framework: object, options: Options) -> Callable[[Iterable[str], _torch.Infos], Converter]:
    if framework == "torch":
        is_read_only = options.cache == "map" and not options.writable
        return functools.partial(_torch.converter, is_read_only=is_read_only)
    if framework == "numpy":
        return _numpy.converter
    if framework == "dlpack":
        return lambda _dtypes, _infos: lambda tensor: tensor
    near = suggestion(str(framework), ("torch", "numpy", "dlpack"))
    message = f"framework {framework!r} is unknown; it can be torch, numpy, dlpack{near}"
    raise InvalidRequestError(message)


def _is_missing(framework: Framework, dtypes: Iterable[str]) -> bool:
    """Return whether a module that makes the framework's tensors has yet to be imported."""
    if framework == "dlpack":
        return False
    return _imports.are_missing(["torch"] if framework == "torch" else _numpy.modules(dtypes))


def _check(framework: Framework, dtypes: Iterable[str], loader: _tload.Loader) -> None:
    """Raise `UnsupportedError` for dtypes that no version of the framework has."""
    check = _torch.check if framework == "torch" else _numpy.check
    check(dtypes, lambda: map(TensorInfo._make, loader.selected()))


def _uses_gpu(device: object, device_map: Mapping[str, object] | None) -> bool:
    others = device_map.values() if isinstance(device_map, Mapping) else ()
    return any(str(each) != "cpu" for each in (device, *others))


def _device_map(device_map: Mapping[str, object] | None, framework: Framework) -> list[tuple[str, str]]:
    if device_map is None:
        return []
    if not isinstance(device_map, Mapping):
        found = repr(device_map) if isinstance(device_map, str) else type(device_map).__qualname__
        message = f"device_map: wanted a mapping of modules or globs to devices, found {found}"
        if isinstance(device_map, str):
            message += "; pass one device for all tensors as device="
        raise TypeError(message)
    for key in device_map:
        if not isinstance(key, str):
            message = f"device_map: wanted modules or globs (str) as keys, found {type(key).__qualname__}"
            raise TypeError(message)
    return [(key, _cuda.device_name(device, framework)) for key, device in device_map.items()]


class Slices(TypedDict, total=False):
    """Keyword arguments of the extension module's `Loader`."""

    slices: list[tuple[str, Index]]
    sharding: _tload.Sharding


def slices_of(slices: Mapping[str, Index] | Sharding | None) -> Slices:
    if slices is None:
        return {}
    if isinstance(slices, Sharding):
        return {"sharding": slices._raw}  # noqa: SLF001
    if not isinstance(slices, Mapping):
        message = f"slices: wanted a mapping of names to indices or a tload.Sharding, found {type(slices).__qualname__}"
        raise TypeError(message)
    if slices:
        texts("slices", slices)
    return {"slices": list(slices.items())}


def _allocator(framework: Framework, devices: Iterable[str]) -> _cuda.Allocator | None:
    """Return torch's allocator of GPU memory, or `None` if the core allocates it or needs none."""
    gpu = next((device for device in devices if _cuda.ordinal_of(device) is not None), None)
    if gpu is None or framework == "dlpack":
        return None
    if framework == "numpy":
        message = f'framework="numpy" and device {gpu!r}: numpy arrays live in CPU memory'
        hint = 'pass framework="torch", or framework="dlpack" for CuPy, JAX and others'
        raise advise(InvalidRequestError, message, hint)
    _cuda.check()
    return _cuda.Allocator()
