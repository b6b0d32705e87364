"""Loading into the caller's memory: modules, tensors, arrays."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Any

from tload import _tload
from tload._errors import InvalidRequestError, UnsupportedError, advise
from tload._load import indices, load_targets
from tload._load.call import Call
from tload._load.stream import TensorStream
from tload._options.keywords import IntoKeywords, lists, refuse_unknown
from tload._ranks.group import beginning
from tload._report.progress import Progress, watcher_for
from tload._sources.entries import TensorInfo
from tload._tensors import cuda, dtensors

_logger = logging.getLogger("tload")

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Unpack

    import numpy.typing as npt
    import torch
    from torch.distributed.tensor import DTensor

    from tload._load.indices import Slices
    from tload._load.sharding import Sharding
    from tload.report import Report
    from tload.typing import Index, Source


@lists(IntoKeywords)
def load_into(
    target: torch.nn.Module | Mapping[str, torch.Tensor] | Mapping[str, npt.NDArray[Any]],
    source: Source,
    *,
    strict: bool = True,
    cast: bool = False,
    **keywords: Unpack[IntoKeywords],
) -> Report:
    """Load tensors into a module's parameters and buffers, or into tensors or arrays by name.

    Each tensor of the checkpoint is loaded into the target of the same name, on the CPU or on an
    NVIDIA GPU. Of a target that is a `DTensor`, the part that this rank holds is loaded: see
    `Sharding.of`. Reads go to a bounded staging buffer. From there, bytes are copied to contiguous
    targets of the same dtype as they arrive, without a second copy of the model in memory. On the
    CPU this is one copy in memory more than `tload.load` needs (`copied_bytes` of the report), which
    reads straight into tensors of its own. Other targets are filled with `target.copy_(…)`, without
    gradients, from a temporary tensor on the same device, on torch's current stream. Such a copy
    may still be running when this function returns, so other streams have to wait for that stream.
    Parameters that are one tensor (same address, shape, strides and dtype), such as tied weights,
    are filled once; the checkpoint may have one of them or all. Two targets that share memory in
    another way, such as a matrix and its transpose, or views of one memory in two dtypes, are
    refused if both would be filled.

    All targets that do not fit are found before a byte is written; the error counts them and names
    the first few of each kind. If the load fails later, the contents of the targets are undefined.
    Until this function returns, no other code may use their memory, except work that was submitted
    earlier to torch's current stream of the GPU.

    Args:
        target: A `torch.nn.Module` (the tensors of its `state_dict`), or a mapping of names to
            torch tensors or numpy arrays. Targets may be on several devices.
        source: A safetensors file, a directory, an index file, or a list of files, as paths or
            URLs; or an open `Checkpoint`.
        strict: Require a target for every selected tensor, and a tensor for every target. If
            `False`, load the tensors that have a target. Default: `True`.
        cast: Allow targets of another dtype than the checkpoint's; values are converted. Default:
            `False`.
        **keywords: As in `tload.stream`, which describes each in detail:

            - `names=None`: Load only the tensors with these names. Targets that are not selected
              are left alone, which needs `strict=False`.
            - `glob=None`: Load only tensors whose whole name matches one of these globs.
            - `regex=None`: Load only tensors whose name contains a match of one of these regular
              expressions.
            - `slices=None`: Load only slices of tensors, by name or by a `Sharding`. Their targets
              have the shape of the slice. A mapping must not name a target that is a `DTensor`; a
              `Sharding` comes first, and DTensors divide what it leaves.
            - `group=None`: Load together with the other ranks of a `Group`. Each rank fills its
              own targets.
            - `store=None`: Options of object stores: see `tload.open`.
            - `cache_dir=None`, `cache_limit=None`, `cache_check=None`, `mirrors=None`,
              `peers=None`, `hf_cache=None`: Keys of `store`, as keywords.
            - `follow_symlinks=None`: Allow symbolic links that lead out of the source's directory:
              see `tload.open`.
            - `key=None`: Key of a sealed checkpoint: see `tload.open`.
            - `progress=None`: Show or report progress.
            - `options=None`: `Options`, reusable for several loads; the keywords below override
              them.
            - The fields of `Options`, such as `memory_limit="4 GiB"`, which bounds the staging
              memory; `device_memory_limit` bounds temporary tensors. With `verify`, bytes of a read
              in which a mismatch is found are not written to the target; bytes of earlier reads may
              have been. `cache="map"` is an error; `writable` and `private` have no effect.

    Returns:
        The report of the load.

    Raises:
        Error: Any failure: see `tload.stream`.
        InvalidRequestError: Names, shapes or dtypes do not fit; a target has no writable memory (it
            is on the meta device, sparse, quantized, or a read-only array); targets share part of
            their memory.
        UnsupportedError: torch or numpy lacks the dtype of a tensor that has to be converted or
            copied; or `cache="map"` is set.
        TypeError: `target` is neither a module nor a mapping of names.

    Examples:
        >>> with torch.device("meta"):
        ...     model = Model(config)
        >>> model.to_empty(device="cuda")
        >>> report = tload.load_into(model, "model_dir")
    """
    refuse_unknown("load_into", keywords, IntoKeywords.__optional_keys__)
    call = Call(source, keywords)
    # Temporary tensors are copied and dropped, and torch before 2.9 cannot import read-only memory.
    options = call.options = dataclasses.replace(call.options, private=True)
    with beginning(call.group, options) as joined:
        targets = load_targets.by_name(target)
        if targets and options.cache == "map":
            # The core rejects `map` for targets that it fills itself, but not for those filled from
            # temporary tensors.
            message = "cache=map maps files into host memory, and load_into copies them into the caller's memory"
            raise advise(UnsupportedError, message, "use cache=auto")
        checkpoint = call.open(joined)
        chosen = call.rules(checkpoint)
        divided = dtensors.among(targets)
        if divided:
            targets = {**targets, **dtensors.local(divided)}
            # Targets that are not selected are left alone, whatever they are.
            selected = call.loader(checkpoint, {}, **chosen, device="cpu").selected()
            divided = {info[0]: divided[info[0]] for info in selected if info[0] in divided}
        parts = _slices_of(keywords.get("slices"), divided)
        loader = call.loader(checkpoint, parts, **chosen, device="cpu", targets=targets, strict=strict, cast=cast)
        # Everything that can fail is done before the first byte is written.
        copy = load_targets.copier(targets, tuple(map(TensorInfo._make, loader.copied())))
        on_gpu = any(cuda.ordinal_of(device) is not None for device in loader.devices())
        if on_gpu:
            cuda.check()
        written = loader.written()
    raw = None
    try:
        # Inside, because lanes write before it returns: it may fail, or be interrupted.
        raw = loader.stream(cuda.Allocator() if on_gpu else None, joined)
        watcher = watcher_for(keywords.get("progress"), Progress(*raw.progress()).bytes_total)
        with TensorStream(raw, copy, watcher) as stream:
            for _ in stream:
                pass
        report = stream.report
        if targets and report.tensors == 0:
            _logger.warning("load_into filled nothing: no name is both in %s and in the target", checkpoint.location)
        return report
    finally:
        # Nothing is written to the caller's memory after the call, whatever ended it.
        if raw is not None:
            raw.close()
        # A DTensor and its memory each have a counter.
        load_targets.mark_changed([*written, *divided.values()])


def _slices_of(slices: Mapping[str, Index] | Sharding | None, divided: Mapping[str, DTensor]) -> Slices:
    """Return the slices of a load into targets of which some are DTensors."""
    given = indices.slices_of(slices)
    if not divided:
        return given
    for name, _ in given.get("slices", ()):
        if name in divided:
            message = f"slices: {name!r} is a DTensor, of which this rank's part is loaded"
            raise advise(InvalidRequestError, message, "leave it out of slices=", tensor=name)
    sharding = _tload.Sharding.from_slices(dtensors.parts(divided))
    before = given.get("sharding")
    return {**given, "sharding": sharding if before is None else before.both(sharding)}
