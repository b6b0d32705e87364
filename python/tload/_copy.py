"""Copies of checkpoint directories to disk, and file listings."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tload import _store, _tload
from tload._selection import texts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tload._checkpoint import Location
    from tload._selection import Names
    from tload._store import Store


@dataclass(frozen=True, slots=True)
class CopyReport:
    """Statistics of one `tload.copy`."""

    location: str
    """The source, without secrets."""
    target: str
    """The target directory."""
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
    seconds: float
    """Seconds from the call to the last byte on disk."""


class ListedFile(NamedTuple):
    """A file that `tload.list_files` found."""

    path: str
    """Path below the source; for a file, its name."""
    nbytes: int | None
    """Length in bytes, or `None` where only opening the file would tell."""


def copy(
    source: Location,
    target: str | os.PathLike[str],
    *,
    names: Iterable[str] | None = None,
    include: Names | None = None,
    exclude: Names | None = None,
    hidden: bool = False,
    force: bool = False,
    depth: int | None = None,
    store: Store | None = None,
) -> CopyReport:
    """Copy a directory with all files below it, or one file, to a local directory, like `tload cp`.

    A file appears under its name only once it is complete and on disk. A copy resumes an
    interrupted one without requesting its bytes again. Files from an earlier copy are skipped if
    neither they nor their sources have changed since: each has a record of its source, in the
    extended attribute `user.tload.copied`, or in a hidden file `.NAME.tload-copied` where the file
    system has no such attributes.

    Args:
        source: A path or URL: see `tload.open`.
        target: The directory to copy to. It is created if it does not exist.
        names: Copy exactly the files at these paths below the source, hidden or not. Default: all.
        include: Globs, one of which must match a file's path below the source, or its last
            component. Default: all.
        exclude: Globs of files to leave out. Default: none.
        hidden: Include files and directories whose names begin with a dot. Default: `False`.
        force: Replace files that are already there, and restart files that are partly copied.
            Default: `False`.
        depth: Concurrent requests (for local files: reads), 1 to 4096. Default: 16.
        store: Options of the object store: see `tload.open`.

    Returns:
        The statistics of the copy.

    Raises:
        NotFoundError: The source does not exist, or none of its files is selected.
        PermissionDeniedError: The source may not be read, or the target may not be written.
        InvalidRequestError: A pattern or number is invalid, or a name leads out of the target.
        OutOfMemoryError: The disk has too little free space.
        ChangedError, RemoteError, LoadTimeoutError, IoError: While copying.
    """
    report = _tload.copy(
        source,
        target,
        names=None if names is None else texts("names", names),
        include=texts("include", include),
        exclude=texts("exclude", exclude),
        hidden=hidden,
        force=force,
        depth=depth,
        store=_store.resolve(store, os.environ),
    )
    return CopyReport(**json.loads(report))


def list_files(source: Location, *, store: Store | None = None) -> list[ListedFile]:
    """List all files below a location, hidden ones too, by name.

    Args:
        source: A path or URL: see `tload.open`. Web servers list nothing: there it is what an index
            names, and what usually lies beside it.
        store: Options of the object store: see `tload.open`.

    Returns:
        Paths and lengths: tuples `(path, nbytes)`. Nothing for a prefix of a store that no object
        begins with.

    Raises:
        NotFoundError: A path is not there.
        PermissionDeniedError, RemoteError, LoadTimeoutError, IoError: It cannot be listed.
    """
    return [ListedFile._make(row) for row in _tload.list_files(source, store=_store.resolve(store, os.environ))]
