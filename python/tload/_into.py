"""Loading into memory that the caller has: modules, tensors, arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tload import _cuda, _receivers, _tload
from tload._checkpoint import TensorInfo, open_raw
from tload._errors import UnsupportedError, advise
from tload._options import OptionKeywords, Options, resolve
from tload._progress import watcher_for
from tload._stream import TensorStream, slices_of, texts

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Unpack

    import numpy.typing as npt
    import torch

    from tload._checkpoint import Index, Source
    from tload._progress import Callback
    from tload._report import Report
    from tload._store import Store
    from tload._stream import Names


def load_into(
    target: torch.nn.Module | Mapping[str, torch.Tensor] | Mapping[str, npt.NDArray[Any]],
    source: Source,
    *,
    strict: bool = True,
    cast: bool = False,
    names: Names | None = None,
    glob: Names | None = None,
    regex: Names | None = None,
    slices: Mapping[str, Index] | None = None,
    store: Store | None = None,
    follow_symlinks: bool | None = None,
    progress: bool | Callback | None = None,
    options: Options | None = None,
    **keywords: Unpack[OptionKeywords],
) -> Report:
    """Load tensors into the memory of a module's parameters and buffers, or of tensors or arrays by name.

    Each tensor of the checkpoint goes into the target of its name, on the CPU or on an NVIDIA GPU, wherever that is.
    Targets that are contiguous and of the same dtype are written to directly, with no second copy of the model in
    memory. Others are copied with `target.copy_(…)`, without gradients, from a temporary tensor on the same device, on
    torch's current stream: such a copy may still run when this returns, so other streams have to wait for that one.
    Parameters that are one tensor (address, shape, strides and dtype), such as tied weights, are filled once; the
    checkpoint may have one or all of them. Two targets that share memory in another way, such as a matrix and its
    transpose, or views of one memory in two dtypes, are refused if both would be filled.

    Everything that does not fit is found, and listed in one error, before a byte is written. If the load fails later,
    what the targets hold is undefined. Nobody else may use their memory meanwhile, except work that was given to
    torch's current stream of the GPU before.

    Args:
        target: A `torch.nn.Module` (what its `state_dict` names), or a mapping of names to torch tensors or numpy
            arrays, on several devices if need be.
        source: A safetensors file, a directory, an index file, or a list of files, as paths or URLs; or an open
            `Checkpoint`.
        strict: Every tensor that is selected needs a target, and every target needs one. Without: load what both have.
            Default: `True`.
        cast: Targets may have another dtype than the checkpoint; their values are converted. Default: `False`.
        names: Load the tensors of these names. With none of `names`, `glob` and `regex`: all; with several: what any
            of them selects. Targets that are not selected are left alone, which needs `strict=False`.
        glob: Load the tensors whose whole name matches a pattern (or one of several).
        regex: Load the tensors whose name contains a match of a regular expression (or of one of several).
        slices: Of these tensors only that, by name: see `tload.stream`. Targets have the shape of the slice. Default:
            whole tensors.
        store: How to reach the object stores that the source is in: see `tload.open`.
        follow_symlinks: Whether symbolic links may lead out of the source's directory: see `tload.open`.
        progress: `True` draws a progress bar in a notebook, and when standard error is a terminal; a callable is called
            with a `Progress` at most ten times a second, and at the end. What it raises stops the load.
        options: Limits and preferences, to use for several loads. The keywords below win over it.
        **keywords: The fields of `Options`, with its defaults: `engine=None`, `cache=None` (not `"map"`),
            `writable=None` (means nothing here), `order=None`, `depth=None`, `in_flight_bytes=None`,
            `extent_bytes=None`, `lanes=None`, `memory_limit=None` (here it bounds the staging memory on the way),
            `device_memory_limit=None` (temporary tensors), `verify=None` (the read that shows a tensor to be
            wrong is not written; earlier ones may have been), `retries=None`, `hedge=None`, `timeout=None`.

    Returns:
        What was done: see `Report`.

    Raises:
        Error: Any failure: see `tload.stream`.
        InvalidRequestError: Names, shapes or dtypes do not fit (all of them are listed); a target has no memory that
            can be written to (on the meta device, sparse, quantized, a read-only array); targets share some of their
            memory, and not all.
        UnsupportedError: torch or numpy lacks the dtype of a tensor that has to be converted or copied; or
            `cache="map"`.
        TypeError: `target` is neither a module nor a mapping of names.

    Example:
        >>> with torch.device("meta"):  # doctest: +SKIP
        ...     model = Model(config)
        >>> model.to_empty(device="cuda")  # doctest: +SKIP
        >>> report = tload.load_into(model, "model_dir")  # doctest: +SKIP
    """
    for name in keywords:
        if name not in OptionKeywords.__optional_keys__:
            message = f"load_into() got an unexpected keyword argument {name!r}"
            raise TypeError(message)
    resolved = resolve(options, keywords)
    if resolved.cache == "map":
        # The core refuses what it would fill itself, and knows nothing of what is converted from temporary tensors.
        message = "cache=map shows files in host memory, and load_into copies them into memory of the caller's"
        raise advise(UnsupportedError, message, "use cache=auto")
    receivers, faults = _receivers.receivers_of(target)
    if strict:
        _receivers.refuse(faults)
    checkpoint = open_raw(source, store, resolved.timeout, follow_symlinks=follow_symlinks)
    selected_names, globs, regexes = texts("names", names), texts("glob", glob), texts("regex", regex)
    if faults:
        wanted = _tload.Loader(
            checkpoint, names=selected_names, globs=globs, regexes=regexes, device="cpu", options=resolved
        ).selected()
        _receivers.refuse({info[0]: faults[info[0]] for info in wanted if info[0] in faults})
    loader = _tload.Loader(
        checkpoint,
        names=selected_names,
        globs=globs,
        regexes=regexes,
        device="cpu",
        slices=slices_of(slices),
        options=resolved,
        receivers=[receiver.described for receiver in receivers.values()],
        strict=strict,
        cast=cast,
    )
    infos = tuple(map(TensorInfo._make, loader.selected()))
    dtypes = {info.name: info.dtype for info in infos}
    # All that can fail comes before the first byte is written.
    converters = _receivers.converters(receivers, infos)

    def receive(tensor: _tload.Tensor) -> None:
        receiver = receivers[tensor.name]
        if not receiver.is_filled_by_the_core(dtypes[tensor.name]):
            receiver.fill(tensor, converters)

    on_gpu = any(_cuda.ordinal_of(device) is not None for device in loader.devices())
    if on_gpu:
        _cuda.check()
    watcher = watcher_for(progress, sum(info.nbytes for info in infos))
    raw = loader.stream(_cuda.Allocator() if on_gpu else None)
    filled = [receivers[info.name] for info in infos if receivers[info.name].is_filled_by_the_core(info.dtype)]
    try:
        with TensorStream(raw, receive, watcher) as stream:
            for _ in stream:
                pass
            return stream.report
    finally:
        _receivers.mark_changed(filled)
