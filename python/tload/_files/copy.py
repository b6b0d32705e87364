"""Copies of checkpoint directories to disks and object stores, and file listings."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tload import _tload
from tload._load.selection import texts
from tload._options import store_options
from tload._options.keywords import OptionKeywords
from tload._options.load_options import resolve
from tload._report import spans
from tload._report.decode import decode
from tload._report.progress import shown
from tload._sources.locations import check_location

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Unpack

    from tload._options.keywords import StoreKeywords
    from tload.typing import Duration, Location, Names, ProgressCallback, Size, Store

STORES = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gs",
    "gcs": "gs",
    "az": "az",
    "azure": "az",
    "adl": "az",
    "abfs": "az",
    "abfss": "az",
}
"""Kind of the store that can be copied to, for each scheme."""


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """Step that a copy would take for one file."""

    name: str
    """Path below the source and below the target."""
    action: str
    """`"copy"`, `"resume"` (the missing bytes), or `"skip"` (it was copied before)."""
    bytes: int
    """Length in bytes."""
    resumed_bytes: int
    """Bytes of these that an earlier copy has fetched."""


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """Steps that a copy would take, from `dry_run=True`."""

    files: tuple[PlannedFile, ...]
    """Files by name."""
    needed_bytes: int
    """Bytes of disk space that the copy would need in addition."""
    free_bytes: int | None
    """Bytes of disk space that are free at the target, or `None` if its file system does not say."""


@dataclass(frozen=True, slots=True)
class CopyReport:
    """Statistics of one `tload.copy`. With `dry_run=True`, they say what the copy would do."""

    location: str
    """The source, without secrets."""
    target: str
    """The target directory or prefix, without secrets."""
    copied_files: int
    """Files that this copy completed."""
    copied_bytes: int
    """Bytes that this copy read."""
    resumed_bytes: int
    """Bytes that earlier, interrupted copies had already written."""
    skipped_files: int
    """Files that were skipped because they were already there."""
    skipped_bytes: int
    """Bytes of the skipped files."""
    requests: int
    """Requests to object stores, not counting list requests."""
    retries: int
    """Requests that were retried."""
    unversioned_files: int
    """Copied files whose store sends neither ETag nor Last-Modified (store option
    `allow_unversioned`)."""
    unusable: tuple[str, ...]
    """Names at the source that cannot be those of files in a directory, and were left out: keys of
    stores with empty components, dots or control characters, names that are not UTF-8, names that
    are too long for the target's file system (files in progress have 24 bytes more), and files with
    the name of a folder."""
    seconds: float
    """Seconds from the call to the last byte on disk."""
    plan: CopyPlan | None = None
    """Steps of the copy, file by file, with `dry_run=True`, else `None`."""


class ListedFile(NamedTuple):
    """A file that `tload.list_files` found."""

    path: str
    """Path below the source; for a file, its name."""
    nbytes: int | None
    """Length in bytes, or `None` where only opening the file would tell."""


@store_options.takes_keywords
def copy(
    source: Location,
    target: str | os.PathLike[str],
    *,
    names: Iterable[str] | None = None,
    include: Names | None = None,
    exclude: Names | None = None,
    hidden: bool = False,
    force: bool = False,
    skip_unusable: bool = False,
    dry_run: bool = False,
    depth: int | None = None,
    extent_bytes: Size | None = None,
    timeout: Duration | None = None,
    progress: bool | ProgressCallback | None = None,
    store: Store | None = None,
    target_store: Store | None = None,
    **keywords: Unpack[StoreKeywords],
) -> CopyReport:
    """Copy a directory with all files below it, or one file, to a directory or store, like `tload cp`.

    A file appears under its name only once it is complete and on disk. A copy resumes an
    interrupted one without requesting its bytes again; one that was killed has lost the last few
    seconds of its progress. A model of the Hugging Face Hub whose files are all in the hub's cache
    is copied from there, without requests. Files from an earlier copy are skipped if
    neither they nor their sources have changed since: each has a record of its source, in the
    extended attribute `user.tload.copied`, or in a hidden file `.NAME.tload-copied` where the file
    system has no such attributes.

    A prefix of an object store has to be empty, as files keep their names there. Indexes appear
    last, or the weights if there is no index. An object `.tload-write` keeps other writers off, and
    is what an interrupted copy resumes from; a complete copy leaves the record `.tload-copied`.

    Args:
        source: A path or URL: see `tload.open`.
        target: The directory to copy to, which is created if it does not exist; or the URL of a
            prefix in S3, Google Cloud Storage or Azure.
        names: Copy exactly the files at these paths below the source, hidden or not. Default: all.
        include: Globs, one of which must match a file's path below the source, or its last
            component. Default: all.
        exclude: Globs of files to leave out. Default: none.
        hidden: Include files and directories whose names begin with a dot. Default: `False`.
        force: Copy files again that an earlier copy has finished, and restart partly copied ones.
            Default: `False`.
        skip_unusable: Succeed although names that cannot be those of files were left out: see
            `unusable` of the report. Otherwise the copy raises an error that names them, after it
            has copied everything else. Default: `False`.
        dry_run: Write nothing, and create no directory: `plan` of the report says what would be
            copied, resumed and skipped, and the disk space that is needed and free. Default:
            `False`.
        depth: Concurrent requests (for local files: reads), 1 to 4096. Default: `TLOAD_DEPTH`,
            else 16.
        extent_bytes: Maximum bytes of one request, as for loads. Default: `TLOAD_EXTENT`, else 16
            MiB.
        timeout: Time that the whole call may take, as for loads. What has arrived is kept for
            the next copy. Default: `TLOAD_TIMEOUT`, else no limit.
        progress: `True` draws a progress bar, and a callable is called with a `Progress`, as in
            `tload.stream`. An exception that it raises stops the copy. Default: no progress.
        store: Options of the object store: see `tload.open`. With two stores of one kind, of both.
        target_store: Options of the target's store. Default: those of `store`, unless the source is
            in a store of another kind.
        **keywords: Keys of `store`: see `tload.open`.

    Returns:
        The statistics of the copy.

    Raises:
        NotFoundError: The source does not exist, or none of its files is selected.
        PermissionDeniedError: The source may not be read, or the target may not be written.
        InvalidRequestError: A pattern or number is invalid, or names were left out because they
            cannot be those of files (see `skip_unusable`).
        OutOfMemoryError: The disk has too little free space.
        LoadTimeoutError: It took longer than `timeout`. The hint says how much is kept.
        ChangedError, RemoteError, IoError: While copying.

    Examples:
        >>> tload.copy("s3://bucket/model", "model", progress=True, timeout="10m")
        >>> tload.copy("model", "s3://bucket/copy")
    """
    check_location("source", source)
    store = store_options.take(store, keywords)
    limits = OptionKeywords(depth=depth, extent_bytes=extent_bytes, timeout=timeout)
    options = resolve(None, limits, variables=limits)
    with spans.around("tload.copy") as describe, shown(progress) as show:
        report = _tload.copy(
            source,
            target,
            names=None if names is None else texts("names", names),
            include=texts("include", include),
            exclude=texts("exclude", exclude),
            hidden=hidden,
            force=force,
            skip_unusable=skip_unusable,
            dry_run=dry_run,
            options=options,
            store=store_options.resolve(source, store, os.environ),
            target_store=_of_target(source, store, target, target_store),
            progress=show,
        )
        decoded: CopyReport = decode(CopyReport, json.loads(report))
        for key in ("location", "target", "copied_bytes", "resumed_bytes", "skipped_bytes", "requests", "retries"):
            describe(key, getattr(decoded, key))
    return decoded


def _of_target(
    source: Location, store: Store | None, target: str | os.PathLike[str], target_store: Store | None
) -> list[tuple[str, str]] | None:
    """Return the options of the store that is copied to; `None` for a directory."""
    scheme = _scheme(target)
    if scheme not in STORES:
        return None
    of_source = _scheme(source)
    if target_store is None and (not of_source or STORES.get(of_source) == STORES[scheme]):
        target_store = store
    return store_options.resolve(target, target_store, os.environ)


def _scheme(location: Location) -> str:
    scheme, separator, _ = os.fspath(location).partition("://")
    return scheme.lower() if separator else ""


@store_options.takes_keywords
def list_files(source: Location, *, store: Store | None = None, **keywords: Unpack[StoreKeywords]) -> list[ListedFile]:
    """List all files below a location, hidden ones too, by name.

    Names that cannot be those of files (see `tload.copy`) are left out.

    Args:
        source: A path or URL: see `tload.open`. Web servers list nothing: there it is what an index
            names, and what usually lies beside it.
        store: Options of the object store: see `tload.open`.
        **keywords: Keys of `store`: see `tload.open`.

    Returns:
        Paths and lengths: tuples `(path, nbytes)`. Nothing for a prefix of a store that no object
        begins with.

    Raises:
        NotFoundError: A path is not there.
        PermissionDeniedError, RemoteError, LoadTimeoutError, IoError: It cannot be listed.
    """
    check_location("source", source)
    store = store_options.take(store, keywords)
    pairs = store_options.resolve(source, store, os.environ)
    return [ListedFile._make(row) for row in _tload.list_files(source, store=pairs)]
