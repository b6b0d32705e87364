"""Differences of checkpoints: patches, made and applied to files or to tensors in place."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tload import _tload
from tload._load.load_targets import by_name
from tload._options import store_options
from tload._options.keywords import OptionKeywords
from tload._options.load_options import resolve
from tload._report import spans
from tload._report.decode import decode
from tload._report.progress import shown
from tload._sources.locations import check_location
from tload._sources.opened import Opened, open_raw

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from typing import Any, Unpack

    import numpy.typing as npt
    import torch

    from tload._options.keywords import StoreKeywords
    from tload._options.load_options import Options
    from tload.typing import Duration, Location, ProgressCallback, Source, Store


@dataclass(frozen=True, slots=True)
class DeltaReport:
    """Report of what a patch changes, from `tload.diff`, `tload.apply` and `tload.apply_into`."""

    tensors: int
    """Tensors of the new checkpoint; of `apply_into`, tensors in memory that the patch knows."""
    sparse: int
    """Tensors of which single elements differ."""
    whole: int
    """Tensors that the patch has as a whole."""
    removed: int
    """Tensors of the base that the new checkpoint lacks."""
    elements: int
    """Elements that differ in the sparse tensors."""
    total_bytes: int
    """Bytes of all `tensors`."""
    patch_bytes: int
    """Bytes of the changes in the patch."""


@store_options.takes_keywords
def diff(
    base: Location,
    new: Location,
    out: str | os.PathLike[str],
    *,
    timeout: Duration | None = None,
    progress: bool | ProgressCallback | None = None,
    store: Store | None = None,
    follow_symlinks: bool | None = None,
    **keywords: Unpack[StoreKeywords],
) -> DeltaReport:
    """Write what differs between two checkpoints as a patch, like `tload diff`.

    Both are read once, a few pieces at a time; of patches above 1 GiB, changed tensors are read
    again. Files that are no weights are not compared.

    Args:
        base: The checkpoint that readers of the patch have, as a path or URL: see `tload.open`.
        new: The checkpoint that they should have.
        out: The file to write, which must not exist. It appears when it is complete.
        timeout: Time that the whole call may take, as for loads. Default: `TLOAD_TIMEOUT`, else no
            limit.
        progress: `True` draws a progress bar, and a callable is called with a `Progress`, as in
            `tload.stream`. An exception that it raises stops the call. Default: no progress.
        store: Options of the object stores: see `tload.open`.
        follow_symlinks: Allow symbolic links that lead out of a directory: see `tload.open`.
        **keywords: Keys of `store`: see `tload.open`.

    Returns:
        What differs.

    Raises:
        InvalidRequestError: `out` exists.
        UnsupportedError: Two files of `new` have the same name, or a tensor is called as those that
            patches have themselves.
        OutOfMemoryError: The disk has too little free space.
        Error: Any failure to read: see `tload.open` and `tload.stream`.

    Examples:
        >>> tload.diff("s3://bucket/step-7", "s3://bucket/step-8", "step-8.safetensors")
    """
    check_location("base", base)
    check_location("new", new)
    store = store_options.take(store, keywords)
    options = _options(timeout)
    first, second = (open_raw(source, store, timeout, follow_symlinks=follow_symlinks) for source in (base, new))
    with spans.around("tload.diff"), shown(progress) as show:
        return _report(_tload.patch_files(first, second, out, options=options, progress=show, differs=True))


@store_options.takes_keywords
def apply(
    base: Source,
    patch: Source,
    out: str | os.PathLike[str],
    *,
    timeout: Duration | None = None,
    progress: bool | ProgressCallback | None = None,
    store: Store | None = None,
    follow_symlinks: bool | None = None,
    **keywords: Unpack[StoreKeywords],
) -> DeltaReport:
    """Write the checkpoint that a patch makes of its base to a directory, like `tload apply`.

    Its files are byte for byte those that the patch was made from. The SHA-256 of every tensor is
    compared, before and after. `base` is never changed, and nothing is left of a call that fails.

    Args:
        base: The checkpoint that the patch was made for: see `tload.open`.
        patch: The patch.
        out: The directory to write, which must not exist. It appears when it is complete.
        timeout: As in `tload.diff`.
        progress: As in `tload.diff`.
        store: As in `tload.diff`.
        follow_symlinks: As in `tload.diff`.
        **keywords: As in `tload.diff`.

    Returns:
        What has changed.

    Raises:
        CorruptError: `base` is not what the patch was made for, or values of the patch are damaged.
        FormatError: `patch` is no patch, or contradicts itself.
        InvalidRequestError: `out` exists.
        UnsupportedError: The patch is of another version.
        OutOfMemoryError: The disk has too little free space.
        Error: Any failure to read: see `tload.open` and `tload.stream`.

    Examples:
        >>> tload.apply("step-7", "s3://bucket/step-8.safetensors", "step-8")
    """
    store = store_options.take(store, keywords)
    options = _options(timeout)
    sources = (base, patch)
    # Those of the other source, if that is a location.
    is_for_other = any(not isinstance(source, Opened) for source in sources)
    first, second = (
        open_raw(
            source,
            None if is_for_other and isinstance(source, Opened) else store,
            timeout,
            follow_symlinks=follow_symlinks,
        )
        for source in sources
    )
    with spans.around("tload.apply"), shown(progress) as show:
        return _report(_tload.patch_files(first, second, out, options=options, progress=show, differs=False))


@store_options.takes_keywords
def apply_into(
    target: torch.nn.Module | Mapping[str, torch.Tensor] | Mapping[str, npt.NDArray[Any]],
    patch: Source,
    *,
    timeout: Duration | None = None,
    progress: bool | ProgressCallback | None = None,
    store: Store | None = None,
    follow_symlinks: bool | None = None,
    **keywords: Unpack[StoreKeywords],
) -> DeltaReport:
    """Apply a patch to tensors in host memory, in place, by name.

    Before the first byte is written, the patch is read, and the SHA-256 of every tensor that it
    knows is compared, as it is and as it will be. A patch of at most 1 GiB is then in memory, so
    that an error means that nothing was written; a larger one is read again, and an error of that
    says how many tensors were written. After Ctrl-C and a timeout, too, the call returns when
    nothing uses the tensors any more, and either nothing or all of such a patch is written.

    Tensors with the same memory, such as tied weights, are changed once.

    Args:
        target: A `torch.nn.Module` (the tensors of its `state_dict`), or a mapping of names to
            torch tensors or numpy arrays: contiguous, in host memory, and with the bytes of the
            checkpoint that the patch was made for. Names that the patch does not know stay as they
            are. No other code may use them until this function returns.
        patch: The patch: see `tload.open`.
        timeout: As in `tload.diff`.
        progress: As in `tload.diff`.
        store: As in `tload.diff`.
        follow_symlinks: As in `tload.diff`.
        **keywords: As in `tload.diff`.

    Returns:
        What has changed.

    Raises:
        CorruptError: A tensor is not that which the patch was made for, or values of the patch are
            damaged.
        FormatError: `patch` is no patch, or contradicts itself.
        NoSuchTensorError: The patch changes a tensor that `target` lacks.
        InvalidRequestError: Tensors share a part of their memory, or the same memory would change
            in two ways; or a value is no tensor with writable memory.
        UnsupportedError: The patch adds or removes tensors, or changes dtypes or shapes; a tensor is
            on a GPU or not contiguous; or the patch is of another version.
        TypeError: `target` is neither a module nor a mapping of names.
        Error: Any failure to read: see `tload.open` and `tload.stream`.

    Examples:
        >>> state = tload.load("step-7", writable=True)
        >>> tload.apply_into(state, "s3://bucket/step-8.safetensors")
    """
    store = store_options.take(store, keywords)
    options = _options(timeout)
    targets = by_name(target)
    opened = open_raw(patch, store, timeout, follow_symlinks=follow_symlinks)
    with spans.around("tload.apply_into"), shown(progress) as show:
        return _report(_tload.apply_into(targets, opened, options=options, progress=show))


def _options(timeout: Duration | None) -> Options:
    limits = OptionKeywords(timeout=timeout)
    return resolve(None, limits, variables=limits)


def _report(text: str) -> DeltaReport:
    report: DeltaReport = decode(DeltaReport, json.loads(text))
    return report
