"""Lists and copies models in object stores, and shares local copies between processes."""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import tload
from tload import InvalidRequestError
from tload._sources.opened import show
from tload.compat.runai import environment
from tload.compat.runai.stores import Kind, folder_url, kind_of, matches

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import IO, ClassVar, Self

    from tload.compat.runai.stores import S3Credentials


def list_safetensors(path: str, s3_credentials: S3Credentials | None = None) -> list[str]:
    """Return the `*.safetensors` files directly below a directory or prefix.

    They are paths or URLs, sorted by name. The files are not opened.

    Args:
        path: A directory, `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`.
        s3_credentials: Options of S3. Default: from the environment.

    Raises:
        NotImplementedError: The path is a URL of another kind.
        Error: A store cannot be listed: any failure of `tload.list_files`.
    """
    if kind_of(path) is Kind.FILE:
        if "://" in path:
            message = f"{show(path)}: only directories and object stores (s3://, gs:// or az://) can be listed"
            raise NotImplementedError(message)
        return sorted(glob.glob(os.path.join(glob.escape(path), "*.safetensors")))  # noqa: PTH118, PTH207
    return [url for url, _ in list_objects(path, s3_credentials, recursive=False) if url.endswith(".safetensors")]


def list_objects(
    path: str, s3_credentials: S3Credentials | None = None, *, recursive: bool = True
) -> list[tuple[str, int]]:
    """Return the URLs, sorted by key, and bytes of the objects (directly) below a prefix."""
    folder = folder_url(path)
    found = tload.list_files(folder, store=environment.store(kind_of(path), s3_credentials))
    # Listings of stores have lengths, too.
    return [(f"{folder}{name}", size or 0) for name, size in found if recursive or "/" not in name]


def is_wanted(text: str, allow: Sequence[str] | None, ignore: Sequence[str] | None) -> bool:
    """Return whether a whole key or path matches a pattern of `allow`, and none of `ignore`."""
    return (allow is None or matches(text, allow)) and not matches(text, ignore or ())


def pull_files(
    model_path: str,
    dst: str,
    allow_pattern: list[str] | None = None,
    ignore_pattern: list[str] | None = None,
    s3_credentials: S3Credentials | None = None,
) -> None:
    """Copy the files below a prefix of an object store, at all depths, into a directory.

    Many requests run in parallel.

    Files appear under their names once they are complete. Files with the same length and
    modification time are skipped, and an interrupted copy is resumed. If there are no files to
    copy, nothing happens. A key that would be written outside of the directory is an error before
    anything is written.

    Args:
        model_path: `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`.
        dst: The directory to copy to. It is created if it does not exist.
        allow_pattern: Patterns, one of which must match the whole key; `*` matches `/`, too.
            Default: all.
        ignore_pattern: Patterns of whole keys to leave out. Default: none.
        s3_credentials: Options of S3. Default: from the environment.

    Raises:
        NotImplementedError: The source is not an object store.
        Error: The listing or the copy failed: any failure of `tload.list_files` and `tload.copy`.
    """
    kind = kind_of(model_path)
    if kind is Kind.FILE:
        message = f"{show(model_path)}: files can only be pulled from object stores (s3://, gs:// or az://)"
        raise NotImplementedError(message)
    folder = folder_url(model_path)
    prefix = folder.partition("://")[2].partition("/")[2]
    store = environment.store(kind, s3_credentials)
    found = tload.list_files(folder, store=store)
    names = [name for name, _ in found if is_wanted(f"{prefix}{name}", allow_pattern, ignore_pattern)]
    if names:
        tload.copy(folder, dst, names=names, hidden=True, store=store)


class ObjectStorageModel:
    """A local copy of a model, made by one of several processes while the others wait for it.

    A context manager: its end marks the copy as complete and releases the other processes. An error
    in the block leaves it unmarked, so that the next process starts over.

    Processes on one machine wait for a lock on the file `<dst>.lock` (`flock`); it need not work
    between machines that share a network file system. The mark is the file `.runai_complete`.
    runai_model_streamer uses the same lock and mark, so both packages may share a directory.

    Attributes:
        dir: The directory.

    Examples:
        >>> with ObjectStorageModel("s3://bucket/model", "/cache/model") as model:
        ...     model.pull_files(ignore_pattern=["*.safetensors"])
    """

    SENTINEL_NAME: ClassVar[str] = ".runai_complete"

    def __init__(self, model_path: str, dst: str, s3_credentials: S3Credentials | None = None) -> None:
        """Wait for the lock. A directory without the mark is emptied.

        Args:
            model_path: `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`.
            dst: The directory.
            s3_credentials: Options of S3. Default: from the environment.

        Raises:
            ValueError: The source is not an object store, or the directory is the root directory or
                has no name.
            OSError: The lock cannot be taken, or the directory cannot be made or emptied.
        """
        if kind_of(model_path) is Kind.FILE:
            message = f"{show(model_path)} is not in an object store: wanted a URL of s3://, gs:// or az://"
            raise InvalidRequestError(message)
        # A lock in the directory would be deleted with it.
        self.dir = dst.rstrip("/")
        # Its contents are deleted.
        if not self.dir or Path(self.dir).resolve() == Path("/"):
            message = f"dst is {dst!r}: wanted a directory for the model, other than the root directory"
            raise InvalidRequestError(message)
        self._model_path = f"{model_path.rstrip('/')}/"
        self._credentials = s3_credentials
        self._mark = Path(self.dir, self.SENTINEL_NAME)
        self._lock: IO[str] | None = Path(f"{self.dir}.lock").open("a")  # noqa: SIM115  # `_release` closes it
        try:
            self._skip = self._await_copy()
        except BaseException:
            # Also on Ctrl-C: other processes wait.
            self._release()
            raise

    def pull_files(self, allow_pattern: list[str] | None = None, ignore_pattern: list[str] | None = None) -> None:
        """Copy files into the directory unless the copy is already complete: see `pull_files`.

        May be called again.
        """
        if not self._skip:
            pull_files(self._model_path, self.dir, allow_pattern, ignore_pattern, self._credentials)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None and not self._skip:
                self._complete()
        finally:
            self._release()

    def __del__(self) -> None:
        if hasattr(self, "_lock"):
            self._release()

    def _await_copy(self) -> bool:
        """Take the lock, and return whether the copy is complete: then it may be shared."""
        lock = self._lock
        assert lock is not None  # noqa: S101  # opened just before
        fcntl.flock(lock, fcntl.LOCK_SH)
        if self._mark.exists():
            return True
        # Not upgraded from shared to exclusive in one step: two processes would deadlock.
        fcntl.flock(lock, fcntl.LOCK_UN)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if self._mark.exists():
            fcntl.flock(lock, fcntl.LOCK_SH)
            return True
        if Path(self.dir).exists():
            shutil.rmtree(self.dir)
        Path(self.dir).mkdir(parents=True)
        return False

    def _complete(self) -> None:
        if not any(path != self._mark for path in Path(self.dir).iterdir()):
            message = f"{self.dir}: no files were copied from {show(self._model_path)}"
            raise RuntimeError(f"{message}\n  hint: check the path and the patterns")
        try:
            self._mark.touch()
        except OSError as error:
            message = f"{self._mark}: cannot be written, so the copy counts as incomplete: {error.strerror}"
            raise RuntimeError(message) from error

    def _release(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            # Closing releases the lock, unless a child process has the file open, too.
            with lock:
                fcntl.flock(lock, fcntl.LOCK_UN)
